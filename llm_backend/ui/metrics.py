"""What `/metrics` tells, in the Prometheus text format.

Counters since the start of this process; the engine's state and queue are read when the page is asked
for. Labels have few values: no run, chat, person or text is ever one.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from llm_backend.compare import Comparison
from llm_backend.run import Run
from llm_backend.scoring import CheckVerdict

log = logging.getLogger(__name__)

_registry = CollectorRegistry()
_runs = Counter("encore_runs", "Runs that ended.", ("kind", "status"), registry=_registry)
_tokens = Counter("encore_completion_tokens", "Tokens generated.", registry=_registry)
_verdicts = Counter("encore_verdicts", "Replays compared.", ("verdict",), registry=_registry)
_checks = Counter("encore_checks", "Instant checks.", ("verdict",), registry=_registry)
_ttft = Histogram(
    "encore_time_to_first_token_seconds",
    "From sending a request to its first token.",
    buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120),
    registry=_registry,
)
_speed = Histogram(
    "encore_tokens_per_second",
    "Of one run, from its first token to its last.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
    registry=_registry,
)
_active = Gauge("encore_active_runs", "Work that chats of this process have under way.", registry=_registry)
_state = Gauge("encore_engine_state", "1 for the state the engine is in.", ("state",), registry=_registry)
_running = Gauge("encore_engine_running", "Requests the engine is generating for.", registry=_registry)
_waiting = Gauge("encore_engine_waiting", "Requests the engine has not begun.", registry=_registry)

STATES = ("ready", "loading", "unreachable", "dead")


def count_run(run: Run) -> None:
    """Call once for every run that has ended, however it ended; the log gets a line, without any text."""
    log.info(
        "run ended",
        extra={
            "run": run.id,
            "digest": run.digest,
            "kind": run.kind,
            "status": run.status,
            "tokens": run.completion_tokens,
            "ttft_s": run.ttft_s,
            "duration_s": run.duration_s,
            "engine": run.engine_url,
        },
    )
    _runs.labels(run.kind, run.status).inc()
    _tokens.inc(run.completion_tokens or 0)
    if run.ttft_s is None:
        return
    _ttft.observe(run.ttft_s)
    if run.tokens_per_second is not None:
        _speed.observe(run.tokens_per_second)


def count_comparison(comparison: Comparison, candidate: Run) -> None:
    """Call once for every replay that was compared."""
    log.info(
        "replay compared",
        extra={
            "run": candidate.id,
            "digest": candidate.digest,
            "reference": candidate.reference_run_id,
            "verdict": comparison.verdict.value,
        },
    )
    _verdicts.labels(comparison.verdict.value).inc()


def count_check(verdict: CheckVerdict) -> None:
    _checks.labels(verdict.value).inc()


def exposition(*, active: int, state: str, running: int | None, waiting: int | None) -> bytes:
    """The page Prometheus reads. `running` and `waiting` are NaN where the engine does not say."""
    _active.set(active)
    for name in STATES:
        _state.labels(name).set(name == state)
    _running.set(float("nan") if running is None else running)
    _waiting.set(float("nan") if waiting is None else waiting)
    return generate_latest(_registry)

"""Counters for `/metrics`, in the Prometheus text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from llm_backend.compare import Comparison
from llm_backend.run import Run

_registry = CollectorRegistry()
_runs = Counter("encore_runs", "Runs that ended.", ("kind", "status"), registry=_registry)
_tokens = Counter("encore_completion_tokens", "Tokens generated.", registry=_registry)
_verdicts = Counter("encore_verdicts", "Replays compared.", ("verdict",), registry=_registry)
_ttft = Histogram(
    "encore_time_to_first_token_seconds",
    "From sending a request to its first token.",
    buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120),
    registry=_registry,
)


def count_run(run: Run) -> None:
    """Call once for every run that has ended, however it ended."""
    _runs.labels(run.kind, run.status).inc()
    _tokens.inc(run.completion_tokens or 0)
    if run.ttft_s is not None:
        _ttft.observe(run.ttft_s)


def count_comparison(comparison: Comparison) -> None:
    _verdicts.labels(comparison.verdict.value).inc()


def exposition() -> bytes:
    """The page Prometheus reads."""
    return generate_latest(_registry)

"""How thoroughly an engine is verified: what is asked, how often, beside whom, and how long it will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from llm_backend.baseline import Baseline
from llm_backend.diagnose import Evidence
from llm_backend.engine.client import EngineClient
from llm_backend.receipt import EngineFingerprint, Message, Sampling
from llm_backend.store import Run
from llm_backend.suites import Suite
from llm_backend.tally import Shape
from llm_backend.verification import Level

Relaunch = Callable[[], AbstractAsyncContextManager[EngineClient]]
"""Starts a second engine of the same plan, and ends it with the block. Raises `LaunchError`."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to verify with: a question to ask first, or a run that is already recorded."""

    name: str
    messages: tuple[Message, ...]
    sampling: Sampling
    run: Run | None = None


def targets_of(suite: Suite) -> tuple[Target, ...]:
    """A suite's cases, to be asked."""
    return tuple(Target(name, prompt.messages, sampling) for name, prompt, sampling in suite.cases())


@dataclass(frozen=True, slots=True)
class Plan:
    """How thoroughly to verify."""

    suite: str
    targets: tuple[Target, ...]
    times: int
    counts: tuple[int, ...]
    shape: Shape
    level: Level
    chosen: Evidence
    """Who chose `times` and `counts`, and why."""
    relaunch: Relaunch | Evidence
    """How to start a second engine, or why there is none."""
    anonymous: bool = False
    """An engine that does not tell all of its facts is accepted: its identity is then not applicable."""
    baseline: Baseline | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """How often and among how many neighbours to replay when nobody said."""

    times: int
    counts: tuple[int, ...]
    evidence: Evidence


def choose(engine: EngineFingerprint, *, quick: bool) -> Choice:
    """What this engine can take in a time people wait for: few and small on a CPU."""
    counts: tuple[int, ...]
    if engine.device == "cpu" or engine.max_num_seqs == 1:
        times, counts, key = 2 if quick else 3, (0, 7), "verify.chosen.small"
    else:
        times, counts, key = 3 if quick else 10, (0, 31) if quick else (0, 7, 31, 63), "verify.chosen.wide"
    if engine.max_num_seqs is not None and 1 < engine.max_num_seqs <= max(counts):
        counts = tuple(count for count in counts if count < engine.max_num_seqs)
    listed = ", ".join(str(count) for count in counts)
    return Choice(times, counts, Evidence(key=key, values={"times": times, "counts": listed}))


class Pace:
    """Seconds an answer takes by number of neighbours, learned on the way."""

    def __init__(self, to_do: Counter[int]) -> None:
        self._to_do = to_do
        self._taken: dict[int, list[float]] = {}

    def done(self, count: int, seconds: float) -> None:
        self._to_do[count] -= 1
        self._taken.setdefault(count, []).append(seconds)

    def skip(self, count: int, answers: int) -> None:
        self._to_do[count] -= answers

    def left(self) -> float | None:
        """Seconds; a load not tried yet is taken to cost what the slowest one did. None when nothing is
        known."""
        mean = {count: sum(taken) / len(taken) for count, taken in self._taken.items()}
        if not mean:
            return None
        slowest = max(mean.values())
        return sum(max(0, answers) * mean.get(count, slowest) for count, answers in self._to_do.items())

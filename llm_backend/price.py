"""What a profile or a flag costs: measured speeds, put beside those of `fast` from the same session.

Speeds of two machines, versions or days say nothing about a flag. A ratio here is always of two medians
measured in turns, minutes apart, on one machine; the figures carry the machine, versions and date.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from llm_backend.receipt import EngineFingerprint, Frozen

BASELINE: Literal["fast"] = "fast"


class Sample(Frozen):
    """One measured request."""

    neighbours: int
    ttft_s: float
    """Seconds to the first token, of a prompt that is not cached; with neighbours, waiting included."""
    ttft_again_s: float | None = None
    """The same prompt sent once more; None with neighbours."""
    tokens_per_second: float
    """Of this one request. Alone: tokens after the first over the time after the first. Among neighbours:
    all its tokens over all its time, waiting included."""
    total_per_second: float
    """Of this request and its neighbours together, meanwhile."""
    neighbours_seen: int = 0
    """The most neighbours that were producing tokens meanwhile."""


class Spread(Frozen):
    """Figures of one kind."""

    n: int
    median: float
    least: float
    most: float


class Measured(Frozen):
    """One engine: what was changed in it, and how it did."""

    name: str
    """`strict`, or a flag: `strict` and `fast` are profiles, every other name is `fast` with that changed."""
    changed: dict[str, str | None] = Field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    baseline: tuple[Sample, ...] = ()
    """Of `fast`, measured in turns with these samples."""
    start_seconds: float | None = None
    memory_bytes: int | None = None
    failure: str = ""
    """Why it did not start, or broke off."""


class Machine(Frozen):
    """Where and with what it was measured; None is unknown."""

    device: Literal["cpu", "cuda"]
    names: tuple[str, ...] = ()
    """The CPU or the GPUs."""
    cores: int | None = None
    model: str = ""
    vllm_version: str | None = None
    torch_version: str | None = None
    encore_version: str = ""


class Bench(Frozen):
    """One session."""

    machine: Machine
    measured_at: datetime
    prompt_tokens: int | None = None
    tokens: int
    """Of each measured answer."""
    times: int
    neighbours: tuple[int, ...]
    engines: tuple[Measured, ...] = ()
    not_measured: dict[str, str] = Field(default_factory=dict)
    """Flags that this device cannot take, with a key of `bench.why.…`."""
    interleaved: bool = True
    """Every engine was measured in turns with `fast`; else `fast` was measured before."""
    complete: bool = False


Figure = Literal["tokens_per_second", "total_per_second", "ttft_s", "ttft_again_s"]


def spread(samples: Sequence[Sample], figure: Figure, neighbours: int) -> Spread | None:
    """Median and range of one figure with this many neighbours; None where nothing was measured."""
    values = [
        value
        for sample in samples
        if sample.neighbours == neighbours and (value := getattr(sample, figure)) is not None
    ]
    if not values:
        return None
    return Spread(n=len(values), median=statistics.median(values), least=min(values), most=max(values))


def ratio(measured: Measured, figure: Figure, neighbours: int) -> float | None:
    """The engine's median over that of `fast` in the same turns; None where one of them is missing."""
    own = spread(measured.samples, figure, neighbours)
    base = spread(measured.baseline, figure, neighbours)
    return own.median / base.median if own and base and base.median else None


def applies_to(bench: Bench, engine: EngineFingerprint) -> bool:
    """Whether the figures are of this machine, model and version of vLLM."""
    machine = bench.machine
    names = (engine.cpu_model,) if engine.device == "cpu" else engine.device_names
    return (machine.device, machine.names, machine.model, machine.vllm_version) == (
        engine.device,
        tuple(name for name in names if name),
        engine.model,
        engine.vllm_version,
    )


def of_profile(bench: Bench, profile: str | None) -> Measured | None:
    """The profile's own row, None if it was not measured or did not start."""
    rows = (row for row in bench.engines if row.name == profile and not row.changed)
    return next((row for row in rows if row.samples), None)


def of_setting(bench: Bench, name: str, value: str | None) -> Measured | None:
    """What this one flag or variable with this value cost `fast`, None if that was not measured."""
    rows = (row for row in bench.engines if row.changed == {name: value})
    return next((row for row in rows if row.samples), None)


def loads(bench: Bench) -> tuple[int, ...]:
    """Numbers of neighbours that were measured, none first."""
    return (0, *sorted(set(bench.neighbours) - {0}))

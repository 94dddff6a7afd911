"""Measures what each profile and each flag costs on this machine, against `fast` in the same session.

The engines are Encore's own (`variant`): what is running is left alone, and had better be idle. Where two
engines fit, each is measured in turns with a `fast` one beside it, so that whatever else slows the
machine down slows both. Cancelling ends the session; `Session.report` has what was measured until then.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from llm_backend import __version__
from llm_backend.altered import with_cache_salt, with_max_tokens
from llm_backend.config import Settings
from llm_backend.engine.alternatives import NAMES, alternative
from llm_backend.engine.alternatives import Machine as Choices
from llm_backend.engine.client import EngineClient
from llm_backend.engine.gpu import usable_gpus
from llm_backend.engine.prepare import choose_device, launch_values
from llm_backend.engine.profiles import Device, Profile, Row, rows
from llm_backend.errors import EngineError, EngineInterrupted, LaunchError, SettingsError
from llm_backend.load import FILLER, FILLER_TIMES, neighbours
from llm_backend.price import BASELINE, Bench, Machine, Measured, Sample
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Message, Sampling
from llm_backend.record import build_request
from llm_backend.tally import Shape
from llm_backend.variant import OwnedEngine, Say, Variant, engine_variant

FLAGS: dict[Device, tuple[str, ...]] = {
    "cpu": ("prefix_caching", "max_num_seqs=1", "dtype=float32", "eager"),
    "cuda": (
        "batch_invariance=TRITON_ATTN",
        "batch_invariance=FLASH_ATTN",
        "eager",
        "flashinfer_sampler",
        "prefix_caching",
        "max_num_seqs=1",
        "max_num_seqs=8",
        "max_num_seqs=64",
        "strict_plugin",
    ),
}
"""Measured unless others are named. Each is `fast` with that changed, `strict_plugin` is `strict` without."""

NEIGHBOURS: dict[Device, tuple[int, ...]] = {"cpu": (8,), "cuda": (8, 32)}
TOKENS: dict[Device, int] = {"cpu": 32, "cuda": 256}
"""Of each measured answer, by default: a CPU bench should take minutes."""

PLUGIN_SWITCH = "ENCORE_STRICT_GEMM"
"""The variable of the strict profile that loads its plugin."""

PROMPT = FILLER * FILLER_TIMES + "Write a long story about the boats."

ROOM_FOR_TWO = 0.45
"""Share of a GPU's memory up to which two engines fit on it."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure; None means this device's default."""

    profiles: tuple[Profile, ...] = ("fast", "strict")
    flags: tuple[str, ...] | None = None
    tokens: int | None = None
    times: int = 3
    neighbours: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """Where a session stands."""

    name: str
    """Of the engine that is measured or started."""
    number: int
    """1-based, of `engines`."""
    engines: int
    round: int
    """1-based, of `rounds`; 0 while the engine starts."""
    rounds: int
    seconds_left: float | None
    """At the speed so far; None before the first engine is done."""


class Session:
    """`await session.run()`; `session.report` at any time, also after it was cut short.

    Raises `LaunchError` or `SettingsError` from the constructor: nothing is started then.
    """

    def __init__(
        self,
        settings: Settings,
        plan: BenchPlan,
        *,
        on_progress: Callable[[BenchProgress], None] = lambda _: None,
        say: Say = lambda _: None,
    ) -> None:
        gpus = usable_gpus(os.environ)
        self._device = choose_device(settings, gpus)
        self._settings = settings
        self._times = plan.times
        self._tokens = plan.tokens or TOKENS[self._device]
        self._counts = NEIGHBOURS[self._device] if plan.neighbours is None else plan.neighbours
        self._on_progress = on_progress
        self._say = say
        values = launch_values(settings, self._device, gpus)
        tables: dict[Profile, tuple[Row, ...]] = {
            "fast": rows("fast", self._device, values),
            "strict": rows("strict", self._device, values),
        }
        choices = Choices(self._device, len(gpus), shutil.which("g++") is not None)
        flags = FLAGS[self._device] if plan.flags is None else plan.flags
        self._variants, not_measured = _variants(
            plan.profiles, flags, tables, choices, plan.flags is not None
        )
        self._in_turns = self._device == "cpu" or settings.gpu_memory_utilization <= ROOM_FOR_TWO
        self._done: dict[str, Measured] = {}
        self._began = time.monotonic()
        self._report = Bench(
            machine=Machine(
                device=self._device,
                names=tuple(gpu.name for gpu in gpus) if self._device == "cuda" else (),
                cores=os.cpu_count(),
                encore_version=__version__,
            ),
            measured_at=datetime.now(UTC),
            tokens=self._tokens,
            times=plan.times,
            neighbours=self._counts,
            not_measured=not_measured,
            interleaved=self._in_turns,
        )

    @property
    def report(self) -> Bench:
        """What was measured until now."""
        return self._report.model_copy(update={"engines": tuple(self._done.values())})

    async def run(self) -> Bench:
        """Measure every engine; one that does not start is a row that says why."""
        async with AsyncExitStack() as beside:
            base = await self._start_baseline(beside)
            if base is not None and (len(self._variants) == 1 or not self._in_turns):
                await self._measure(base, None, 1)
                await beside.aclose()
                base = None
            for number, variant in enumerate(self._variants[1:], start=2):
                await self._measure_variant(variant, base, number)
        self._report = self._report.model_copy(update={"complete": True})
        return self.report

    async def _start_baseline(self, beside: AsyncExitStack) -> OwnedEngine | None:
        """`fast`, kept running until `beside` is closed; None if it does not start."""
        variant = self._variants[0]
        self._done[variant.name] = Measured(name=variant.name)
        try:
            base = await beside.enter_async_context(self._start(variant, 1))
            identity = await base.client.identity()
            request = await self._warm_up(base.client, identity)
        except (LaunchError, EngineError) as error:
            self._update(variant.name, failure=error.diagnostics())
            return None
        told = {"machine": self._machine(identity), "prompt_tokens": len(request.prompt_token_ids) or None}
        self._report = self._report.model_copy(update=told)
        self._update(variant.name, start_seconds=base.start_seconds)
        return base

    async def _measure_variant(self, variant: Variant, base: OwnedEngine | None, number: int) -> None:
        changed = dict(variant.changes) | dict.fromkeys(sorted(variant.without), "-")
        self._done[variant.name] = Measured(name=variant.name, changed=changed)
        try:
            async with self._start(variant, number) as engine:
                self._update(variant.name, start_seconds=engine.start_seconds)
                await self._warm_up(engine.client, await engine.client.identity())
                await self._measure(engine, base, number)
        except (LaunchError, EngineError) as error:
            self._update(variant.name, failure=error.diagnostics())

    async def _measure(self, engine: OwnedEngine, base: OwnedEngine | None, number: int) -> None:
        """`times` rounds, each after one of the baseline where that runs beside."""
        name, mine, beside = engine.variant.name, list[Sample](), list[Sample]()
        for round_ in range(1, self._times + 1):
            self._tell(name, number, round_)
            if base is not None:
                beside += await self._round(base.client)
                known = self._done[BASELINE].samples
                new = beside[-1 - len(self._counts) :]
                self._update(BASELINE, samples=(*known, *new), memory_bytes=base.memory_bytes)
            mine += await self._round(engine.client)
            baseline = tuple(beside) if base is not None else self._done[BASELINE].samples
            kept = () if name == BASELINE else baseline
            self._update(name, samples=tuple(mine), baseline=kept, memory_bytes=engine.memory_bytes)

    async def _round(self, engine: EngineClient) -> list[Sample]:
        identity = await engine.identity()
        samples = [await measure_alone(engine, identity, self._tokens)]
        for count in self._counts:
            samples.append(await measure_loaded(engine, identity, self._tokens, count))
        return samples

    async def _warm_up(self, engine: EngineClient, identity: EngineFingerprint) -> GenerationRequest:
        """The first requests after a start are slower. Returns the request with the prompt as rendered."""
        request = bench_request(identity, self._tokens)
        async with engine.stream(request) as stream:
            async for _ in stream:
                pass
        return request.model_copy(update={"prompt_token_ids": stream.fold.prompt_token_ids})

    def _start(self, variant: Variant, number: int) -> AbstractAsyncContextManager[OwnedEngine]:
        return engine_variant(
            self._settings,
            variant,
            on_phase=lambda *_: self._tell(variant.name, number, 0),
            say=self._say,
        )

    def _update(self, name: str, **known: object) -> None:
        self._done[name] = self._done[name].model_copy(update=known)

    def _machine(self, engine: EngineFingerprint) -> Machine:
        names = (engine.cpu_model,) if self._device == "cpu" else engine.device_names
        told = {
            "names": tuple(name for name in names if name),
            "model": engine.model,
            "vllm_version": engine.vllm_version,
            "torch_version": engine.torch_version,
        }
        return self._report.machine.model_copy(update=told)

    def _tell(self, name: str, number: int, round_: int) -> None:
        # Whole engines: how long the rounds of one that is still starting take, nobody knows.
        elapsed, done = time.monotonic() - self._began, number - 1
        left = elapsed / done * (len(self._variants) - done) if done else None
        self._on_progress(BenchProgress(name, number, len(self._variants), round_, self._times, left))


def _variants(
    profiles: Sequence[Profile],
    flags: Sequence[str],
    tables: dict[Profile, tuple[Row, ...]],
    choices: Choices,
    patient: bool,
) -> tuple[list[Variant], dict[str, str]]:
    """The baseline first, then the other profiles, then the flags; and the flags that cannot be."""
    variants = [Variant(BASELINE, BASELINE)]
    variants += [Variant(profile, profile) for profile in profiles if profile != BASELINE]
    obstacles: dict[str, str] = {}
    for flag in flags:
        if flag == "strict_plugin":
            if any(row.name == PLUGIN_SWITCH for row in tables["strict"]):
                variants.append(Variant(flag, "strict", without=frozenset({PLUGIN_SWITCH})))
            else:
                obstacles[flag] = "no_plugin"
            continue
        try:
            changed = alternative(flag, tables[BASELINE], choices, patient=patient)
        except ValueError:
            raise SettingsError(
                f"--flags names {flag!r}, which is none.",
                f"There are {', '.join((*NAMES, 'strict_plugin'))}, some with a value, as max_num_seqs=8.",
            ) from None
        if changed.obstacle:
            obstacles[flag] = changed.obstacle
        else:
            variants.append(Variant(flag, BASELINE, changed.changes, changed.without))
    return variants, obstacles


# -- one measurement ---------------------------------------------------------


def bench_request(engine: EngineFingerprint, tokens: int) -> GenerationRequest:
    """A greedy answer of exactly `tokens` tokens to a prompt that no cache holds."""
    sampling = Sampling(seed=1, max_tokens=tokens)
    request = build_request(engine.model, [Message(role="user", content=PROMPT)], sampling)
    body = json.loads(request.body) | {"ignore_eos": True}
    request = request.model_copy(update={"body": json.dumps(body, ensure_ascii=False)})
    return with_cache_salt(request, uuid.uuid4().hex)


async def measure_alone(engine: EngineClient, identity: EngineFingerprint, tokens: int) -> Sample:
    """One answer with nothing else running, and the time to the first token of the same prompt again."""
    request = bench_request(identity, tokens)
    timing = await _time(engine, request)
    again = await _time(engine, with_max_tokens(request, 1))
    after_first = timing.tokens - timing.first_tokens
    speed = after_first / (timing.last - timing.first) if after_first else 0.0
    return Sample(
        neighbours=0,
        ttft_s=timing.first,
        ttft_again_s=again.first,
        tokens_per_second=speed,
        total_per_second=speed,
    )


async def measure_loaded(
    engine: EngineClient, identity: EngineFingerprint, tokens: int, count: int
) -> Sample:
    """One answer among `count` neighbours that keep asking."""
    request = bench_request(identity, tokens)
    async with neighbours(engine, identity, request, count=count, shape=Shape.MIXED) as load:
        before, seen = load.tokens, 0

        def look() -> None:
            nonlocal seen
            seen = max(seen, load.decoding)

        timing = await _time(engine, request, look)
        load.check()
        total = load.tokens - before + timing.tokens
    return Sample(
        neighbours=count,
        ttft_s=timing.first,
        tokens_per_second=timing.tokens / timing.last,
        total_per_second=total / timing.last,
        neighbours_seen=seen,
    )


@dataclass(frozen=True, slots=True)
class _Timing:
    """Seconds since sending."""

    first: float
    last: float
    first_tokens: int
    """Tokens that came with the first chunk."""
    tokens: int


async def _time(
    engine: EngineClient, request: GenerationRequest, look: Callable[[], None] = lambda: None
) -> _Timing:
    began = time.monotonic()
    first = last = 0.0
    first_tokens = tokens = 0
    async with engine.stream(request) as stream:
        async for delta in stream:
            if not delta.tokens:
                continue
            last = time.monotonic() - began
            if not tokens:
                first, first_tokens = last, len(delta.tokens)
            tokens += len(delta.tokens)
            look()
    if not tokens:
        raise EngineInterrupted(0, "it generated no token")
    return _Timing(first, last, first_tokens, tokens)


# -- the last session --------------------------------------------------------


def prices(settings: Settings) -> Bench | None:
    """The last session that was kept here, None if nothing was measured yet."""
    try:
        return Bench.model_validate_json(_file(settings).read_bytes())
    except (OSError, ValidationError):
        return None


def keep(settings: Settings, bench: Bench) -> bool:
    """Keep a session for `prices`; one that was cut short does not replace a complete one of this machine."""
    earlier = prices(settings)
    if not bench.complete and earlier and earlier.complete and earlier.machine == bench.machine:
        return False
    file = _file(settings)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".tmp")
        draft.write_text(bench.model_dump_json(indent=2) + "\n", encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise SettingsError(
            f"The result cannot be kept in {file}: {error.strerror}.",
            "Make room, or set ENCORE_DATA_DIR to another folder.",
        ) from None
    return True


def _file(settings: Settings) -> Path:
    return settings.data_dir / "bench.json"

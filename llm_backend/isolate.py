"""Isolation: replay a receipt with one thing changed at a time until the result flips.

Every replay is recorded and compared as a single one is (`replay`); `ladder` says what the counts mean.
Cancelling or an engine error ends the climb, and `Climb.report` has what was measured until then.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from llm_backend.altered import with_cache_salt, with_max_tokens
from llm_backend.compare import Comparison, Verdict, compare
from llm_backend.config import Settings
from llm_backend.diagnose import Diagnosis
from llm_backend.engine.alternatives import Alternative, Machine, alternative
from llm_backend.engine.client import EngineClient
from llm_backend.engine.gpu import usable_gpus
from llm_backend.engine.prepare import choose_device, launch_values
from llm_backend.engine.profiles import PROFILES, Profile, rows
from llm_backend.errors import EngineError, EngineUnreachable, LaunchError
from llm_backend.ladder import (
    BASELINES,
    DECISIVE,
    LIVE,
    OWN,
    Finding,
    Isolation,
    NotTried,
    Progress,
    Rung,
    Tally,
    Tried,
    controlled,
    equal,
    judge,
    tally,
)
from llm_backend.load import LoadWatch, neighbours
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Receipt
from llm_backend.replay import replay
from llm_backend.rungs import Changed, change, draws_anew, obstacle
from llm_backend.store import Run, Store
from llm_backend.tally import LoadSeen, Shape
from llm_backend.variant import OwnedEngine, Say, Variant, engine_variant

START_SECONDS = 60.0
"""Guess for the time left, until an engine has been started here."""

Level = Literal["tokens", "logprobs"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to climb."""

    rungs: tuple[Rung, ...]
    times: int
    level: Level = "logprobs"
    go_on: bool = False
    """Also after the first rung that flips it."""
    neighbours: int = 8
    shape: Shape = Shape.MIXED
    patient: bool = False
    """Also what takes minutes to start."""


@dataclass(slots=True)
class _Replays:
    """The replays of one rung so far."""

    receipts: list[Receipt] = field(default_factory=list)
    with_receipt: list[Comparison] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    neighbours: list[int] = field(default_factory=list)
    load: LoadSeen | None = None
    drawn_anew: bool = False
    changed: Changed = field(default_factory=dict)
    start_seconds: float | None = None

    @property
    def comparable(self) -> list[Receipt]:
        pairs = zip(self.receipts, self.with_receipt, strict=True)
        return [receipt for receipt, one in pairs if one.verdict is not Verdict.INCOMPARABLE]


class Climb:
    """A ladder: `await climb.run()`; `climb.report` at any time, also after it was cut short."""

    def __init__(
        self,
        settings: Settings,
        engine: EngineClient,
        store: Store,
        reference: Run,
        plan: Plan,
        *,
        chat_id: str,
        on_progress: Callable[[Progress], None] = lambda _: None,
        say: Say = lambda _: None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._store = store
        self._reference = reference
        self._plan = plan
        self._chat_id = chat_id
        self._on_progress = on_progress
        self._say = say
        self._tried: list[Tried] = []
        self._not_tried: list[NotTried] = []
        self._firsts: dict[Rung, tuple[Tally, Receipt]] = {}
        self._complete = False
        self._replays_done = 0
        self._replay_seconds = 0.0
        self._starts: list[float] = []

    @property
    def report(self) -> Isolation:
        """What was measured until now, and what was not."""
        seen = {tried.rung for tried in self._tried} | {one.rung for one in self._not_tried}
        left = tuple(NotTried(rung=rung, why="stopped") for rung in self._plan.rungs if rung not in seen)
        order = list(Rung)
        return Isolation(
            digest=self._reference.digest or "",
            level=self._plan.level,
            times=self._plan.times,
            tried=tuple(self._tried),
            not_tried=tuple(sorted((*self._not_tried, *left), key=lambda one: order.index(one.rung))),
            complete=self._complete,
        )

    async def run(self) -> Isolation:
        """Climb until something flips it. Raises what `replay` raises, and `LaunchError` before measuring."""
        recorded = await self._store.receipt_of(self._reference.id)
        live, own = ([rung for rung in self._plan.rungs if rung in part] for part in (LIVE, OWN))
        profile = self._profile(recorded)
        alternatives = self._alternatives(own, profile) if own else {}
        for rung in live:
            if not await self._live(rung, recorded, needed=not own):
                break
        else:
            for rung in own:
                if not await self._own(rung, profile, alternatives.get(rung), recorded):
                    break
            else:
                self._complete = True
        if self._ended():
            self._skip_the_rest()
        return self.report

    # -- rungs ---------------------------------------------------------------

    async def _live(self, rung: Rung, recorded: Receipt, *, needed: bool) -> bool:
        """Try a rung on the running engine; False when the climb ends with it."""
        try:
            identity = await self._engine.identity()
        except EngineUnreachable as error:
            if needed:
                raise
            self._not_tried.append(NotTried(rung=rung, why="failed", detail=error.problem))
            return True
        if rung is not Rung.ALONE and self._baseline_is_incomparable():
            self._not_tried.append(NotTried(rung=rung, why="incomparable"))
            return True
        if why := obstacle(rung, recorded.request, identity):
            self._not_tried.append(NotTried(rung=rung, why=why))
            return True
        replays = _Replays(drawn_anew=draws_anew(rung, recorded.request))
        if rung is Rung.LOADED:
            await self._replay_loaded(rung, replays, recorded, identity)
        else:
            await self._replay_changed(rung, replays, recorded)
        if self._tried[-1].finding in (Finding.FLIPS, Finding.RESTORES):
            await self._control(rung, recorded)
        return self._settle(rung)

    async def _replay_loaded(
        self, rung: Rung, replays: _Replays, recorded: Receipt, identity: EngineFingerprint
    ) -> None:
        watch, count, shape = LoadWatch(), self._plan.neighbours, self._plan.shape
        replays.changed = {"neighbours": str(count)}
        async with neighbours(self._engine, identity, recorded.request, count=count, shape=shape) as load:
            for number in range(1, self._plan.times + 1):
                load.check()
                run = await self._replay(
                    self._engine, rung, number, replays, recorded, on_token=lambda: watch.sample(load)
                )
                watch.note_running(run.neighbours)
                one = identity.max_num_seqs == 1
                replays.load = watch.seen(asked=count, shape=shape, one_at_a_time=one)
                self._keep(rung, replays)

    async def _replay_changed(self, rung: Rung, replays: _Replays, recorded: Receipt) -> None:
        salt = uuid.uuid4().hex
        if rung is Rung.CACHE_WARM:
            await self._warm(with_cache_salt(recorded.request, salt))
        for number in range(1, self._plan.times + 1):
            request, replays.changed = change(rung, recorded.request, salt)
            await self._replay(self._engine, rung, number, replays, recorded, request)
            self._keep(rung, replays)

    async def _control(self, rung: Rung, recorded: Receipt) -> None:
        """Replay with nothing changed once more: a flip may have come with time instead of the rung."""
        replays, base = _Replays(), self._firsts[Rung.ALONE][1]
        for number in range(1, self._plan.times + 1):
            await self._replay(self._engine, rung, number, replays, recorded)
        own = replays.comparable
        again = tally(
            replays.with_receipt,
            [compare(own[0], other) for other in own[1:]],
            [compare(base, other) for other in own],
            self._plan.level,
        )
        tried = self._tried.pop()
        changed = {"control": again, "finding": controlled(tried.finding, again)}
        self._tried.append(tried.model_copy(update=changed))

    async def _warm(self, request: GenerationRequest) -> None:
        """Have the engine prefill the prompt once, so that the next request finds it cached."""
        async with self._engine.stream(with_max_tokens(request, 1)) as stream:
            async for _ in stream:
                pass

    async def _own(
        self, rung: Rung, profile: Profile, changed: Alternative | None, recorded: Receipt
    ) -> bool:
        """Try a rung on an engine started for it; False when the climb ends with it."""
        if changed is not None and changed.obstacle:
            self._not_tried.append(NotTried(rung=rung, why=changed.obstacle))
            return True
        changes, without = (changed.changes, changed.without) if changed else ((), frozenset[str]())
        variant = Variant(rung.value, profile, changes, without)
        replays = _Replays(changed=changed.changed if changed else {})
        try:
            async with self._started(rung, variant) as engine:
                replays.start_seconds = engine.start_seconds
                for number in range(1, self._plan.times + 1):
                    await self._replay(engine.client, rung, number, replays, recorded)
                    self._keep(rung, replays)
        except (LaunchError, EngineError) as error:  # an engine that dies says nothing about its answers
            self._tried = [tried for tried in self._tried if tried.rung is not rung]
            self._not_tried.append(NotTried(rung=rung, why="failed", detail=error.diagnostics()))
            return True
        return self._settle(rung)

    @asynccontextmanager
    async def _started(self, rung: Rung, variant: Variant) -> AsyncIterator[OwnedEngine]:
        async with engine_variant(
            self._settings,
            variant,
            on_phase=lambda _, seconds: self._tell(rung, 0, 0, 0, started=seconds),
            say=self._say,
        ) as engine:
            self._starts.append(engine.start_seconds)
            yield engine

    async def _replay(
        self,
        engine: EngineClient,
        rung: Rung,
        number: int,
        replays: _Replays,
        recorded: Receipt,
        request: GenerationRequest | None = None,
        on_token: Callable[[], None] = lambda: None,
    ) -> Run:
        began = time.monotonic()

        def on_tokens(done: int, total: int) -> None:
            on_token()
            self._tell(rung, number, done, total)

        result = await replay(
            engine, self._store, self._reference, chat_id=self._chat_id, on_tokens=on_tokens, request=request
        )
        self._replays_done += 1
        self._replay_seconds += time.monotonic() - began
        replays.receipts.append(await self._store.receipt_of(result.run.id))
        replays.with_receipt.append(result.comparison)
        replays.diagnoses.append(result.diagnosis)
        if result.run.neighbours is not None:
            replays.neighbours.append(result.run.neighbours)
        return result.run

    # -- findings ------------------------------------------------------------

    def _keep(self, rung: Rung, replays: _Replays) -> None:
        """Put the rung as far as it was replayed into the report, in place of what was there of it."""
        level, own = self._plan.level, replays.comparable
        base = self._baseline(rung)
        counted = tally(
            replays.with_receipt,
            [compare(own[0], other) for other in own[1:]],
            None if base is None else [compare(base[1], other) for other in own],
            level,
        )
        odd = next((n for n, one in enumerate(replays.with_receipt) if not equal(one, level)), None)
        cached = [
            receipt.completion.cached_prompt_tokens
            for receipt in replays.receipts
            if receipt.completion.cached_prompt_tokens is not None
        ]
        tried = Tried(
            rung=rung,
            changed=replays.changed,
            drawn_anew=replays.drawn_anew,
            tally=counted,
            finding=judge(rung, counted, base and base[0], drawn_anew=replays.drawn_anew),
            load=replays.load,
            neighbours=max(replays.neighbours, default=None) if rung is not Rung.LOADED else None,
            cached=(min(cached), max(cached)) if cached else None,
            start_seconds=replays.start_seconds,
            first_difference=None if odd is None else replays.with_receipt[odd],
            diagnosis=None if odd is None else replays.diagnoses[odd],
            runs=tuple(receipt.digest for receipt in replays.receipts),
        )
        if self._tried and self._tried[-1].rung is rung:
            self._tried.pop()
        self._tried.append(tried)
        if rung in BASELINES and own:
            self._firsts[rung] = counted, own[0]

    def _settle(self, rung: Rung) -> bool:
        """Whether to go on after a rung that was measured to its end."""
        tried = self._tried[-1]
        if rung is Rung.CACHE_WARM and tried.cached is not None and tried.cached[1] == 0:
            self._tried.pop()
            self._not_tried.append(NotTried(rung=rung, why="nothing_cached"))
            return True
        return self._plan.go_on or tried.finding not in DECISIVE

    def _baseline(self, rung: Rung) -> tuple[Tally, Receipt] | None:
        """The same engine with nothing changed; for a restart, the engine that was running."""
        if rung is Rung.ALONE:
            return None
        if rung in OWN and rung is not Rung.RESTART and Rung.RESTART in self._firsts:
            return self._firsts[Rung.RESTART]
        return self._firsts.get(Rung.ALONE)

    def _baseline_is_incomparable(self) -> bool:
        return any(tried.rung is Rung.ALONE and not tried.tally.n for tried in self._tried)

    def _ended(self) -> bool:
        return not self._plan.go_on and any(tried.finding in DECISIVE for tried in self._tried)

    def _skip_the_rest(self) -> None:
        seen = {tried.rung for tried in self._tried} | {one.rung for one in self._not_tried}
        self._not_tried += [NotTried(rung=one, why="flipped") for one in self._plan.rungs if one not in seen]
        self._complete = True

    # -- engines of our own --------------------------------------------------

    def _profile(self, recorded: Receipt) -> Profile:
        """The recorded engine's profile, so that a restart changes nothing else; else today's."""
        known = next((name for name in PROFILES if name == recorded.engine.profile), None)
        return known or self._settings.profile

    def _alternatives(self, own: Sequence[Rung], profile: Profile) -> dict[Rung, Alternative]:
        gpus = usable_gpus(os.environ)
        device = choose_device(self._settings, gpus)
        table = rows(profile, device, launch_values(self._settings, device, gpus))
        machine = Machine(device, len(gpus), shutil.which("g++") is not None)
        return {
            rung: alternative(rung.value, table, machine, patient=self._plan.patient)
            for rung in own
            if rung is not Rung.RESTART
        }

    # -- progress ------------------------------------------------------------

    def _tell(self, rung: Rung, replay: int, tokens: int, total: int, *, started: float = 0.0) -> None:
        plan = self._plan
        number = plan.rungs.index(rung) + 1
        left: float | None = None
        if self._replays_done:
            seconds = self._replay_seconds / self._replays_done
            now = max(0, replay - 1) + (min(1.0, tokens / total) if total else 0.0)
            left = seconds * ((len(plan.rungs) - number + 1) * plan.times - now)
            start = sum(self._starts) / len(self._starts) if self._starts else START_SECONDS
            to_start = sum(other in OWN for other in plan.rungs[number:])
            left += start * to_start + (max(0.0, start - started) if started else 0.0)
        self._on_progress(Progress(rung, number, len(plan.rungs), replay, plan.times, tokens, total, left))

"""Replays, repetitions and checks as the chat shows them: progress, then what they came to.

Nothing of it enters the conversation. The page hears `progress` events, at most ten a second, and one
`ended`, whatever happens; what was found it fetches over HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from llm_backend.access import open_calibrations
from llm_backend.check import check
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EncoreError
from llm_backend.load import MOST_NEIGHBOURS
from llm_backend.repeat import Repetition
from llm_backend.replay import replay
from llm_backend.run import Run
from llm_backend.strings import Language, duration, text
from llm_backend.tally import Progress, RepeatReport, Shape
from llm_backend.ui import metrics, panel
from llm_backend.ui.backend import backend
from llm_backend.ui.live_text import Pacer
from llm_backend.ui.login import own_run
from llm_backend.ui.session import ChatSession

Kind = Literal["replay", "repeat", "check", "fork"]

BUTTON_TIMES = 10
"""What the button under an answer repeats: alone ten equal replays support "at least 72 %"."""

MOST_TIMES = 1000

FIRST_ESTIMATE_S = 2.0
"""Before that, the time left is more noise than estimate."""


class Teller:
    """Tells the page about one piece of work on a run: that it began, how far it is, that it is over."""

    def __init__(self, run_id: str, kind: Kind, lang: Language, begin: str) -> None:
        """`begin`: what is being done, until `at` has more to say."""
        self.comparison: str | None = None
        self.fork: str | None = None
        """Id of the run that was made by forking."""
        self.kept = False
        """Something was measured that can be looked at, even if the work was stopped."""
        self._about = {"run": run_id, "kind": kind}
        self._lang = lang
        self._share: float | None = 0.0
        self._said = begin
        self._began = time.monotonic()
        self._pacer = Pacer(self._send)

    def at(self, share: float | None, said: str) -> None:
        """`share` of the work is done, 0 to 1; None when that cannot be told."""
        elapsed = time.monotonic() - self._began
        if share and share < 1 and elapsed >= FIRST_ESTIMATE_S:
            left = elapsed * (1 - share) / share
            said += text("working.left", self._lang, left=f"{left:.0f} s" if left < 59.5 else duration(left))
        self._share, self._said = share, said
        self._pacer.poke()

    async def __aenter__(self) -> Self:
        await self._send()
        await self._pacer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pacer.__aexit__(kind, error, trace)
        stopped = isinstance(error, asyncio.CancelledError) and not self.kept
        said = text(f"working.stopped.{self._about['kind']}", self._lang) if stopped else ""
        made = {"comparison": self.comparison, "fork": self.fork}
        await panel.tell("ended", **self._about, **made, kept=self.kept, said=said)

    async def _send(self) -> int:
        await panel.tell("progress", **self._about, share=self._share, said=self._said)
        return 1


async def engine_for(reference: Run, number: object = None) -> EngineClient:
    """The engine with `number` where someone chose one, else the one that served the run, if it is there."""
    engines = backend().engines
    if number is not None:
        return engines.numbered(number)
    await engines.look()
    return engines.choose(reference.engine_url)


async def replay_in_chat(session: ChatSession, run_id: str, engine_number: object = None) -> None:
    """Replay `run_id` once; raises what `replay` raises, and `EncoreError` for an engine there is not."""
    reference = await own_run(session.user, run_id)
    engine = await engine_for(reference, engine_number)
    lang = session.lang
    async with Teller(run_id, "replay", lang, text("working.begin.replay", lang)) as teller:

        def on_tokens(done: int, recorded: int) -> None:
            said = text("working.replay", lang, done=done, recorded=recorded)
            teller.at(min(1.0, done / max(1, recorded)), said)

        with backend().engines.using(engine):
            result = await replay(
                engine,
                backend().store,
                reference,
                chat_id=session.chat_id,
                on_tokens=on_tokens,
                calibrations=open_calibrations(backend().settings),
            )
        teller.comparison, teller.kept = result.comparison_id, True
    metrics.count_run(result.run)
    metrics.count_comparison(result.comparison, result.run)


@dataclass(frozen=True, slots=True)
class Plan:
    """A repetition someone asked for."""

    run_id: str
    times: int = BUTTON_TIMES
    neighbours: int = 0
    shape: Shape = Shape.MIXED


def read_plan(payload: Mapping[str, Any], lang: Language) -> Plan:
    """What the button or the panel's form sent; raises `EncoreError` for what neither of them offers."""
    sent = {key: payload[key] for key in ("times", "neighbours", "shape") if key in payload}
    times, neighbours = sent.get("times", BUTTON_TIMES), sent.get("neighbours", 0)
    good = _whole(times, 1, MOST_TIMES) and _whole(neighbours, 0, MOST_NEIGHBOURS)
    if not good or sent.get("shape", Shape.MIXED) not in list(Shape):
        most = {"most_times": MOST_TIMES, "most_neighbours": MOST_NEIGHBOURS}
        raise EncoreError(text("problem.plan", lang, **most))
    return Plan(str(payload.get("run")), times, neighbours, Shape(sent.get("shape", Shape.MIXED)))


def _whole(number: object, least: int, most: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


async def repeat_in_chat(session: ChatSession, plan: Plan) -> None:
    """Replay a run many times; what was measured when it is stopped or breaks off is kept."""
    reference = await own_run(session.user, plan.run_id)
    engine = await engine_for(reference)
    lang = session.lang
    key = "working.begin.among" if plan.neighbours else "working.begin.repeat"
    begin = text(key, lang, times=plan.times, neighbours=plan.neighbours)
    async with Teller(plan.run_id, "repeat", lang, begin) as teller:

        def on_progress(now: Progress) -> None:
            share = (now.replay - 1 + min(1.0, now.tokens / max(1, now.recorded_tokens))) / now.replays
            values = {"replay": now.replay, "replays": now.replays, "neighbours": now.neighbours}
            key = "working.among" if now.neighbours else "working.repeat"
            said = text(key, lang, done=now.tokens, recorded=now.recorded_tokens, **values)
            teller.at(share, said)

        repetition = Repetition(
            engine,
            backend().store,
            reference,
            times=plan.times,
            counts=(plan.neighbours,),
            shape=plan.shape,
            chat_id=session.chat_id,
            on_progress=on_progress,
            calibrations=open_calibrations(backend().settings),
        )
        try:
            with backend().engines.using(engine):
                await repetition.run()
        finally:
            teller.kept = bool(repetition.report.steps)
            await asyncio.shield(backend().start(_count(repetition.report)))


async def _count(report: RepeatReport) -> None:
    for step in report.steps:
        for repeat in step.repeats:
            run = await backend().store.run(repeat.run_id)
            metrics.count_run(run)
            metrics.count_comparison(repeat.comparison, run)


async def check_in_chat(session: ChatSession, run_id: str) -> None:
    """Have the engine score a recorded run, and keep its verdict; raises what `check` raises."""
    engine = await engine_for(await own_run(session.user, run_id))
    recorded = await backend().store.receipt_of(run_id)
    lang = session.lang
    async with Teller(run_id, "check", lang, text("working.begin.check", lang)) as teller:

        def on_progress(stage: Literal["check", "calibrate"], done: int, total: int) -> None:
            teller.at(done / total if done else None, text(f"working.{stage}", lang, done=done, total=total))

        calibrations = open_calibrations(backend().settings)
        with backend().engines.using(engine):
            result = await check(engine, recorded, calibrations, on_progress=on_progress)
        await backend().store.add_finding(run_id, result)
        teller.kept = True
    metrics.count_check(result.verdict)

"""Runs a replay wall: every card a recorded run, at once or one after the other, and its answers grouped.

Cancelling stops what runs; cards that had ended stay, what had arrived of the others is kept as stopped
runs. An engine error belongs to its card. One after the other, it ends the wall: the next card would
only meet the same engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llm_backend.altered import with_seed, with_temperature
from llm_backend.answer_judge import AnswerJudge
from llm_backend.answers import Sameness, boxed_answer
from llm_backend.arithmetic import arithmetic
from llm_backend.check import Calibrations
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EncoreError
from llm_backend.receipt import GenerationRequest
from llm_backend.record import Recording, record
from llm_backend.replay import judge
from llm_backend.store import Run, Store
from llm_backend.wall import AnswerGroup, Card, WallKind, WallPlan, seeds_of


class WallRun:
    """`await wall.run()` once; `cards` and `groups` tell at any time how far it is."""

    def __init__(
        self,
        store: Store,
        answers: AnswerJudge,
        plan: WallPlan,
        request: GenerationRequest,
        *,
        chat_id: str,
        origin: Run | None = None,
        calibrations: Calibrations | None = None,
        on_run: Callable[[Run], None] | None = None,
    ) -> None:
        """`request`: what is asked. `origin`: its recorded run; without one the first card records it.

        With other seeds than `origin`'s, or another temperature, the first card is a run of its own.
        """
        self.groups: list[AnswerGroup] = []
        self.expected: str | None = None
        """What SymPy computes, where the question is arithmetic, once an answer was judged."""
        self.plan = plan
        self._store = store
        self._answers = answers
        self._origin = origin
        self._chat_id = chat_id
        self._calibrations = calibrations
        self._on_run = on_run
        self._expression = arithmetic(request.question)
        self._given = request.given
        self._ended: asyncio.Queue[Card | None] = asyncio.Queue()
        requests = _requests(plan, request)
        self._requests = requests
        self._first_is_origin = origin is not None and requests[0].body == request.body
        self.cards = [Card(number, one.sampling.seed) for number, one in enumerate(requests)]

    @property
    def version(self) -> int:
        """Grows with every change of a card."""
        return sum(card.version for card in self.cards)

    async def run(self, engine: EngineClient) -> None:
        """Raises what keeps the first card from being recorded; other cards keep their own problems."""
        judging = asyncio.create_task(self._group_answers())
        try:
            await self._first(engine)
            await self._others(engine)
        finally:
            for card in self.cards:
                if not card.ended:
                    card.state = "not_run"
                    card.version += 1
            self._ended.put_nowait(None)
            await judging

    async def _first(self, engine: EngineClient) -> None:
        first, origin = self.cards[0], self._origin
        if origin is not None and self._first_is_origin:
            receipt = await self._store.receipt_of(origin.id)
            first.run_id, first.neighbours = origin.id, origin.neighbours
            first.finish(receipt, receipt.digest)
            self._ended.put_nowait(first)
            return
        await self._record(engine, first)
        if first.problem:
            raise first.problem

    async def _others(self, engine: EngineClient) -> None:
        first = self.cards[0]
        assert first.run_id is not None
        reference = await self._store.receipt_of(first.run_id)
        for card in self.cards[1:]:
            card.reference = reference
        if self.plan.together:
            # Not a task group: it would not tell its tasks why they are cancelled, and `record` asks.
            work = (self._record(engine, card) for card in self.cards[1:])
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
            return
        for card in self.cards[1:]:
            await self._record(engine, card)
            if card.problem:
                return

    async def _record(self, engine: EngineClient, card: Card) -> None:
        first, recorded = self.cards[0], self._origin.id if self._origin else None
        origin = recorded if card is first else first.run_id
        recording = record(
            engine,
            self._store,
            self._requests[card.number],
            chat_id=self._chat_id,
            kind="ask" if origin is None else "replay",
            reference_run_id=origin,
        )
        try:
            try:
                async with recording:
                    async for delta in recording:
                        card.feed(delta.tokens, delta.text)
            except EncoreError as error:
                card.problem = error
            finally:
                # Stop pressed in the very last moment must not leave a card without its receipt.
                await asyncio.shield(self._keep(card, recording))
        except EncoreError as error:  # what was generated could not be kept
            card.problem, card.state = error, "interrupted"
            card.version += 1

    async def _keep(self, card: Card, recording: Recording) -> None:
        run, receipt = recording.run, recording.receipt
        if run is None or receipt is None:  # nothing was generated, so nothing is stored
            card.state = "refused" if card.problem else "not_run"
            card.version += 1
            return
        card.run_id, card.neighbours = run.id, run.neighbours
        card.finish(receipt, receipt.digest)
        if self._on_run:
            self._on_run(run)
        if card.state != "complete":
            return
        self._ended.put_nowait(card)
        if card.reference is not None and self.plan.kind is WallKind.REPLAYS:
            first = await self._store.run(self.cards[0].run_id or "")
            comparison, diagnosis = judge(card.reference, receipt, first, run, self._calibrations)
            await self._store.add_comparison(first.id, run.id, comparison, diagnosis)
            card.verdict = comparison.verdict
            card.version += 1

    async def _group_answers(self) -> None:
        while (card := await self._ended.get()) is not None:
            card.answer = boxed_answer(self._given + card.text)
            await self._group(card)
            card.version += 1

    async def _group(self, card: Card) -> None:
        unsure = False
        for group in self.groups:
            if card.answer is None or group.answer is None:
                same = card.answer is group.answer
            else:
                opinion = await self._answers.compare(group.answer, card.answer)
                same = opinion.sameness is Sameness.SAME
                unsure |= opinion.sameness is Sameness.UNKNOWN
            if same:
                group.cards.append(card.number)
                return
        group = AnswerGroup(card.answer, [card.number], unsure)
        if self._expression and card.answer is not None:
            opinion = await self._answers.compute(self._expression, card.answer)
            group.expected = opinion.sameness
            self.expected = self.expected or opinion.value
        self.groups.append(group)


def _requests(plan: WallPlan, request: GenerationRequest) -> list[GenerationRequest]:
    if plan.kind is WallKind.REPLAYS:
        return [request] * (plan.count + 1)
    if plan.temperature is not None and plan.temperature != request.sampling.temperature:
        request = with_temperature(request, plan.temperature)
    return [request if seed == request.sampling.seed else with_seed(request, seed) for seed in seeds_of(plan)]

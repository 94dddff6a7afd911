"""Forks a recorded run: another token at a position, and the model goes on from there.

The new run is recorded as any other, with the one it was forked off as its reference; replaying it repeats
its own request. How the two answers relate is read from the two receipts (`fork.fork_point`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_backend.answer_judge import AnswerJudge, compare_answers
from llm_backend.answers import AnswerPair
from llm_backend.check import Calibrations
from llm_backend.compare import NearTie
from llm_backend.engine.client import EngineClient
from llm_backend.errors import ModelNotServed
from llm_backend.fork import (
    CannotFork,
    ForkPoint,
    Take,
    ends_answer,
    fork_point,
    fork_request,
    obstacle,
    pick,
    room_after,
)
from llm_backend.receipt import EngineFingerprint, Receipt
from llm_backend.record import record
from llm_backend.store import Run, Store

CONTEXT = 8
"""Ids before the answer that its text is read with: some tokenizers read a first token differently."""


@dataclass(frozen=True, slots=True)
class ForkResult:
    """A fork and the run it was forked off."""

    parent_run: Run
    run: Run
    parent: Receipt
    receipt: Receipt
    point: ForkPoint


async def fork(
    engine: EngineClient,
    store: Store,
    parent: Run,
    position: int,
    take: Take | None = None,
    *,
    chat_id: str,
    on_tokens: Callable[[int, int], None] = lambda *_: None,
) -> ForkResult:
    """Take another token at `position` (0-based) of `parent`'s answer and record how the model goes on.

    `take`: which one; None is the most likely that was not generated. `on_tokens(done, room)` is called as
    tokens arrive, `room` being what is left of the recorded limit. Cancelling stops it; the partial run is
    kept. Raises `CannotFork`, and what `record` raises.
    """
    recorded = await store.receipt_of(parent.id)
    if problem := obstacle(recorded):
        raise problem
    choice = pick(recorded, position, take)
    now = await engine.identity()
    _check_engine(recorded.engine, now)
    shown = await engine.detokenized(now.model, [choice.id])
    if ends_answer(recorded, choice.id, shown):
        raise CannotFork("end", token=shown or f"id {choice.id}")
    given = recorded.request.given + await _text_until(engine, recorded, position, choice.id)
    request = fork_request(recorded, position, choice.id, given)
    room = room_after(recorded, position)
    recording = record(engine, store, request, chat_id=chat_id, kind="fork", reference_run_id=parent.id)
    async with recording:
        async for _ in recording:
            on_tokens(len(recording.tokens), room)
    assert recording.run is not None
    assert recording.receipt is not None
    point = fork_point(recorded, recording.receipt)
    return ForkResult(parent, recording.run, recorded, recording.receipt, point)


async def load_fork(store: Store, run: Run) -> ForkResult:
    """A recorded fork with the run it was forked off; raises `CannotFork` for a run that is none."""
    if run.kind != "fork":
        raise CannotFork("no_fork")
    if run.reference_run_id is None:
        raise CannotFork("parent_gone")
    parent_run = await store.run(run.reference_run_id)
    parent, receipt = await store.receipt_of(parent_run.id), await store.receipt_of(run.id)
    return ForkResult(parent_run, run, parent, receipt, fork_point(parent, receipt))


async def fork_answers(judge: AnswerJudge, result: ForkResult) -> AnswerPair:
    """The final answers of both, and whether they have the same value."""
    return await compare_answers(judge, result.parent.answer, result.receipt.answer)


def threshold_of(calibrations: Calibrations, engine: EngineFingerprint) -> NearTie:
    """Up to which margin `engine`'s rounding swaps two tokens: measured where it was, else assumed."""
    return calibrations.near_tie_of(engine.digest) or NearTie()


def _check_engine(recorded: EngineFingerprint, now: EngineFingerprint) -> None:
    """The recorded ids must mean the same to the engine that goes on from them."""
    if now.model != recorded.model:
        raise ModelNotServed(recorded.model, (now.model,))
    before, after = recorded.tokenizer_digest, now.tokenizer_digest
    if before is not None and after is not None and before != after:
        raise CannotFork("tokenizer")


async def _text_until(engine: EngineClient, receipt: Receipt, position: int, token_id: int) -> str:
    """What the answer's tokens before `position` and `token_id` read, without an unfinished character."""
    model, context = receipt.request.model, receipt.request.prompt_token_ids[-CONTEXT:]
    ids = (*receipt.completion.token_ids[:position], token_id)
    before = await engine.detokenized(model, context)
    whole = await engine.detokenized(model, (*context, *ids))
    if before is None or whole is None:
        raise CannotFork("no_text")
    if not whole.startswith(before):  # the context ends inside a character
        whole, before = await engine.detokenized(model, ids) or "", ""
    return whole[len(before) :].rstrip("\ufffd")

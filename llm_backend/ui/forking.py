"""Why this token, in the panel: an answer's tokens page by page, the choices at one, forks and their results.

Pages of tokens are bounded and made from the stored text; only a click costs a whole receipt. A fork is
asked for as any other work on a run is (`fork_in_chat`); what came of it is fetched over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import TypeAdapter

from llm_backend.access import open_calibrations
from llm_backend.compare import NearTie, logprob_margin, probability
from llm_backend.diff import token_window
from llm_backend.errors import EncoreError, EngineError, ReceiptNotFound
from llm_backend.fork import CannotFork, Choice, Take, choices, ends_answer, is_close, obstacle, room_after
from llm_backend.fork_phrases import choice_phrase, fork_answers_line, fork_sentences, margin_phrase
from llm_backend.fork_run import ForkResult, fork, fork_answers, load_fork, threshold_of
from llm_backend.phrases import short_digest
from llm_backend.reasons import first_difference
from llm_backend.receipt import Receipt, TokenRecord
from llm_backend.strings import Language, pick_language, text
from llm_backend.token_text import alternative_text
from llm_backend.ui import metrics
from llm_backend.ui.backend import backend
from llm_backend.ui.login import own_run
from llm_backend.ui.replaying import Teller, engine_for
from llm_backend.ui.session import ChatSession

router = APIRouter()

AcceptLanguage = Annotated[str | None, Header()]

PAGE = 400
"""Tokens per page: about three screens of the panel."""

SHOWN = 4000
"""Characters of each answer from the fork on; the rest is in the receipt."""

BEFORE = 80
"""Characters that both answers share, shown before they part."""

WARM = 8.0
"""Up to so many times the near-tie threshold a margin still counts as close, for the heat map."""

_TOKENS = TypeAdapter(tuple[TokenRecord, ...])


@router.get("/runs/{run_id}/tokens")
async def tokens(run_id: str, start: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
    """`PAGE` tokens from `start` on: text, probability, and how close the second choice was."""
    run = await backend().store.run(run_id)
    if run.digest is None:
        raise ReceiptNotFound(f"Run {run_id} is still going, so it has no receipt yet.")
    records = _TOKENS.validate_python(await backend().store.tokens(run.digest, start, start + PAGE))
    calibrations = open_calibrations(backend().settings)
    threshold = calibrations.near_tie_of(run.fingerprint_digest or "") or NearTie()
    shown = token_window(records, 0, len(records))
    # Of a fork's tokens no bytes are recorded: the engine is asked what they read.
    bare = {token["id"] for token in shown if token["text"] == _bare(token["id"])}
    names = await _names(run.model, sorted(bare)) if bare else {}
    return {
        "start": start,
        "total": run.completion_tokens or 0,
        "page": PAGE,
        "threshold": threshold.nats,
        "tokens": [
            {
                "position": start + token["position"],
                "id": token["id"],
                "text": alternative_text(token["id"], names) if token["id"] in bare else token["text"],
                "probability": token["probability"],
                "heat": _heat(token["margin"], threshold),
            }
            for token in shown
        ],
    }


@router.get("/runs/{run_id}/choices")
async def choices_at(
    run_id: str, at: Annotated[int, Query(ge=0)], accept_language: AcceptLanguage = None
) -> dict[str, Any]:
    """What could have stood at a position, and which of it can be taken now."""
    lang = pick_language(accept_language)
    receipt = await backend().store.receipt_of(run_id)
    if at >= len(receipt.completion.tokens):
        raise CannotFork("position", position=at, last=len(receipt.completion.tokens) - 1)
    token = receipt.completion.tokens[at]
    threshold = threshold_of(open_calibrations(backend().settings), receipt.engine)
    listed = choices(token)
    names = await _names(receipt.engine.model, [one.id for one in listed])
    own = token_window(receipt.completion.tokens, at, at + 1)[0]["text"]
    if own != _bare(token.id):
        names[token.id] = own
    margin = logprob_margin(token)
    problem = obstacle(receipt)
    if problem is None and room_after(receipt, at) < 1:
        problem = CannotFork("no_room", position=at, limit=receipt.request.sampling.max_tokens)
    sampled = not receipt.request.sampling.greedy
    return {
        "position": at,
        "margin": margin_phrase(margin, threshold, lang),
        "heat": _heat(margin, threshold),
        "choices": [_choice(receipt, one, names, lang) for one in listed],
        "refused": problem.sentence(lang) if problem else "",
        "note": text("fork.sampled", lang, temperature=receipt.request.sampling.temperature)
        if sampled
        else "",
    }


@router.get("/runs/{run_id}/fork")
async def fork_view(run_id: str, accept_language: AcceptLanguage = None) -> dict[str, Any]:
    """A fork beside the run it was forked off: where, what was taken, and both answers from there on."""
    lang, store = pick_language(accept_language), backend().store
    try:
        result = await load_fork(store, await store.run(run_id))
    except CannotFork as error:
        raise EncoreError(error.sentence(lang)) from None
    point, engine = result.point, result.parent.engine
    names = await _names(engine.model, [point.recorded.id, point.taken.id])
    threshold = threshold_of(open_calibrations(backend().settings), engine)
    recorded = Choice(point.recorded.id, point.recorded.logprob, None, True)
    pair = await fork_answers(backend().judging.judge, result)
    return {
        "run": run_id,
        "parent": result.parent_run.id,
        "digest": short_digest(result.receipt.digest),
        "position": point.position,
        "margin": margin_phrase(point.margin, threshold, lang),
        "recorded": choice_phrase(recorded, names, lang),
        "taken": choice_phrase(point.taken, names, lang),
        "taken_label": text("fork.again" if point.same_token else "fork.taken", lang),
        "sentences": fork_sentences(result.receipt, point, lang),
        "answers": fork_answers_line(pair, lang),
        **_parted(result),
    }


async def fork_in_chat(session: ChatSession, payload: Mapping[str, Any]) -> None:
    """Fork a run as the panel asked; raises what `fork` raises, `CannotFork` in the reader's language."""
    lang = session.lang
    position, token = _whole(payload.get("position"), lang), _whole(payload.get("token"), lang)
    parent = await own_run(session.user, str(payload.get("run")))
    engine = await engine_for(parent)
    async with Teller(parent.id, "fork", lang, text("working.begin.fork", lang)) as teller:

        def on_tokens(done: int, room: int) -> None:
            teller.at(None, text("working.fork", lang, done=done, room=room))

        try:
            with backend().engines.using(engine):
                result = await fork(
                    engine,
                    backend().store,
                    parent,
                    position,
                    Take(id=token),
                    chat_id=session.chat_id,
                    on_tokens=on_tokens,
                )
        except CannotFork as error:
            raise EncoreError(error.sentence(lang)) from None
        teller.fork, teller.kept = result.run.id, True
    metrics.count_run(result.run)


def _whole(number: object, lang: Language) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise EncoreError(text("fork.take", lang, given=repr(number)))
    return number


def _heat(margin: float | None, threshold: NearTie) -> str:
    """`tie`, `near`, `warm` or nothing."""
    if margin is None:
        return ""
    if margin == 0:
        return "tie"
    if is_close(margin, threshold):
        return "near"
    return "warm" if margin <= WARM * threshold.nats else ""


def _choice(receipt: Receipt, choice: Choice, names: Mapping[int, str], lang: Language) -> dict[str, Any]:
    shown = alternative_text(choice.id, names)
    return {
        "id": choice.id,
        "text": shown,
        "probability": probability(choice.logprob),
        "rank": choice.rank,
        "recorded": choice.recorded,
        "ends": ends_answer(receipt, choice.id, shown),
        "label": choice_phrase(choice, names, lang),
    }


def _bare(token_id: int) -> str:
    return alternative_text(token_id, {})


async def _names(model: str, ids: Sequence[int]) -> dict[int, str]:
    """Texts of a model's ids, where the engine that knows them is the one running now."""
    try:
        engine = backend().engine
        if (await engine.identity()).model != model:
            return {}
        return await engine.token_texts(sorted(set(ids)))
    except EngineError:
        return {}


def _parted(result: ForkResult) -> dict[str, Any]:
    recorded, forked = result.parent.answer, result.receipt.answer
    shared = first_difference(recorded, forked)
    begin = max(0, shared - BEFORE)
    return {
        "shared": recorded[begin:shared],
        "shared_left_out": begin,
        "recorded_text": recorded[shared : shared + SHOWN],
        "recorded_left_out": max(0, len(recorded) - shared - SHOWN),
        "forked_text": forked[shared : shared + SHOWN],
        "forked_left_out": max(0, len(forked) - shared - SHOWN),
    }

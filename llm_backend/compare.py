"""Compare two receipts token by token: the verdict, and the measurements behind it.

Positions are compared in order and the comparison stops at the first different token: what follows
was generated from another prefix. Values the engine did not give (`None`) never count as different.
A side that was cut short (stopped, interrupted, or at its token limit) is compared over what exists.

Verdict, in order of the questions asked:

(1) `INCOMPARABLE`  another model or prompt, no token ids, nothing generated, or output that was no numbers
(2) `DIVERGED`      some position holds another token, or one side ended on its own and the other went on
(3) `DRIFTED`       same tokens, some known logprob differs
(4) `IDENTICAL`     same tokens, every known logprob equal bit for bit (`level` says if there were any)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal

from llm_backend.altered import body_of
from llm_backend.engine_changes import EngineChange, engine_changes
from llm_backend.reasons import Reason, first_difference, reasons_against
from llm_backend.receipt import (
    Frozen,
    GenerationRequest,
    Receipt,
    Sampling,
    Status,
    TokenRecord,
    known_logprob,
)

NEAR_TIE = 0.125
"""Nats, where nothing was measured. One bfloat16 step of a logit between 16 and 32, and the largest
margin at which a trained model's greedy answer was seen to fork when nothing but the batch changed."""

ENOUGH_POSITIONS = 8
"""Known positions before a fork from which on their largest drift says something about the engine."""


# Keys of a body that model, prompt and effective settings already compare, or that `stream` implies.
_SAID_ELSEWHERE = frozenset({"model", "messages", "prompt", "stream_options", *Sampling.model_fields})


class Verdict(StrEnum):
    """The answer to "did it come out the same?"."""

    IDENTICAL = "IDENTICAL"
    DRIFTED = "DRIFTED"
    DIVERGED = "DIVERGED"
    INCOMPARABLE = "INCOMPARABLE"


class RequestChange(Frozen):
    """One sampling field whose effective value differs, or another key of the body as sent."""

    field: str
    reference: str | None
    """None when this side did not send it; only for keys that are no sampling field."""
    candidate: str | None


class NearTie(Frozen):
    """Up to which margin rounding can swap two tokens here, and how that is known.

    Each of the two logprobs may move by the drift, one up and one down: twice the largest drift measured.
    """

    nats: float = NEAR_TIE
    basis: Literal["drift", "self_check", "assumed"] = "assumed"
    """`drift`: between these two runs before they fork. `self_check`: between the engine's own prefill
    and decoding (`scoring.Calibration`). `assumed`: neither was measured."""
    positions: int | None = None
    """Measured over so many; None when assumed."""


class Fork(Frozen):
    """The first position where the two sides hold different tokens."""

    position: int
    reference: TokenRecord | None
    """None when this side had ended."""
    candidate: TokenRecord | None
    logprob_margin: float | None
    """Nats: the reference's most likely token minus the second; None unless both are known."""
    exact_tie: bool
    near_tie: bool
    """Margin at most `threshold`; an exact tie is also a near one."""
    threshold: NearTie = NearTie()
    reference_probability: float | None
    """Of the reference's token, as the reference's engine gave it."""
    reference_on_candidate: float | None
    """Of the reference's token in the candidate's recorded alternatives."""
    candidate_probability: float | None
    candidate_on_reference: float | None


class Comparison(Frozen):
    """Everything measured between a reference and a candidate; logprob differences are in nats."""

    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    level: Literal["logprobs", "tokens"] = "tokens"
    """What the verdict rests on: `tokens` when no position has logprobs on both sides."""
    reference_length: int
    candidate_length: int
    compared: int = 0
    """Positions with equal tokens before the first fork, or all when there is none."""
    first_divergence: Fork | None = None
    max_abs_logprob_diff: float | None = None
    mean_abs_logprob_diff: float | None = None
    first_drift: int | None = None
    largest_drift: int | None = None
    """Position of `max_abs_logprob_diff`; the first of equal ones."""
    drifted_positions: int = 0
    unknown_logprobs: int = 0
    """Compared positions where at least one side's logprob is unknown; never counted as drift."""
    first_alternative_drift: int | None = None
    """First compared position whose recorded alternatives differ; does not decide the verdict."""
    partial: bool = False
    """A side was cut short, so equality is known only over the shorter one."""
    reference_end: str
    """`stop`, `length`, ... as the engine said, else `stopped` or `interrupted`."""
    candidate_end: str
    same_text: bool
    text_divergence: int | None = None
    """First different character of the two raw texts (code points); None when they are equal."""
    engine_restarted: bool = False
    """Both runs tell which start of the engine served them, and it was not the same."""
    request_changes: tuple[RequestChange, ...] = ()
    engine_changes: tuple[EngineChange, ...] = ()

    @property
    def reproduced(self) -> bool:
        """Same tokens over everything compared."""
        return self.verdict in (Verdict.IDENTICAL, Verdict.DRIFTED)


def compare(reference: Receipt, candidate: Receipt, *, self_check: NearTie | None = None) -> Comparison:
    """Compare what was recorded with what was replayed.

    `self_check`: how near a near tie is by the engine's own drift, where that was measured.
    """
    before, after = reference.completion, candidate.completion
    shorter = min(len(before.tokens), len(after.tokens))
    reasons = tuple(reasons_against(reference, candidate))
    common = Comparison(
        verdict=Verdict.INCOMPARABLE,
        reasons=reasons,
        reference_length=len(before.tokens),
        candidate_length=len(after.tokens),
        partial=_cut(reference) or _cut(candidate),
        reference_end=receipt_end(reference),
        candidate_end=receipt_end(candidate),
        same_text=before.text == after.text,
        text_divergence=None if before.text == after.text else first_difference(before.text, after.text),
        request_changes=tuple(_request_changes(reference.request, candidate.request)),
        engine_changes=engine_changes(
            reference.engine, candidate.engine, seeded=_seeded(reference) and _seeded(candidate)
        ),
    )
    if reasons:
        return common
    position = first_difference(before.token_ids, after.token_ids)
    drift = _measure_drift(before.tokens, after.tokens, position, _same_logprobs_mode(reference, candidate))
    fork = None
    if position < shorter or _ended_by_itself(reference, candidate):
        threshold = _measured_threshold(drift, position) or self_check or NearTie()
        fork = _fork(before.tokens, after.tokens, position, threshold)
    if fork:
        verdict = Verdict.DIVERGED
    else:
        verdict = Verdict.DRIFTED if drift["drifted_positions"] else Verdict.IDENTICAL
    return common.model_copy(
        update={"verdict": verdict, "compared": position, "first_divergence": fork, **drift}
    )


def probability(logprob: float | None) -> float | None:
    """exp of a logprob in nats; None when unknown, or when the engine reports logits instead."""
    value = known_logprob(logprob)
    return math.exp(value) if value is not None and value <= 0 else None


def logprob_margin(token: TokenRecord) -> float | None:
    """Most likely minus second most likely, in nats; None when the record cannot tell.

    Does not trust the order of `top`: vLLM lists the sampled token first, and when that one is not
    among the k most likely the list is one short.
    """
    chosen = known_logprob(token.logprob)
    others = sorted(
        (
            value
            for other in token.top
            if other.id != token.id and (value := known_logprob(other.logprob)) is not None
        ),
        reverse=True,
    )
    if chosen is None or not others:
        return None
    if chosen >= others[0]:
        return chosen - others[0]
    if len(others) == 1:
        return None  # the chosen token may be third or later
    return others[0] - max(chosen, others[1])


def logprob_of(token_id: int, where: TokenRecord) -> float | None:
    """The logprob of `token_id` among the tokens recorded at `where`; None when it is not there."""
    if where.id == token_id:
        return known_logprob(where.logprob)
    for other in where.top:
        if other.id == token_id:
            return known_logprob(other.logprob)
    return None


def receipt_end(receipt: Receipt) -> str:
    """How a run ended in one word: the engine's finish reason, else the status."""
    completion = receipt.completion
    if completion.status is Status.COMPLETE:
        return completion.finish_reason or "unknown"
    return completion.status.value


def _cut(receipt: Receipt) -> bool:
    """Whether the side ended before the model did."""
    return receipt.completion.status is not Status.COMPLETE or receipt.completion.finish_reason == "length"


def _ended_by_itself(reference: Receipt, candidate: Receipt) -> bool:
    """With an equal prefix: whether the shorter side's end was the model's own, against a longer other."""
    lengths = len(reference.completion.tokens), len(candidate.completion.tokens)
    if lengths[0] == lengths[1]:
        return False
    return not _cut(reference if lengths[0] < lengths[1] else candidate)


def _seeded(receipt: Receipt) -> bool:
    return receipt.request.sampling.greedy or receipt.request.sampling.seed is not None


def _same_logprobs_mode(reference: Receipt, candidate: Receipt) -> bool:
    """Raw and processed values, or logits, are different quantities: their difference means nothing."""
    before, after = reference.engine.logprobs_mode, candidate.engine.logprobs_mode
    return before is None or after is None or before == after


def _request_changes(reference: GenerationRequest, candidate: GenerationRequest) -> Iterator[RequestChange]:
    before, after = reference.effective, candidate.effective
    for field in type(before).model_fields:
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            yield RequestChange(field=field, reference=str(old), candidate=str(new))
    sent, again = body_of(reference), body_of(candidate)
    if sent is None or again is None:
        return
    for key in sorted((sent.keys() | again.keys()) - _SAID_ELSEWHERE):
        if sent.get(key) != again.get(key):
            yield RequestChange(field=key, reference=_as_sent(sent, key), candidate=_as_sent(again, key))


def _as_sent(body: Mapping[str, Any], key: str) -> str | None:
    return json.dumps(body[key], ensure_ascii=False) if key in body else None


def _measured_threshold(drift: Mapping[str, Any], compared: int) -> NearTie | None:
    """From the drift before a fork; None without any, or over too few positions."""
    known, largest = compared - drift["unknown_logprobs"], drift["max_abs_logprob_diff"]
    if not largest or known < ENOUGH_POSITIONS:
        return None
    return NearTie(nats=2 * largest, basis="drift", positions=known)


def _fork(
    before: tuple[TokenRecord, ...], after: tuple[TokenRecord, ...], position: int, threshold: NearTie
) -> Fork:
    left = before[position] if position < len(before) else None
    right = after[position] if position < len(after) else None
    margin = logprob_margin(left) if left else None
    return Fork(
        position=position,
        reference=left,
        candidate=right,
        logprob_margin=margin,
        exact_tie=margin == 0,
        near_tie=margin is not None and margin <= threshold.nats,
        threshold=threshold,
        reference_probability=probability(left.logprob) if left else None,
        reference_on_candidate=probability(logprob_of(left.id, right)) if left and right else None,
        candidate_probability=probability(right.logprob) if right else None,
        candidate_on_reference=probability(logprob_of(right.id, left)) if left and right else None,
    )


def _measure_drift(
    before: tuple[TokenRecord, ...], after: tuple[TokenRecord, ...], stop: int, comparable: bool
) -> dict[str, object]:
    """The drift fields of `Comparison` over positions [0, stop), whose tokens are equal."""
    known = drifted = 0
    first = first_alternative = at = None
    largest = total = 0.0
    for position in range(stop if comparable else 0):
        left, right = before[position], after[position]
        # A side that recorded none says nothing about them.
        if first_alternative is None and left.top and right.top and left.top != right.top:
            first_alternative = position
        a, b = known_logprob(left.logprob), known_logprob(right.logprob)
        if a is None or b is None:
            continue
        known += 1
        if a != b:
            drifted += 1
            difference = abs(a - b)
            total += difference
            if difference > largest:
                largest, at = difference, position
            if first is None:
                first = position
    return {
        "level": "logprobs" if known else "tokens",
        "max_abs_logprob_diff": largest if known else None,
        "mean_abs_logprob_diff": total / known if known else None,
        "first_drift": first,
        "largest_drift": at,
        "drifted_positions": drifted,
        "unknown_logprobs": stop - known,
        "first_alternative_drift": first_alternative,
    }

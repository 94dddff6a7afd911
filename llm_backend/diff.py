"""The two sides of a comparison laid beside each other, for reading.

After a fork positions no longer correspond; here the tails are aligned by token ids so that people
can see what was inserted and deleted. Nothing in this module changes a verdict. Everything it returns
is bounded: a window around the fork and a strip of buckets, small whatever the length of the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rapidfuzz.distance import Indel

from llm_backend.compare import NEAR_TIE, Comparison, logprob_margin, probability
from llm_backend.reasons import TEXT_ONLY
from llm_backend.receipt import Completion, Frozen, Receipt, TokenRecord, known_logprob
from llm_backend.token_text import LONGEST_CHARACTER, alternative_text, token_texts

ALIGN_LIMIT = 2048
"""Tokens per side aligned at most; the cost grows with the product of both."""

STRIP_BUCKETS = 240
"""Columns of the strip chart: about one per pixel pair of the panel."""


class AlignOp(Frozen):
    """One run of the alignment; positions are absolute, stops exclusive."""

    kind: Literal["equal", "insert", "delete"]
    reference_start: int
    reference_stop: int
    candidate_start: int
    candidate_stop: int


class Alignment(Frozen):
    """How the tails correspond, up to where the alignment stopped."""

    ops: tuple[AlignOp, ...]
    reference_stop: int
    candidate_stop: int
    complete: bool
    """False when tokens remain beyond the stops."""


def align_tail(
    reference_ids: Sequence[int], candidate_ids: Sequence[int], position: int, limit: int = ALIGN_LIMIT
) -> Alignment:
    """Align both sides from `position` on, over at most `limit` tokens each."""
    before, after = reference_ids[position : position + limit], candidate_ids[position : position + limit]
    ops = tuple(
        AlignOp(
            kind=op.tag,  # Indel knows no "replace"
            reference_start=position + op.src_start,
            reference_stop=position + op.src_end,
            candidate_start=position + op.dest_start,
            candidate_stop=position + op.dest_end,
        )
        for op in Indel.opcodes(before, after)
    )
    stops = position + len(before), position + len(after)
    complete = stops[0] >= len(reference_ids) and stops[1] >= len(candidate_ids)
    return Alignment(ops=ops, reference_stop=stops[0], candidate_stop=stops[1], complete=complete)


def diff_window(
    reference: Receipt,
    candidate: Receipt,
    comparison: Comparison,
    *,
    before: int = 24,
    after: int = 120,
    names: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """What a diff view needs, as plain JSON values.

    Shows `before` tokens ahead of the fork (else of the first drift, else from the start) and `after`
    tokens from it on. Keys: `verdict`; `centre` and `fork` (positions, `fork` None without one);
    `folded` (equal tokens left out ahead of the window); `reference` and `candidate` (`length`,
    `end`, `tokens`, `left_out` after the window); `ops` aligning the shown tokens; `strip` over the
    compared positions; `text_fork` where token ids are missing. `names` gives the text of
    alternatives, of which receipts record the ids only.
    """
    fork = comparison.first_divergence
    drift = comparison.first_drift
    centre = fork.position if fork else drift or 0
    start = max(0, centre - before)
    left, right = reference.completion, candidate.completion
    alignment = align_tail(left.token_ids, right.token_ids, start, limit=centre - start + after)
    return {
        "verdict": comparison.verdict.value,
        "centre": centre,
        "fork": fork.position if fork else None,
        "folded": start,
        "reference": _side(left, comparison.reference_end, start, alignment.reference_stop, names or {}),
        "candidate": _side(right, comparison.candidate_end, start, alignment.candidate_stop, names or {}),
        "ops": [op.model_dump(mode="json") for op in alignment.ops],
        "strip": drift_strip(left.tokens, right.tokens, comparison.compared),
        "text_fork": _text_fork(left.text, right.text, before, after)
        if not (left.tokens and right.tokens) or any(r.kind in TEXT_ONLY for r in comparison.reasons)
        else None,
    }


def drift_strip(
    reference: Sequence[TokenRecord],
    candidate: Sequence[TokenRecord],
    compared: int,
    buckets: int = STRIP_BUCKETS,
) -> list[dict[str, float | int | None]]:
    """Per bucket of positions [start, stop): the largest drift and the smallest margin, in nats, with
    their positions (`drift_at`, `margin_at`), and how many near and exact ties there are.

    A long answer has several positions in a bucket. Its extremes are kept and nothing is averaged, so
    that a single drifted position or a single tie among 32,768 is still drawn. Margins and ties are the
    reference's. None where no position of the bucket has a known value.
    """
    width = max(1, -(-compared // buckets))
    strip: list[dict[str, float | int | None]] = []
    for start in range(0, compared, width):
        stop = min(start + width, compared)
        drift = margin = drift_at = margin_at = None
        near = exact = 0
        for position in range(start, stop):
            a, b = known_logprob(reference[position].logprob), known_logprob(candidate[position].logprob)
            if a is not None and b is not None and (drift is None or abs(a - b) > drift):
                drift, drift_at = abs(a - b), position
            own = logprob_margin(reference[position])
            if own is None:
                continue
            near += own <= NEAR_TIE
            exact += own == 0
            if margin is None or own < margin:
                margin, margin_at = own, position
        strip.append(
            {
                "start": start,
                "stop": stop,
                "drift": drift,
                "drift_at": drift_at,
                "margin": margin,
                "margin_at": margin_at,
                "near_ties": near,
                "exact_ties": exact,
            }
        )
    return strip


def token_window(
    tokens: Sequence[TokenRecord], start: int, stop: int, names: Mapping[int, str] | None = None
) -> list[dict[str, Any]]:
    """Tokens [start, stop) as the panel shows them: text, logprob, probability, margin, alternatives."""
    # Look a little to both sides, so that a character split at the border is still shown whole.
    first = max(0, start - LONGEST_CHARACTER)
    texts = token_texts(tokens[first : stop + LONGEST_CHARACTER])[start - first :]
    return [
        {
            "position": start + offset,
            "id": token.id,
            "text": texts[offset],
            "logprob": known_logprob(token.logprob),
            "probability": probability(token.logprob),
            "margin": logprob_margin(token),
            "top": [
                {
                    "id": other.id,
                    "text": alternative_text(other.id, names or {}),
                    "logprob": known_logprob(other.logprob),
                    "probability": probability(other.logprob),
                }
                for other in token.top
            ],
        }
        for offset, token in enumerate(tokens[start:stop])
    ]


def _side(
    completion: Completion, end: str, start: int, stop: int, names: Mapping[int, str]
) -> dict[str, Any]:
    return {
        "length": len(completion.tokens),
        "end": end,
        "tokens": token_window(completion.tokens, start, stop, names),
        "left_out": max(0, len(completion.tokens) - stop),
    }


def _text_fork(reference: str, candidate: str, before: int, after: int) -> dict[str, Any] | None:
    """First different character of two texts and what surrounds it; None when they are equal."""
    if reference == candidate:
        return None
    shorter = min(len(reference), len(candidate))
    position = next((i for i in range(shorter) if reference[i] != candidate[i]), shorter)
    start, stop = max(0, position - before), position + after
    return {
        "position": position,
        "start": start,
        "reference": reference[start:stop],
        "candidate": candidate[start:stop],
    }

"""Why two receipts cannot be compared token by token: other engines' ids, other prompts, tokens missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from llm_backend.receipt import EngineFingerprint, Frozen, GenerationRequest, Receipt

TEXT_ONLY = frozenset({"no_token_ids", "tokens_lost"})
"""Kinds after which the two texts are still set side by side."""


class Reason(Frozen):
    """Why two receipts cannot be compared, or one not checked. `kind` is also the key of its sentence."""

    kind: Literal[
        "other_model",
        "other_weights",
        "other_tokenizer",
        "other_prompt",
        "other_logprobs",
        "too_long",
        "no_token_ids",
        "no_prompt_ids",
        "no_logprobs",
        "nothing_generated",
        "tokens_lost",
        "invalid_recorded",
        "invalid_replayed",
    ]
    reference: str | None = None
    """What the reference has (model name, digest, number of prompt tokens), where that explains it."""
    candidate: str | None = None
    position: int | None = None
    """First differing prompt token, for `other_prompt` when both prompts are known as ids."""


def identity_reasons(reference: EngineFingerprint, candidate: EngineFingerprint) -> Iterator[Reason]:
    """What makes the token ids or the model of two engines another thing altogether."""
    for kind, field in (
        ("other_model", "model"),
        ("other_weights", "weights_digest"),
        ("other_tokenizer", "tokenizer_digest"),
    ):
        before, after = getattr(reference, field), getattr(candidate, field)
        if before is not None and after is not None and before != after:
            yield Reason.model_validate({"kind": kind, "reference": before, "candidate": after})


def reasons_against(reference: Receipt, candidate: Receipt) -> Iterator[Reason]:
    """Everything that keeps these two from being compared token by token; nothing where they can be."""
    yield from identity_reasons(reference.engine, candidate.engine)
    prompt = _other_prompt(reference.request, candidate.request)
    if prompt:
        yield prompt
    sides = (reference.completion, candidate.completion)
    if any(not side.tokens and side.text for side in sides):
        yield Reason(kind="no_token_ids")
    elif any(not side.tokens for side in sides):
        yield Reason(kind="nothing_generated")
    elif any(side.unaccounted_tokens for side in sides):
        recorded, replayed = (side.unaccounted_tokens for side in sides)
        yield Reason(kind="tokens_lost", reference=f"{recorded:,}", candidate=f"{replayed:,}")
    # Tokens drawn from no distribution may even agree; a broken engine is no base to judge anything by.
    if broken := reference.completion.invalid_positions:
        yield Reason(kind="invalid_recorded", reference=f"{broken:,}")
    if broken := candidate.completion.invalid_positions:
        yield Reason(kind="invalid_replayed", candidate=f"{broken:,}")


def _other_prompt(reference: GenerationRequest, candidate: GenerationRequest) -> Reason | None:
    before, after = reference.prompt_token_ids, candidate.prompt_token_ids
    if before and after:
        if before == after:
            return None
        return Reason(
            kind="other_prompt",
            reference=str(len(before)),
            candidate=str(len(after)),
            position=first_difference(before, after),
        )
    return Reason(kind="other_prompt") if reference.messages != candidate.messages else None


def first_difference(before: Sequence[object], after: Sequence[object]) -> int:
    """Length of the common prefix."""
    for position, (left, right) in enumerate(zip(before, after, strict=False)):
        if left != right:
            return position
    return min(len(before), len(after))

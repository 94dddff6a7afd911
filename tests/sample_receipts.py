"""Receipts for tests: short to write, complete, and different from each other only where asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_backend.receipt import (
    Alternative,
    Completion,
    EngineFingerprint,
    GenerationRequest,
    Message,
    Receipt,
    Sampling,
    Status,
    TokenRecord,
)

ENGINE = EngineFingerprint(
    model="microsoft/Phi-4-mini-reasoning",
    weights_digest="sha256:weights",
    tokenizer_digest="sha256:tokenizer",
    vllm_version="0.26.0",
    max_num_seqs=128,
    batch_invariant=False,
    logprobs_mode="raw_logprobs",
)


def token(
    id: int,
    logprob: float | None = -0.5,
    *,
    text: str | None = None,
    top: dict[int, float | None] | None = None,
) -> TokenRecord:
    """One token; `top` maps alternatives' ids to logprobs in the order the engine sent them."""
    raw = (f"t{id}" if text is None else text).encode()
    alternatives = tuple(Alternative(other, value) for other, value in (top or {}).items())
    return TokenRecord(id, logprob, raw, alternatives)


def tokens(ids: Sequence[int], logprobs: Sequence[float | None] | None = None) -> tuple[TokenRecord, ...]:
    values = [-0.5] * len(ids) if logprobs is None else logprobs
    return tuple(token(id, value) for id, value in zip(ids, values, strict=True))


def request(
    *,
    question: str = "What is 235 times 478?",
    prompt: Sequence[int] = (1, 2, 3),
    model: str = ENGINE.model,
    **sampling: Any,
) -> GenerationRequest:
    sent = Sampling(**{"seed": 42, **sampling})
    return GenerationRequest(
        body="{}",
        model=model,
        messages=(Message(role="user", content=question),),
        sampling=sent,
        effective=sent.effective(),
        prompt_token_ids=tuple(prompt),
    )


def receipt(
    generated: Sequence[int] | tuple[TokenRecord, ...] = (7, 8, 9),
    *,
    asked: GenerationRequest | None = None,
    engine: EngineFingerprint = ENGINE,
    status: Status = Status.COMPLETE,
    finish_reason: str | None = "stop",
    text: str | None = None,
    **completion: Any,
) -> Receipt:
    """A receipt of these tokens (ids, or whole records)."""
    records = tuple(entry if isinstance(entry, TokenRecord) else token(entry) for entry in generated)
    joined = b"".join(record.bytes or b"" for record in records).decode(errors="replace")
    return Receipt(
        request=asked or request(),
        completion=Completion(
            tokens=records,
            text=joined if text is None else text,
            status=status,
            finish_reason=finish_reason if status is Status.COMPLETE else None,
            **completion,
        ),
        engine=engine,
    )


def engine(**changed: Any) -> EngineFingerprint:
    """`ENGINE` with some facts changed."""
    return ENGINE.model_copy(update=changed)

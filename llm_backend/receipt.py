"""Receipts: the immutable record of one run.

Two receipts with one digest record the same request, completion and engine; `Receipt.digest`
re-derives it from content (SHA-256 over RFC 8785 canonical JSON), so a stored receipt that was
altered no longer matches its key. Time never enters the digest: when and how fast a run went is
kept beside the receipt (`store.Run`), not in it.

The format is written down in docs/receipt-format.md; a test recomputes that page's example without this
module. Files are written and read by `exported`.

What is stored is what the engine said: token ids, its own logprobs (nats), raw text. Values the
engine could not give (null, non-finite, or clamped at `LOGPROB_FLOOR`) are `None`, never a number.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import rfc8785
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
)

FORMAT: Literal[1] = 1
"""Receipt format; raised whenever the same run would get another digest."""

LOGPROB_FLOOR = -9999.0
"""vLLM clamps logprobs here (vllm/entrypoints/openai): "less likely than we can say", not a value."""

GREEDY_BELOW = 1e-5
"""vLLM's `_SAMPLING_EPS`: a temperature below it is greedy decoding."""

MIN_TEMPERATURE = 0.01
"""vLLM's `_MAX_TEMP`: sampling temperatures between greedy and this are raised to it."""

_DECIMAL = re.compile(r"-?[1-9][0-9]{0,19}|0")
"""A 64-bit integer, or one digit more."""


def _integer_from_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not _DECIMAL.fullmatch(value):
        raise ValueError("not a whole number in decimal digits")
    return int(value)


# JSON numbers are doubles; 64-bit integers travel as text (RFC 8785 §3.2.2.3, RFC 7493 §2.2).
BigInt = Annotated[
    int, BeforeValidator(_integer_from_json), PlainSerializer(str, return_type=str, when_used="json")
]


def _bytes_from_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    raw = base64.b64decode(value, validate=True)
    # Base64 has several spellings of the same bytes (RFC 4648 §3.5); a record has one.
    if base64.b64encode(raw).decode() != value:
        raise ValueError("not base64 as a receipt spells it")
    return raw


TokenBytes = Annotated[
    bytes,
    BeforeValidator(_bytes_from_json),
    PlainSerializer(lambda raw: base64.b64encode(raw).decode(), return_type=str, when_used="json"),
]


class Frozen(BaseModel):
    """Immutable, refuses fields it does not know: a typo must not silently change a record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; what was derived from the old ones, such as a digest, is not."""
        copied = super().model_copy(update=update, deep=deep)
        for derived in copied.__dict__.keys() - type(self).model_fields:
            del copied.__dict__[derived]
        return copied


class Status(StrEnum):
    """How a run ended. Only `COMPLETE` has the engine's own finish reason."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class Message(Frozen):
    """One chat message as sent."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(Frozen):
    """Every sampling field Encore sends; none is left to the server's or the model's defaults."""

    seed: BigInt | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 1024
    top_logprobs: int = 5

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def effective(self) -> Sampling:
        """The values vLLM really applies (facts read in vllm/sampling_params.py, `__post_init__`)."""
        if self.greedy:
            neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None}
            return self.model_copy(update=neutral)
        return self.model_copy(
            update={"temperature": max(self.temperature, MIN_TEMPERATURE), "top_k": max(self.top_k, 0)}
        )


@dataclass(frozen=True, slots=True)
class Alternative:
    """One entry of the engine's top-k at a position."""

    id: int
    logprob: float | None
    """Nats; None when unknown, also when it was given as no finite number: JSON has none."""

    def __post_init__(self) -> None:
        if self.logprob is not None and not math.isfinite(self.logprob):
            object.__setattr__(self, "logprob", None)


Unknown = Literal["floor", "not_a_number", "row_not_numbers"]
"""Why a logprob is unknown though the engine gave an entry: clamped or minus infinity; null or NaN (vLLM
writes NaN as null); or null and NaN for the token and every alternative, which no distribution is."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One generated token."""

    id: int
    logprob: float | None = None
    """Nats, of the raw distribution (before temperature) unless the engine's logprobs mode says otherwise."""
    bytes: TokenBytes | None = None
    """The token's bytes; None where the engine gave none (part of a character it had not finished)."""
    top: tuple[Alternative, ...] = ()
    """Alternatives as sent, most likely first."""
    unknown: Annotated[Unknown | None, Field(exclude_if=lambda why: why is None)] = None
    """Why `logprob` is unknown, where the engine's entry tells. Younger than the format: left out while
    None, so that digests of records without it stay what they are."""

    def __post_init__(self) -> None:
        if self.logprob is not None and not math.isfinite(self.logprob):
            object.__setattr__(self, "unknown", why_unknown(self.logprob))
            object.__setattr__(self, "logprob", None)


def why_unknown(value: float | None) -> Literal["floor", "not_a_number"] | None:
    """Why the engine's logprob says nothing; None when it does."""
    if value is None or math.isnan(value):
        return "not_a_number"
    return None if known_logprob(value) is not None else "floor"


def known_logprob(value: float | None) -> float | None:
    """The engine's logprob, or None when it is null, non-finite or the clamp value."""
    if value is None or not math.isfinite(value) or value <= LOGPROB_FLOOR:
        return None
    return value


class GenerationRequest(Frozen):
    """What was asked, complete enough to ask it again."""

    endpoint: Literal["/v1/chat/completions", "/v1/completions"] = "/v1/chat/completions"
    body: str
    """The exact JSON body as sent; replay sends this text and nothing else."""
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    effective: Sampling
    prompt_token_ids: tuple[int, ...] = ()
    """As rendered by the engine's chat template; empty when the engine does not report them. Of a request
    to `/v1/completions`, the ids that were sent."""

    @property
    def question(self) -> str:
        """The last thing a person said; empty when nobody said anything."""
        asked = (message.content for message in reversed(self.messages) if message.role == "user")
        return next(asked, "")

    @property
    def given(self) -> str:
        """The beginning of the answer that was sent along, as text; empty for a chat's request."""
        if self.endpoint != "/v1/completions" or not self.messages:
            return ""
        last = self.messages[-1]
        return last.content if last.role == "assistant" else ""


class Completion(Frozen):
    """What came back."""

    tokens: Annotated[tuple[TokenRecord, ...], FailFast()]
    text: str
    """Raw model text, as streamed; special tokens are skipped by the engine."""
    status: Status
    finish_reason: str | None = None
    """The engine's word ("stop", "length"); None unless status is complete."""
    detail: str = ""
    """Why a run was interrupted, for people."""
    reported_tokens: int | None = None
    """`usage.completion_tokens`; differs from `len(tokens)` only if something was lost."""
    cached_prompt_tokens: int | None = None
    """Prompt tokens served from the prefix cache, when the engine tells."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)

    @property
    def unaccounted_tokens(self) -> int:
        """By how many the engine's own count of a whole answer and the tokens recorded differ."""
        return 0 if self.reported_tokens is None else abs(self.reported_tokens - len(self.tokens))

    @property
    def invalid_positions(self) -> int:
        """Positions at which the engine's whole distribution was not a number: the model's output is not
        valid, and the tokens are whatever its sampler made of that."""
        return sum(token.unknown == "row_not_numbers" for token in self.tokens)


ADDED_TO_FORMAT_1 = ("linear_kernel", "top_p_pinned", "attention_kernel")
"""Fingerprint fields younger than the format: left out while unknown, so older digests stay what they are."""


class EngineFingerprint(Frozen):
    """Which engine answered. None is "unknown", never a guess.

    Everything here can change the bits of an answer, or says that it cannot; addresses, ports and
    keys are not part of it.
    """

    model: str
    model_revision: str | None = None
    weights_digest: str | None = None
    tokenizer_digest: str | None = None
    chat_template_digest: str | None = None
    config_digest: str | None = None
    vllm_version: str | None = None
    torch_version: str | None = None
    cuda_version: str | None = None
    driver_version: str | None = None
    device: Literal["cpu", "cuda"] | None = None
    device_names: tuple[str, ...] = ()
    device_memory_bytes: BigInt | None = None
    cpu_model: str | None = None
    cpu_flags: tuple[str, ...] = ()
    threads: int | None = None
    profile: str | None = None
    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    lock_digest: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    tensor_parallel_size: int | None = None
    attention_backend: str | None = None
    enforce_eager: bool | None = None
    batch_invariant: bool | None = None
    prefix_caching: bool | None = None
    logprobs_mode: str | None = None
    engine_seed: BigInt | None = None
    system_fingerprint: str | None = None
    """vLLM's own hash: does not show weights, GPU, driver, prefix caching or batch invariance."""
    linear_kernel: Literal["cublas", "triton"] | None = None
    """What computes the linear layers in batch-invariant mode, as the engine's self-check decided."""
    top_p_pinned: bool | None = None
    """Whether top-p keeps the same tokens in any company, as the engine's self-check found."""

    attention_kernel: Literal["segments", "vllm"] | None = None
    """What serves attention in batch-invariant mode: contexts cut at fixed places, or vLLM's own kernel."""

    @model_serializer(mode="wrap")
    def _without_unknown_additions(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = plain(self)
        unknown = [name for name in ADDED_TO_FORMAT_1 if document.get(name, "") is None]
        return {name: value for name, value in document.items() if name not in unknown}

    @cached_property
    def digest(self) -> str:
        return content_digest(self.model_dump(mode="json"))


class Receipt(Frozen):
    """Request, completion and engine of one run."""

    format: Literal[1] = FORMAT
    request: GenerationRequest
    completion: Completion
    engine: EngineFingerprint

    @property
    def answer(self) -> str:
        """The answer's whole raw text: what was given of it and what was generated."""
        return self.request.given + self.completion.text

    @cached_property
    def canonical(self) -> bytes:
        """The RFC 8785 canonical JSON of everything in the receipt. Slow: a second for 8,192 tokens."""
        return rfc8785.dumps(self.model_dump(mode="json"))

    @cached_property
    def digest(self) -> str:
        """`sha256:…` over the canonical JSON of everything in the receipt."""
        return bytes_digest(self.canonical)

    def to_json(self) -> str:
        """Strict JSON with the digest beside the content; `exported.parse_receipt` reads it back."""
        return f'{{"digest":"{self.digest}","receipt":{self.canonical.decode()}}}'


def bytes_digest(content: bytes) -> str:
    """`sha256:<hex>` of these bytes."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def content_digest(document: Any) -> str:
    """`sha256:<hex>` of the RFC 8785 canonical JSON of `document` (no floats but finite ones)."""
    return bytes_digest(rfc8785.dumps(document))

"""Folds an OpenAI-compatible chat stream into tokens: a state machine with no I/O.

The same tokens come out however the server cuts its chunks: ids, logprobs and text are accumulated
separately, chunks are never counted (vLLM merges deltas when the client is slow, and holds text back
while a character is incomplete; see vllm/v1/engine/output_processor.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_backend.receipt import Alternative, TokenRecord, Unknown, known_logprob, why_unknown

TOKEN_ID_PREFIX = "token_id:"
"""How vLLM names a token when asked with `return_tokens_as_token_ids`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one chunk added; `text` may be empty while `tokens` are not, and the reverse."""

    text: str
    tokens: tuple[TokenRecord, ...]


class StreamFold:
    """State of one stream. Feed every chunk; read the attributes once the stream has ended."""

    def __init__(self) -> None:
        self.prompt_token_ids: tuple[int, ...] = ()
        self.finish_reason: str | None = None
        self.system_fingerprint: str | None = None
        self.reported_tokens: int | None = None
        self.cached_prompt_tokens: int | None = None
        self._reasoning_open = False

    def feed(self, chunk: Mapping[str, Any]) -> Delta:
        """Take in one decoded `chat.completion.chunk`."""
        if chunk.get("prompt_token_ids"):
            self.prompt_token_ids = tuple(chunk["prompt_token_ids"])
        if chunk.get("system_fingerprint"):
            self.system_fingerprint = chunk["system_fingerprint"]
        if usage := chunk.get("usage"):
            self.reported_tokens = usage.get("completion_tokens")
            details = usage.get("prompt_tokens_details") or {}
            self.cached_prompt_tokens = details.get("cached_tokens")
        choices = chunk.get("choices") or []
        if not choices:
            return Delta("", ())
        choice = choices[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return Delta(self._text(choice.get("delta") or {}), tuple(self._tokens(choice)))

    def _text(self, delta: Mapping[str, Any]) -> str:
        """Raw text; reasoning that a server's parser moved elsewhere is put back between its tags."""
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        content = delta.get("content") or ""
        text = ""
        if reasoning:
            text = reasoning if self._reasoning_open else f"<think>{reasoning}"
            self._reasoning_open = True
        if content:
            text += f"</think>{content}" if self._reasoning_open else content
            self._reasoning_open = False
        return text

    @staticmethod
    def _tokens(choice: Mapping[str, Any]) -> Iterator[TokenRecord]:
        entries: Sequence[Mapping[str, Any]] = (choice.get("logprobs") or {}).get("content") or []
        ids: Sequence[int | None] = choice.get("token_ids") or [_token_id(entry) for entry in entries]
        # Entries that do not pair up one to one say nothing certain about any token of the chunk.
        paired = len(entries) == len(ids)
        for index, token_id in enumerate(ids):
            if token_id is None:
                continue
            yield _record(token_id, entries[index]) if paired else TokenRecord(token_id)


def _record(token_id: int, entry: Mapping[str, Any]) -> TokenRecord:
    raw = entry.get("bytes")
    row = [entry.get("logprob"), *(other.get("logprob") for other in entry.get("top_logprobs") or [])]
    unknown: Unknown | None = why_unknown(row[0])
    # A lone null may be a server that gives no numbers; NaN, or a row of nulls, is no distribution.
    alone = len(row) == 1 and row[0] is None
    if not alone and all(why_unknown(value) == "not_a_number" for value in row):
        unknown = "row_not_numbers"
    return TokenRecord(
        id=token_id,
        logprob=known_logprob(entry.get("logprob")),
        bytes=bytes(raw) if raw else None,
        top=tuple(
            Alternative(alternative_id, known_logprob(alternative.get("logprob")))
            for alternative in entry.get("top_logprobs") or []
            if (alternative_id := _token_id(alternative)) is not None
        ),
        unknown=unknown,
    )


def _token_id(entry: Mapping[str, Any]) -> int | None:
    name = entry.get("token") or ""
    digits = name.removeprefix(TOKEN_ID_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else None

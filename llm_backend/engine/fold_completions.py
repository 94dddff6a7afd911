"""Folds a stream of `/v1/completions`, which continues given token ids, into the same tokens as a chat's.

The format differs from the chat's in three ways: text lies in `text`, ids of the prompt in the choice, and
logprobs in parallel lists, with alternatives as a map that may hold the generated token beyond the number
asked for. There are no bytes: what such a token reads can only be asked of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llm_backend.engine.fold import Delta, StreamFold
from llm_backend.receipt import known_logprob


class CompletionsFold(StreamFold):
    """`StreamFold` for a request to `/v1/completions` that asks for `alternatives` per token."""

    def __init__(self, alternatives: int) -> None:
        super().__init__()
        self._alternatives = alternatives

    def feed(self, chunk: Mapping[str, Any]) -> Delta:
        """Take in one decoded chunk, or a whole reply."""
        choices = [self._as_chat(choice) for choice in chunk.get("choices") or []]
        told = {"prompt_token_ids": choices[0]["prompt_token_ids"]} if choices else {}
        return super().feed({**chunk, **told, "choices": choices})

    def _as_chat(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        logprobs = choice.get("logprobs")
        return {
            "delta": {"content": choice.get("text")},
            "logprobs": {"content": list(self._entries(logprobs))} if logprobs else None,
            "token_ids": choice.get("token_ids"),
            "finish_reason": choice.get("finish_reason"),
            "prompt_token_ids": choice.get("prompt_token_ids"),
        }

    def _entries(self, logprobs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        names, values = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
        rows = logprobs.get("top_logprobs") or [None] * len(names)
        if not len(names) == len(values) == len(rows):
            return  # nothing certain about any of them; the ids come beside
        for name, value, row in zip(names, values, rows, strict=True):
            listed = sorted((row or {}).items(), key=lambda entry: _place(entry[1]))
            yield {
                "token": name,
                "logprob": value,
                "top_logprobs": [
                    {"token": other, "logprob": logprob} for other, logprob in listed[: self._alternatives]
                ],
            }


def _place(logprob: float | None) -> float:
    """Most likely first; what is unknown comes last. Equal ones keep the engine's order."""
    known = known_logprob(logprob)
    return float("inf") if known is None else -known

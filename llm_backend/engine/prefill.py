"""Read the engine's `prompt_logprobs`: what it would have thought of each token of a given sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_backend.errors import EngineRejected
from llm_backend.receipt import known_logprob
from llm_backend.scoring import TokenScore


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prefill's reply."""

    scores: tuple[TokenScore | None, ...]
    """One per token that was sent; None for the first (nothing precedes it) and where nothing was told."""
    system_fingerprint: str | None


def read_prefill(reply: Any, token_ids: Sequence[int]) -> Prefill:
    """Raises `EngineRejected` when the reply has no logprobs for the prompt that was sent."""
    try:
        entries = reply["choices"][0]["prompt_logprobs"]
        if len(entries) != len(token_ids):
            raise ValueError("another number of tokens")
        scores = tuple(_score(entry, token_id) for entry, token_id in zip(entries, token_ids, strict=True))
        return Prefill(scores, reply.get("system_fingerprint"))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise EngineRejected(
            "This engine does not report log-probabilities for a prompt.",
            "Replay the run instead: encore replay.",
        ) from None


def _score(entry: dict[str, dict[str, Any]] | None, token_id: int) -> TokenScore | None:
    """`entry` maps token ids to logprob and rank: the given token's, and the most likely ones'."""
    own = entry.get(str(token_id)) if entry else None
    if entry is None or own is None:
        return None
    listed = [value for other in entry.values() if (value := known_logprob(other["logprob"])) is not None]
    return TokenScore(known_logprob(own["logprob"]), max(listed, default=None), own.get("rank"))

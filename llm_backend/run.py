"""One run as lists show it: everything about a recorded generation except its tokens.

The receipt says what was asked and answered; a `Run` adds when, how fast, in which chat and among how
many other requests, none of which is part of the receipt's digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

RunKind = Literal["ask", "replay", "fork", "import"]
RunStatus = Literal["running", "complete", "stopped", "interrupted"]

FRESH = 1
"""Requests that a just started engine may have finished: Encore's launch asks for one token before it
calls an engine ready."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run. What only the receipt knows is None while the run is still going."""

    id: str
    chat_id: str
    kind: RunKind
    question: str
    """The first `store.QUESTION_LENGTH` characters of the last user message."""
    started_at: datetime
    """UTC; for an imported run, when it was imported."""
    status: RunStatus
    model: str
    seed: int | None
    """As sent; None when no seed was sent."""
    greedy: bool
    digest: str | None = None
    """Of the receipt; two runs that came out the same to the last bit share it."""
    reference_run_id: str | None = None
    """The run that this one replays, or was forked off."""
    ttft_s: float | None = None
    """Seconds to the first token."""
    duration_s: float | None = None
    """Seconds from sending the request to the end of the answer."""
    neighbours: int | None = None
    """The most other requests seen in flight during this one; None when the engine did not tell."""
    served_before: int | None = None
    """Requests the engine had finished since its start when this one was sent; None when it did not tell."""
    expected_answer: str | None = None
    """What a person says the answer is, verbatim; may be typed, changed and cleared at any time."""
    engine_url: str = ""
    engine_start: str | None = None
    """Id of the engine's start, where its launch manifest tells; another one after a restart."""
    message_id: str | None = None
    """Of the chat's message that asked; None for walls, replays and the terminal."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    fingerprint_digest: str | None = None
    sampling_class: str | None = None
    """Settings that count as the same when it comes to proof; see `proof.sampling_class`."""
    invalid_positions: int | None = None
    """Positions at which the engine's whole distribution was not a number; see `Completion`."""
    verdict: str | None = None
    """Of the latest comparison in which this run was the candidate."""

    @property
    def first_after_start(self) -> bool | None:
        """Whether it was a started engine's first request, its launch's own aside; None when not known."""
        return None if self.served_before is None else self.served_before <= FRESH

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed: tokens after the first over the time after the first."""
        if not self.completion_tokens or self.completion_tokens < 2 or self.ttft_s is None:
            return None
        decoding = (self.duration_s or 0.0) - self.ttft_s
        return (self.completion_tokens - 1) / decoding if decoding > 0 else None

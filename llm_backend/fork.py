"""Why this token, and what if it had been another: choices at a position, and a request that forks there.

A fork sends ids, not text: the recorded prompt, the answer's tokens before the position and the token taken
instead go to `/v1/completions`, and the model goes on from there with the recorded settings. Its record is
a receipt like any other. The messages in it hold the given beginning as text, for people.

Tokens before the fork are computed in one prefill, not one by one as in the recording: where two tokens are
nearly equally likely, even the recorded token may be followed by another continuation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llm_backend.altered import body_of
from llm_backend.compare import NearTie, logprob_margin, probability
from llm_backend.errors import EncoreError
from llm_backend.reasons import first_difference
from llm_backend.receipt import GenerationRequest, Message, Receipt, Sampling, TokenRecord, known_logprob
from llm_backend.strings import Language, text

Refusal = Literal[
    "no_ids",
    "position",
    "not_listed",
    "no_other",
    "end",
    "no_room",
    "penalties",
    "settings",
    "tokenizer",
    "no_text",
    "parent_gone",
    "no_fork",
]
"""Why there is no fork: `fork.refused.…` in the locale files says it."""

_END_NAMES = frozenset(
    {
        *("</s>", "<eos>", "<|eos|>", "[EOS]", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>"),
        *("<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end_of_turn|>", "<|return|>"),
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
"""Tokens after which models have said all; engines do not tell which ones end an answer."""

_KEPT = frozenset(
    {
        *("stop", "stop_token_ids", "ignore_eos", "logit_bias", "bad_words", "allowed_token_ids"),
        *("skip_special_tokens", "spaces_between_special_tokens", "cache_salt", "priority"),
    }
)
"""Keys of a recorded body that mean the same for a continuation; sent as they were."""

_REPLACED = frozenset(
    {
        *("model", "messages", "prompt", "stream", "stream_options", "logprobs", "top_logprobs"),
        *("return_token_ids", "return_tokens_as_token_ids", "max_completion_tokens"),
        *Sampling.model_fields,
    }
)

_TAKE = re.compile(r"(id:)?([0-9]{1,9})")


class CannotFork(EncoreError):
    """This run cannot be forked there; `sentence` says why in either language."""

    def __init__(self, reason: Refusal, **values: Any) -> None:
        super().__init__(text(f"fork.refused.{reason}", **values))
        self.reason = reason
        self._values = values

    def sentence(self, lang: Language) -> str:
        return text(f"fork.refused.{self.reason}", lang, **self._values)


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that was or could have been generated at a position."""

    id: int
    logprob: float | None
    """Nats; None when unknown."""
    rank: int | None
    """1 is the most likely of those recorded; None for a generated token whose place is not known."""
    recorded: bool
    """The one that was generated."""

    @property
    def probability(self) -> float | None:
        return probability(self.logprob)


@dataclass(frozen=True, slots=True)
class Take:
    """Which token to take instead: the `rank`th most likely one, or the one with an id."""

    rank: int | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class CloseCall:
    """A position at which another token was nearly as likely."""

    position: int
    margin: float
    """Nats, most likely minus second."""


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """How a fork lies to the run it was forked off: by ids alone, whatever the records say of themselves."""

    position: int
    recorded: TokenRecord
    taken: Choice
    margin: float | None
    """Nats, most likely minus second at the position; None when the record cannot tell."""
    same_after: int
    """Tokens after the fork that equal the recorded ones, until the first that does not."""
    recorded_after: int
    """Tokens the recorded answer has after the position."""
    generated: int
    """Tokens the fork generated."""

    @property
    def same_token(self) -> bool:
        """The recorded token was taken again: a control, not another way."""
        return self.taken.id == self.recorded.id


def parse_take(typed: str) -> Take:
    """`2` is the second most likely token, `id:1234` the token with that id."""
    found = _TAKE.fullmatch(typed.strip())
    if found is None or (not found[1] and int(found[2]) < 1):
        raise EncoreError(text("fork.take", given=typed))
    number = int(found[2])
    return Take(id=number) if found[1] else Take(rank=number)


def choices(token: TokenRecord) -> tuple[Choice, ...]:
    """The token generated at a position and its recorded alternatives, most likely first.

    Engines list a generated token that was not among the most likely beside them: its rank is not known
    then, unless it is more likely than one of them.
    """
    listed = {token.id: known_logprob(token.logprob)}
    listed |= {other.id: known_logprob(other.logprob) for other in token.top}
    listed[token.id] = known_logprob(token.logprob)
    ordered = sorted(listed.items(), key=lambda entry: float("inf") if entry[1] is None else -entry[1])
    last = len(ordered)
    return tuple(
        Choice(
            token_id,
            value,
            # Behind all of its alternatives it may be at any place.
            None if value is None or (token_id == token.id and place == last > 1) else place,
            token_id == token.id,
        )
        for place, (token_id, value) in enumerate(ordered, start=1)
    )


def pick(receipt: Receipt, position: int, take: Take | None = None) -> Choice:
    """The choice that `take` means, None being the most likely one that was not generated."""
    tokens = receipt.completion.tokens
    if not 0 <= position < len(tokens):
        raise CannotFork("position", position=position, last=len(tokens) - 1)
    listed = choices(tokens[position])
    if take is None:
        other = next((one for one in listed if not one.recorded and one.logprob is not None), None)
        if other is None:
            raise CannotFork("no_other", position=position)
        return other
    wanted = (one for one in listed if (take.id == one.id if take.rank is None else take.rank == one.rank))
    found = next(wanted, None)
    if found is None:
        given = f"id:{take.id}" if take.rank is None else str(take.rank)
        raise CannotFork("not_listed", given=given, position=position, n=len(listed))
    return found


def obstacle(receipt: Receipt) -> CannotFork | None:
    """What keeps this run from being forked anywhere; None where nothing does."""
    request = receipt.request
    if not request.prompt_token_ids or not receipt.completion.tokens:
        return CannotFork("no_ids")
    sampling = request.effective
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
    if penalties != (0.0, 0.0, 1.0):
        return CannotFork("penalties")
    body = body_of(request)
    unknown = sorted((body or {}).keys() - _KEPT - _REPLACED)
    if body is None or unknown:
        return CannotFork("settings", names=", ".join(unknown) or "?")
    return None


def ends_answer(receipt: Receipt, token_id: int, shown: str | None) -> bool:
    """Whether a token ends the answer: as this one ended, or by its name as the engine `shows` it."""
    completion = receipt.completion
    stopped = completion.finish_reason == "stop" and "stop" not in (body_of(receipt.request) or {})
    if stopped and completion.tokens and completion.tokens[-1].id == token_id:
        return True
    return (shown or "") in _END_NAMES


def room_after(receipt: Receipt, position: int) -> int:
    """Tokens that are left of the recorded limit after a token taken at `position`."""
    return receipt.request.sampling.max_tokens - position - 1


def fork_request(receipt: Receipt, position: int, token_id: int, given: str) -> GenerationRequest:
    """What to send: `given` is the answer's text up to and with the token taken, for people.

    Raises `CannotFork`.
    """
    if problem := obstacle(receipt):
        raise problem
    request, ids = receipt.request, receipt.completion.token_ids
    room = room_after(receipt, position)
    if room < 1:
        raise CannotFork("no_room", position=position, limit=request.sampling.max_tokens)
    sampling = request.sampling.model_copy(update={"max_tokens": room})
    prompt = (*request.prompt_token_ids, *ids[:position], token_id)
    kept = {key: value for key, value in (body_of(request) or {}).items() if key in _KEPT}
    body = {
        "model": request.model,
        "prompt": list(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampling.model_dump(exclude={"top_logprobs"}, exclude_none=True),
        "logprobs": sampling.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **kept,
    }
    asked = request.messages[:-1] if request.given else request.messages
    return GenerationRequest(
        endpoint="/v1/completions",
        body=json.dumps(body, ensure_ascii=False),
        model=request.model,
        messages=(*asked, Message(role="assistant", content=given)),
        sampling=sampling,
        effective=sampling.effective(),
        prompt_token_ids=prompt,
    )


def fork_point(parent: Receipt, fork: Receipt) -> ForkPoint:
    """Where `fork` leaves `parent`; raises `CannotFork` when its prompt does not continue the parent's."""
    begin, sent = parent.request.prompt_token_ids, fork.request.prompt_token_ids
    tokens = parent.completion.tokens
    position = len(sent) - len(begin) - 1
    before = (*begin, *parent.completion.token_ids[: max(position, 0)])
    if not 0 <= position < len(tokens) or sent[:-1] != before:
        raise CannotFork("no_fork")
    after = parent.completion.token_ids[position + 1 :]
    listed = choices(tokens[position])
    taken = next((one for one in listed if one.id == sent[-1]), Choice(sent[-1], None, None, False))
    return ForkPoint(
        position=position,
        recorded=tokens[position],
        taken=taken,
        margin=logprob_margin(tokens[position]),
        same_after=first_difference(after, fork.completion.token_ids),
        recorded_after=len(after),
        generated=len(fork.completion.tokens),
    )


def is_close(margin: float | None, threshold: NearTie) -> bool:
    """Whether rounding could have swapped the two most likely tokens."""
    return margin is not None and margin <= threshold.nats


def close_calls(tokens: Sequence[TokenRecord], most: int) -> list[CloseCall]:
    """The `most` positions with the smallest known margins, the smallest first."""
    known = (
        CloseCall(position, margin)
        for position, token in enumerate(tokens)
        if (margin := logprob_margin(token)) is not None
    )
    return sorted(known, key=lambda call: (call.margin, call.position))[:most]

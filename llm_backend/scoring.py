"""Judge a recorded answer by what an engine says about it in one prefill, without generating it again.

Two kinds of verdict, never mixed up:

    BIT_EXACT          every known logprob equals the recorded one, and a greedy answer's tokens are all
                       the most likely ones: the engine computes these very numbers
    WITHIN_TOLERANCE   no position is further off than the engine's own prefill is from its own decoding
                       (see `Calibration`): plausible, not proven

What exceeds the tolerance is `OUTSIDE`; without prompt ids, logprobs or the same model there is
nothing to judge (`UNCHECKABLE`). Positions are those of the answer, 0-based; unknown values never
count as different.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from llm_backend.compare import NearTie
from llm_backend.engine_changes import EngineChange, engine_changes
from llm_backend.reasons import Reason, identity_reasons
from llm_backend.receipt import EngineFingerprint, Frozen, Receipt, Sampling, TokenRecord, known_logprob

MARGIN = 2.0
"""Tolerance over the largest difference of the self-check. A token that decoding preferred by a hair
may come out behind another in a prefill by the rounding of both."""


class CheckVerdict(StrEnum):
    """The answer to "does this engine stand by these tokens?"."""

    BIT_EXACT = "BIT_EXACT"
    WITHIN_TOLERANCE = "WITHIN_TOLERANCE"
    OUTSIDE = "OUTSIDE"
    UNCHECKABLE = "UNCHECKABLE"


@dataclass(frozen=True, slots=True)
class TokenScore:
    """What a prefill says about one given token; None is unknown."""

    logprob: float | None
    """Nats."""
    best: float | None
    """The largest logprob the engine listed there: the most likely token's."""
    rank: int | None = None
    """As the engine counts it. At a tie the most likely token may have rank 2: judge by `best`."""


@dataclass(frozen=True, slots=True)
class CheckedPosition:
    """One recorded token, checked."""

    difference: float | None
    """Nats, prefill minus recorded; None when either is unknown."""
    gap: float | None
    """Nats by which the most likely token leads in the prefill; 0 when the recorded one is it."""
    rank: int | None


class Calibration(Frozen):
    """How far an engine's prefill is from its own decoding: the self-check a tolerance rests on."""

    engine: str
    """Digest of the fingerprint it was measured on."""
    positions: int
    largest: float
    """Nats, largest difference at any of them. 0: prefill equals decoding bit for bit."""

    @property
    def tolerance(self) -> float:
        return MARGIN * self.largest

    @property
    def near_tie(self) -> NearTie:
        """Up to which margin this engine's rounding swaps two tokens."""
        return NearTie(nats=2 * self.largest, basis="self_check", positions=self.positions)


class Check(Frozen):
    """Everything a check measured; differences are in nats."""

    verdict: CheckVerdict
    reasons: tuple[Reason, ...] = ()
    """Why it cannot be checked."""
    positions: tuple[CheckedPosition, ...] = ()
    known: int = 0
    """Positions with a logprob on both sides."""
    bit_equal: int = 0
    most_likely: int = 0
    """Positions whose recorded token is the engine's most likely one."""
    must_be_most_likely: bool = False
    """Greedy without penalties: another token than the most likely one would not have been chosen."""
    max_abs_logprob_diff: float | None = None
    mean_abs_logprob_diff: float | None = None
    calibration: Calibration | None = None
    """None when the verdict needs no tolerance."""
    tolerance: float | None = None
    outside: int = 0
    first_outside: int | None = None
    engine_changes: tuple[EngineChange, ...] = ()

    @property
    def unknown(self) -> int:
        return len(self.positions) - self.known

    @property
    def passed(self) -> bool:
        return self.verdict in (CheckVerdict.BIT_EXACT, CheckVerdict.WITHIN_TOLERANCE)


def obstacles(receipt: Receipt, engine: EngineFingerprint) -> tuple[Reason, ...]:
    """Why `receipt` cannot be checked on `engine`; empty when it can."""
    return tuple(_obstacles(receipt, engine))


def score(
    recorded: Sequence[TokenRecord], scores: Sequence[TokenScore | None]
) -> tuple[CheckedPosition, ...]:
    """Set what was recorded against the prefill; tokens that `scores` is too short for are unknown."""
    missing = [None] * (len(recorded) - len(scores))
    return tuple(_position(token, given) for token, given in zip(recorded, [*scores, *missing], strict=True))


def bit_exact(positions: Sequence[CheckedPosition], *, must_be_most_likely: bool) -> bool:
    """Whether all that is known is equal, and something is known."""
    known = [position.difference for position in positions if position.difference is not None]
    expected = not must_be_most_likely or all(position.gap in (0, None) for position in positions)
    return bool(known) and not any(known) and expected


def largest_difference(positions: Sequence[CheckedPosition]) -> float | None:
    """Nats; None when nothing is known."""
    return max((abs(p.difference) for p in positions if p.difference is not None), default=None)


def must_be_most_likely(sampling: Sampling) -> bool:
    """Greedy decoding takes the most likely token, unless penalties change which one that is."""
    neutral = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (
        1,
        0,
        0,
    )
    return sampling.greedy and neutral


def judge(
    receipt: Receipt,
    engine: EngineFingerprint,
    positions: Sequence[CheckedPosition],
    calibration: Calibration | None,
) -> Check:
    """The verdict over checked positions. `calibration` may be missing only where `bit_exact` holds."""
    differences = [abs(p.difference) for p in positions if p.difference is not None]
    if not differences:
        return refused((Reason(kind="no_logprobs"),))
    greedy = must_be_most_likely(receipt.request.sampling)
    exact = bit_exact(positions, must_be_most_likely=greedy)
    tolerance = None if exact or calibration is None else calibration.tolerance
    outside = [] if tolerance is None else list(_outside(positions, tolerance, greedy))
    if exact:
        verdict = CheckVerdict.BIT_EXACT
    else:
        assert tolerance is not None
        verdict = CheckVerdict.OUTSIDE if outside else CheckVerdict.WITHIN_TOLERANCE
    return Check(
        verdict=verdict,
        positions=tuple(positions),
        known=len(differences),
        bit_equal=differences.count(0),
        most_likely=sum(position.gap == 0 for position in positions),
        must_be_most_likely=greedy,
        max_abs_logprob_diff=max(differences),
        mean_abs_logprob_diff=sum(differences) / len(differences),
        calibration=None if exact else calibration,
        tolerance=tolerance,
        outside=len(outside),
        first_outside=outside[0] if outside else None,
        # No seed reaches a prefill, the engine's own included.
        engine_changes=engine_changes(receipt.engine, engine, seeded=True),
    )


def refused(reasons: tuple[Reason, ...]) -> Check:
    return Check(verdict=CheckVerdict.UNCHECKABLE, reasons=reasons)


def _obstacles(receipt: Receipt, engine: EngineFingerprint) -> Iterator[Reason]:
    yield from identity_reasons(receipt.engine, engine)
    if broken := receipt.completion.invalid_positions:
        yield Reason(kind="invalid_recorded", reference=f"{broken:,}")
    tokens = receipt.completion.tokens
    if not tokens:
        yield Reason(kind="no_token_ids" if receipt.completion.text else "nothing_generated")
    elif lost := receipt.completion.unaccounted_tokens:
        yield Reason(kind="tokens_lost", reference=f"{lost:,}", candidate="0")
    elif all(known_logprob(token.logprob) is None for token in tokens):
        yield Reason(kind="no_logprobs")
    if not receipt.request.prompt_token_ids:
        yield Reason(kind="no_prompt_ids")
    length, context = len(receipt.request.prompt_token_ids) + len(tokens), engine.max_model_len
    if context is not None and length > context:
        yield Reason(kind="too_long", reference=f"{length:,}", candidate=f"{context:,}")
    recorded, now = receipt.engine.logprobs_mode, engine.logprobs_mode
    # Processed values depend on temperature and penalties, which do not reach a prompt.
    processed = (recorded or "").startswith("processed") and not must_be_most_likely(receipt.request.sampling)
    if processed or (None not in (recorded, now) and recorded != now):
        yield Reason(kind="other_logprobs", reference=recorded, candidate=now)


def _position(token: TokenRecord, given: TokenScore | None) -> CheckedPosition:
    if given is None:
        return CheckedPosition(None, None, None)
    recorded, now, best = (known_logprob(value) for value in (token.logprob, given.logprob, given.best))
    return CheckedPosition(
        difference=None if recorded is None or now is None else now - recorded,
        gap=None if now is None or best is None else best - now,
        rank=given.rank,
    )


def _outside(positions: Sequence[CheckedPosition], tolerance: float, greedy: bool) -> Iterator[int]:
    for index, position in enumerate(positions):
        off = abs(position.difference or 0.0)
        behind = (position.gap or 0.0) if greedy else 0.0
        if max(off, behind) > tolerance:
            yield index

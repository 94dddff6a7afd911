"""How the next-token distributions of two runs differ, position by position, before a fork.

A receipt holds the chosen token and the k most likely ones of each position, so of the distribution
over the whole vocabulary only a part is known. Everything here is about that part, and what lies
outside it is bounded, never guessed: an id recorded on one side alone, a null, a clamped or a
non-finite value is unknown. Positions count while everything generated before them is equal: those
before the first fork, and the fork's own, which is reported apart.

The bound on the total variation TV(P, Q) = ½ Σ |p − q| over the *whole* vocabulary:

    lower   ½ Σ |p − q| over the ids known on both sides + ½ |tail P − tail Q|, a tail being all the
            probability outside those ids. Merging outcomes never increases a divergence (the
            data-processing inequality; Cover & Thomas, Elements of Information Theory, 2nd ed., §2.8;
            Csiszár & Körner, ch. 3), so the whole differs at least this much. Sharpened for ids that
            one side alone lists: the other gives each of them no more than its own least listed
            alternative, and all of them together no more than its tail.
    upper   1 − Σ min(p, q) over the ids known on both sides: the tails taken as disjoint. TV is
            1 − Σ min(p, q) over all ids, and what is left out of that sum cannot be negative.

Both are exact up to the rounding of the recorded values (float32). The quantity is whatever the
engine's logprobs mode records: `raw_logprobs` the model's distribution before temperature and
filters, `processed_logprobs` the one that was sampled from. Logits are no probabilities: no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter, sub
from typing import Any, cast

from llm_backend.compare import NEAR_TIE, Comparison, Verdict, logprob_margin
from llm_backend.receipt import LOGPROB_FLOOR, Frozen, Receipt, TokenRecord

ROUNDING = 1e-4
"""By how much the recorded probabilities of one position may sum to more than 1: twenty-one float32
logprobs, each off by at most 1e-6. Beyond it they are not probabilities."""

_ID, _LOGPROB = attrgetter("id"), attrgetter("logprob")
_Values = dict[int, float]
"""Logprobs by token id."""


class TvBound(Frozen):
    """The total variation at one position lies in [lower, upper], both from 0 to 1."""

    position: int
    lower: float
    upper: float


class Margins(Frozen):
    """The reference's `logprob_margin` over the compared positions, in nats."""

    known: int = 0
    smallest: float | None = None
    smallest_at: int | None = None
    near_ties: int = 0
    """Margin at most `NEAR_TIE`; exact ties are among them."""
    exact_ties: int = 0


class Distributions(Frozen):
    """Everything measured between the recorded alternatives of a reference and a candidate.

    The chosen tokens' own differences are in the `Comparison`; here are the other listed tokens'.
    """

    positions: int
    """Compared: those before the first fork, whose tokens are equal."""
    measured: int = 0
    """Positions where at least one id other than the chosen one is known on both sides."""
    comparable: bool = True
    """False when the two sides recorded different quantities (logprobs modes)."""
    logprobs_mode: str | None = None
    """Of both sides; None when unknown or not the same."""
    reference_k: int = 0
    """Alternatives recorded per position, at most; 0 when none were."""
    candidate_k: int = 0
    max_abs_diff: float | None = None
    """Nats, over alternatives known on both sides."""
    max_abs_diff_at: int | None = None
    mean_abs_diff: float | None = None
    pairs: int = 0
    """Alternatives known on both sides."""
    one_sided: int = 0
    """Alternatives listed on one side only: their probability on the other is unknown."""
    unknown: int = 0
    """Alternatives listed on both sides with a value that one of them did not give."""
    reordered: int = 0
    """Positions where two tokens known on both sides stand in the opposite order; ties do not count."""
    first_reordered: int | None = None
    replaced: int = 0
    """Positions where lists of equal length hold different tokens."""
    top_changed: int = 0
    """Positions where another token is the most likely one; always positions that are reordered or
    replaced too."""
    bounded: int = 0
    """Positions whose total variation could be bounded."""
    largest: TvBound | None = None
    """The one with the largest lower bound."""
    largest_upper: float | None = None
    """At no bounded position is the total variation larger."""
    mean_lower: float | None = None
    mean_upper: float | None = None
    at_fork: TvBound | None = None
    margins: Margins = Margins()

    @property
    def k_differs(self) -> bool:
        return self.reference_k != self.candidate_k


def measure_distributions(reference: Receipt, candidate: Receipt, comparison: Comparison) -> Distributions:
    """Measure in one pass; `comparison` is what `compare` says about the same pair."""
    before, after = reference.completion.tokens, candidate.completion.tokens
    modes = reference.engine.logprobs_mode, candidate.engine.logprobs_mode
    stop = 0 if comparison.verdict is Verdict.INCOMPARABLE else comparison.compared
    same_quantity = None in modes or modes[0] == modes[1]
    measured = Distributions(
        positions=stop,
        comparable=same_quantity,
        logprobs_mode=modes[0] if modes[0] == modes[1] else None,
        reference_k=max((len(token.top) for token in before[:stop]), default=0),
        candidate_k=max((len(token.top) for token in after[:stop]), default=0),
        margins=measure_margins(before, stop),
    )
    if not same_quantity:
        return measured
    probabilities = not any(mode is not None and mode.endswith("logits") for mode in modes)
    found = _Pass(probabilities)
    for position in range(stop):
        found.add(position, before[position], after[position])
    fork = comparison.first_divergence
    at_fork = None
    if fork and fork.reference and fork.candidate and probabilities:
        at_fork = tv_bound(fork.position, fork.reference, fork.candidate)
    return measured.model_copy(update={**found.fields(), "at_fork": at_fork})


def measure_margins(tokens: Sequence[TokenRecord], stop: int) -> Margins:
    """Margins and ties of tokens [0, stop); positions whose margin is unknown are left out."""
    known = near = exact = 0
    smallest: float | None = None
    smallest_at: int | None = None
    for position in range(stop):
        margin = logprob_margin(tokens[position])
        if margin is None:
            continue
        known += 1
        if margin <= NEAR_TIE:
            near += 1
            exact += margin == 0
        if smallest is None or margin < smallest:
            smallest, smallest_at = margin, position
    return Margins(known=known, smallest=smallest, smallest_at=smallest_at, near_ties=near, exact_ties=exact)


def tv_bound(position: int, reference: TokenRecord, candidate: TokenRecord) -> TvBound | None:
    """Bound the total variation of two distributions; None when a side's values are no probabilities,
    or when nothing is known on both sides."""
    bound = _bound(reference, candidate, _values(reference), _values(candidate))
    return None if bound is None else TvBound(position=position, lower=bound[0], upper=bound[1])


class _Pass:
    """Sums over the positions seen so far."""

    def __init__(self, probabilities: bool) -> None:
        self._probabilities = probabilities
        self._lower, self._lower_at = -1.0, 0
        self._upper_there = 0.0
        self._largest_diff: float | None = None
        self._counts = dict.fromkeys(
            ("measured", "pairs", "one_sided", "unknown", "reordered", "replaced", "top_changed", "bounded"),
            0,
        )
        self._diff_at: int | None = None
        self._first_reordered: int | None = None
        self._upper = self._sum = self._sum_lower = self._sum_upper = 0.0

    def add(self, position: int, left: TokenRecord, right: TokenRecord) -> None:
        if not left.top or not right.top or self._aligned(position, left, right):
            return
        p, q = _values(left), _values(right)
        self._alternatives(position, left, right, p, q)
        self._ranks(position, left, right, p, q)
        if self._probabilities and (bound := _bound(left, right, p, q)):
            self._bounded(position, *bound)

    def _aligned(self, position: int, left: TokenRecord, right: TokenRecord) -> bool:
        """The ordinary case, fast: the same ids in the same order, everything known, no rank changed.

        False, and nothing counted, when anything is out of the ordinary.
        """
        ids = list(map(_ID, left.top))
        if ids[0] != left.id or ids != list(map(_ID, right.top)):
            return False
        a, b = list(map(_LOGPROB, left.top)), list(map(_LOGPROB, right.top))
        if a[0] != left.logprob or b[0] != right.logprob or None in a or None in b:
            return False
        before, after = cast(list[float], a), cast(list[float], b)
        if before != sorted(before, reverse=True) or before[0] > 0 or before[-1] <= LOGPROB_FLOOR:
            return False
        p = list(map(math.exp, before))
        p_sum = q_sum = sum(p)
        apart = total = largest = 0.0
        if before != after:
            if after != sorted(after, reverse=True) or after[0] > 0 or after[-1] <= LOGPROB_FLOOR:
                return False
            q = list(map(math.exp, after))
            q_sum = sum(q)
            apart = sum(map(abs, map(sub, p, q)))
            differences = list(map(abs, map(sub, before[1:], after[1:])))
            total, largest = sum(differences), max(differences, default=0.0)
        if not (self._probabilities and p_sum <= 1 + ROUNDING and q_sum <= 1 + ROUNDING):
            return False
        lower = (apart + abs(p_sum - q_sum)) / 2
        self._sum += total
        self._note_difference(position, largest, len(ids) - 1)
        self._bounded(position, lower, min(max(1 - (p_sum + q_sum - apart) / 2, lower), 1.0))
        return True

    def _note_difference(self, position: int, largest: float, pairs: int) -> None:
        if not pairs:
            return
        self._counts["pairs"] += pairs
        self._counts["measured"] += 1
        if self._largest_diff is None or largest > self._largest_diff:
            self._largest_diff, self._diff_at = largest, position

    def _bounded(self, position: int, lower: float, upper: float) -> None:
        self._counts["bounded"] += 1
        self._sum_lower += lower
        self._sum_upper += upper
        self._upper = max(self._upper, upper)
        if lower > self._lower:
            self._lower, self._lower_at, self._upper_there = lower, position, upper

    def fields(self) -> dict[str, Any]:
        """The fields of `Distributions` that this pass measured."""
        counts = self._counts
        pairs, bounded = counts["pairs"], counts["bounded"]
        return {
            **counts,
            "max_abs_diff": self._largest_diff,
            "max_abs_diff_at": self._diff_at,
            "mean_abs_diff": self._sum / pairs if pairs else None,
            "first_reordered": self._first_reordered,
            "largest": TvBound(position=self._lower_at, lower=self._lower, upper=self._upper_there)
            if bounded
            else None,
            "largest_upper": self._upper if bounded else None,
            "mean_lower": self._sum_lower / bounded if bounded else None,
            "mean_upper": self._sum_upper / bounded if bounded else None,
        }

    def _alternatives(
        self, position: int, left: TokenRecord, right: TokenRecord, p: _Values, q: _Values
    ) -> None:
        counts = self._counts
        listed = {other.id for other in right.top}
        known: list[float] = []
        in_both = 0
        for other in left.top:
            id = other.id
            if id == left.id or id not in listed:
                continue
            in_both += 1
            if id in p and id in q:
                known.append(abs(p[id] - q[id]))
        others = sum(other.id != left.id for other in left.top)
        others += sum(other.id != right.id for other in right.top)
        counts["one_sided"] += others - 2 * in_both
        counts["unknown"] += in_both - len(known)
        self._sum += sum(known)
        self._note_difference(position, max(known, default=0.0), len(known))

    def _ranks(self, position: int, left: TokenRecord, right: TokenRecord, p: _Values, q: _Values) -> None:
        counts = self._counts
        # With ties of P in Q's order, Q falls all the way exactly when no pair stands the other way round.
        ranked = sorted(p.keys() & q.keys(), key=lambda id: (-p[id], -q[id]))
        if any(q[above] < q[below] for above, below in pairwise(ranked)):
            counts["reordered"] += 1
            if self._first_reordered is None:
                self._first_reordered = position
        ids = {other.id for other in left.top}, {other.id for other in right.top}
        counts["replaced"] += len(left.top) == len(right.top) and ids[0] != ids[1]
        # A list that holds only the chosen token does not tell which is the most likely.
        if len(p) > 1 and len(q) > 1:
            counts["top_changed"] += not (_most_likely(p) & _most_likely(q))


def _most_likely(values: _Values) -> set[int]:
    """Several when they tie."""
    most = max(values.values())
    return {id for id, value in values.items() if value == most}


def _values(token: TokenRecord) -> _Values:
    """Known logprobs by id, the chosen token's included. (A NaN fails both comparisons.)"""
    values = {
        other.id: other.logprob
        for other in token.top
        if other.logprob is not None and LOGPROB_FLOOR < other.logprob < math.inf
    }
    own = token.logprob
    if own is not None and LOGPROB_FLOOR < own < math.inf:
        values[token.id] = own
    return values


def _bound(
    left: TokenRecord, right: TokenRecord, left_values: _Values, right_values: _Values
) -> tuple[float, float] | None:
    """(lower, upper), as the module's docstring derives them."""
    if any(value > 0 for values in (left_values, right_values) for value in values.values()):
        return None
    p = {id: math.exp(value) for id, value in left_values.items()}
    q = {id: math.exp(value) for id, value in right_values.items()}
    p_sum, q_sum = sum(p.values()), sum(q.values())
    common = p.keys() & q.keys()
    if not common or p_sum > 1 + ROUNDING or q_sum > 1 + ROUNDING:
        return None
    # TV is the sum of all p − q that are positive, and as well that of all q − p that are.
    more = less = shared = 0.0
    for id in common:
        a, b = p[id], q[id]
        shared += min(a, b)
        if a > b:
            more += a - b
        else:
            less += b - a
    more += _excess([value for id, value in p.items() if id not in common], right, 1 - q_sum)
    less += _excess([value for id, value in q.items() if id not in common], left, 1 - p_sum)
    lower = min(max(more, less), 1.0)
    return lower, min(max(1 - shared, lower), 1.0)


def _excess(known: Sequence[float], other: TokenRecord, room: float) -> float:
    """By how much these probabilities must exceed those of the same ids on the other side, in sum.

    There they are unknown, but each is at most `_cap`, and together they fit into `room`.
    """
    if not known:
        return 0.0
    cap = _cap(other)
    return sum(known) - min(sum(min(value, cap) for value in known), max(room, 0.0))


def _cap(token: TokenRecord) -> float:
    """The most probability that a token outside the list can have.

    The alternatives are the k most likely, or the k − 1 most likely when the chosen token is none of
    them and takes a place (vLLM); so the least of those other than the chosen one bounds the rest.
    With one value unknown, nobody can say which is the least.
    """
    least = 0.0
    for other in token.top:
        if other.logprob is None or not LOGPROB_FLOOR < other.logprob < math.inf:
            return 1.0
        if other.id != token.id:
            least = min(least, other.logprob)
    return math.exp(least)

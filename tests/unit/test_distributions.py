"""The bound on total variation holds for any full distributions; unknown stays unknown."""

from __future__ import annotations

import json
import math
import random

import pytest
from sample_receipts import engine, receipt, token

from llm_backend.compare import compare
from llm_backend.distribution_phrases import distribution_sentences
from llm_backend.distributions import Distributions, measure_distributions, tv_bound
from llm_backend.receipt import Receipt, TokenRecord

ROUNDING = 1e-12


def measure(reference: Receipt, candidate: Receipt) -> Distributions:
    return measure_distributions(reference, candidate, compare(reference, candidate))


def one(left: TokenRecord, right: TokenRecord, **sides: object) -> Distributions:
    """Two receipts of one token each."""
    return measure(receipt([left], **sides), receipt([right], **sides))  # type: ignore[arg-type]


def full_distribution(rng: random.Random, size: int) -> list[float]:
    weights = [rng.expovariate(1) ** rng.choice((1, 4)) + 1e-9 for _ in range(size)]
    return [weight / sum(weights) for weight in weights]


def truncated(probabilities: list[float], chosen: int, k: int) -> TokenRecord:
    """What vLLM records: the chosen token first, then the most likely ones, k entries in all."""
    ranked = sorted(range(len(probabilities)), key=lambda id: -probabilities[id])
    listed = [chosen, *(id for id in ranked[:k] if id != chosen)][:k]
    logprobs = {id: math.log(probabilities[id]) for id in listed}
    return token(chosen, math.log(probabilities[chosen]), top=logprobs)


class TestTotalVariation:
    @pytest.mark.parametrize("seed", range(300))
    def test_the_true_distance_lies_within_the_bound(self, seed: int) -> None:
        rng = random.Random(seed)
        size = rng.randint(2, 40)
        p = full_distribution(rng, size)
        mixed = full_distribution(rng, size)
        closeness = rng.choice((0.0, 0.5, 0.99, 1.0))
        q = [closeness * a + (1 - closeness) * b for a, b in zip(p, mixed, strict=True)]
        chosen = rng.randrange(size)
        sides = truncated(p, chosen, rng.randint(1, size)), truncated(q, chosen, rng.randint(1, size))
        bound = tv_bound(0, *sides)
        assert bound is not None
        true = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        assert bound.lower - ROUNDING <= true <= bound.upper + ROUNDING

    @pytest.mark.parametrize("seed", range(50))
    def test_a_whole_vocabulary_leaves_no_gap(self, seed: int) -> None:
        """Negative control: a bound that were always [0, 1] would pass the test above."""
        rng = random.Random(seed)
        p, q = full_distribution(rng, 12), full_distribution(rng, 12)
        bound = tv_bound(0, truncated(p, 3, 12), truncated(q, 3, 12))
        true = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        assert bound is not None
        assert (bound.lower, bound.upper) == (pytest.approx(true), pytest.approx(true))

    def test_the_ordinary_case_agrees_with_the_general_one(self) -> None:
        """Sorted lists take a faster way through; the numbers must not depend on it."""
        rng = random.Random(7)
        for _ in range(200):
            p, q = full_distribution(rng, 9), full_distribution(rng, 9)
            ranked = sorted(range(9), key=lambda id: -p[id])
            left = truncated(p, ranked[0], 5)
            right = token(left.id, math.log(q[left.id]), top={o.id: math.log(q[o.id]) for o in left.top})
            found, general = one(left, right), tv_bound(0, left, right)
            assert found.largest is not None
            assert general is not None
            assert found.largest.lower == pytest.approx(general.lower, abs=1e-12)
            assert found.largest.upper == pytest.approx(general.upper, abs=1e-12)
            differences = [abs(a.logprob - b.logprob) for a, b in zip(left.top, right.top, strict=True)]
            assert found.max_abs_diff == pytest.approx(max(differences[1:]))

    def test_an_id_on_one_side_only_is_bounded_by_the_others_least(self) -> None:
        p = token(1, math.log(0.5), top={1: math.log(0.5), 2: math.log(0.4)})
        q = token(1, math.log(0.5), top={1: math.log(0.5), 3: math.log(0.25)})
        bound = tv_bound(0, p, q)
        assert bound is not None
        # 2 has at most 0.25 over there, so at least 0.15 moved; 3 may have 0.1 here, and 0.15 moved too.
        assert bound.lower == pytest.approx(0.15)
        assert bound.upper == pytest.approx(0.5)

    def test_equal_lists_prove_nothing_about_the_tails(self) -> None:
        left = token(1, math.log(0.5), top={1: math.log(0.5), 2: math.log(0.2)})
        bound = tv_bound(4, left, left)
        assert bound is not None
        assert (bound.position, bound.lower, bound.upper) == (4, 0, pytest.approx(0.3))

    @pytest.mark.parametrize(
        "left",
        [
            token(1, 3.5, top={1: 3.5, 2: 1.0}),
            token(1, -0.1, top={1: -0.1, 2: -0.2}),
            token(1, None, top={1: None, 2: None}),
            token(1, None),
        ],
        ids=["logits", "more than one in all", "nulls", "nothing"],
    )
    def test_what_is_no_distribution_has_no_bound(self, left: TokenRecord) -> None:
        assert tv_bound(0, left, left) is None


class TestUnknown:
    @pytest.mark.parametrize("unknown", [None, math.nan, -math.inf, math.inf, -9999.0])
    def test_an_unknown_value_is_never_a_difference(self, unknown: float | None) -> None:
        left = token(1, -0.5, top={1: -0.5, 2: -2.0, 3: unknown})
        right = token(1, -0.5, top={1: -0.5, 2: -2.0, 3: -4.0})
        for found in (one(left, right), one(right, left)):
            assert (found.pairs, found.unknown, found.one_sided) == (1, 1, 0)
            assert found.max_abs_diff == 0
            assert found.largest is not None
            assert found.largest.lower == 0

    def test_a_null_in_the_list_takes_back_the_least_as_a_cap(self) -> None:
        """The null may be anything, so an id missing there is bounded by the tail alone."""
        p = token(1, math.log(0.5), top={1: math.log(0.5), 2: math.log(0.3)})
        q = token(1, math.log(0.5), top={1: math.log(0.5), 4: math.log(0.1), 2: None})
        bound = tv_bound(0, p, q)
        assert bound is not None
        assert bound.lower == pytest.approx(0)

    def test_another_k_is_no_difference(self) -> None:
        left = token(1, -0.5, top={1: -0.5, 2: -2.0, 3: -3.0})
        right = token(1, -0.5, top={1: -0.5, 2: -2.0})
        found = one(left, right)
        assert (found.reference_k, found.candidate_k, found.one_sided, found.replaced) == (3, 2, 1, 0)
        assert found.max_abs_diff == 0
        assert "Up to 3 alternatives recorded and 2 replayed" in distribution_sentences(found)[0]

    def test_without_alternatives_nothing_is_claimed(self) -> None:
        found = one(token(1, -0.5), token(1, -0.75))
        assert (found.measured, found.max_abs_diff, found.largest) == (0, None, None)
        assert distribution_sentences(found)[0].startswith("No alternatives were recorded")

    def test_other_quantities_are_not_compared(self) -> None:
        left, right = token(1, -0.5, top={1: -0.5, 2: -2.0}), token(1, -0.4, top={1: -0.4, 2: -1.0})
        other = engine(logprobs_mode="processed_logprobs")
        found = measure(receipt([left]), receipt([right], engine=other))
        assert (found.comparable, found.max_abs_diff, found.largest) == (False, None, None)
        assert "different quantities" in distribution_sentences(found)[0]

    def test_logits_are_compared_and_not_bounded(self) -> None:
        left, right = token(1, 9.5, top={1: 9.5, 2: 4.0}), token(1, 9.5, top={1: 9.5, 2: 4.5})
        found = one(left, right, engine=engine(logprobs_mode="raw_logits"))
        assert (found.max_abs_diff, found.largest, found.bounded) == (0.5, None, 0)
        assert any("cannot be bounded" in sentence for sentence in distribution_sentences(found))

    @pytest.mark.parametrize(
        ("mode", "said"),
        [
            ("raw_logprobs", "before temperature"),
            ("processed_logprobs", "after temperature"),
            (None, "unknown"),
        ],
    )
    def test_the_quantity_is_named(self, mode: str | None, said: str) -> None:
        side = token(1, -0.5, top={1: -0.5, 2: -2.0})
        found = one(side, side, engine=engine(logprobs_mode=mode))
        assert said in distribution_sentences(found)[0]


class TestRanks:
    def test_a_pair_that_changed_places_counts(self) -> None:
        left = token(1, -0.5, top={1: -0.5, 2: -2.0, 3: -2.1})
        right = token(1, -0.5, top={1: -0.5, 3: -2.0, 2: -2.1})
        found = one(left, right)
        assert (found.reordered, found.first_reordered, found.top_changed, found.replaced) == (1, 0, 0, 0)

    def test_the_order_of_exact_ties_means_nothing(self) -> None:
        left = token(1, -0.5, top={1: -0.5, 2: -2.0, 3: -2.0})
        right = token(1, -0.5, top={1: -0.5, 3: -2.0, 2: -2.0})
        assert one(left, right).reordered == 0

    def test_a_tie_that_opened_is_no_change_of_order(self) -> None:
        left = token(1, -0.7, top={1: -0.7, 2: -0.7})
        right = token(1, -0.8, top={2: -0.7, 1: -0.8})
        found = one(left, right)
        assert (found.reordered, found.top_changed) == (0, 0)

    def test_another_most_likely_token(self) -> None:
        left = token(1, -0.6, top={1: -0.6, 2: -0.9})
        right = token(1, -0.9, top={1: -0.9, 2: -0.6})
        assert one(left, right).top_changed == 1

    def test_a_token_that_entered_the_list(self) -> None:
        left = token(1, -0.6, top={1: -0.6, 2: -3.0})
        right = token(1, -0.6, top={1: -0.6, 3: -3.0})
        found = one(left, right)
        assert (found.replaced, found.one_sided, found.measured) == (1, 2, 0)


class TestScope:
    def forked(self) -> Distributions:
        same = token(1, -0.1, top={1: -0.1, 2: -3.0})
        left = token(5, -0.6, top={5: -0.6, 6: -0.9})
        right = token(6, -0.6, top={6: -0.6, 5: -0.9})
        after = token(9, -2.0, top={9: -2.0, 8: -0.3})
        return measure(receipt([same, left]), receipt([same, right, after]))

    def test_only_positions_before_the_fork_count_and_the_forks_own_apart(self) -> None:
        found = self.forked()
        assert (found.positions, found.measured, found.reordered) == (1, 1, 0)
        assert found.at_fork is not None
        assert found.at_fork.position == 1
        assert found.at_fork.lower == pytest.approx(math.exp(-0.6) - math.exp(-0.9))

    def test_near_and_exact_ties_are_counted(self) -> None:
        sides = [
            token(1, -0.7, top={1: -0.7, 2: -0.7}),
            token(1, -0.7, top={1: -0.7, 2: -0.75}),
            token(1, -0.1, top={1: -0.1, 2: -3.0}),
            token(1, -0.1),
        ]
        margins = measure(receipt(sides), receipt(sides)).margins
        assert (margins.known, margins.near_ties, margins.exact_ties) == (3, 2, 1)
        assert (margins.smallest, margins.smallest_at) == (0, 0)

    def test_incomparable_receipts_measure_nothing(self) -> None:
        found = measure(receipt(), receipt(engine=engine(model="other")))
        assert found.positions == 0
        assert distribution_sentences(found) == []

    def test_everything_is_strict_json(self) -> None:
        document = json.loads(self.forked().model_dump_json())
        assert json.dumps(document, allow_nan=False)

    def test_a_bound_is_rounded_outwards(self) -> None:
        left = token(1, math.log(0.6), top={1: math.log(0.6), 2: math.log(0.39)})
        right = token(1, math.log(0.48801), top={1: math.log(0.48801), 2: math.log(0.39)})
        said = " ".join(distribution_sentences(one(left, right)))
        assert "at least 0.11, at most 0.13" in said

    def test_chinese_says_it_too(self) -> None:
        assert any("全变差" in sentence for sentence in distribution_sentences(self.forked(), "zh-CN"))

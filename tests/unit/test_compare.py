"""Every verdict, at its borders: what counts as different, and what never does."""

from __future__ import annotations

import math
import random

import pytest
from sample_receipts import engine, receipt, request, token, tokens

from llm_backend.compare import NEAR_TIE, Comparison, Verdict, compare, logprob_margin, probability
from llm_backend.phrases import measurements
from llm_backend.receipt import Receipt, Status, TokenRecord


def kinds(comparison: Comparison) -> list[str]:
    return [reason.kind for reason in comparison.reasons]


class TestIdentical:
    def test_a_receipt_equals_itself(self) -> None:
        result = compare(receipt(), receipt())
        assert result.verdict is Verdict.IDENTICAL
        assert result.level == "logprobs"
        assert (result.compared, result.reference_length, result.candidate_length) == (3, 3, 3)
        assert result.max_abs_logprob_diff == 0
        assert result.first_divergence is None
        assert not result.partial

    def test_negative_zero_is_zero(self) -> None:
        """RC-18"""
        assert compare(receipt([token(7, 0.0)]), receipt([token(7, -0.0)])).verdict is Verdict.IDENTICAL

    @pytest.mark.parametrize("unknown", [None, math.nan, -math.inf, -9999.0])
    def test_unknown_probabilities_are_never_a_difference(self, unknown: float | None) -> None:
        """RC-12: NaN is not equal to itself, and still no difference."""
        result = compare(receipt(tokens([7, 8], [-0.5, unknown])), receipt(tokens([7, 8], [-0.5, -0.25])))
        assert result.verdict is Verdict.IDENTICAL
        assert (result.level, result.unknown_logprobs) == ("logprobs", 1)

    def test_without_any_probabilities_the_level_says_tokens(self) -> None:
        bare = receipt([TokenRecord(7), TokenRecord(8)])
        result = compare(bare, bare)
        assert (result.verdict, result.level) == (Verdict.IDENTICAL, "tokens")
        assert result.max_abs_logprob_diff is None

    def test_moved_alternatives_are_reported_but_do_not_decide(self) -> None:
        before = receipt([token(7), token(8, -0.5, top={8: -0.5, 9: -2.0})])
        after = receipt([token(7), token(8, -0.5, top={8: -0.5, 9: -2.1})])
        result = compare(before, after)
        assert (result.verdict, result.first_alternative_drift) == (Verdict.IDENTICAL, 1)

    def test_other_kinds_of_logprobs_are_not_compared(self) -> None:
        logits = receipt(tokens([7], [25.6]), engine=engine(logprobs_mode="raw_logits"))
        result = compare(receipt(tokens([7], [-0.5])), logits)
        assert (result.verdict, result.level) == (Verdict.IDENTICAL, "tokens")


class TestDrifted:
    def test_the_largest_the_mean_and_the_first_drift_are_measured(self) -> None:
        ids = list(range(50))
        recorded = [-0.5] * 50
        moved = list(recorded)
        for position, by in ((10, 0.01), (20, -0.03), (49, 0.02)):
            moved[position] += by
        result = compare(receipt(tokens(ids, recorded)), receipt(tokens(ids, moved)))
        assert result.verdict is Verdict.DRIFTED
        assert (result.first_drift, result.drifted_positions) == (10, 3)
        assert result.max_abs_logprob_diff == pytest.approx(0.03)
        assert result.mean_abs_logprob_diff == pytest.approx(0.06 / 50)

    def test_equal_tokens_with_moved_probabilities_are_not_called_different(self) -> None:
        """RC-18: 50 ids, up to 0.03 nats at 6 places, certain tokens as 0.0 and -0.0."""
        recorded = [0.0, *[-0.5] * 49]
        moved = [-0.0, *recorded[1:]]
        for position, by in ((5, 0.001), (11, -0.002), (23, 0.03), (30, 0.01), (42, -0.02), (49, 0.0005)):
            moved[position] += by
        result = compare(receipt(tokens(range(50), recorded)), receipt(tokens(range(50), moved)))
        assert (result.verdict, result.reproduced) == (Verdict.DRIFTED, True)
        assert (result.drifted_positions, result.first_drift, result.largest_drift) == (6, 5, 23)
        assert "Largest probability change: 0.03 nats at token 23." in measurements(result)

    def test_the_last_bit_counts(self) -> None:
        moved = math.nextafter(-0.5, 0)
        assert compare(receipt([token(7, -0.5)]), receipt([token(7, moved)])).verdict is Verdict.DRIFTED


class TestDiverged:
    def fork(self) -> Comparison:
        top = {1: math.log(0.42), 2: math.log(0.41), 3: math.log(0.1)}
        swapped = {2: math.log(0.43), 1: math.log(0.40), 3: math.log(0.1)}
        before = receipt([token(7, -0.5), token(8), token(1, math.log(0.42), top=top), token(5)])
        after = receipt([token(7, -0.4), token(8), token(2, math.log(0.43), top=swapped), token(5)])
        return compare(before, after)

    def test_the_fork_is_reported_exactly(self) -> None:
        result = self.fork()
        assert result.verdict is Verdict.DIVERGED
        fork = result.first_divergence
        assert fork is not None
        assert fork.reference is not None
        assert fork.candidate is not None
        assert (fork.position, fork.reference.id, fork.candidate.id) == (2, 1, 2)
        assert fork.logprob_margin == pytest.approx(math.log(0.42) - math.log(0.41))
        assert (fork.exact_tie, fork.near_tie) == (False, True)
        assert fork.reference_probability == pytest.approx(0.42)
        assert fork.candidate_probability == pytest.approx(0.43)
        assert fork.reference_on_candidate == pytest.approx(0.40)
        assert fork.candidate_on_reference == pytest.approx(0.41)

    def test_drift_is_measured_only_before_the_fork(self) -> None:
        result = self.fork()
        assert (result.compared, result.drifted_positions, result.first_drift) == (2, 1, 0)
        assert result.max_abs_logprob_diff == pytest.approx(0.1)

    def test_an_exact_tie_is_also_a_near_one(self) -> None:
        top = {1: -0.7, 2: -0.7}
        fork = compare(
            receipt([token(1, -0.7, top=top)]), receipt([token(2, -0.7, top=top)])
        ).first_divergence
        assert fork is not None
        assert (fork.exact_tie, fork.near_tie, fork.logprob_margin) == (True, True, 0)

    @pytest.mark.parametrize(("margin", "near"), [(NEAR_TIE, True), (NEAR_TIE + 0.0625, False)])
    def test_the_near_tie_limit(self, margin: float, near: bool) -> None:
        top = {1: -0.5, 2: -0.5 - margin}
        fork = compare(receipt([token(1, -0.5, top=top)]), receipt([token(2)])).first_divergence
        assert fork is not None
        assert fork.near_tie is near

    @pytest.mark.parametrize("shorter_first", [True, False])
    def test_ending_by_itself_while_the_other_goes_on_is_a_fork(self, shorter_first: bool) -> None:
        short, long = receipt([7, 8]), receipt([7, 8, 9])
        result = compare(short, long) if shorter_first else compare(long, short)
        fork = result.first_divergence
        assert result.verdict is Verdict.DIVERGED
        assert fork is not None
        assert fork.position == 2
        assert (fork.reference is None, fork.candidate is None) == (shorter_first, not shorter_first)
        assert fork.near_tie is False

    def test_a_token_outside_the_others_alternatives_has_no_probability_there(self) -> None:
        fork = compare(receipt([token(1)]), receipt([token(2)])).first_divergence
        assert fork is not None
        assert (fork.reference_on_candidate, fork.candidate_on_reference, fork.logprob_margin) == (None,) * 3


class TestCutShort:
    """A run that was stopped is compared over what it has and never called different for being shorter."""

    @pytest.mark.parametrize(
        "cut",
        [
            receipt([7, 8], status=Status.STOPPED),
            receipt([7, 8], status=Status.INTERRUPTED),
            receipt([7, 8], finish_reason="length"),
        ],
        ids=["stopped", "interrupted", "length"],
    )
    @pytest.mark.parametrize("cut_first", [True, False])
    def test_a_cut_run_with_the_same_prefix_is_the_same(self, cut: Receipt, cut_first: bool) -> None:
        whole = receipt([7, 8, 9])
        result = compare(cut, whole) if cut_first else compare(whole, cut)
        assert (result.verdict, result.compared, result.partial) == (Verdict.IDENTICAL, 2, True)

    def test_a_cut_run_still_forks_within_its_length(self) -> None:
        result = compare(receipt([7, 8, 9]), receipt([7, 1], status=Status.STOPPED))
        assert result.verdict is Verdict.DIVERGED

    def test_going_on_past_the_others_own_end_is_a_fork_even_when_stopped_later(self) -> None:
        result = compare(receipt([7, 8]), receipt([7, 8, 9], status=Status.STOPPED))
        assert result.verdict is Verdict.DIVERGED

    def test_both_cut_at_the_limit_is_partial(self) -> None:
        result = compare(receipt(finish_reason="length"), receipt(finish_reason="length"))
        assert (result.verdict, result.partial) == (Verdict.IDENTICAL, True)
        assert (result.reference_end, result.candidate_end) == ("length", "length")


class TestIncomparable:
    @pytest.mark.parametrize(
        ("changed", "kind"),
        [
            ({"model": "another"}, "other_model"),
            ({"weights_digest": "sha256:other"}, "other_weights"),
            ({"tokenizer_digest": "sha256:other"}, "other_tokenizer"),
        ],
    )
    def test_another_model_answered(self, changed: dict[str, str], kind: str) -> None:
        result = compare(receipt(), receipt(engine=engine(**changed)))
        assert (result.verdict, kinds(result)) == (Verdict.INCOMPARABLE, [kind])
        assert result.first_divergence is None

    def test_an_unknown_digest_is_not_another_model(self) -> None:
        untold = receipt(engine=engine(weights_digest=None, tokenizer_digest=None))
        assert compare(receipt(), untold).verdict is Verdict.IDENTICAL

    def test_another_prompt_names_the_first_differing_position_and_both_lengths(self) -> None:
        result = compare(receipt(), receipt(asked=request(prompt=(1, 2, 4, 5))))
        (reason,) = result.reasons
        assert (reason.kind, reason.position) == ("other_prompt", 2)
        assert (reason.reference, reason.candidate) == ("3", "4")

    def test_without_prompt_ids_the_messages_decide(self) -> None:
        other = receipt(asked=request(question="Who are you?", prompt=()))
        assert kinds(compare(receipt(), other)) == ["other_prompt"]
        same = receipt(asked=request(prompt=()))
        assert compare(receipt(), same).verdict is Verdict.IDENTICAL

    def test_without_token_ids_only_the_texts_are_told_apart(self) -> None:
        result = compare(receipt([], text="12"), receipt([], text="12"))
        assert (kinds(result), result.same_text) == (["no_token_ids"], True)

    @pytest.mark.parametrize("other", [receipt(), receipt([], status=Status.STOPPED)])
    def test_nothing_generated(self, other: Receipt) -> None:
        assert kinds(compare(receipt([], status=Status.STOPPED), other)) == ["nothing_generated"]

    def test_all_reasons_are_named(self) -> None:
        other = receipt([], engine=engine(model="x"), asked=request(prompt=(9,)))
        assert kinds(compare(receipt(), other)) == ["other_model", "other_prompt", "nothing_generated"]


class TestWhatChanged:
    def test_changed_settings_are_listed_by_their_effective_values(self) -> None:
        before, after = request(temperature=0.8, seed=1), request(temperature=0.8, seed=2)
        result = compare(receipt(asked=before), receipt(asked=after))
        assert [(c.field, c.reference, c.candidate) for c in result.request_changes] == [("seed", "1", "2")]

    def test_a_greedy_seed_is_no_change(self) -> None:
        result = compare(receipt(asked=request(seed=1)), receipt(asked=request(seed=2)))
        assert result.request_changes == ()

    def test_a_changed_engine_is_reported_and_still_compared(self) -> None:
        result = compare(receipt(), receipt(engine=engine(vllm_version="0.32.0")))
        assert result.verdict is Verdict.IDENTICAL
        (change,) = result.engine_changes
        assert (change.field, change.relevance) == ("vllm_version", "bit-relevant")


class TestMargin:
    @pytest.mark.parametrize(
        ("top", "chosen", "expected"),
        [
            ({1: -0.2, 2: -1.2}, (1, -0.2), 1.0),
            ({2: -1.2, 1: -0.2}, (1, -0.2), 1.0),  # order as sent is not trusted
            ({9: -4.0, 1: -0.2, 2: -1.2}, (9, -4.0), 1.0),  # vLLM: the sampled token first
            ({1: -0.2, 9: -0.7}, (9, -0.7), None),  # may be third
            ({1: -0.2}, (1, -0.2), None),
            ({1: None, 2: -1.2}, (1, None), None),
            ({}, (1, -0.2), None),
        ],
    )
    def test_top_1_minus_top_2_or_unknown(
        self, top: dict[int, float | None], chosen: tuple[int, float | None], expected: float | None
    ) -> None:
        margin = logprob_margin(token(*chosen, top=top))
        assert margin == (None if expected is None else pytest.approx(expected))

    @pytest.mark.parametrize(
        ("logprob", "expected"), [(0.0, 1.0), (-0.0, 1.0), (None, None), (25.6, None), (math.nan, None)]
    )
    def test_probability(self, logprob: float | None, expected: float | None) -> None:
        assert probability(logprob) == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_edits_are_found_where_they_were_made(seed: int) -> None:
    """Whatever the lengths: the verdict follows from the first edit, and swapping sides keeps it."""
    chance = random.Random(seed)
    length = chance.randrange(1, 200)
    ids = [chance.randrange(1000) for _ in range(length)]
    logprobs = [-chance.random() for _ in range(length)]
    fork = chance.randrange(length)
    drift = chance.randrange(length)
    edited_ids = [id + 1000 if position >= fork else id for position, id in enumerate(ids)]
    edited_logprobs = [
        value - 0.25 if position == drift else value for position, value in enumerate(logprobs)
    ]
    reference = receipt(tokens(ids, logprobs))

    drifted = compare(reference, receipt(tokens(ids, edited_logprobs)))
    assert (drifted.verdict, drifted.first_drift) == (Verdict.DRIFTED, drift)

    candidate = receipt(tokens(edited_ids, edited_logprobs))
    forked, mirrored = compare(reference, candidate), compare(candidate, reference)
    for result in (forked, mirrored):
        assert result.first_divergence is not None
        assert result.first_divergence.position == result.compared == fork
        assert result.drifted_positions == (1 if drift < fork else 0)
    assert forked.max_abs_logprob_diff == mirrored.max_abs_logprob_diff


def test_a_comparison_survives_json() -> None:
    original = TestDiverged().fork()
    assert Comparison.model_validate_json(original.model_dump_json()) == original

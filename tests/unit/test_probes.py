"""Verdicts of the probes: each outcome, and what must not be taken for it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sample_receipts import engine, receipt, request, token

from llm_backend.compare import Comparison, compare
from llm_backend.diagnose import diagnose
from llm_backend.probe_phrases import guard_finding, seed_finding
from llm_backend.probes import (
    Guard,
    Guarded,
    GuardOutcome,
    SeedOutcome,
    SeedProbe,
    SeedTrial,
    chance_of,
    judge_guard,
    judge_seed,
    most_neighbours,
)
from llm_backend.receipt import EngineFingerprint, Receipt
from llm_backend.strings import LANGUAGES, Language

SAMPLED = request(temperature=1.0)
LIKELY = {1: -2.0, 2: -2.1, 3: -2.2}


def drawn(
    *ids: int, logprob: float | None = -2.0, top: dict[int, float | None] | None = None, **facts: Any
) -> Receipt:
    """A sampled answer; the engine says the same of every position whatever is drawn there."""
    listed = {**LIKELY} if top is None else top
    return receipt([token(one, logprob, top={one: logprob, **listed}) for one in ids], asked=SAMPLED, **facts)


def trial(before: Receipt, after: Receipt, *, seeds: tuple[int, int] = (5, 5), neighbours: int | None = 0):
    comparison = compare(before, after)
    return SeedTrial(
        run_ids=("a", "b"),
        seeds=seeds,
        comparison=comparison,
        diagnosis=diagnose(comparison, before, after, neighbours=neighbours),
        neighbours=neighbours,
        chance=chance_of(before),
    )


def seed_verdict(
    same: SeedTrial, other: SeedTrial, facts: EngineFingerprint | None = None
) -> tuple[SeedOutcome, str | None]:
    return judge_seed([same], other, facts or engine())


ANSWER = range(20, 36)
"""16 tokens at -2 nats: an independent draw repeats them with a chance of 1e-14."""

AGAIN = trial(drawn(*ANSWER), drawn(*ANSWER))
OTHER = trial(drawn(*ANSWER), drawn(*reversed(ANSWER)), seeds=(5, 6))


class TestChance:
    def test_it_is_the_product_of_the_probabilities(self) -> None:
        assert chance_of(receipt([token(1, math.log(0.5)), token(2, math.log(0.1))])) == pytest.approx(0.05)

    def test_an_unknown_probability_counts_as_certain(self) -> None:
        assert chance_of(receipt([token(1, None), token(2, math.log(0.1))])) == pytest.approx(0.1)

    @pytest.mark.parametrize(
        "unknown",
        [
            receipt([token(1, None), token(2, -9999.0), token(3, math.nan)]),
            receipt([token(1, 25.6)]),
            receipt([token(1, -0.5)], engine=engine(logprobs_mode="raw_logits")),
            receipt([]),
        ],
    )
    def test_without_a_probability_there_is_no_chance(self, unknown: Receipt) -> None:
        """RC-12: null, clamped and non-finite values, and logits, are not probabilities."""
        assert chance_of(unknown) is None


class TestSeed:
    """RC-03: equal with one seed and different with another; either half alone shows nothing."""

    def test_honoured(self) -> None:
        assert seed_verdict(AGAIN, OTHER) == (SeedOutcome.HONOURED, None)

    def test_a_constant_seed_in_place_of_the_one_sent_is_ignoring_it(self) -> None:
        same = trial(drawn(*ANSWER), drawn(*ANSWER), seeds=(5, 6))
        assert seed_verdict(AGAIN, same) == (SeedOutcome.IGNORED, None)

    def test_no_seed_at_all_is_not_honouring_it(self) -> None:
        assert seed_verdict(OTHER, OTHER) == (SeedOutcome.NOT_HONOURED, None)

    def test_a_model_that_is_sure_of_its_answer_decides_nothing(self) -> None:
        sure = trial(drawn(*ANSWER, logprob=-0.001), drawn(*ANSWER, logprob=-0.001))
        assert seed_verdict(sure, sure) == (SeedOutcome.UNDECIDED, "likely_anyway")
        assert seed_verdict(sure, OTHER) == (SeedOutcome.UNDECIDED, "likely_anyway")

    def test_without_probabilities_agreement_may_be_chance(self) -> None:
        bare = trial(drawn(*ANSWER, logprob=None), drawn(*ANSWER, logprob=None))
        assert seed_verdict(bare, bare) == (SeedOutcome.UNDECIDED, "chance_unknown")

    def test_without_probabilities_and_alone_the_tokens_decide(self) -> None:
        def bare(*ids: int) -> Receipt:
            return drawn(*ids, logprob=None, top={})

        same, other = trial(bare(1, 2), bare(1, 2)), trial(bare(1, 2), bare(1, 3))
        assert seed_verdict(same, other) == (SeedOutcome.HONOURED, None)
        assert seed_verdict(other, other) == (SeedOutcome.NOT_HONOURED, None)

    @pytest.mark.parametrize(("neighbours", "reason"), [(3, "others_running"), (None, "load_unknown")])
    def test_others_running_may_have_moved_the_numbers(self, neighbours: int | None, reason: str) -> None:
        """Unless the numbers are known to be equal, or the engine keeps requests apart."""
        moved = trial(drawn(*ANSWER), drawn(30, 31, top={1: -1.9, 2: -2.1}), neighbours=neighbours)
        assert seed_verdict(moved, OTHER) == (SeedOutcome.UNDECIDED, reason)
        assert seed_verdict(AGAIN, moved) == (SeedOutcome.UNDECIDED, reason)
        equal = trial(drawn(*ANSWER), drawn(*reversed(ANSWER)), neighbours=neighbours)
        assert seed_verdict(AGAIN, equal) == (SeedOutcome.HONOURED, None)
        assert seed_verdict(equal, OTHER) == (SeedOutcome.NOT_HONOURED, None)

    @pytest.mark.parametrize("facts", [engine(), engine(batch_invariant=True), engine(max_num_seqs=1)])
    def test_numbers_that_moved_alone_are_not_put_down_to_the_seed(self, facts: EngineFingerprint) -> None:
        moved = trial(drawn(*ANSWER), drawn(30, 31, top={1: -1.9, 2: -2.1}))
        assert seed_verdict(moved, OTHER, facts) == (SeedOutcome.UNDECIDED, "drifted")

    def test_what_cannot_be_compared_decides_nothing(self) -> None:
        assert seed_verdict(trial(receipt([]), receipt([])), OTHER) == (
            SeedOutcome.UNDECIDED,
            "incomparable",
        )

    def test_load_is_unknown_as_soon_as_one_run_does_not_know_it(self) -> None:
        assert most_neighbours([0, 3]) == 3
        assert most_neighbours([0, None]) is None
        assert most_neighbours([]) is None


SAME = compare(receipt(), receipt())
DRIFTED = compare(receipt([token(7, -0.5)]), receipt([token(7, -0.4)]))
FORKED = compare(receipt([7, 8]), receipt([7, 9]))
UNCOMPARED = compare(receipt(), receipt([]))


class TestGuards:
    @pytest.mark.parametrize(
        ("control", "changed", "verdict"),
        [
            (SAME, SAME, (GuardOutcome.SAME, None)),
            (SAME, DRIFTED, (GuardOutcome.DRIFTED, None)),
            (SAME, FORKED, (GuardOutcome.DIFFERENT, None)),
            (DRIFTED, FORKED, (GuardOutcome.UNDECIDED, "control_differs")),
            (FORKED, FORKED, (GuardOutcome.UNDECIDED, "control_differs")),
            (SAME, UNCOMPARED, (GuardOutcome.UNDECIDED, "incomparable")),
            (UNCOMPARED, SAME, (GuardOutcome.UNDECIDED, "incomparable")),
        ],
    )
    def test_only_a_control_that_holds_shows_a_difference(
        self, control: Comparison, changed: Comparison, verdict: Any
    ) -> None:
        assert judge_guard(control, changed, engine(), 0) == verdict

    @pytest.mark.parametrize(("neighbours", "reason"), [(3, "others_running"), (None, "load_unknown")])
    def test_a_difference_beside_others_shows_nothing(self, neighbours: int | None, reason: str) -> None:
        assert judge_guard(SAME, FORKED, engine(), neighbours) == (GuardOutcome.UNDECIDED, reason)
        assert judge_guard(SAME, SAME, engine(), neighbours) == (GuardOutcome.SAME, None)
        apart = engine(max_num_seqs=1)
        assert judge_guard(SAME, FORKED, apart, neighbours) == (GuardOutcome.DIFFERENT, None)


@pytest.mark.parametrize("lang", LANGUAGES)
class TestWords:
    @pytest.mark.parametrize(
        ("outcome", "reason"),
        [
            (SeedOutcome.HONOURED, None),
            (SeedOutcome.NOT_HONOURED, None),
            (SeedOutcome.IGNORED, None),
            *(
                (SeedOutcome.UNDECIDED, reason)
                for reason in (
                    "others_running",
                    "load_unknown",
                    "drifted",
                    "likely_anyway",
                    "chance_unknown",
                    "incomparable",
                    "refused",
                )
            ),
        ],
    )
    def test_every_seed_outcome_can_be_said(self, outcome: SeedOutcome, reason: Any, lang: Language) -> None:
        odd = trial(receipt([]), receipt([]))
        probe = SeedProbe(
            outcome=outcome,
            reason=reason,
            detail="seed must be even",
            temperature=1.0,
            engine="sha256:e",
            same_seed=(AGAIN, odd),
            other_seed=OTHER,
        )
        found = seed_finding(probe, lang)
        assert "{" not in found.title + "".join(found.sentences)
        assert "seed must be even" in found.sentences
        assert "1e-13" in found.sentences[1]
        assert SeedProbe.model_validate_json(probe.model_dump_json()) == probe

    @pytest.mark.parametrize("guarded", Guarded)
    @pytest.mark.parametrize(
        ("outcome", "reason"),
        [
            (GuardOutcome.SAME, None),
            (GuardOutcome.DRIFTED, None),
            (GuardOutcome.DIFFERENT, None),
            (GuardOutcome.NOT_APPLICABLE, "cache_off"),
            (GuardOutcome.NOT_APPLICABLE, "never_cached"),
            *(
                (GuardOutcome.UNDECIDED, reason)
                for reason in (
                    "control_differs",
                    "others_running",
                    "load_unknown",
                    "incomparable",
                    "never_cached",
                    "always_cached",
                    "cache_not_told",
                    "not_fresh",
                )
            ),
        ],
    )
    def test_every_guard_outcome_can_be_said(
        self, guarded: Guarded, outcome: GuardOutcome, reason: Any, lang: Language
    ) -> None:
        guard = Guard(
            guarded=guarded,
            outcome=outcome,
            reason=reason,
            control=SAME,
            comparison=FORKED,
            diagnosis=diagnose(FORKED, receipt(), receipt(), neighbours=0),
            served_before=3,
        )
        found = guard_finding(guard, lang)
        assert "{" not in found.title + "".join(found.sentences)
        assert len(found.sentences) >= 3
        assert Guard.model_validate_json(guard.model_dump_json()) == guard

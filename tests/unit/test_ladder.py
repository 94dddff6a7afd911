"""What the counts of a rung mean: repeating with itself and being equal to the receipt are two questions."""

from __future__ import annotations

import pytest

from llm_backend.ladder import Finding, Isolation, NotTried, Rung, Tally, Tried, bound, controlled, judge


def counts(n: int, receipt: int, baseline: int | None, repeats: int) -> Tally:
    return Tally(n=n, equal_receipt=receipt, equal_baseline=baseline, repeats=repeats)


REPRODUCING = counts(3, 3, None, 2)
SHIFTED = counts(3, 0, None, 2)
UNSTEADY = counts(3, 1, None, 1)


@pytest.mark.parametrize(
    ("counted", "finding"),
    [
        (REPRODUCING, Finding.REPRODUCES),
        (SHIFTED, Finding.ANOTHER_RESULT),
        (UNSTEADY, Finding.UNSTEADY),
        (counts(1, 1, None, 0), Finding.UNDECIDED),
        (counts(0, 0, None, 0), Finding.UNDECIDED),
    ],
)
def test_a_baseline_is_judged_by_the_receipt_and_by_itself(counted: Tally, finding: Finding) -> None:
    assert judge(Rung.ALONE, counted, None) is finding


@pytest.mark.parametrize(
    ("rung", "counted", "baseline", "finding"),
    [
        (Rung.LOADED, counts(3, 3, 3, 2), REPRODUCING, Finding.NOT_SHOWN),
        (Rung.LOADED, counts(3, 2, 2, 1), REPRODUCING, Finding.FLIPS),
        (Rung.LOADED, counts(3, 0, 0, 2), REPRODUCING, Finding.FLIPS),
        # float32: never the receipt, always itself.
        (Rung.DTYPE, counts(3, 0, 0, 2), REPRODUCING, Finding.ANOTHER_FUNCTION),
        (Rung.DTYPE, counts(3, 0, 0, 1), REPRODUCING, Finding.FLIPS),
        (Rung.DTYPE, counts(3, 1, 1, 1), REPRODUCING, Finding.FLIPS),
        (Rung.CACHE_COLD, counts(3, 3, 0, 2), SHIFTED, Finding.RESTORES),
        (Rung.CACHE_COLD, counts(3, 0, 3, 2), SHIFTED, Finding.NOT_SHOWN),
        (Rung.CACHE_COLD, counts(3, 0, 0, 2), SHIFTED, Finding.FLIPS),
        (Rung.SAMPLING, counts(3, 0, 0, 2), UNSTEADY, Finding.STEADIES),
        (Rung.STREAM, counts(3, 1, 1, 1), UNSTEADY, Finding.NOT_SHOWN),
        (Rung.STREAM, counts(1, 1, 1, 0), REPRODUCING, Finding.UNDECIDED),
        (Rung.STREAM, counts(3, 3, 3, 2), counts(0, 0, None, 0), Finding.UNDECIDED),
    ],
)
def test_a_rung_is_judged_beside_its_baseline(
    rung: Rung, counted: Tally, baseline: Tally, finding: Finding
) -> None:
    assert judge(rung, counted, baseline) is finding


def test_another_draw_is_judged_only_by_whether_it_repeats() -> None:
    other = counts(3, 0, 0, 2)
    assert judge(Rung.SEED, other, REPRODUCING) is Finding.FLIPS
    assert judge(Rung.SEED, other, REPRODUCING, drawn_anew=True) is Finding.NOT_SHOWN
    assert judge(Rung.SEED, counts(3, 0, 0, 1), REPRODUCING, drawn_anew=True) is Finding.FLIPS


def test_a_flip_needs_a_baseline_that_is_still_the_same() -> None:
    assert controlled(Finding.FLIPS, counts(3, 3, 3, 2)) is Finding.FLIPS
    assert controlled(Finding.FLIPS, counts(3, 2, 2, 1)) is Finding.UNATTRIBUTED
    assert controlled(Finding.FLIPS, counts(0, 0, 0, 0)) is Finding.UNATTRIBUTED


def report(*tried: tuple[Rung, Finding]) -> Isolation:
    made = (Tried(rung=rung, tally=REPRODUCING, finding=finding) for rung, finding in tried)
    return Isolation(digest="sha256:0", level="logprobs", times=3, tried=tuple(made))


@pytest.mark.parametrize(
    ("climbed", "outcome"),
    [
        ((), "undecided"),
        (((Rung.ALONE, Finding.UNDECIDED),), "undecided"),
        (((Rung.ALONE, Finding.UNDECIDED), (Rung.LOADED, Finding.UNDECIDED)), "undecided"),
        (((Rung.ALONE, Finding.REPRODUCES), (Rung.LOADED, Finding.NOT_SHOWN)), "not_flipped"),
        (((Rung.ALONE, Finding.REPRODUCES), (Rung.LOADED, Finding.FLIPS)), "flipped"),
        (((Rung.ALONE, Finding.ANOTHER_RESULT),), "flipped"),
        (((Rung.ALONE, Finding.REPRODUCES), (Rung.STREAM, Finding.UNATTRIBUTED)), "flipped"),
        (((Rung.RESTART, Finding.REPRODUCES), (Rung.DTYPE, Finding.ANOTHER_FUNCTION)), "flipped"),
    ],
)
def test_the_outcome_is_what_the_exit_code_says(
    climbed: tuple[tuple[Rung, Finding], ...], outcome: str
) -> None:
    assert report(*climbed).outcome == outcome


def test_what_was_not_tried_decides_nothing() -> None:
    quiet = report((Rung.ALONE, Finding.REPRODUCES))
    skipped = quiet.model_copy(update={"not_tried": (NotTried(rung=Rung.STREAM, why="flipped"),)})
    assert skipped.outcome == quiet.outcome == "not_flipped"


@pytest.mark.parametrize(("same", "n", "least"), [(3, 3, 43), (10, 10, 72), (0, 3, 0), (0, 0, 0)])
def test_a_bound_is_rounded_down(same: int, n: int, least: int) -> None:
    assert bound(same, n) == least

"""Reports on logits and attention weights: what is said, and what is left unsaid."""

from __future__ import annotations

import json

import pytest

from llm_backend.inspection import AttentionReport, LogitsAt, LogitsReport, PassComparison
from llm_backend.inspection_phrases import inspection_json, inspection_markdown, inspection_text


def compared(rows: int, equal: int, **values: object) -> PassComparison:
    given = {
        "first_different": None,
        "max_abs_diff": 0.0,
        "max_abs_diffs": (0.0,) * rows,
        "digest": "sha256:aa",
    }
    return PassComparison(rows=rows, equal=equal, **{**given, **values})


def at(position: int, **values: object) -> LogitsAt:
    given = {"token": 7, "logit": 20.0, "logprob": -0.5, "recorded_logprob": -0.25, "rank": 1, "best": 7}
    return LogitsAt(position=position, margin=0.5, **{**given, **values})


def logits_report(**values: object) -> LogitsReport:
    given = {
        "digest": "sha256:0123456789abcdef",
        "passes": {"again": compared(2, 2), "together": compared(2, 2)},
        "by_decoding": compared(2, 1, first_different=11, max_abs_diff=0.473),
        "vocabulary": 200_064,
        "positions": (at(10), at(11, rank=2, recorded_logprob=None)),
        "one_at_a_time": False,
    }
    return LogitsReport(**{**given, **values})


def test_decoding_that_differs_from_prefill_is_told_and_is_no_failure() -> None:
    report = logits_report()
    assert report.same
    said = inspection_text(report)
    assert said.startswith("● Every logit came out the same in every pass")
    assert (
        "decoding against prefill, two ways to compute the same: 1 of 2 positions equal in every bit" in said
    )


def test_a_pass_that_moved_is_named_with_its_first_row_and_largest_difference() -> None:
    moved = compared(2, 1, first_different=11, max_abs_diff=0.0625)
    report = logits_report(passes={"again": compared(2, 2), "together": moved})
    assert not report.same
    said = inspection_text(report)
    assert said.startswith("✕ Logits moved between passes")
    assert (
        "all positions in one batch: 1 of 2 positions equal in every bit; the first other one is 11" in said
    )
    assert "the largest difference 0.0625" in said


def test_unknown_recorded_logprobs_are_no_difference() -> None:
    assert logits_report().max_logprob_diff == 0.25
    unknown = logits_report(positions=(at(10, recorded_logprob=None),))
    assert unknown.max_logprob_diff is None
    assert "recorded log-probabilities" not in inspection_text(unknown)


def test_one_at_a_time_is_no_batch_and_says_so() -> None:
    assert "one after the other" in inspection_text(logits_report(one_at_a_time=True))
    assert "one after the other" not in inspection_text(logits_report())


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_attention_says_which_implementation_it_is_about(lang: str) -> None:
    report = AttentionReport(
        digest="sha256:0123456789abcdef",
        passes={"again": compared(2, 2)},
        heads=9,
        tokens=198,
        positions=4,
        digests=("sha256:aa", "sha256:bb"),
    )
    said = inspection_markdown(report, lang)
    assert "transformers" in said
    assert "vLLM" in said
    assert json.loads(inspection_json(report, lang))["report"]["tokens"] == 198

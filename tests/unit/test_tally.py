"""What many replays amount to: the Wilson bound, the fork tree, and their words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from sample_receipts import receipt, request, tokens

from llm_backend import render
from llm_backend.compare import compare
from llm_backend.diagnose import diagnose
from llm_backend.receipt import Receipt
from llm_backend.repeat_phrases import progress_line, step_lines, step_reasons, step_title, step_verdict
from llm_backend.tally import LoadSeen, Outputs, Progress, Repeat, RepeatReport, Shape, Step, wilson_lower

RECORDED = receipt((1, 2, 3, 4))
ALONE = LoadSeen(asked=0, shape=None, running=0)


def step(candidates: Sequence[Receipt], load: LoadSeen = ALONE, reference: Receipt = RECORDED) -> Step:
    outputs, repeats = Outputs(reference), []
    for number, candidate in enumerate(candidates):
        comparison = compare(reference, candidate)
        if not comparison.reasons:
            outputs.add(candidate.completion)
        diagnosis = diagnose(comparison, reference, candidate, neighbours=load.running)
        repeats.append(
            Repeat(run_id=str(number), digest=candidate.digest, comparison=comparison, diagnosis=diagnosis)
        )
    return Step(load=load, repeats=tuple(repeats), fork=outputs.fork())


@pytest.mark.parametrize(
    ("successes", "trials", "bound"),
    [
        # n / (n + z²) when all succeed; the others from Newcombe (1998), Statistics in Medicine 17, table I.
        (10, 10, 0.7225),
        (1, 1, 0.2065),
        (1000, 1000, 0.9962),
        (81, 263, 0.2553),
        (15, 148, 0.0624),
        (1, 29, 0.0061),
        (0, 20, 0.0),
    ],
)
def test_the_bound_is_wilsons(successes: int, trials: int, bound: float) -> None:
    assert wilson_lower(successes, trials) == pytest.approx(bound, abs=5e-5)


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 2)])
def test_what_is_not_a_share_has_no_bound(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="is not a share"):
        wilson_lower(successes, trials)


def test_equal_answers_have_no_fork() -> None:
    measured = step([RECORDED] * 10)
    assert measured.fork is None
    assert measured.distinct == 1
    assert step_title(measured) == "Alone: 10 of 10 identical, so at least 72 % (Wilson 95 %)."


def test_the_tree_says_where_answers_part_and_part_again() -> None:
    early, late, ended = receipt((1, 9, 3, 4)), receipt((1, 9, 3, 5)), receipt((1, 2, 3))
    measured = step([RECORDED, early, early, late, ended])
    root = measured.fork
    assert root is not None
    assert root.position == 1
    assert [(branch.token.id, branch.runs, branch.recorded) for branch in root.branches if branch.token] == [
        (2, 3, True),
        (9, 3, False),
    ]
    recorded, other = (branch.fork for branch in root.branches)
    assert recorded is not None
    assert other is not None
    assert [(b.token and b.token.id, b.runs) for b in recorded.branches] == [(4, 2), (None, 1)]
    assert (recorded.position, other.position) == (3, 3)
    assert measured.distinct == 4
    assert [(line.depth, line.sentence) for line in step_lines(measured)][-7:] == [
        (0, "4 different answers in 6 runs, the recorded one included:"),
        (1, 'token 1: "t2" in 3 runs, as recorded'),
        (2, 'token 3: "t4" in 2 runs, as recorded'),
        (2, "token 3: the end of the answer in 1 run"),
        (1, 'token 1: "t9" in 3 runs'),
        (2, 'token 3: "t4" in 2 runs'),
        (2, 'token 3: "t5" in 1 run'),
    ]


def test_an_answer_that_was_cut_is_no_other_continuation() -> None:
    cut = receipt((1, 2), finish_reason="length")
    assert step([cut]).fork is None


def test_another_prompt_is_no_branch_and_no_trial() -> None:
    elsewhere = receipt((8, 8), asked=request(prompt=(1, 2, 4)))
    measured = step([RECORDED, elsewhere])
    assert (measured.comparable, measured.identical, measured.distinct) == (1, 1, 1)
    assert any("1 more could not be compared" in line.sentence for line in step_lines(measured))
    assert step_title(step([elsewhere])) == "Alone: none of 1 can be compared."


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"least": 8, "most": 8, "mean": 8}, "all 8 neighbours were producing tokens at every token"),
        ({"least": 5, "most": 8, "mean": 7.25}, "5 to 8 of 8 neighbours were producing tokens"),
        ({}, "Load not proven"),
        ({"most": 1, "one_at_a_time": True}, "takes one request at a time: 8 neighbours queued"),
    ],
)
def test_load_is_reported_as_measured(load: dict[str, float], words: str) -> None:
    measured = step([RECORDED], LoadSeen(asked=8, shape=Shape.MIXED, **load))
    assert words in step_lines(measured)[0].sentence


def test_company_nobody_asked_for_is_told() -> None:
    (line,) = step_lines(step([RECORDED], LoadSeen(asked=0, shape=None, running=2)))
    assert line.sentence == "Not really alone: the engine reported up to 2 other requests running."


def test_every_format_tells_the_same_counts() -> None:
    forked = step([RECORDED, receipt((1, 9, 3, 4))], LoadSeen(asked=4, shape=Shape.SAME, least=4, most=4))
    report = RepeatReport(digest=RECORDED.digest, times=2, planned=(4, 8), steps=(forked,))
    english, chinese = render.repeats_text(report), render.repeats_text(report, "zh-CN")
    assert "Among 4 neighbours (the same prompt): 1 of 2 identical, so at least 9 %" in english
    assert "Stopped after 2 of 4 replays" in english
    assert "2 次中 1 次完全一致，即一致率至少 9 %（Wilson 95 %）" in chinese
    assert "deterministic" not in english
    assert render.repeats_markdown(report).startswith("**Among 4 neighbours (the same prompt): 1 of 2")
    (told,) = json.loads(render.repeats_json(report))["steps"]
    assert (told["identical"], told["comparable"], told["distinct"]) == (1, 2, 2)
    assert told["fork"]["position"] == 1


def test_progress_says_how_long_it_still_takes() -> None:
    line = progress_line(Progress(8, 3, 10, 20, 80, 41.0))
    assert line == "replay 3 of 10, 8 neighbours: 20 of 80 tokens, about 41.0 s left"


DRIFTED = receipt(tokens((1, 2, 3, 4), (-0.5, -0.4, -0.5, -0.5)))
FORKED = receipt((1, 2, 9, 4))
OTHER_PROMPT = receipt((1, 2, 3, 4), asked=request(prompt=(5, 6)))
LOADED = LoadSeen(asked=8, shape=Shape.MIXED, least=8, most=8, mean=8)


@pytest.mark.parametrize(
    ("candidates", "load", "line"),
    [
        ([RECORDED] * 10, ALONE, "● 10 of 10 came out the same alone — so at least 72 % (Wilson 95 %)."),
        (
            [RECORDED, FORKED, DRIFTED],
            LOADED,
            "✕ 1 of 3 came out the same among 8 neighbours — so at least 6 % (Wilson 95 %).",
        ),
        (
            [RECORDED, DRIFTED],
            ALONE,
            "◐ 2 of 2 had the same words alone, but probabilities moved — so at least 34 % (Wilson 95 %).",
        ),
        ([FORKED], ALONE, "✕ 0 of 1 came out the same alone"),
        ([OTHER_PROMPT] * 2, ALONE, "? 2 replays alone, none can be compared"),
    ],
    ids=["same", "forked", "drifted", "never", "incomparable"],
)
def test_the_line_under_an_answer_gives_shape_count_and_bound(
    candidates: list[Receipt], load: LoadSeen, line: str
) -> None:
    assert str(step_verdict(step(candidates, load))) == line


def test_the_line_under_an_answer_speaks_chinese() -> None:
    line = str(step_verdict(step([RECORDED] * 10, LOADED), "zh-CN"))
    assert line == "● 与 8 个并发请求同时运行，10 次中 10 次完全一致 — 即一致率至少 72 %（Wilson 95 %）。"


def test_a_clean_result_needs_no_reasons() -> None:
    assert step_reasons(step([RECORDED] * 3)) == []
    assert step_reasons(step([RECORDED] * 3, LOADED)) == []


def test_load_that_was_not_as_asked_is_said_beside_the_verdict() -> None:
    disturbed = LoadSeen(asked=0, shape=None, running=2)
    (said,) = step_reasons(step([RECORDED], disturbed))
    assert said.startswith("Not really alone")
    queued = LoadSeen(asked=4, shape=Shape.SAME, one_at_a_time=True)
    (said,) = step_reasons(step([RECORDED], queued))
    assert said.startswith("This engine takes one request at a time")
    (said,) = step_reasons(step([RECORDED], LoadSeen(asked=4, shape=Shape.SAME)))
    assert said.startswith("Load not proven")


def test_forks_and_what_was_left_out_are_said_beside_the_verdict() -> None:
    fork, left_out, cause = step_reasons(step([FORKED, DRIFTED, OTHER_PROMPT], LOADED))
    assert fork == "First fork at token 2; 2 different answers in 3 runs, the recorded one included."
    assert left_out.startswith("1 more could not be compared")
    assert cause in [line.sentence for line in step_lines(step([FORKED], LOADED))]

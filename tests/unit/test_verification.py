"""What an acceptance run may claim: the rules of its outcome, and every report of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from sample_receipts import engine, receipt, request, token
from sample_verification import ENGINE, GOLDEN, HOSTILE, answer, files, fixed_report, repeats, step

from llm_backend.compare import compare
from llm_backend.diagnose import Evidence
from llm_backend.engine_changes import engine_changes
from llm_backend.probes import Guard, Guarded, GuardOutcome, SeedOutcome, SeedProbe
from llm_backend.receipt import Status
from llm_backend.scoring import CheckVerdict
from llm_backend.strings import LANGUAGES, Language
from llm_backend.tally import LoadSeen, Shape
from llm_backend.verification import (
    Finding,
    Kind,
    Outcome,
    Verification,
    judge_comparisons,
    judge_guard,
    judge_identity,
    judge_probe,
    judge_step,
    load_proven,
    worst,
)
from llm_backend.verify_figures import fork_map
from llm_backend.verify_html import verification_html
from llm_backend.verify_phrases import cell_text, headline, instant_sentence
from llm_backend.verify_render import (
    verification_json,
    verification_junit,
    verification_markdown,
    verification_text,
)

RECORDED = answer()
PASSED = Finding(kind=Kind.ALONE, outcome=Outcome.PASSED)
UNDECIDED = Finding(kind=Kind.SEED, outcome=Outcome.UNDECIDED)
FAILED = Finding(kind=Kind.LOAD, outcome=Outcome.FAILED, neighbours=7)
SKIPPED = Finding(kind=Kind.RESTART, outcome=Outcome.NOT_APPLICABLE)
STOPPED = Evidence(key="verify.cut.stopped")


# -- the outcome -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "cut_short", "outcome"),
    [
        ((PASSED,), None, Outcome.PASSED),
        ((PASSED, SKIPPED), None, Outcome.PASSED),
        ((PASSED, UNDECIDED), None, Outcome.UNDECIDED),
        ((PASSED, UNDECIDED, FAILED), None, Outcome.FAILED),
        ((PASSED,), STOPPED, Outcome.UNDECIDED),
        ((PASSED, FAILED), STOPPED, Outcome.FAILED),
        ((SKIPPED,), None, Outcome.UNDECIDED),
        ((), None, Outcome.UNDECIDED),
    ],
)
def test_only_what_was_measured_and_passed_passes(
    findings: tuple[Finding, ...], cut_short: Evidence | None, outcome: Outcome
) -> None:
    report = fixed_report(findings=findings, cut_short=cut_short)
    assert report.outcome is outcome
    assert headline(report).title == {
        Outcome.PASSED: "Reproduced",
        Outcome.FAILED: "Not reproduced",
        Outcome.UNDECIDED: "Undecided",
    }.get(outcome)


def test_nothing_taken_as_one_does_not_apply() -> None:
    assert worst([]) is Outcome.NOT_APPLICABLE


def test_one_difference_fails_whatever_else_cannot_be_compared() -> None:
    other_prompt = receipt((1,), asked=request(prompt=(9,)), engine=ENGINE)
    odd, forked = compare(RECORDED, other_prompt), compare(RECORDED, answer(fork_at=3))
    same, drifted = compare(RECORDED, RECORDED), compare(RECORDED, answer(drift=0.01))
    assert judge_comparisons([same, same], "logprobs")[0] is Outcome.PASSED
    assert judge_comparisons([same, odd], "logprobs")[0] is Outcome.UNDECIDED
    assert judge_comparisons([odd, forked], "logprobs")[0] is Outcome.FAILED
    assert judge_comparisons([drifted], "logprobs")[0] is Outcome.FAILED
    assert judge_comparisons([drifted], "tokens")[0] is Outcome.PASSED
    assert judge_comparisons([], "tokens")[0] is Outcome.UNDECIDED


def test_probabilities_nobody_recorded_are_not_shown_to_be_equal() -> None:
    bare = receipt((token(1, None), token(2, None)), engine=ENGINE)
    outcome, (why,) = judge_comparisons([compare(bare, bare)], "logprobs")
    assert (outcome, why.key) == (Outcome.UNDECIDED, "verify.no_logprobs")
    assert judge_comparisons([compare(bare, bare)], "tokens") == (Outcome.PASSED, ())


def test_an_interrupted_replay_that_agrees_so_far_is_undecided() -> None:
    cut = receipt(RECORDED.completion.tokens[:5], engine=ENGINE, status=Status.INTERRUPTED)
    outcome, (why,) = judge_comparisons([compare(RECORDED, cut)], "logprobs")
    assert (outcome, why.key) == (Outcome.UNDECIDED, "verify.interrupted")


@pytest.mark.parametrize(
    ("load", "sequences", "proven"),
    [
        ({"asked": 0}, None, True),
        ({"asked": 8, "mean": 8.0}, None, True),
        ({"asked": 8, "mean": 4.0}, None, True),
        ({"asked": 8, "mean": 3.9}, None, False),
        ({"asked": 8, "mean": 0.0}, None, False),
        # An engine that takes four at a time can run three beside the replay, however many are asked for.
        ({"asked": 8, "mean": 1.5}, 4, True),
        ({"asked": 8, "mean": 1.4}, 4, False),
        ({"asked": 8, "mean": 0.1, "one_at_a_time": True}, 1, True),
    ],
)
def test_a_load_counts_only_when_it_was_seen(
    load: dict[str, float], sequences: int | None, proven: bool
) -> None:
    seen = LoadSeen(shape=Shape.MIXED if load["asked"] else None, **load)
    assert load_proven(seen, engine(max_num_seqs=sequences)) is proven


def test_a_load_that_was_not_seen_is_undecided_but_a_fork_there_still_fails() -> None:
    quiet = step(RECORDED, [RECORDED] * 3, 7, seen=0.2)
    outcome, (why,) = judge_step(quiet, ENGINE, times=3, level="logprobs")
    assert (outcome, why.key) == (Outcome.UNDECIDED, "verify.load_not_seen")
    forked = step(RECORDED, [answer(fork_at=9)], 7, seen=0.2)
    assert judge_step(forked, ENGINE, times=1, level="logprobs")[0] is Outcome.FAILED


def test_fewer_replays_than_planned_are_undecided() -> None:
    measured = step(RECORDED, [RECORDED] * 2)
    outcome, (why,) = judge_step(measured, ENGINE, times=10, level="logprobs")
    assert (outcome, why.values) == (Outcome.UNDECIDED, {"done": 2, "times": 10})


def test_an_engine_that_tells_everything_and_stays_the_same_passes() -> None:
    outcome, (told,) = judge_identity(ENGINE, ENGINE, ())
    assert (outcome, told.values) == (Outcome.PASSED, {"told": 19, "asked": 19})


def test_what_an_engine_does_not_tell_is_named() -> None:
    silent = ENGINE.model_copy(update={"weights_digest": None, "driver_version": None})
    outcome, evidence = judge_identity(silent, silent, ())
    assert outcome is Outcome.UNDECIDED
    assert evidence[0].values["fields"] == "weights_digest driver_version"
    finding = Finding(kind=Kind.IDENTITY, outcome=outcome, evidence=evidence)
    assert "did not tell: weights digest, driver version." in verification_text(
        fixed_report(findings=(finding,))
    )
    assert "引擎未告知：权重摘要、驱动版本。" in verification_text(fixed_report(findings=(finding,)), "zh-CN")


def test_an_engine_that_changes_under_the_run_fails() -> None:
    other = ENGINE.model_copy(update={"vllm_version": "0.27.0"})
    changes = engine_changes(ENGINE, other, seeded=True)
    assert judge_identity(ENGINE, other, changes)[0] is Outcome.FAILED


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        (SeedOutcome.HONOURED, Outcome.PASSED),
        (SeedOutcome.NOT_HONOURED, Outcome.FAILED),
        (SeedOutcome.IGNORED, Outcome.FAILED),
        (SeedOutcome.UNDECIDED, Outcome.UNDECIDED),
    ],
)
def test_a_seed_passes_only_when_both_halves_were_shown(told: SeedOutcome, outcome: Outcome) -> None:
    assert judge_probe(SeedProbe(outcome=told, temperature=1.0, engine=ENGINE.digest)) is outcome


@pytest.mark.parametrize(
    ("told", "bits", "words"),
    [
        (GuardOutcome.SAME, Outcome.PASSED, Outcome.PASSED),
        (GuardOutcome.DRIFTED, Outcome.FAILED, Outcome.PASSED),
        (GuardOutcome.DIFFERENT, Outcome.FAILED, Outcome.FAILED),
        (GuardOutcome.NOT_APPLICABLE, Outcome.NOT_APPLICABLE, Outcome.NOT_APPLICABLE),
        (GuardOutcome.UNDECIDED, Outcome.UNDECIDED, Outcome.UNDECIDED),
    ],
)
def test_a_guard_is_judged_at_the_level_asked_for(told: GuardOutcome, bits: Outcome, words: Outcome) -> None:
    guard = Guard(guarded=Guarded.OBSERVER, outcome=told)
    assert (judge_guard(guard, "logprobs"), judge_guard(guard, "tokens")) == (bits, words)


# -- the table -------------------------------------------------------------------------------------


def test_a_cell_adds_up_the_prompts_of_one_way_of_sampling() -> None:
    report = fixed_report()
    alone, loaded = report.cell(0, greedy=True), report.cell(31, greedy=True)
    assert (alone.same, alone.runs, alone.outcome) == (8, 8, Outcome.PASSED)
    assert (loaded.same, loaded.runs, loaded.outcome) == (5, 8, Outcome.FAILED)
    assert cell_text(loaded) == "✕ 5 of 8"
    assert report.cell(31, greedy=False).outcome is Outcome.UNDECIDED, "its load was not seen"


def test_a_cell_with_a_prompt_not_reached_is_not_passed() -> None:
    report = fixed_report()
    half = report.model_copy(update={"findings": report.findings[:1]})
    assert half.cell(0, greedy=True).outcome is Outcome.UNDECIDED
    assert cell_text(half.cell(7, greedy=True)) == "? not measured"


def test_a_cell_nobody_asked_for_says_so() -> None:
    report = fixed_report()
    greedy = report.model_copy(update={"cases": tuple(case for case in report.cases if case.greedy)})
    assert cell_text(greedy.cell(0, greedy=False)) == "– none asked"


def test_drift_counts_as_the_same_only_when_tokens_are_compared() -> None:
    assert fixed_report().cell(7, greedy=False).same == 2
    assert fixed_report(level="tokens").cell(7, greedy=False).same == 4


def test_bit_exact_and_within_tolerance_are_never_added_up() -> None:
    report = fixed_report()
    verdicts = {f.check.verdict for f in report.of(Kind.INSTANT) if f.check}
    assert verdicts == {CheckVerdict.BIT_EXACT, CheckVerdict.WITHIN_TOLERANCE}
    assert (
        instant_sentence(report) == "Instant check of 2 answers: 1 bit-exact, 1 within tolerance, 0 outside."
    )


def test_the_map_shows_what_came_apart_and_nothing_else() -> None:
    rows = fork_map(fixed_report())
    assert [(row.case, row.load) for row in rows] == [
        ("product-en/greedy", "31 neighbours"),
        ("product-zh/seeded", "7 neighbours"),
        ("hostile/greedy", "7 neighbours"),
    ]
    assert rows[0].said == "3 of 4 came apart, first at token 31"
    assert 'x1="516.7"' in rows[0].strip, "31 of 60 tokens along"
    assert rows[1].said == "probabilities moved by up to 0.03 nats"


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(files()))
def test_reports_are_as_committed(name: str) -> None:
    """After a wanted change: python tests/sample_verification.py, and look at it."""
    assert files()[name] == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_text_has_the_verdict_first_and_the_limits_last(lang: Language) -> None:
    lines = verification_text(fixed_report(), lang).splitlines()
    assert lines[0] == str(headline(fixed_report(), lang))
    assert lines[-1].strip()
    assert "deterministic" not in "\n".join(lines)


def test_the_text_tells_the_worst_at_length_and_counts_the_rest() -> None:
    many = tuple(repeats(f"case-{n}/greedy", RECORDED, [answer(fork_at=n)]) for n in range(9))
    told = verification_text(fixed_report(findings=many))
    assert told.count("✕ failed: ") == 6
    assert "3 more did not pass" in told


def test_json_is_strict_and_carries_the_numbers_of_the_table() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(verification_json(fixed_report()), parse_constant=refuse)
    assert document["outcome"] == "failed"
    assert document["summary"].startswith("✕ Not reproduced")
    cell = next(c for c in document["cells"] if c["neighbours"] == 31 and c["greedy"])
    assert (cell["same"], cell["runs"]) == (5, 8)
    assert document["cases"][2]["question"] == HOSTILE
    assert document["fingerprint"] == ENGINE.digest
    assert Verification.model_validate(
        {name: document[name] for name in Verification.model_fields if name != "findings"} | {"findings": ()}
    )


JUNIT_ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {
        *("name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id"),
    },
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
JUNIT_CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase", "system-out"},
    "properties": {"property"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}
"""What the JUnit schema of Jenkins' plugin (junit-10.xsd) allows there."""


@pytest.mark.parametrize("cut_short", [None, STOPPED])
def test_junit_is_what_its_schema_allows_and_its_sums_are_right(cut_short: Evidence | None) -> None:
    report = fixed_report(cut_short=cut_short)
    root = ElementTree.fromstring(verification_junit(report))
    for element in root.iter():
        assert set(element.attrib) <= JUNIT_ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= JUNIT_CHILDREN.get(element.tag, set())
    cases = root.findall("testsuite/testcase")
    assert len(cases) == len(report.findings) + (cut_short is not None)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        told = [int(suite.get(attribute, "")) for suite in root]
        assert told == [len(suite.findall(f"testcase/{tag}")) for suite in root]
        assert root.get(attribute) == str(sum(told))
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert "Different from token 31 on" in failure.get("message", "")
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)


def test_a_run_cut_short_is_no_green_test_run() -> None:
    root = ElementTree.fromstring(verification_junit(fixed_report(findings=(PASSED,), cut_short=STOPPED)))
    assert root.get("errors") == "1"


class _Page(HTMLParser):
    """Every tag and attribute, and the text outside the style sheet."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "rect", "line", "circle", "path"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, "tags are balanced"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text.append(data)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_html_asks_nobody_for_anything_and_runs_nothing(lang: Language) -> None:
    page = _Page(verification_html(fixed_report(), lang))
    allowed = {
        *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section"),
        *("h1", "h2", "h4", "p", "span", "b", "small", "code", "pre", "ul", "li", "dl", "div", "dt", "dd"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary"),
        *("svg", "rect", "line", "path", "circle", "text"),
    }
    assert {tag for tag, _ in page.tags} <= allowed
    names = {name for _, attributes in page.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"src", "href", "style", "action"}
    (policy,) = (a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert ("html", {"lang": lang}) in page.tags


def test_hostile_words_are_shown_as_words() -> None:
    said = "".join(_Page(verification_html(fixed_report())).text)
    assert "<script>alert('x')</script>" in said
    assert "{{ 7*7 }}" in said
    assert "\x1b" not in said
    assert "\x00" not in said
    assert "\u202e" not in said, "it would turn around what follows"
    assert '"<b>"' in said, "a token in a fork tree"


REPORTS: list[Callable[[Verification, Language], str]] = [
    verification_text,
    verification_markdown,
    verification_junit,
    verification_html,
]


@pytest.mark.parametrize("write", REPORTS)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_report_lets_a_prompt_speak_to_a_terminal_or_break_out(
    write: Callable[[Verification, Language], str], lang: Language
) -> None:
    told = write(fixed_report(), lang)
    assert "\x1b" not in told
    assert "\x00" not in told
    assert "<script>" not in told


@pytest.mark.parametrize("write", REPORTS)
def test_every_report_of_a_run_cut_short_says_so(write: Callable[[Verification, Language], str]) -> None:
    said = Evidence(key="verify.cut.engine", values={"said": "No engine answers."})
    assert "Partial" in write(fixed_report(cut_short=said), "en")


def test_a_report_with_nothing_in_it_can_be_written() -> None:
    empty = fixed_report(findings=(), cases=(), cut_short=STOPPED)
    for write in REPORTS:
        assert "nothing was measured" in write(empty, "en") or write is verification_junit

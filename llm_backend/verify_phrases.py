"""An acceptance run in sentences: the verdict, each finding, and what none of it shows."""

from __future__ import annotations

from datetime import UTC, datetime

from llm_backend import probe_phrases
from llm_backend.compare import Verdict
from llm_backend.diagnose import Evidence
from llm_backend.phrases import (
    VerdictLine,
    check_line,
    check_sentences,
    diagnosis_sentence,
    evidence_sentence,
    field_label,
    measurements,
    notes,
    verdict_line,
)
from llm_backend.repeat_phrases import Line, step_lines, step_title
from llm_backend.scoring import CheckVerdict
from llm_backend.strings import Language, duration, text
from llm_backend.tally import Step
from llm_backend.verification import Case, Cell, Doing, Finding, Kind, Outcome, Verification

OUTCOME_SHAPES = {
    Outcome.PASSED: "●",
    Outcome.FAILED: "✕",
    Outcome.UNDECIDED: "?",
    Outcome.NOT_APPLICABLE: "–",
}
"""Told by a shape and words, never by colour alone."""


def headline(report: Verification, lang: Language = "en") -> VerdictLine:
    """`✕ Not reproduced — 2 of 31 checks failed, first: product-en/greedy, among 7 neighbours.`"""
    outcome = report.outcome
    shape, title = OUTCOME_SHAPES[outcome], text(f"verify.{outcome}", lang)
    key = f"verify.{outcome}.detail"
    if outcome is Outcome.UNDECIDED and not report.count(Outcome.UNDECIDED):
        some = report.cut_short and report.count(Outcome.PASSED)
        key = "verify.undecided.partial" if some else "verify.undecided.nothing"
    first = next((f for f in report.findings if f.outcome is outcome), None)
    detail = text(
        key,
        lang,
        n=report.count(outcome),
        checks=sum(f.outcome is not Outcome.NOT_APPLICABLE for f in report.findings),
        first=place(first, lang) if first else "",
    )
    return VerdictLine(
        shape, title, detail, text("verdict.line", lang, shape=shape, title=title, detail=detail)
    )


def outcome_name(outcome: Outcome, lang: Language = "en") -> str:
    """`● passed`"""
    return f"{OUTCOME_SHAPES[outcome]} {text(f'verify.outcome.{outcome}', lang)}"


def kind_name(kind: Kind, lang: Language = "en") -> str:
    return text(f"verify.kind.{kind}", lang)


def place(finding: Finding, lang: Language = "en") -> str:
    """What was checked, where: `product-en/greedy, among 7 neighbours`."""
    what = kind_name(finding.kind, lang)
    if finding.kind is Kind.LOAD:
        what = text("verify.place.load", lang, neighbours=finding.neighbours)
    return what if finding.case is None else text("verify.place", lang, case=finding.case, what=what)


def finding_title(finding: Finding, lang: Language = "en") -> str:
    """The result in one sentence, without its outcome."""
    if finding.step:
        return step_title(finding.step, lang)
    if finding.check:
        return str(check_line(finding.check, lang))
    if finding.comparison:
        return str(verdict_line(finding.comparison, lang))
    if experiment := _experiment(finding, lang):
        return experiment.title
    return evidence_text(finding.evidence[0], lang) if finding.evidence else kind_name(finding.kind, lang)


def finding_lines(finding: Finding, lang: Language = "en") -> list[Line]:
    """Everything below the title: what decided, the measurements, the fork tree, the reason."""
    experiment = _experiment(finding, lang)
    measured = finding.step or finding.check or finding.comparison or experiment
    said = [Line(0, evidence_text(one, lang)) for one in finding.evidence[0 if measured else 1 :]]
    if finding.step:
        said += step_lines(finding.step, lang)
    if finding.check:
        said += [Line(0, sentence) for sentence in check_sentences(finding.check, lang)]
    if experiment:
        said += [Line(0, sentence) for sentence in experiment.sentences]
    if finding.comparison:
        reason = diagnosis_sentence(finding.diagnosis, lang) if finding.diagnosis else ""
        facts = [*measurements(finding.comparison, lang), *notes(finding.comparison, lang)]
        said += [Line(0, sentence) for sentence in [reason, *facts] if sentence]
    return said


def failure_sentence(finding: Finding, lang: Language = "en") -> str:
    """Title and, for a difference, where it starts: what a test runner shows of a failed check."""
    parts = [evidence_text(one, lang) for one in finding.evidence]
    if not parts or finding.step or finding.check or finding.comparison:
        parts.insert(0, finding_title(finding, lang))
    if finding.step and (first := _first_difference(finding.step, lang)):
        parts.append(first)
    return " ".join(parts)


def evidence_text(evidence: Evidence, lang: Language = "en") -> str:
    """Evidence of a verification; field names become words."""
    if "fields" not in evidence.values:
        return evidence_sentence(evidence, lang)
    fields = str(evidence.values["fields"]).split()
    named = text("verify.list", lang).join(field_label("engine", field, lang) for field in fields)
    return text(evidence.key, lang, **{**evidence.values, "fields": named})


def cell_text(cell: Cell, lang: Language = "en") -> str:
    """`● 10 of 10`; a shape alone where nothing was measured."""
    shape = OUTCOME_SHAPES[cell.outcome]
    if not cell.runs:
        key = "verify.cell.none" if cell.outcome is Outcome.NOT_APPLICABLE else "verify.cell.not_reached"
        return f"{shape} {text(key, lang)}"
    return f"{shape} {text('verify.cell', lang, same=cell.same, runs=cell.runs)}"


def row_name(neighbours: int, lang: Language = "en") -> str:
    return text("verify.row", lang, n=neighbours) if neighbours else text("repeat.alone", lang)


def case_settings(case: Case, lang: Language = "en") -> str:
    """`seed 42 · sampled at 0.8 · 12 prompt tokens · 96 tokens`"""
    parts = [] if case.seed is None else [text("run.seed", lang, seed=case.seed)]
    parts.append(
        text("run.greedy", lang)
        if case.greedy
        else text("verify.sampled", lang, temperature=case.temperature)
    )
    if case.prompt_tokens is not None:
        parts.append(text("verify.prompt_tokens", lang, n=case.prompt_tokens))
    if case.digest:
        parts.append(text("run.tokens", lang, n=case.answer_tokens))
    return " · ".join(parts)


def plan_sentences(report: Verification, lang: Language = "en") -> list[str]:
    """What was asked, how often and beside whom, who chose that, and why it is not all there."""
    said = [
        text(
            "verify.plan",
            lang,
            suite=report.suite,
            cases=len(report.cases),
            shape=text(f"repeat.shape.{report.shape}", lang),
            level=text(f"verify.level.{report.level}", lang),
            took=duration(report.seconds),
        ),
        evidence_text(report.chosen, lang),
    ]
    for case in report.cases:
        if case.skipped:
            said.append(
                text("verify.skipped.case", lang, case=case.name, why=evidence_text(case.skipped, lang))
            )
    if report.baseline:
        said.append(text("verify.baseline.of", lang, when=when(datetime.fromisoformat(report.baseline))))
    if report.cut_short:
        said.append(evidence_text(report.cut_short, lang))
    return said


def instant_sentence(report: Verification, lang: Language = "en") -> str:
    """How many answers came out bit-exact and how many only within tolerance, never added up; "" if none."""
    verdicts = [finding.check.verdict for finding in report.of(Kind.INSTANT) if finding.check]
    if not verdicts:
        return ""
    counts = {verdict: verdicts.count(verdict) for verdict in CheckVerdict}
    return text(
        "verify.instant",
        lang,
        n=len(verdicts),
        exact=counts[CheckVerdict.BIT_EXACT],
        within=counts[CheckVerdict.WITHIN_TOLERANCE],
        outside=counts[CheckVerdict.OUTSIDE],
    )


def kind_scope(kind: Kind, lang: Language = "en") -> str:
    """What a check of this kind covers."""
    return text(f"verify.scope.{kind}", lang)


def limits(report: Verification, lang: Language = "en") -> list[str]:
    """What this does not show."""
    keys = ["prompts", "load", "engine", "right"]
    if any(f.check and f.check.verdict is CheckVerdict.WITHIN_TOLERANCE for f in report.findings):
        keys.append("tolerance")
    if not any(f.outcome is Outcome.PASSED for f in report.of(Kind.RESTART)):
        keys.append("restart")
    largest = max(report.counts, default=0)
    return [text(f"verify.limit.{key}", lang, largest=largest) for key in keys]


def when(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def doing_line(doing: Doing, lang: Language = "en") -> str:
    """`case 3 of 15, product-zh/greedy: Repeats among 7 neighbours, replay 2 of 3: …; about 4 min left`"""
    where = kind_name(doing.kind, lang)
    if doing.kind is Kind.LOAD and doing.repeats:
        where = text("verify.place.load", lang, neighbours=doing.repeats.neighbours)
    if doing.repeats:
        now = doing.repeats
        where = text(
            "verify.progress.replay",
            lang,
            where=where,
            replay=now.replay,
            replays=now.replays,
            tokens=now.tokens,
            recorded=now.recorded_tokens,
        )
    if doing.case is not None:
        where = text(
            "verify.progress.case", lang, number=doing.number, of=doing.of, case=doing.case, what=where
        )
    if doing.seconds_left is None:
        return where
    return text("verify.progress.left", lang, where=where, left=doing.seconds_left)


def _experiment(finding: Finding, lang: Language) -> probe_phrases.Finding | None:
    if finding.probe:
        return probe_phrases.seed_finding(finding.probe, lang)
    return probe_phrases.guard_finding(finding.guard, lang) if finding.guard else None


def _first_difference(step: Step, lang: Language) -> str:
    """The verdict line of the first replay that differs, and the reason for it."""
    for repeat in step.repeats:
        if repeat.comparison.verdict is not Verdict.IDENTICAL:
            line = str(verdict_line(repeat.comparison, lang))
            return f"{line} {diagnosis_sentence(repeat.diagnosis, lang)}".strip()
    return ""

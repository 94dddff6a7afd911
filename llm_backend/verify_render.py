"""An acceptance run as terminal text, Markdown, strict JSON and JUnit XML. HTML is in `verify_html`."""

from __future__ import annotations

import re
from datetime import UTC
from xml.etree import ElementTree

from llm_backend.engine_changes import EngineChange
from llm_backend.layout import columns, literal, markdown_table, one_line, strict_json
from llm_backend.phrases import field_label
from llm_backend.render import fingerprint_markdown
from llm_backend.strings import Language, text
from llm_backend.verification import Finding, Kind, Outcome, Verification, worst
from llm_backend.verify_phrases import (
    case_settings,
    cell_text,
    failure_sentence,
    finding_lines,
    finding_title,
    headline,
    instant_sentence,
    kind_name,
    kind_scope,
    limits,
    outcome_name,
    place,
    plan_sentences,
    row_name,
    when,
)

Table = list[tuple[str, ...]]

SHOWN = 6
"""Failed or undecided checks told at length on a terminal; the other formats tell all of them."""

# What XML 1.0 cannot carry at all, not even as a reference.
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def verification_text(report: Verification, lang: Language = "en") -> str:
    """The verdict, the engine, the date, the table; then only what did not pass, and the limits."""
    lines = [str(headline(report, lang)), ""]
    lines += columns(summary_rows(report, lang))
    lines += ["", text(f"verify.table.caption.{report.level}", lang)]
    lines += [f"  {line}" for line in columns(cell_table(report, lang))]
    if said := instant_sentence(report, lang):
        lines += ["", said]
    lines += ["", *columns(check_table(report, lang))]
    for finding in problems(report)[:SHOWN]:
        lines += ["", finding_heading(finding, lang)]
        lines.append(f"  {finding_title(finding, lang)}")
        lines += ["  " * (line.depth + 2) + line.sentence for line in finding_lines(finding, lang)]
        lines += [f"    {line}" for line in columns(change_table(finding.changes, lang))]
    if more := len(problems(report)) - SHOWN:
        lines += ["", text("verify.more", lang, n=more)] if more > 0 else []
    lines += ["", text("verify.heading.plan", lang)]
    lines += [f"  {sentence}" for sentence in plan_sentences(report, lang)]
    lines += ["", text("verify.heading.limits", lang)]
    return "\n".join([*lines, *(f"  {sentence}" for sentence in limits(report, lang))])


def verification_markdown(report: Verification, lang: Language = "en") -> str:
    """Everything the text has, every prompt, and the engine's facts."""
    parts = [
        f"# {text('verify.title', lang)}",
        f"**{literal(str(headline(report, lang)))}**",
        markdown_table(
            [(text("column.field", lang), text("column.value", lang)), *summary_rows(report, lang)]
        ),
        literal(text(f"verify.table.caption.{report.level}", lang)) + ":",
        markdown_table(cell_table(report, lang)),
    ]
    if said := instant_sentence(report, lang):
        parts.append(literal(said))
    parts += [f"## {text('verify.heading.checks', lang)}", markdown_table(check_table(report, lang))]
    for finding in problems(report):
        parts.append(f"### {literal(finding_heading(finding, lang))}")
        parts.append(literal(finding_title(finding, lang)))
        lines = [f"{'  ' * line.depth}- {literal(line.sentence)}" for line in finding_lines(finding, lang)]
        parts += ["\n".join(lines)] if lines else []
        parts += [markdown_table(change_table(finding.changes, lang))] if finding.changes else []
    parts.append(f"## {text('verify.heading.cases', lang)}")
    parts.append(
        "\n".join(
            f"- **{literal(case.name)}** ({literal(case_settings(case, lang))}): "
            f"{literal(one_line(case.question, 200))}"
            for case in report.cases
        )
    )
    for heading, sentences in (("plan", plan_sentences(report, lang)), ("limits", limits(report, lang))):
        parts.append(f"## {text(f'verify.heading.{heading}', lang)}")
        parts.append("\n".join(f"- {literal(sentence)}" for sentence in sentences))
    parts += [f"## {text('verify.heading.engine', lang)}", fingerprint_markdown(report.engine, lang)]
    return "\n\n".join(part for part in parts if part)


def verification_json(report: Verification, lang: Language = "en") -> str:
    """Everything measured, each finding with its sentence, and the first table as numbers."""
    findings = [
        {"summary": finding_title(finding, lang), **dumped}
        for finding, dumped in zip(report.findings, report.model_dump(mode="json")["findings"], strict=True)
    ]
    cells = [
        report.cell(count, greedy=greedy).model_dump(mode="json")
        for count in report.counts
        for greedy in (True, False)
    ]
    return strict_json(
        {
            "outcome": report.outcome,
            "summary": str(headline(report, lang)),
            "fingerprint": report.engine.digest,
            "cells": cells,
            "limits": limits(report, lang),
            **report.model_dump(mode="json", exclude={"findings"}),
            "findings": findings,
        }
    )


def verification_junit(report: Verification, lang: Language = "en") -> str:
    """One test suite per kind of check, one test case per prompt and load.

    Undecided is an error (it must not look green), not applicable is skipped. A run that was cut short
    adds a test case that says so.
    """
    root = ElementTree.Element("testsuites")
    for kind in Kind:
        if found := report.of(kind):
            suite = _suite(root, kind_name(kind, lang), found, report)
            for finding in found:
                _test_case(suite, finding, lang)
            ElementTree.SubElement(suite, "system-out").text = _xml(kind_scope(kind, lang))
    if report.cut_short:
        unfinished = Finding(
            kind=Kind.IDENTITY, outcome=Outcome.UNDECIDED, evidence=(report.cut_short,), case=report.suite
        )
        suite = _suite(root, text("verify.heading.plan", lang), [unfinished], report)
        _test_case(suite, unfinished, lang)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{report.seconds:.3f}")
    root.set("name", _xml(f"encore verify {report.suite}"))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


# -- shared by the formats -----------------------------------------------------------------------------


def summary_rows(report: Verification, lang: Language = "en") -> Table:
    """The engine, the date, the fingerprint: what the verdict belongs to."""
    return [
        (text("verify.label.engine", lang), engine_line(report, lang)),
        (text("verify.label.date", lang), when(report.started_at)),
        (text("verify.label.fingerprint", lang), report.engine.digest),
    ]


def engine_line(report: Verification, lang: Language = "en") -> str:
    """`microsoft/Phi-4-mini-reasoning · vLLM 0.26.0 · NVIDIA H200 · strict · http://…`"""
    engine = report.engine
    hardware = ", ".join(engine.device_names) or engine.cpu_model or engine.device
    version = engine.vllm_version and f"vLLM {engine.vllm_version}"
    told = [engine.model, version, hardware, engine.profile, report.engine_url]
    return " · ".join(part for part in told if part)


def cell_table(report: Verification, lang: Language = "en") -> Table:
    """Numbers of neighbours × greedy and seeded."""
    header = tuple(text(f"verify.column.{name}", lang) for name in ("load", "greedy", "seeded"))
    return [
        header,
        *(
            (
                row_name(count, lang),
                *(cell_text(report.cell(count, greedy=greedy), lang) for greedy in (True, False)),
            )
            for count in report.counts
        ),
    ]


def check_table(report: Verification, lang: Language = "en") -> Table:
    """Each kind of check with its outcome and how many of its checks passed."""
    rows = [tuple(text(f"verify.column.{name}", lang) for name in ("check", "outcome", "result"))]
    for kind in Kind:
        if found := report.of(kind):
            applicable = [f for f in found if f.outcome is not Outcome.NOT_APPLICABLE]
            passed = sum(finding.outcome is Outcome.PASSED for finding in found)
            share = text("verify.share", lang, same=passed, runs=len(applicable)) if applicable else ""
            outcome = outcome_name(worst(finding.outcome for finding in found), lang)
            rows.append((kind_name(kind, lang), outcome, share or finding_title(found[0], lang)))
    return rows


def change_table(changes: tuple[EngineChange, ...], lang: Language = "en") -> Table:
    """What differs in the engine, bit-relevant first; empty when nothing does."""
    if not changes:
        return []
    unknown = text("value.unknown", lang)
    return [
        tuple(text(f"column.{name}", lang) for name in ("field", "recorded", "replayed", "relevance")),
        *(
            (
                field_label("engine", change.field, lang),
                unknown if change.reference is None else change.reference,
                unknown if change.candidate is None else change.candidate,
                text(f"relevance.{change.relevance}", lang),
            )
            for change in changes
        ),
    ]


def finding_heading(finding: Finding, lang: Language = "en") -> str:
    return text("verify.place", lang, case=outcome_name(finding.outcome, lang), what=place(finding, lang))


def problems(report: Verification) -> list[Finding]:
    """What did not pass, failures first."""
    return [
        finding
        for outcome in (Outcome.FAILED, Outcome.UNDECIDED)
        for finding in report.findings
        if finding.outcome is outcome
    ]


# -- JUnit ---------------------------------------------------------------------------------------------


def _suite(
    root: ElementTree.Element, name: str, found: list[Finding], report: Verification
) -> ElementTree.Element:
    outcomes = [finding.outcome for finding in found]
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {
            "name": _xml(name),
            "tests": str(len(found)),
            "failures": str(outcomes.count(Outcome.FAILED)),
            "errors": str(outcomes.count(Outcome.UNDECIDED)),
            "skipped": str(outcomes.count(Outcome.NOT_APPLICABLE)),
            "time": f"{sum(finding.seconds for finding in found):.3f}",
            "timestamp": f"{report.started_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}",
            "hostname": _xml(report.engine_url),
            "id": str(len(root)),
        },
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in (
        ("encore", report.encore_version),
        ("model", report.engine.model),
        ("fingerprint", report.engine.digest),
        ("level", report.level),
    ):
        ElementTree.SubElement(properties, "property", {"name": key, "value": _xml(value)})
    return suite


def _test_case(suite: ElementTree.Element, finding: Finding, lang: Language) -> None:
    name = place(finding, lang)
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {
            "name": _xml(name),
            "classname": f"encore.verify.{finding.kind}",
            "time": f"{finding.seconds:.3f}",
        },
    )
    element = {
        Outcome.FAILED: "failure",
        Outcome.UNDECIDED: "error",
        Outcome.NOT_APPLICABLE: "skipped",
    }.get(finding.outcome)
    lines = [finding_title(finding, lang)]
    lines += ["  " * (line.depth + 1) + line.sentence for line in finding_lines(finding, lang)]
    if element is None:
        ElementTree.SubElement(case, "system-out").text = _xml("\n".join(lines))
        return
    told = ElementTree.SubElement(case, element, {"message": _xml(failure_sentence(finding, lang))})
    if element != "skipped":
        told.set("type", str(finding.outcome))
        told.text = _xml("\n".join(lines))


def _xml(content: str) -> str:
    return _NO_XML.sub("\ufffd", content)

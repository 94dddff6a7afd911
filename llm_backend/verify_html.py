"""An acceptance run as one HTML file: no script, no request to anywhere, light and dark, made to be printed.

The words come from `verify_phrases`, the pictures from `verify_figures`, the layout from
`templates/verify.html`. The template escapes everything it is given; only the figures, which escape
their own labels, are taken as they are.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from llm_backend.phrases import short_digest
from llm_backend.render import fingerprint_rows
from llm_backend.strings import Language, text
from llm_backend.token_text import printable
from llm_backend.verification import Case, Finding, Kind, Outcome, Verification, worst
from llm_backend.verify_figures import drift_figure, fork_map, fork_tree, shows_all
from llm_backend.verify_phrases import (
    case_settings,
    cell_text,
    evidence_text,
    finding_lines,
    finding_title,
    headline,
    instant_sentence,
    kind_scope,
    limits,
    outcome_name,
    place,
    plan_sentences,
    row_name,
    when,
)
from llm_backend.verify_render import change_table, check_table, summary_rows

_TEMPLATES = Path(__file__).with_name("templates")


def verification_html(report: Verification, lang: Language = "en") -> str:
    """The whole file."""
    style = (_TEMPLATES / "verify.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    kinds = [kind for kind in Kind if report.of(kind)]
    return _template().render(
        report=report,
        lang=lang,
        date=when(report.started_at),
        style=Markup(style),
        style_hash=f"sha256-{digest}",
        say=lambda key, **values: text(key, lang, **values),
        verdict=headline(report, lang),
        outcome=report.outcome,
        summary=summary_rows(report, lang),
        cells=[_row(report, count, lang) for count in report.counts],
        checks=check_table(report, lang),
        instant=instant_sentence(report, lang),
        fork_map=fork_map(report, lang),
        kinds=[kind_scope(kind, lang) for kind in kinds],
        outcomes=[worst(finding.outcome for finding in report.of(kind)) for kind in kinds],
        cut_short=evidence_text(report.cut_short, lang) if report.cut_short else "",
        engine_findings=[_told(finding, lang) for finding in report.findings if finding.case is None],
        cases=[_case(report, case, lang) for case in report.cases],
        plan=plan_sentences(report, lang),
        limits=limits(report, lang),
        engine=fingerprint_rows(report.engine, lang),
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("verify.html")


def _row(report: Verification, count: int, lang: Language) -> dict[str, object]:
    cells = [report.cell(count, greedy=greedy) for greedy in (True, False)]
    return {
        "name": row_name(count, lang),
        "cells": [{"outcome": cell.outcome, "text": cell_text(cell, lang)} for cell in cells],
    }


def _case(report: Verification, case: Case, lang: Language) -> dict[str, object]:
    found = [finding for finding in report.findings if finding.case == case.name]
    outcome = worst(finding.outcome for finding in found)
    return {
        "name": case.name,
        "outcome": outcome,
        "outcome_name": outcome_name(outcome, lang),
        "open": outcome is Outcome.FAILED,
        "settings": case_settings(case, lang),
        "question": printable(case.question),
        "digests": [
            (text(f"verify.label.{name}", lang), digest)
            for name, digest in (
                ("receipt", case.digest),
                ("tokens", case.tokens_digest),
                ("logprobs", case.logprobs_digest),
            )
            if digest
        ],
        "findings": [_told(finding, lang) for finding in found],
    }


def _told(finding: Finding, lang: Language) -> dict[str, object]:
    lines, figure, caption = finding_lines(finding, lang), "", ""
    if finding.step and finding.step.fork:
        figure = fork_tree(finding.step.fork, lang)
        if shows_all(finding.step.fork):
            lines = [line for line in lines if not line.depth]  # the tree has said the others
    elif finding.check and finding.check.max_abs_logprob_diff:
        figure, caption = drift_figure(finding.check, lang), text("verify.figure.drift", lang)
    runs = Counter(short_digest(repeat.digest) for repeat in finding.step.repeats) if finding.step else {}
    return {
        "outcome": finding.outcome,
        "outcome_name": outcome_name(finding.outcome, lang),
        "what": place(finding.model_copy(update={"case": None}), lang),
        "title": finding_title(finding, lang),
        "lines": lines,
        "changes": change_table(finding.changes, lang),
        "figure": figure,
        "caption": caption,
        "runs": list(runs.items()),
    }

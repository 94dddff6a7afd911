"""Receipts, runs, comparisons and engines as terminal text, JSON and Markdown.

One list of labelled rows per subject feeds both text and Markdown, so the formats cannot disagree.
Everything a model or a file wrote is escaped: control characters for terminals, markup for Markdown.
Positions are 0-based everywhere (see `phrases`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC
from typing import Any

from llm_backend.answer_phrases import pair_line
from llm_backend.answers import AnswerPair
from llm_backend.compare import Comparison, receipt_end
from llm_backend.diagnose import Diagnosis
from llm_backend.distribution_phrases import distribution_sentences
from llm_backend.distributions import Distributions
from llm_backend.engine_changes import EngineChange
from llm_backend.layout import columns as _columns
from llm_backend.layout import fenced as _fenced
from llm_backend.layout import literal as _markdown
from llm_backend.layout import markdown_table as _markdown_table
from llm_backend.layout import one_line as _one_line
from llm_backend.layout import strict_json as _json
from llm_backend.phrases import (
    check_line,
    check_sentences,
    diagnosis_sentence,
    end_phrase,
    evidence_sentence,
    field_label,
    measurements,
    notes,
    run_end,
    run_settings,
    run_warning,
    short_digest,
    verdict_line,
    verdict_name,
)
from llm_backend.probe_phrases import Finding
from llm_backend.proof import Proof
from llm_backend.proof_phrases import proof_sentence
from llm_backend.receipt import ADDED_TO_FORMAT_1, EngineFingerprint, Receipt, Sampling
from llm_backend.repeat_phrases import repeat_note, step_lines, step_title
from llm_backend.run import Run
from llm_backend.scoring import Check
from llm_backend.strings import Language, duration, text
from llm_backend.tally import RepeatReport, wilson_lower
from llm_backend.token_text import printable

Rows = list[tuple[str, str]]

# -- comparisons -----------------------------------------------------------------------------------


def comparison_text(
    comparison: Comparison,
    diagnosis: Diagnosis,
    lang: Language = "en",
    distributions: Distributions | None = None,
    answers: AnswerPair | None = None,
) -> str:
    """The verdict line, the reason, the measurements, what the reader must know, what changed.

    How the `answers` relate is a line of its own: it never softens the verdict.
    """
    lines = [str(verdict_line(comparison, lang))]
    lines += [f"  {sentence}" for sentence in _explanation(comparison, diagnosis, lang)]
    if answers and (line := pair_line(answers, lang)):
        lines.append(line)
    if distributions and (said := distribution_sentences(distributions, lang)):
        lines += ["", text("heading.distributions", lang), *(f"  {sentence}" for sentence in said)]
    if comparison.engine_changes:
        lines += ["", text("heading.engine_changes", lang)]
        lines += [f"  {line}" for line in _columns(_change_table(comparison.engine_changes, lang))]
    return "\n".join(lines)


def comparison_markdown(
    comparison: Comparison,
    diagnosis: Diagnosis,
    lang: Language = "en",
    distributions: Distributions | None = None,
    answers: AnswerPair | None = None,
) -> str:
    parts = [f"**{_markdown(str(verdict_line(comparison, lang)))}**"]
    explanation = _explanation(comparison, diagnosis, lang)
    if explanation:
        parts.append("\n".join(f"- {_markdown(sentence)}" for sentence in explanation))
    if answers and (line := pair_line(answers, lang)):
        parts.append(_markdown(line))
    if distributions and (said := distribution_sentences(distributions, lang)):
        parts.append(f"### {text('heading.distributions', lang)}")
        parts.append("\n".join(f"- {_markdown(sentence)}" for sentence in said))
    if comparison.engine_changes:
        parts += [
            f"### {text('heading.engine_changes', lang)}",
            _markdown_table(_change_table(comparison.engine_changes, lang)),
        ]
    return "\n\n".join(parts)


def comparison_json(
    comparison: Comparison,
    diagnosis: Diagnosis,
    lang: Language = "en",
    distributions: Distributions | None = None,
    answers: AnswerPair | None = None,
) -> str:
    """Everything measured, plus the verdict line as people see it."""
    return _json(
        {
            "summary": str(verdict_line(comparison, lang)),
            "comparison": comparison.model_dump(mode="json"),
            "diagnosis": diagnosis.model_dump(mode="json"),
            "distributions": distributions and distributions.model_dump(mode="json"),
            "answers": answers and answers.model_dump(mode="json"),
        }
    )


def check_text(check: Check, lang: Language = "en") -> str:
    """The verdict line, what was measured, what changed in the engine."""
    lines = [str(check_line(check, lang)), *(f"  {sentence}" for sentence in check_sentences(check, lang))]
    if check.engine_changes:
        lines += ["", text("heading.engine_changes", lang)]
        lines += [f"  {line}" for line in _columns(_change_table(check.engine_changes, lang))]
    return "\n".join(lines)


def check_markdown(check: Check, lang: Language = "en") -> str:
    parts = [f"**{_markdown(str(check_line(check, lang)))}**"]
    if sentences := check_sentences(check, lang):
        parts.append("\n".join(f"- {_markdown(sentence)}" for sentence in sentences))
    if check.engine_changes:
        table = _markdown_table(_change_table(check.engine_changes, lang))
        parts += [f"### {text('heading.engine_changes', lang)}", table]
    return "\n\n".join(parts)


def check_json(check: Check, lang: Language = "en") -> str:
    """Everything measured, position by position, plus the verdict line as people see it."""
    return _json({"summary": str(check_line(check, lang)), "check": check.model_dump(mode="json")})


def _explanation(comparison: Comparison, diagnosis: Diagnosis, lang: Language) -> list[str]:
    reason = diagnosis_sentence(diagnosis, lang)
    more = [evidence_sentence(evidence, lang) for evidence in diagnosis.evidence[1:]]
    said = [reason] if reason else []
    return [*said, *measurements(comparison, lang), *notes(comparison, lang), *more]


def _change_table(changes: Sequence[EngineChange], lang: Language) -> list[tuple[str, ...]]:
    header = tuple(text(f"column.{name}", lang) for name in ("field", "recorded", "replayed", "relevance"))
    unknown = text("value.unknown", lang)
    return [
        header,
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


# -- probes ----------------------------------------------------------------------------------------


def findings_text(findings: Sequence[Finding]) -> str:
    """Each experiment's result with what it rests on below."""
    return "\n".join(
        line for found in findings for line in (found.title, *(f"  {printable(s)}" for s in found.sentences))
    )


def findings_markdown(findings: Sequence[Finding]) -> str:
    return "\n\n".join(
        "\n".join([f"**{_markdown(found.title)}**", "", *(f"- {_markdown(s)}" for s in found.sentences)])
        for found in findings
    )


# -- repeats ---------------------------------------------------------------------------------------


def repeats_text(report: RepeatReport, lang: Language = "en") -> str:
    """For each number of neighbours: how many came out the same, the load as measured, the fork tree."""
    lines: list[str] = []
    for step in report.steps:
        lines.append(step_title(step, lang))
        lines += ["  " * (line.depth + 1) + line.sentence for line in step_lines(step, lang)]
    return "\n".join([*lines, repeat_note(report, lang)])


def repeats_markdown(report: RepeatReport, lang: Language = "en") -> str:
    parts: list[str] = []
    for step in report.steps:
        parts.append(f"**{_markdown(step_title(step, lang))}**")
        lines = (f"{'  ' * line.depth}- {_markdown(line.sentence)}" for line in step_lines(step, lang))
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, _markdown(repeat_note(report, lang))])


def repeats_json(report: RepeatReport, lang: Language = "en") -> str:
    """Everything measured, every replay included, plus each step's counts and sentence."""
    steps = [
        {
            "summary": step_title(step, lang),
            "identical": step.identical,
            "same_tokens": step.same_tokens,
            "comparable": step.comparable,
            "distinct": step.distinct,
            "largest_drift": step.largest_drift,
            "identical_wilson_lower": wilson_lower(step.identical, step.comparable)
            if step.comparable
            else None,
            **step.model_dump(mode="json"),
        }
        for step in report.steps
    ]
    return _json({**report.model_dump(mode="json"), "complete": report.complete, "steps": steps})


# -- runs ------------------------------------------------------------------------------------------


def run_line(run: Run, lang: Language = "en") -> str:
    """One run in a list: digest, when, settings, and what was asked."""
    digest = short_digest(run.digest) if run.digest else "-" * 12
    parts = [digest, f"{run.started_at.astimezone(UTC):%Y-%m-%d %H:%M}", run_settings(run, lang)]
    if run.kind != "ask":
        parts.append(text(f"run.kind.{run.kind}", lang))
    if run.verdict:
        parts.append(verdict_name(run.verdict, lang=lang))
    parts.append(_one_line(run.question))
    return "  ".join(part for part in parts if part)


def runs_text(runs: Sequence[Run], lang: Language = "en") -> str:
    return "\n".join(run_line(run, lang) for run in runs) or text("list.empty", lang)


def runs_markdown(runs: Sequence[Run], lang: Language = "en") -> str:
    names = ("digest", "started", "kind", "settings", "end", "verdict", "question")
    table = [tuple(text(f"column.{name}", lang) for name in names)]
    for run in runs:
        table.append(
            (
                short_digest(run.digest) if run.digest else "",
                f"{run.started_at.astimezone(UTC):%Y-%m-%d %H:%M}",
                text(f"run.kind.{run.kind}", lang),
                run_settings(run, lang),
                end_phrase(run_end(run), lang),
                verdict_name(run.verdict, lang=lang) if run.verdict else "",
                _one_line(run.question),
            )
        )
    return _markdown_table(table)


def runs_json(runs: Sequence[Run]) -> str:
    """A list of objects; times are ISO 8601 in UTC, seeds text (64 bits do not fit a JSON number)."""
    return _json([run_dict(run) for run in runs])


def run_dict(run: Run) -> dict[str, Any]:
    """One run as plain JSON values."""
    return asdict(run) | {
        "seed": None if run.seed is None else str(run.seed),
        "started_at": run.started_at.astimezone(UTC).isoformat(),
        "tokens_per_second": run.tokens_per_second,
    }


# -- receipts and engines --------------------------------------------------------------------------


def receipt_text(
    receipt: Receipt, run: Run | None = None, lang: Language = "en", proof: Proof | None = None
) -> str:
    answer = printable(receipt.completion.text) or text("receipt.no_answer", lang)
    parts: list[str] = []
    for heading, rows in _receipt_sections(receipt, run, lang, proof):
        parts += [heading, *(f"  {line}" for line in _columns(rows)), ""]
    return "\n".join([*parts, text("heading.answer", lang), answer])


def receipt_markdown(
    receipt: Receipt, run: Run | None = None, lang: Language = "en", proof: Proof | None = None
) -> str:
    parts: list[str] = []
    for heading, rows in _receipt_sections(receipt, run, lang, proof):
        parts += [f"## {heading}", _labelled_table(rows, lang)]
    answer = receipt.completion.text
    parts.append(f"## {text('heading.answer', lang)}")
    parts.append(_fenced(answer) if answer else text("receipt.no_answer", lang))
    return "\n\n".join(parts)


def fingerprint_text(engine: EngineFingerprint, lang: Language = "en") -> str:
    return "\n".join(_columns(fingerprint_rows(engine, lang)))


def fingerprint_markdown(engine: EngineFingerprint, lang: Language = "en") -> str:
    return _labelled_table(fingerprint_rows(engine, lang), lang)


def fingerprint_json(engine: EngineFingerprint) -> str:
    return _json({"digest": engine.digest, "engine": engine.model_dump(mode="json")})


def fingerprint_rows(engine: EngineFingerprint, lang: Language = "en") -> Rows:
    """Every fact about an engine, unknown ones included: what was not told is worth knowing.

    Except those that only a strict engine on a GPU can tell: elsewhere there is nothing to know.
    """
    return [
        (field_label("engine", field, lang), _value(getattr(engine, field), lang))
        for field in EngineFingerprint.model_fields
        if field not in ADDED_TO_FORMAT_1 or getattr(engine, field) is not None
    ]


def sampling_rows(sent: Sampling, effective: Sampling, lang: Language = "en") -> Rows:
    """Each setting as sent, with the effective value where the engine uses another."""
    rows: Rows = []
    for field in Sampling.model_fields:
        value, used = _setting(getattr(sent, field), lang), _setting(getattr(effective, field), lang)
        if value != used:
            value = text("receipt.effective", lang, sent=value, effective=used)
        rows.append((field_label("sampling", field, lang), value))
    return rows


def _receipt_sections(
    receipt: Receipt, run: Run | None, lang: Language, proof: Proof | None
) -> list[tuple[str, Rows]]:
    completion = receipt.completion
    recorded = len(completion.tokens)
    tokens = f"{recorded:,}"
    if completion.reported_tokens not in (None, recorded):
        tokens = text("receipt.lost_tokens", lang, tokens=recorded, reported=completion.reported_tokens)
    end = end_phrase(receipt_end(receipt), lang)
    if completion.detail:
        end = text("receipt.end_detail", lang, end=end, detail=completion.detail)
    prompt = len(receipt.request.prompt_token_ids)
    summary: Rows = [
        (text("receipt.digest", lang), receipt.digest),
        (text("receipt.fingerprint", lang), receipt.engine.digest),
        (text("receipt.prompt_tokens", lang), f"{prompt:,}" if prompt else text("value.not_told", lang)),
        (text("receipt.completion_tokens", lang), tokens),
        (text("receipt.end", lang), end),
    ]
    if warning := run_warning(completion.invalid_positions, lang):
        summary.insert(0, (text("receipt.warning", lang), warning))
    if completion.cached_prompt_tokens is not None:
        summary.append((text("receipt.cached_prompt_tokens", lang), f"{completion.cached_prompt_tokens:,}"))
    if run:
        summary += _timing_rows(run, lang)
    if proof:
        summary.append((text("receipt.proof", lang), proof_sentence(proof, lang)))
    messages = [(message.role, message.content) for message in receipt.request.messages]
    return [
        (text("heading.receipt", lang), summary),
        (
            text("heading.request", lang),
            [*messages, *sampling_rows(receipt.request.sampling, receipt.request.effective, lang)],
        ),
        (text("heading.engine", lang), fingerprint_rows(receipt.engine, lang)),
    ]


def _timing_rows(run: Run, lang: Language) -> Rows:
    rows = [(text("receipt.started", lang), f"{run.started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}")]
    if run.ttft_s is not None:
        rows.append((text("receipt.ttft", lang), duration(run.ttft_s)))
    if run.duration_s is not None:
        rows.append((text("receipt.duration", lang), duration(run.duration_s)))
    if run.neighbours is not None:
        rows.append((text("receipt.neighbours", lang), str(run.neighbours)))
    return rows


def _setting(value: object, lang: Language) -> str:
    return text("value.none", lang) if value is None else str(value)


def _value(value: object, lang: Language) -> str:
    if value in (None, (), {}):
        return text("value.not_told", lang)
    match value:
        case bool():
            return text("value.yes" if value else "value.no", lang)
        case tuple():
            return " ".join(value)
        case dict():
            return " ".join(f"{name}={setting}" for name, setting in sorted(value.items()))
    return str(value)


def _labelled_table(rows: Rows, lang: Language) -> str:
    return _markdown_table([(text("column.field", lang), text("column.value", lang)), *rows])

"""Reports on logits and attention weights as terminal text, JSON and Markdown."""

from __future__ import annotations

import json

from llm_backend.inspection import AttentionReport, Inspection, LogitsReport, PassComparison
from llm_backend.phrases import short_digest
from llm_backend.strings import Language, text


def inspection_text(report: Inspection, lang: Language = "en") -> str:
    """The outcome, one line per pass, and what was looked at."""
    title, *rest = _lines(report, lang)
    return "\n".join([title, *(f"  {line}" for line in rest)])


def inspection_markdown(report: Inspection, lang: Language = "en") -> str:
    title, *rest = _lines(report, lang)
    return "\n".join([f"**{title}**", "", *(f"- {line}" for line in rest)])


def inspection_json(report: Inspection, lang: Language = "en") -> str:
    document = {"summary": _lines(report, lang)[0], "report": report.model_dump(mode="json")}
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)


def _lines(report: Inspection, lang: Language) -> list[str]:
    outcome = "same" if report.same else "different"
    if isinstance(report, LogitsReport):
        kind, looked_at = "logits", _logits_scope(report, lang)
    else:
        assert isinstance(report, AttentionReport)
        kind, looked_at = "attention", _attention_scope(report, lang)
    passes = [_pass_line(kind, name, compared, lang) for name, compared in report.passes.items()]
    digest = text("inspection.digest", lang, digest=short_digest(report.digest))
    return [text(f"inspection.{kind}.{outcome}", lang), *passes, *looked_at, digest]


def _pass_line(kind: str, name: str, compared: PassComparison, lang: Language) -> str:
    label = text(f"inspection.{kind}.{name}", lang)
    values = {"rows": compared.rows, "equal": compared.equal}
    if compared.same:
        result = text(f"inspection.{kind}.rows_same", lang, **values)
    else:
        result = text(
            f"inspection.{kind}.rows_different",
            lang,
            **values,
            first=compared.first_different,
            largest=f"{compared.max_abs_diff:.3g}",
        )
    return text("inspection.pass", lang, label=label, result=result)


def _logits_scope(report: LogitsReport, lang: Language) -> list[str]:
    first, last = report.positions[0].position, report.positions[-1].position
    said = [text("inspection.logits.scope", lang, first=first, last=last, vocabulary=report.vocabulary)]
    chosen = sum(at.rank == 1 for at in report.positions)
    ties = sum(at.margin == 0 for at in report.positions)
    said.append(text("inspection.logits.chosen", lang, chosen=chosen, rows=len(report.positions), ties=ties))
    if report.by_decoding is not None:
        said.append(_pass_line("logits", "by_decoding", report.by_decoding, lang))
    if report.max_logprob_diff is not None:
        said.append(text("inspection.logits.recorded", lang, largest=f"{report.max_logprob_diff:.3g}"))
    if report.one_at_a_time:
        said.append(text("inspection.logits.one_at_a_time", lang))
    said.append(text("inspection.logits.not_shown", lang))
    return said


def _attention_scope(report: AttentionReport, lang: Language) -> list[str]:
    values = {
        "layers": len(report.digests),
        "heads": report.heads,
        "positions": report.positions,
        "tokens": report.tokens,
    }
    return [text("inspection.attention.scope", lang, **values), text("inspection.attention.not_shown", lang)]

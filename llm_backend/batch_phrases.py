"""What came of a batch of replays, in sentences."""

from __future__ import annotations

import math

from llm_backend.batch import BatchReport, Outcome
from llm_backend.compare import Verdict
from llm_backend.phrases import verdict_name
from llm_backend.strings import Language, text
from llm_backend.tally import wilson_lower


def batch_text(report: BatchReport, lang: Language = "en") -> str:
    """The counts, what they support, and below them everything that did not come out the same."""
    first, *rest = _sentences(report, lang)
    return "\n".join([first, *rest, *(f"  {line}" for line in _lines(report, lang))])


def batch_markdown(report: BatchReport, lang: Language = "en") -> str:
    first, *rest = _sentences(report, lang)
    listed = [f"- {line}" for line in _lines(report, lang)]
    return "\n\n".join([f"**{first}**", *rest, *(["\n".join(listed)] if listed else [])])


def batch_json(report: BatchReport) -> str:
    return report.model_dump_json(indent=2, exclude_none=True)


def _sentences(report: BatchReport, lang: Language) -> list[str]:
    counts = [
        f"{n:,} {verdict_name(verdict.value, lang=lang)}" for verdict, n in report.verdicts.items() if n
    ]
    if report.failed:
        counts.append(text("batch.failed", lang, n=report.failed))
    if report.left:
        counts.append(text("batch.left", lang, n=report.left))
    listed = text("batch.comma", lang).join(counts)
    said = [text("batch.result", lang, receipts=report.receipts, counts=listed)]
    same = report.verdicts[Verdict.IDENTICAL]
    if report.comparable:
        # Rounded down: a bound must not promise more than it is.
        bound = math.floor(100 * wilson_lower(same, report.comparable))
        said.append(text("batch.identical", lang, same=same, n=report.comparable, bound=bound))
    if report.concurrency > 1:
        said.append(text("batch.concurrency", lang, n=report.concurrency))
    if report.engines > 1:
        said.append(text("batch.engines", lang, n=report.engines))
    if report.left:
        said.append(text("batch.resume", lang))
    return said


def _lines(report: BatchReport, lang: Language) -> list[str]:
    lines = [_outcome(outcome, lang) for outcome in report.notable]
    failed_or_other = report.failed + sum(
        n for verdict, n in report.verdicts.items() if verdict is not Verdict.IDENTICAL
    )
    if more := failed_or_other - len(report.notable):
        lines.append(text("batch.more", lang, n=more))
    lines += [
        text("exchange.refusal", lang, file=refusal.file, line=refusal.line, problem=refusal.problem)
        for refusal in report.refusals
    ]
    if more := report.refused - len(report.refusals):
        lines.append(text("exchange.more", lang, n=more))
    return lines


def _outcome(outcome: Outcome, lang: Language) -> str:
    digest = outcome.digest[:19]
    if outcome.verdict is None:
        return text("batch.problem", lang, digest=digest, problem=outcome.problem)
    verdict = verdict_name(outcome.verdict.value, outcome.position, lang)
    if outcome.cause is None or outcome.cause.value == "none":
        return text("batch.outcome", lang, digest=digest, verdict=verdict)
    cause = text(f"batch.cause.{outcome.cause.value}", lang)
    return text("batch.outcome.cause", lang, digest=digest, verdict=verdict, cause=cause)

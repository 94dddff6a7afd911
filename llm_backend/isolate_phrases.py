"""An isolation in sentences: each rung's two questions answered, and what flips the result, if anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm_backend.diagnose import Cause
from llm_backend.ladder import (
    BASELINES,
    DECISIVE,
    LIVE,
    Finding,
    Isolation,
    NotTried,
    Progress,
    Rung,
    Tried,
    bound,
)
from llm_backend.layout import literal, strict_json
from llm_backend.phrases import diagnosis_sentence, verdict_line
from llm_backend.repeat_phrases import load_sentences
from llm_backend.strings import Language, text

_SHAPES = {
    Finding.REPRODUCES: "●",
    Finding.NOT_SHOWN: "●",
    Finding.UNDECIDED: "?",
}
"""Everything else is a difference: a cross."""

_EXPLAINED = frozenset(Cause) - {Cause.NONE, Cause.UNEXPLAINED, Cause.TRUNCATED}


def isolation_text(report: Isolation, lang: Language = "en") -> str:
    """Each rung with its evidence, what was not tried and why, and the conclusion at the end."""
    lines: list[str] = []
    for tried in report.tried:
        lines.append(rung_line(tried, lang))
        lines += [f"    {sentence}" for sentence in rung_sentences(tried, lang)]
    lines += [not_tried_line(one, lang) for one in report.not_tried]
    return "\n".join([*lines, "", *conclusion(report, lang)])


def isolation_markdown(report: Isolation, lang: Language = "en") -> str:
    parts = [f"**{literal(sentence)}**" for sentence in conclusion(report, lang)[:1]]
    for tried in report.tried:
        lines = [f"- {literal(sentence)}" for sentence in rung_sentences(tried, lang)]
        parts.append("\n".join([literal(rung_line(tried, lang)), "", *lines]))
    if report.not_tried:
        untried = (not_tried_line(one, lang).removeprefix("- ") for one in report.not_tried)
        parts.append("\n".join(f"- {literal(line)}" for line in untried))
    return "\n\n".join([*parts, *(literal(sentence) for sentence in conclusion(report, lang)[1:])])


def isolation_json(report: Isolation, lang: Language = "en") -> str:
    """Everything measured, and the sentences people see."""
    document: dict[str, Any] = report.model_dump(mode="json")
    document["tried"] = [
        {"summary": rung_line(tried, lang), **tried.model_dump(mode="json")} for tried in report.tried
    ]
    summary = " ".join(conclusion(report, lang))
    return strict_json({"summary": summary, "outcome": report.outcome, **document})


def rung_line(tried: Tried, lang: Language = "en") -> str:
    """`✕ load (neighbours 8): flips it.`"""
    finding = text(f"isolate.finding.{tried.finding.value}", lang)
    shape = _SHAPES.get(tried.finding, "✕")
    return text("isolate.line", lang, shape=shape, rung=rung_name(tried, lang), finding=finding)


def rung_name(tried: Tried, lang: Language = "en") -> str:
    """The rung with what it set: `precision (--dtype float32)`."""
    name = text(f"isolate.rung.{tried.rung.value}", lang)
    if not tried.changed:
        return name
    changed = text("verdict.and", lang).join(
        text("isolate.left_out", lang, name=key) if value == "-" else f"{key} {value or ''}".rstrip()
        for key, value in tried.changed.items()
    )
    return text("isolate.rung.changed", lang, rung=name, changed=changed)


def rung_sentences(tried: Tried, lang: Language = "en") -> list[str]:
    """The counts that answer both questions, and the circumstances they were measured in."""
    return list(_sentences(tried, lang))


def not_tried_line(one: NotTried, lang: Language = "en") -> str:
    why = text(f"isolate.why.{one.why}", lang, detail=one.detail)
    return text("isolate.not_tried", lang, rung=text(f"isolate.rung.{one.rung.value}", lang), why=why)


def conclusion(report: Isolation, lang: Language = "en") -> list[str]:
    """What flips the result, with the evidence; else that nothing did, or that it is unexplained."""
    said = [_verdict(report, lang)]
    if report.unsettled and not report.decisive:
        diagnosis = report.unsettled[0].diagnosis
        if diagnosis and diagnosis.cause in _EXPLAINED:
            sentence = diagnosis_sentence(diagnosis, lang)
            said.append(text("isolate.records_say", lang, sentence=sentence))
    if not report.complete:
        said.append(text("isolate.cut_short", lang))
    return [*said, text("repeat.scope", lang)]


def isolate_progress(progress: Progress, lang: Language = "en") -> str:
    key = "isolate.progress" if progress.replay else "isolate.progress.start"
    return text(
        key if progress.seconds_left is None else f"{key}.left",
        lang,
        number=progress.number,
        rungs=progress.rungs,
        rung=text(f"isolate.rung.{progress.rung.value}", lang),
        replay=progress.replay,
        times=progress.times,
        tokens=progress.tokens,
        recorded=progress.recorded_tokens,
        left=progress.seconds_left,
    )


def _verdict(report: Isolation, lang: Language) -> str:
    if report.decisive:
        key = "flipped"
        if report.unsettled:
            unsteady = report.unsettled[0].finding is Finding.UNSTEADY
            key = "steadied" if unsteady else "restored"
        wanted = {"steadied": Finding.STEADIES, "restored": Finding.RESTORES}.get(key)
        named = [tried for tried in report.decisive if tried.finding is wanted] or list(report.decisive)
        if wanted and named[0].finding is not wanted:
            key = "flipped"
        rungs = text("verdict.and", lang).join(rung_name(tried, lang) for tried in named)
        evidence = " ".join(_evidence(tried, report.tried, lang) for tried in named)
        return text(f"isolate.{key}", lang, rungs=rungs, evidence=evidence).rstrip()
    if report.unsettled:
        first = report.unsettled[0]
        kind = "another_result" if first.finding is Finding.ANOTHER_RESULT else "unsteady"
        key = f"isolate.unexplained.{kind}"
        return text(key, lang, same=first.tally.equal_receipt, n=first.tally.n)
    if report.outcome == "undecided":
        return text("isolate.undecided", lang)
    quiet = [tried for tried in report.tried if tried.finding in (Finding.NOT_SHOWN, Finding.REPRODUCES)]
    return text("isolate.nothing", lang, rungs=len(quiet), times=report.times)


def _evidence(tried: Tried, all_tried: Sequence[Tried], lang: Language) -> str:
    base = _baseline_of(tried, all_tried)
    return text(
        "isolate.flipped.evidence",
        lang,
        rung=rung_name(tried, lang),
        same=tried.tally.equal_receipt,
        n=tried.tally.n,
        base_same=base.tally.equal_receipt if base else None,
        base_n=base.tally.n if base else None,
    )


def _baseline_of(tried: Tried, all_tried: Sequence[Tried]) -> Tried | None:
    by_rung = {other.rung: other for other in all_tried}
    own = tried.rung not in LIVE and tried.rung is not Rung.RESTART
    return (by_rung.get(Rung.RESTART) if own else None) or by_rung.get(Rung.ALONE)


def _sentences(tried: Tried, lang: Language) -> Iterator[str]:
    counted = tried.tally
    if counted.n:
        yield _share("isolate.receipt", counted.equal_receipt, counted.n, lang)
    if counted.equal_baseline not in (None, counted.equal_receipt):
        yield _share("isolate.baseline", counted.equal_baseline or 0, counted.n, lang)
    if counted.n > 1 and (counted.equal_receipt < counted.n or tried.drawn_anew):
        yield _share("isolate.repeats", counted.repeats, counted.n - 1, lang)
    if tried.control is not None:
        again = tried.control
        yield text("isolate.control", lang, same=again.equal_baseline, n=again.n)
    if tried.drawn_anew:
        yield text("isolate.drawn_anew", lang)
        if tried.rung is Rung.SEED and counted.n and counted.equal_baseline == counted.n:
            yield text("isolate.seed_ignored", lang)
    if counted.incomparable:
        yield text("isolate.incomparable", lang, n=counted.incomparable)
    if tried.load is not None:
        yield from load_sentences(tried.load, lang)
    if tried.neighbours:
        yield text("load.alone_not", lang, running=tried.neighbours)
    if tried.rung in (Rung.CACHE_COLD, Rung.CACHE_WARM):
        least, most = tried.cached or (None, None)
        key = "isolate.cached" if tried.cached else "isolate.cached.untold"
        yield text(key, lang, least=least, most=most)
    if tried.start_seconds is not None:
        yield text("isolate.started", lang, seconds=tried.start_seconds)
    odd = tried.finding in DECISIVE or (tried.rung in BASELINES and tried.finding is not Finding.NOT_SHOWN)
    if tried.first_difference is not None and odd and not tried.drawn_anew:
        yield text("isolate.difference", lang, verdict=str(verdict_line(tried.first_difference, lang)))
        if tried.diagnosis and (sentence := diagnosis_sentence(tried.diagnosis, lang)):
            yield sentence


def _share(key: str, same: int, n: int, lang: Language) -> str:
    least = bound(same, n)
    return text(f"{key}.bound" if least else key, lang, same=same, n=n, bound=least)

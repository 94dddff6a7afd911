"""What replays, repetitions and checks of one run came to, as the run line and the panel list them.

A replay that belongs to a repetition is told by it and not listed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from llm_backend.compare import Verdict
from llm_backend.phrases import check_line, check_sentences, field_label
from llm_backend.repeat_phrases import cut_short, repeat_note, step_lines, step_reasons, step_verdict
from llm_backend.scoring import Check, CheckVerdict
from llm_backend.store import StoredComparison, StoredFinding
from llm_backend.strings import Language, text
from llm_backend.tally import RepeatReport, Step
from llm_backend.ui.views import replay_item

_CLASSES = {
    CheckVerdict.BIT_EXACT: Verdict.IDENTICAL,
    CheckVerdict.WITHIN_TOLERANCE: Verdict.DRIFTED,
    CheckVerdict.OUTSIDE: Verdict.DIVERGED,
    CheckVerdict.UNCHECKABLE: Verdict.INCOMPARABLE,
}
"""A check's verdict is coloured as the replay's verdict with the same shape."""

_MOST_TELLING = [Verdict.DIVERGED, Verdict.DRIFTED, Verdict.INCOMPARABLE, Verdict.IDENTICAL]

Items = list[dict[str, Any]]


def latest_outcomes(
    replays: Sequence[StoredComparison], findings: Sequence[StoredFinding], lang: Language
) -> Items:
    """Verdict lines for under an answer: the latest replay, repetition and check, newest first.

    `replays` newest first; `findings` the latest of each kind.
    """
    outcomes = [(finding.created_at, _lines(finding, lang)) for finding in findings]
    if replays and replays[0].candidate_run_id not in _told_by(findings):
        outcomes.append((replays[0].created_at, [_replay(replays[0], lang)]))
    return [line for lines in _newest_first(outcomes) for line in lines]


def all_outcomes(
    replays: Sequence[StoredComparison], findings: Sequence[StoredFinding], lang: Language
) -> Items:
    """Everything for the panel, newest first: single replays, repetitions with theirs, checks."""
    items = {stored.candidate_run_id: _replay(stored, lang) for stored in replays}
    outcomes = [(finding.created_at, _whole(finding, items, lang)) for finding in findings]
    told = _told_by(findings)
    outcomes += [
        (stored.created_at, items[stored.candidate_run_id])
        for stored in replays
        if stored.candidate_run_id not in told
    ]
    return _newest_first(outcomes)


def telling_replay(outcomes: Items) -> str | None:
    """The comparison to show first: the newest replay, or the worst of the newest repetition."""
    for outcome in outcomes:
        if outcome["kind"] == "replay":
            return str(outcome["id"])
        replays = [replay for step in outcome.get("steps", ()) for replay in step["replays"]]
        if replays:
            return str(min(replays, key=lambda replay: _MOST_TELLING.index(replay["verdict"]))["id"])
    return None


def _newest_first(outcomes: list[tuple[datetime, Any]]) -> list[Any]:
    return [what for _, what in sorted(outcomes, key=lambda dated: dated[0], reverse=True)]


def _told_by(findings: Sequence[StoredFinding]) -> set[str]:
    """Ids of the runs that repetitions made."""
    return {
        repeat.run_id
        for finding in findings
        if isinstance(finding.found, RepeatReport)
        for step in finding.found.steps
        for repeat in step.repeats
    }


def _replay(stored: StoredComparison, lang: Language) -> dict[str, Any]:
    return {"kind": "replay", **replay_item(stored, lang)}


def _lines(finding: StoredFinding, lang: Language) -> Items:
    found = finding.found
    if isinstance(found, Check):
        return [_check(finding.id, found, lang)]
    short = cut_short(found, lang)
    return [
        {
            "kind": "repeat",
            "id": f"{finding.id}-{number}",
            **_verdict(step, lang),
            "reason": " ".join(sentence for sentence in (short, *step_reasons(step, lang)) if sentence),
        }
        for number, step in enumerate(found.steps)
    ]


def _whole(finding: StoredFinding, items: dict[str, dict[str, Any]], lang: Language) -> dict[str, Any]:
    found = finding.found
    dated = {"id": finding.id, "at": finding.created_at.isoformat()}
    if isinstance(found, Check):
        return {
            **_check(finding.id, found, lang),
            **dated,
            "sentences": check_sentences(found, lang),
            "changes": [
                f"{field_label('engine', change.field, lang)}: {change.reference} → {change.candidate}"
                for change in found.engine_changes
            ],
        }
    return {
        "kind": "repeat",
        **dated,
        "note": repeat_note(found, lang),
        "steps": [
            {
                **_verdict(step, lang),
                "lines": [{"depth": line.depth, "text": line.sentence} for line in step_lines(step, lang)],
                "replays": [items[repeat.run_id] for repeat in step.repeats if repeat.run_id in items],
            }
            for step in found.steps
        ],
    }


def _verdict(step: Step, lang: Language) -> dict[str, str]:
    line = step_verdict(step, lang)
    return {
        "verdict": step.verdict.value,
        "shape": line.shape,
        "title": line.title,
        "detail": line.detail,
    }


def _check(identifier: str, check: Check, lang: Language) -> dict[str, Any]:
    line = check_line(check, lang)
    return {
        "kind": "check",
        "id": identifier,
        "verdict": _CLASSES[check.verdict].value,
        "check_verdict": check.verdict.value,
        "shape": line.shape,
        "title": text("finding.check", lang, title=line.title),
        "detail": line.detail,
        "reason": "",
    }

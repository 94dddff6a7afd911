"""Repeats in sentences: what many replays amount to, the load they ran under, and where they fork."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llm_backend.compare import Verdict
from llm_backend.phrases import SHAPES, VerdictLine, diagnosis_sentence, reason_phrase
from llm_backend.strings import Language, text
from llm_backend.tally import ForkPoint, LoadSeen, Progress, RepeatReport, Step, wilson_lower
from llm_backend.token_text import quoted, token_texts

SHOWN_BRANCHES = 5
"""Continuations named at one fork; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence and how deep it belongs below its title."""

    depth: int
    sentence: str


def step_title(step: Step, lang: Language = "en") -> str:
    """`Alone: 10 of 10 identical, so at least 72 % (Wilson 95 %).`"""
    load = step.load
    where = text("repeat.alone", lang)
    if load.shape is not None:
        shape = text(f"repeat.shape.{load.shape.value}", lang)
        where = text("repeat.among", lang, asked=load.asked, shape=shape)
    if not step.comparable:
        result = text("repeat.incomparable", lang, n=len(step.repeats))
    else:
        result = _share("repeat.identical", step.identical, step.comparable, lang)
    return text("repeat.title", lang, where=where, result=result)


def step_lines(step: Step, lang: Language = "en") -> list[Line]:
    """Everything below the title."""
    return [*(Line(0, sentence) for sentence in _facts(step, lang)), *_tree(step, lang)]


def step_verdict(step: Step, lang: Language = "en") -> VerdictLine:
    """`● 10 of 10 came out the same alone — so at least 72 % (Wilson 95 %)`, as under an answer."""
    load = step.load
    where = text("outcome.among" if load.asked else "outcome.alone", lang, asked=load.asked)
    n, detail = step.comparable, ""
    if not n:
        title = text("outcome.incomparable", lang, n=len(step.repeats), where=where)
    else:
        drifted = step.verdict is Verdict.DRIFTED
        key, same = ("drifted", step.same_tokens) if drifted else ("same", step.identical)
        title = text(f"outcome.{key}", lang, same=same, n=n, where=where)
        if bound := _bound(same, n):
            detail = text("outcome.bound", lang, bound=bound)
    shape = SHAPES[step.verdict]
    whole = text("verdict.line", lang, shape=shape, title=title, detail=detail)
    return VerdictLine(shape, title, detail, whole if detail else f"{shape} {title}")


def step_reasons(step: Step, lang: Language = "en") -> list[str]:
    """What the verdict alone would leave unsaid: load that was not as asked, forks, the first cause."""
    return list(_reasons(step, lang))


def cut_short(report: RepeatReport, lang: Language = "en") -> str:
    """How far a stopped or broken-off sweep came; "" for a complete one."""
    if report.complete:
        return ""
    planned = report.times * len(report.planned)
    return text("repeat.cut_short", lang, done=len(report.comparisons), planned=planned)


def repeat_note(report: RepeatReport, lang: Language = "en") -> str:
    """What the numbers cover, and whether the sweep was cut short."""
    return f"{cut_short(report, lang)} {text('repeat.scope', lang)}".strip()


def progress_line(progress: Progress, lang: Language = "en") -> str:
    key = "repeat.progress" if progress.seconds_left is None else "repeat.progress.left"
    return text(
        key,
        lang,
        replay=progress.replay,
        replays=progress.replays,
        neighbours=progress.neighbours,
        tokens=progress.tokens,
        recorded=progress.recorded_tokens,
        left=progress.seconds_left,
    )


def _share(key: str, same: int, n: int, lang: Language) -> str:
    """A count with the share it supports, rounded down: a bound must not promise more than it is."""
    bound = _bound(same, n)
    return text(f"{key}.bound" if bound else key, lang, same=same, n=n, bound=bound)


def _bound(same: int, n: int) -> int:
    """Percent."""
    return math.floor(100 * wilson_lower(same, n))


def _reasons(step: Step, lang: Language) -> Iterator[str]:
    load = step.load
    # A proven load is what the verdict takes for granted.
    odd = list(load_sentences(load, lang)) if load.one_at_a_time or not load.most else []
    yield from odd
    if step.fork:
        values = {"position": step.fork.position, "distinct": step.distinct, "runs": step.comparable + 1}
        yield text("outcome.fork", lang, **values)
    yield from _left_out(step, lang)
    if not odd:  # otherwise the load is the first thing to suspect, and is said already
        yield from _causes(step, lang)[:1]


def _facts(step: Step, lang: Language) -> Iterator[str]:
    yield from load_sentences(step.load, lang)
    if step.same_tokens != step.identical:
        yield _share("repeat.tokens", step.same_tokens, step.comparable, lang)
    if step.largest_drift:
        yield text("repeat.drift", lang, largest=step.largest_drift)
    yield from _left_out(step, lang)
    yield from _causes(step, lang)


def _left_out(step: Step, lang: Language) -> Iterator[str]:
    odd = [repeat for repeat in step.repeats if repeat.comparison.verdict is Verdict.INCOMPARABLE]
    if odd:
        reasons = text("verdict.and", lang).join(reason_phrase(r, lang) for r in odd[0].comparison.reasons)
        yield text("repeat.some_incomparable", lang, left_out=len(odd), reasons=reasons)


def _causes(step: Step, lang: Language) -> list[str]:
    """Each explanation once, with the figures of its first replay; the replays have their own."""
    said: dict[tuple[str, ...], str] = {}
    for diagnosis in (repeat.diagnosis for repeat in step.repeats):
        kinds = (diagnosis.cause, *(evidence.key for evidence in diagnosis.evidence[:1]))
        said.setdefault(kinds, diagnosis_sentence(diagnosis, lang))
    return [sentence for sentence in said.values() if sentence]


def load_sentences(load: LoadSeen, lang: Language = "en") -> Iterator[str]:
    """What was seen of the load that was asked for."""
    values = load.model_dump(exclude={"shape"})
    if load.shape is None:
        if load.running:
            yield text("load.alone_not", lang, **values)
        return
    if load.one_at_a_time:
        yield text("load.one_at_a_time", lang, **values)
        return
    kind = "unproven" if not load.most else "all" if load.least == load.asked else "some"
    yield text(f"load.{kind}", lang, **values)
    if load.running is not None:
        yield text("load.running", lang, **values)


def _tree(step: Step, lang: Language) -> Iterator[Line]:
    if step.fork is None:
        return
    runs = step.comparable + 1
    yield Line(0, text("repeat.distinct", lang, distinct=step.distinct, runs=runs))
    yield from _branches(step.fork, 1, lang)


def _branches(fork: ForkPoint, depth: int, lang: Language) -> Iterator[Line]:
    for branch in fork.branches[:SHOWN_BRANCHES]:
        token = quoted(token_texts([branch.token])[0]) if branch.token else text("fork.ended", lang)
        key = "repeat.branch.recorded" if branch.recorded else "repeat.branch"
        yield Line(depth, text(key, lang, position=fork.position, token=token, runs=branch.runs))
        if branch.fork:
            yield from _branches(branch.fork, depth + 1, lang)
    rest = fork.branches[SHOWN_BRANCHES:]
    if rest:
        values = {"branches": len(rest), "runs": sum(branch.runs for branch in rest)}
        yield Line(depth, text("repeat.more", lang, position=fork.position, **values))

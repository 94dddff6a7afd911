"""Pictures of an acceptance run as inline SVG: where answers came apart, fork trees, drift over position.

Strips stretch with the page, so they carry no text: what they show stands beside them in words. Colours
come from the page's style sheet through classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup
from rich.cells import cell_len

from llm_backend.repeat_phrases import SHOWN_BRANCHES
from llm_backend.scoring import Check
from llm_backend.strings import Language, text
from llm_backend.tally import Branch, ForkPoint, Step
from llm_backend.token_text import quoted, token_texts
from llm_backend.verification import Kind, Outcome, Verification
from llm_backend.verify_phrases import row_name

STRIP_WIDTH, STRIP_HEIGHT = 1000, 16
"""User units; the width stands for the longest answer of the report."""

DRIFT_HEIGHT = 72
SMALLEST_DRIFT = 1e-5
"""Nats at the foot of the drift chart: its scale is logarithmic."""

LEAF_HEIGHT = 28
"""Pixels of a fork tree from one answer to the one below it."""

CELL_WIDTH, ELBOW = 7.6, 56
"""Pixels of a Latin letter in a label, generously, and of the bend before it."""


@dataclass(frozen=True, slots=True)
class MapRow:
    """One case under one load."""

    case: str
    load: str
    outcome: Outcome
    strip: Markup
    said: str


def fork_map(report: Verification, lang: Language = "en") -> list[MapRow]:
    """Each case and load whose replays differ anywhere; empty when none does."""
    longest = max((case.answer_tokens for case in report.cases), default=0) or 1
    lengths = {case.name: case.answer_tokens for case in report.cases}
    rows = []
    for finding in report.of(Kind.ALONE, Kind.LOAD):
        step = finding.step
        if step is None or finding.case is None or step.identical == len(step.repeats):
            continue
        rows.append(
            MapRow(
                case=finding.case,
                load=row_name(step.load.asked, lang),
                outcome=finding.outcome,
                strip=_strip(step, lengths[finding.case], longest),
                said=_said(step, lang),
            )
        )
    return rows


def drift_figure(check: Check, lang: Language = "en") -> Markup:
    """|prefill - recorded| at every position, logarithmic; the dashed line is the tolerance."""
    size = len(check.positions)
    top = max(check.max_abs_logprob_diff or 0.0, check.tolerance or 0.0, 10 * SMALLEST_DRIFT)

    def height(nats: float) -> float:
        share = math.log(max(nats, SMALLEST_DRIFT) / SMALLEST_DRIFT) / math.log(top / SMALLEST_DRIFT)
        return round(share * (DRIFT_HEIGHT - 4), 1)

    bars = [
        Markup('<rect class="{}" x="{}" y="{}" width="0.8" height="{}"/>').format(
            "outside" if check.tolerance is not None and abs(p.difference) > check.tolerance else "drift",
            index,
            DRIFT_HEIGHT - height(abs(p.difference)),
            height(abs(p.difference)),
        )
        for index, p in enumerate(check.positions)
        if p.difference
    ]
    line = Markup("")
    if check.tolerance:
        line = Markup('<line class="limit" x1="0" x2="{}" y1="{}" y2="{}"/>').format(
            size, *[DRIFT_HEIGHT - height(check.tolerance)] * 2
        )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}{}</svg>"
    ).format(size, DRIFT_HEIGHT, text("verify.figure.drift", lang), Markup("").join(bars), line)


def fork_tree(root: ForkPoint, lang: Language = "en") -> Markup:
    """Where the recorded run and the replays part, and part again; thick lines are many runs."""
    level = round(ELBOW + CELL_WIDTH * max(cell_len(label) for label in _labels(root, lang)))
    leaves = sum(_shown_leaves(branch) for branch in _shown(root))
    width, height = level * _depth(root) + 12, LEAF_HEIGHT * leaves + 8
    start = Markup('<circle class="fork" cx="6" cy="{}" r="4"/>').format(4 + LEAF_HEIGHT * leaves / 2)
    return Markup(
        '<svg class="tree" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        "{3}{4}</svg>"
    ).format(
        width,
        height,
        text("verify.figure.tree", lang),
        Markup("").join(_branches(root, level, 6, 0.0, lang)),
        start,
    )


def shows_all(root: ForkPoint) -> bool:
    """Whether the tree has every branch: a fork with many shows the most frequent ones."""
    return len(root.branches) <= SHOWN_BRANCHES and all(shows_all(b.fork) for b in root.branches if b.fork)


def _strip(step: Step, length: int, longest: int) -> Markup:
    scale = STRIP_WIDTH / longest
    parts = [
        Markup('<rect class="track" x="0" y="6" width="{}" height="4"/>').format(round(length * scale, 1))
    ]
    compared = [repeat.comparison for repeat in step.repeats]
    drifts = [c.first_drift for c in compared if c.first_drift is not None]
    forks = {c.first_divergence.position for c in compared if c.first_divergence}
    if drifts:
        end = max(c.compared for c in compared)
        parts.append(
            Markup('<rect class="drift" x="{}" y="6" width="{}" height="4"/>').format(
                round(min(drifts) * scale, 1), round((end - min(drifts)) * scale, 1)
            )
        )
    parts += [
        Markup('<line class="fork" x1="{0}" x2="{0}" y1="0" y2="{1}"/>').format(
            round(position * scale, 1), STRIP_HEIGHT
        )
        for position in sorted(forks)
    ]
    return Markup(
        '<svg class="strip" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(STRIP_WIDTH, STRIP_HEIGHT, Markup("").join(parts))


def _said(step: Step, lang: Language) -> str:
    """`2 of 3 differ, from token 31 on; drift up to 0.03 nats`"""
    forks = [r.comparison.first_divergence.position for r in step.repeats if r.comparison.first_divergence]
    said = []
    if forks:
        values = {"n": len(forks), "runs": len(step.repeats), "first": min(forks)}
        said.append(text("verify.figure.forks", lang, **values))
    if step.largest_drift:
        said.append(text("verify.figure.drifted", lang, largest=step.largest_drift))
    return text("verdict.and", lang).join(said) or text("verdict.incomparable", lang)


def _shown(fork: ForkPoint) -> tuple[Branch, ...]:
    return fork.branches[:SHOWN_BRANCHES]


def _shown_leaves(branch: Branch) -> int:
    return sum(_shown_leaves(one) for one in _shown(branch.fork)) if branch.fork else 1


def _depth(fork: ForkPoint) -> int:
    return 1 + max((_depth(branch.fork) for branch in _shown(fork) if branch.fork), default=0)


def _label(fork: ForkPoint, branch: Branch, lang: Language) -> str:
    key = "repeat.branch.recorded" if branch.recorded else "repeat.branch"
    token = quoted(token_texts([branch.token])[0]) if branch.token else text("fork.ended", lang)
    return text(key, lang, position=fork.position, token=token, runs=branch.runs)


def _labels(fork: ForkPoint, lang: Language) -> Iterator[str]:
    for branch in _shown(fork):
        yield _label(fork, branch, lang)
        if branch.fork:
            yield from _labels(branch.fork, lang)


def _branches(fork: ForkPoint, level: int, x: int, top: float, lang: Language) -> Iterator[Markup]:
    """The lines and labels of a fork at `x` whose leaves start at `top` (pixels), and of all behind it."""
    leaves = sum(_shown_leaves(branch) for branch in _shown(fork))
    y = 4 + top + LEAF_HEIGHT * leaves / 2
    for branch in _shown(fork):
        own = _shown_leaves(branch)
        end_x, end_y = x + level, 4 + top + LEAF_HEIGHT * own / 2
        yield Markup('<path class="{}" d="M{} {} C{} {} {} {} {} {} H{}" stroke-width="{}"/>').format(
            "branch recorded" if branch.recorded else "branch",
            *(x, y, x + 24, y, x + 16, end_y, x + 40, end_y, end_x),
            round(1.5 + math.log2(branch.runs), 1),
        )
        label = _label(fork, branch, lang)
        yield Markup('<text x="{}" y="{}">{}</text>').format(x + 44, end_y - 6, label)
        if branch.fork:
            yield Markup('<circle class="fork" cx="{}" cy="{}" r="4"/>').format(end_x, end_y)
            yield from _branches(branch.fork, level, end_x, top, lang)
        top += LEAF_HEIGHT * own

"""What many replays of one receipt amount to: how many agree, where they fork, what that is worth.

Ten equal replays do not prove the eleventh. `wilson_lower` says what they do support, and every count
goes with the load under which it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from llm_backend.compare import Comparison, Verdict
from llm_backend.diagnose import Diagnosis
from llm_backend.receipt import Completion, Frozen, Receipt, Status, TokenRecord

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


class Shape(StrEnum):
    """What the neighbours ask. Each shape disturbs the batch in another way."""

    SAME = "same"
    """The recorded prompt again: every sequence in step with the measured one."""
    MIXED = "mixed"
    """Short and long prompts with short and long answers: batch sizes change all the time."""
    PREFIX = "prefix"
    """The recorded prompt with another end: shares cached blocks where the engine caches prefixes."""


class LoadSeen(Frozen):
    """Neighbours seen producing tokens, sampled at every token of the measured replays."""

    asked: int
    shape: Shape | None
    """None without neighbours."""
    least: int = 0
    most: int = 0
    mean: float = 0.0
    running: int | None = None
    """The most other requests that the engine's own metric reported; None when it did not tell."""
    one_at_a_time: bool = False
    """The engine says it takes one sequence at a time: neighbours queue and cannot run beside."""


class Repeat(Frozen):
    """One replay and how it compares."""

    run_id: str
    digest: str
    comparison: Comparison
    diagnosis: Diagnosis


class Branch(Frozen):
    """The runs that hold the same token at a fork."""

    token: TokenRecord | None
    """None: the answer ended there."""
    runs: int
    """The recorded run counts as one."""
    recorded: bool
    """Whether the recorded run is among them."""
    fork: ForkPoint | None = None
    """Where these runs part again."""


class ForkPoint(Frozen):
    """A position from which equal answers go on with different tokens; the most frequent first."""

    position: int
    branches: tuple[Branch, ...]

    def leaves(self) -> int:
        return sum(branch.fork.leaves() if branch.fork else 1 for branch in self.branches)


class Step(Frozen):
    """All replays with one number of neighbours."""

    load: LoadSeen
    repeats: tuple[Repeat, ...]
    fork: ForkPoint | None
    """The root of the fork tree over the recorded run and the replays; None when all agree."""

    @property
    def comparable(self) -> int:
        return sum(repeat.comparison.verdict is not Verdict.INCOMPARABLE for repeat in self.repeats)

    @property
    def identical(self) -> int:
        """Tokens and every known logprob bit-equal to the recorded run."""
        return sum(repeat.comparison.verdict is Verdict.IDENTICAL for repeat in self.repeats)

    @property
    def same_tokens(self) -> int:
        return sum(repeat.comparison.reproduced for repeat in self.repeats)

    @property
    def verdict(self) -> Verdict:
        """The worst among the comparable replays."""
        if not self.comparable:
            return Verdict.INCOMPARABLE
        if self.same_tokens < self.comparable:
            return Verdict.DIVERGED
        return Verdict.DRIFTED if self.identical < self.comparable else Verdict.IDENTICAL

    @property
    def distinct(self) -> int:
        """Different answers among the recorded run and the comparable replays."""
        return self.fork.leaves() if self.fork else 1

    @property
    def largest_drift(self) -> float | None:
        """Nats, over positions before any fork; None when no logprob was known on both sides."""
        known = [repeat.comparison.max_abs_logprob_diff for repeat in self.repeats]
        return max((drift for drift in known if drift is not None), default=None)


class RepeatReport(Frozen):
    """A sweep over numbers of neighbours, in the order it was measured."""

    digest: str
    """Of the recorded run."""
    times: int
    """Replays asked for with each number of neighbours; a stopped sweep has fewer."""
    planned: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def complete(self) -> bool:
        measured = sum(len(step.repeats) for step in self.steps)
        return measured == self.times * len(self.planned)

    @property
    def comparisons(self) -> list[Comparison]:
        return [repeat.comparison for step in self.steps for repeat in step.repeats]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a sweep stands."""

    neighbours: int
    replay: int
    """Of all in the sweep, 1-based."""
    replays: int
    tokens: int
    """Of the replay that is running."""
    recorded_tokens: int
    seconds_left: float | None
    """At the speed so far; None before the first token."""


def wilson_lower(successes: int, trials: int) -> float:
    """Lower end of the two-sided 95 % Wilson score interval for a share of `successes` in `trials`."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is not a share")
    share, z2 = successes / trials, Z_95**2
    centre = share + z2 / (2 * trials)
    half_width = Z_95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, (centre - half_width) / (1 + z2 / trials))


@dataclass(slots=True)
class _Output:
    tokens: tuple[TokenRecord, ...]
    cut: bool
    runs: int = 1
    recorded: bool = False


class Outputs:
    """The different answers seen so far, each kept once: a thousand equal replays cost one."""

    def __init__(self, reference: Receipt) -> None:
        first = _Output(reference.completion.tokens, _cut(reference.completion), recorded=True)
        self._seen = {(reference.completion.token_ids, first.cut): first}

    def add(self, completion: Completion) -> None:
        key = completion.token_ids, _cut(completion)
        if key in self._seen:
            self._seen[key].runs += 1
        else:
            self._seen[key] = _Output(completion.tokens, key[1])

    def fork(self) -> ForkPoint | None:
        return _fork(list(self._seen.values()), 0)


def _cut(completion: Completion) -> bool:
    """Nobody knows what would have followed, so its end is not a different continuation."""
    return completion.status is not Status.COMPLETE or completion.finish_reason == "length"


def _fork(outputs: Sequence[_Output], start: int) -> ForkPoint | None:
    for position in range(start, max(len(output.tokens) for output in outputs) + 1):
        groups: dict[int | None, list[_Output]] = {}
        for output in outputs:
            if position < len(output.tokens):
                groups.setdefault(output.tokens[position].id, []).append(output)
            elif not output.cut:
                groups.setdefault(None, []).append(output)
        if len(groups) > 1:
            branches = [_branch(group, position) for group in groups.values()]
            return ForkPoint(position=position, branches=tuple(sorted(branches, key=lambda b: -b.runs)))
    return None


def _branch(group: Sequence[_Output], position: int) -> Branch:
    tokens = group[0].tokens
    return Branch(
        token=tokens[position] if position < len(tokens) else None,
        runs=sum(output.runs for output in group),
        recorded=any(output.recorded for output in group),
        fork=_fork(group, position + 1),
    )

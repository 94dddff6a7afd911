"""What an acceptance run found: every check with its outcome, its evidence and what it covers.

A check is passed only by what was measured. Load that was not seen, a fact the engine did not tell, a
replay that did not finish: undecided, never passed. One counterexample fails the whole; a run that was
cut short says so. `suite` measures, `verify_phrases` words it, the renderers lay it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from llm_backend.compare import Comparison, Verdict
from llm_backend.diagnose import Diagnosis, Evidence
from llm_backend.engine_changes import EngineChange
from llm_backend.probes import Guard, GuardOutcome, SeedOutcome, SeedProbe
from llm_backend.receipt import EngineFingerprint, Frozen
from llm_backend.scoring import Check, CheckVerdict
from llm_backend.tally import LoadSeen, Progress, Shape, Step

Level = Literal["tokens", "logprobs"]
"""What must be equal to count as the same: the tokens, or every known logprob too."""

LOAD_SHARE = 0.5
"""A load counts as proven when, on average, at least this share of the neighbours that the engine can
run beside the replay was seen producing tokens. Below it the row's title would promise too much."""


class Outcome(StrEnum):
    """What a check came to."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    NOT_APPLICABLE = "not_applicable"


class Kind(StrEnum):
    """What was checked, in the order of a report."""

    IDENTITY = "identity"
    SEED = "seed"
    ALONE = "alone"
    LOAD = "load"
    INSTANT = "instant"
    OBSERVER = "observer"
    CACHE = "cache"
    COLD = "cold"
    RESTART = "restart"
    BASELINE = "baseline"


class Case(Frozen):
    """One prompt with one sampling, and the recorded run its replays are held against."""

    name: str
    question: str
    greedy: bool
    seed: int | None
    temperature: float
    prompt_tokens: int | None = None
    """None: the engine did not tell."""
    answer_tokens: int = 0
    digest: str = ""
    """Of the recorded receipt; empty when the case was skipped or not reached."""
    tokens_digest: str = ""
    logprobs_digest: str = ""
    skipped: Evidence | None = None


class Finding(Frozen):
    """One check on one case under one load."""

    kind: Kind
    outcome: Outcome
    case: str | None = None
    """None: about the engine, not about one prompt."""
    neighbours: int | None = None
    seconds: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    """What decided beside the measurement below; the deciding one first."""
    step: Step | None = None
    """The replays, for `ALONE` and `LOAD`."""
    check: Check | None = None
    comparison: Comparison | None = None
    diagnosis: Diagnosis | None = None
    probe: SeedProbe | None = None
    guard: Guard | None = None
    changes: tuple[EngineChange, ...] = ()
    """Engine facts that differ, bit-relevant first."""


class Cell(Frozen):
    """One cell of the first table: all replays with one number of neighbours and one way of sampling."""

    neighbours: int
    greedy: bool
    same: int
    runs: int
    outcome: Outcome
    """`NOT_APPLICABLE`: nothing was to be measured; `UNDECIDED` with no runs: not reached."""


class Verification(Frozen):
    """A whole acceptance run. Times are UTC; they never enter a digest."""

    suite: str
    """Name of the suite, or `receipts`."""
    started_at: datetime
    seconds: float
    encore_version: str
    engine: EngineFingerprint
    engine_url: str
    level: Level
    times: int
    counts: tuple[int, ...]
    """Numbers of neighbours that were to be measured, in order."""
    shape: Shape
    chosen: Evidence
    """Who chose `times` and `counts`, and why."""
    cases: tuple[Case, ...]
    findings: tuple[Finding, ...]
    baseline: str | None = None
    """When the baseline was recorded, ISO 8601; None without one."""
    cut_short: Evidence | None = None
    """Why not everything was measured; None when everything was."""

    @property
    def outcome(self) -> Outcome:
        """`PASSED` only if everything that applies was measured and passed."""
        found = {finding.outcome for finding in self.findings}
        if Outcome.FAILED in found:
            return Outcome.FAILED
        if self.cut_short is not None or Outcome.UNDECIDED in found or Outcome.PASSED not in found:
            return Outcome.UNDECIDED
        return Outcome.PASSED

    def count(self, outcome: Outcome) -> int:
        return sum(finding.outcome is outcome for finding in self.findings)

    def of(self, *kinds: Kind, case: str | None = None) -> list[Finding]:
        """Findings of these kinds, of one case where it is named."""
        return [f for f in self.findings if f.kind in kinds and (case is None or f.case == case)]

    def cell(self, neighbours: int, *, greedy: bool) -> Cell:
        """What the replays of all greedy (or all seeded) cases under one load amount to."""
        cases = {case.name for case in self.cases if case.greedy is greedy and case.skipped is None}
        found = [
            finding
            for finding in self.of(Kind.ALONE, Kind.LOAD)
            if finding.case in cases and finding.neighbours == neighbours
        ]
        steps = [finding.step for finding in found if finding.step]
        same = sum(step.identical if self.level == "logprobs" else step.same_tokens for step in steps)
        outcome = worst(finding.outcome for finding in found)
        if cases - {finding.case for finding in found} and outcome is not Outcome.FAILED:
            outcome = Outcome.UNDECIDED
        return Cell(
            neighbours=neighbours,
            greedy=greedy,
            same=same,
            runs=sum(len(step.repeats) for step in steps),
            outcome=outcome,
        )


@dataclass(frozen=True, slots=True)
class Doing:
    """Where a verification stands."""

    kind: Kind
    case: str | None
    number: int
    """Of the case, 1-based; 0 for what is about the engine."""
    of: int
    repeats: Progress | None
    seconds_left: float | None
    """At the pace so far, this verification's own; None before the first answer."""


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several checks taken as one; of none at all, `NOT_APPLICABLE`."""
    found = set(outcomes)
    for outcome in (Outcome.FAILED, Outcome.UNDECIDED, Outcome.PASSED):
        if outcome in found:
            return outcome
    return Outcome.NOT_APPLICABLE


# -- judging -----------------------------------------------------------------------------------------

Judgement = tuple[Outcome, tuple[Evidence, ...]]


def judge_comparisons(comparisons: Iterable[Comparison], level: Level) -> Judgement:
    """A difference or invalid output fails, whatever is unknown; what cannot be compared is undecided."""
    compared = list(comparisons)
    if any(reason.kind.startswith("invalid_") for comparison in compared for reason in comparison.reasons):
        return Outcome.FAILED, (Evidence(key="verify.invalid_output"),)
    failing = {Verdict.DIVERGED} | ({Verdict.DRIFTED} if level == "logprobs" else set())
    if any(comparison.verdict in failing for comparison in compared):
        return Outcome.FAILED, ()
    if not compared or any(comparison.verdict is Verdict.INCOMPARABLE for comparison in compared):
        return Outcome.UNDECIDED, ()
    if level == "logprobs" and any(comparison.level == "tokens" for comparison in compared):
        return Outcome.UNDECIDED, (Evidence(key="verify.no_logprobs"),)
    cut = [c for c in compared if "interrupted" in (c.reference_end, c.candidate_end)]
    if cut:
        return Outcome.UNDECIDED, (Evidence(key="verify.interrupted"),)
    return Outcome.PASSED, ()


def judge_step(step: Step, engine: EngineFingerprint, *, times: int, level: Level) -> Judgement:
    """Replays with one number of neighbours: the same every time, and under the load they claim."""
    outcome, evidence = judge_comparisons((repeat.comparison for repeat in step.repeats), level)
    if outcome is Outcome.FAILED:
        return outcome, evidence
    if not load_proven(step.load, engine):
        values = {"asked": step.load.asked, "mean": round(step.load.mean, 1)}
        return Outcome.UNDECIDED, (Evidence(key="verify.load_not_seen", values=dict(values)), *evidence)
    if len(step.repeats) < times:
        short = Evidence(key="verify.step_short", values={"done": len(step.repeats), "times": times})
        return Outcome.UNDECIDED, (short, *evidence)
    return outcome, evidence


def load_proven(load: LoadSeen, engine: EngineFingerprint) -> bool:
    """Whether the neighbours that were asked for were seen. An engine that takes one sequence at a time
    lets them only queue: `neighbours` waits for a first token of theirs before anything is measured."""
    if not load.asked or load.one_at_a_time:
        return True
    beside = min(load.asked, engine.max_num_seqs - 1) if engine.max_num_seqs else load.asked
    return load.mean >= LOAD_SHARE * beside


def judge_check(check: Check) -> Outcome:
    """Bit-exact and within tolerance both pass; the report never adds them up."""
    if check.verdict is CheckVerdict.UNCHECKABLE:
        return Outcome.UNDECIDED
    return Outcome.PASSED if check.passed else Outcome.FAILED


def judge_probe(probe: SeedProbe) -> Outcome:
    """Passed only when both halves were shown: the same seed twice equal, another seed other tokens."""
    if probe.outcome is SeedOutcome.UNDECIDED:
        return Outcome.UNDECIDED
    return Outcome.PASSED if probe.outcome is SeedOutcome.HONOURED else Outcome.FAILED


def judge_guard(guard: Guard, level: Level) -> Outcome:
    """Moved probabilities fail where they are what must be equal."""
    match guard.outcome:
        case GuardOutcome.SAME:
            return Outcome.PASSED
        case GuardOutcome.DRIFTED:
            return Outcome.FAILED if level == "logprobs" else Outcome.PASSED
        case GuardOutcome.DIFFERENT:
            return Outcome.FAILED
        case GuardOutcome.NOT_APPLICABLE:
            return Outcome.NOT_APPLICABLE
    return Outcome.UNDECIDED


_FACTS: tuple[str, ...] = (
    "model",
    "weights_digest",
    "tokenizer_digest",
    "chat_template_digest",
    "vllm_version",
    "torch_version",
    "device",
    "argv",
    "dtype",
    "max_model_len",
    "tensor_parallel_size",
    "enforce_eager",
    "prefix_caching",
    "logprobs_mode",
)
"""Facts without which nobody can say that another engine is the same one."""

_FACTS_OF: dict[str | None, tuple[str, ...]] = {
    "cpu": ("cpu_model", "cpu_flags", "threads"),
    "cuda": ("cuda_version", "driver_version", "device_names", "attention_backend", "batch_invariant"),
    None: (),
}


def judge_identity(
    before: EngineFingerprint, after: EngineFingerprint, changes: tuple[EngineChange, ...]
) -> Judgement:
    """The engine told who it is, and at the end it is still the same one.

    Failed: it changed meanwhile. Undecided: it does not tell something that decides the bits.
    """
    if before != after:
        return Outcome.FAILED, (Evidence(key="verify.identity.changed", values={"n": len(changes)}),)
    asked = (*_FACTS, *_FACTS_OF[before.device])
    missing = [fact for fact in asked if getattr(before, fact) in (None, (), {})]
    told = Evidence(
        key="verify.identity.told", values={"told": len(asked) - len(missing), "asked": len(asked)}
    )
    if missing:
        # The phrases module turns the field names into words of the reader's language.
        values = {"fields": " ".join(missing), "n": len(missing)}
        return Outcome.UNDECIDED, (Evidence(key="verify.identity.missing", values=dict(values)), told)
    return Outcome.PASSED, (told,)

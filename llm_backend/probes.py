"""What an engine's experiments on itself show: the seed probe and the guards. Pure judgement, no requests.

An experiment that could have come out otherwise for another reason than the one tested decides
nothing: every verdict here rests on a control, or on a chance small enough to state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

from llm_backend.compare import Comparison, Verdict
from llm_backend.diagnose import Diagnosis, distributions_moved, same_distribution_at_fork
from llm_backend.receipt import BigInt, EngineFingerprint, Frozen, Receipt, known_logprob

CHANCE = 1e-6
"""Two draws that agree although they had at most this chance to are taken to be one draw."""


class SeedOutcome(StrEnum):
    """The answer to "does the seed decide what is sampled?"."""

    HONOURED = "HONOURED"
    """The same seed gave the same tokens twice, and another seed gave others."""
    NOT_HONOURED = "NOT_HONOURED"
    """The same seed gave other tokens, with nothing else running."""
    IGNORED = "IGNORED"
    """Another seed gave the same tokens, against all odds."""
    UNDECIDED = "UNDECIDED"


SeedReason = Literal[
    "others_running", "load_unknown", "drifted", "likely_anyway", "chance_unknown", "incomparable", "refused"
]
"""Why the probe is undecided."""


class SeedTrial(Frozen):
    """Two runs at a temperature above 0, compared."""

    run_ids: tuple[str, str]
    seeds: tuple[BigInt, BigInt]
    comparison: Comparison
    diagnosis: Diagnosis
    neighbours: int | None
    """The most other requests seen during either run; None when the engine did not tell."""
    chance: float | None
    """Probability that an independent draw gives the first run's tokens; None when it is not known."""


class SeedProbe(Frozen):
    """Which seeds were tried and what that shows."""

    outcome: SeedOutcome
    reason: SeedReason | None = None
    detail: str = ""
    """The engine's words when it refused."""
    temperature: float
    engine: str
    """Digest of the fingerprint it was tried on."""
    same_seed: tuple[SeedTrial, ...] = ()
    other_seed: SeedTrial | None = None

    @property
    def trials(self) -> tuple[SeedTrial, ...]:
        return self.same_seed if self.other_seed is None else (*self.same_seed, self.other_seed)


def chance_of(receipt: Receipt) -> float | None:
    """Probability that an independent draw at temperature 1 gives these very tokens.

    exp of the sum of their logprobs: exact where all are known and nothing but the temperature shapes
    the draw. An unknown one counts as certain, which can only make the chance larger. None when nothing
    is known, or when the engine reports logits.
    """
    if not receipt.completion.tokens or "logits" in (receipt.engine.logprobs_mode or ""):
        return None
    known = [
        value for token in receipt.completion.tokens if (value := known_logprob(token.logprob)) is not None
    ]
    return math.exp(sum(known)) if known and max(known) <= 0 else None


def judge_seed(
    same_seed: Sequence[SeedTrial], other_seed: SeedTrial, engine: EngineFingerprint
) -> tuple[SeedOutcome, SeedReason | None]:
    """What the trials show together; the reason goes with `UNDECIDED`."""
    trials = (*same_seed, other_seed)
    if any(trial.comparison.verdict is Verdict.INCOMPARABLE for trial in trials):
        return SeedOutcome.UNDECIDED, "incomparable"
    for trial in same_seed:
        if trial.comparison.verdict is Verdict.DIVERGED:
            reason = _other_reason(trial, engine)
            return (SeedOutcome.UNDECIDED, reason) if reason else (SeedOutcome.NOT_HONOURED, None)
    if other_seed.comparison.verdict is not Verdict.DIVERGED:
        if other_seed.chance is None:
            return SeedOutcome.UNDECIDED, "chance_unknown"
        if other_seed.chance >= CHANCE:
            return SeedOutcome.UNDECIDED, "likely_anyway"
        return SeedOutcome.IGNORED, None
    if any(trial.chance is not None and trial.chance >= CHANCE for trial in same_seed):
        return SeedOutcome.UNDECIDED, "likely_anyway"
    reason = _other_reason(other_seed, engine)
    return (SeedOutcome.UNDECIDED, reason) if reason else (SeedOutcome.HONOURED, None)


def _other_reason(trial: SeedTrial, engine: EngineFingerprint) -> SeedReason | None:
    """What else than the draw can have made two runs differ; None when nothing that is known."""
    if same_distribution_at_fork(trial.comparison):
        return None  # the same probabilities, another token: that is the draw, whoever else was running
    moved: SeedReason | None = "drifted" if distributions_moved(trial.comparison) else None
    return _load_reason(trial.neighbours, engine) or moved


class Guarded(StrEnum):
    """Something beside the request that must not change an answer."""

    OBSERVER = "observer"
    """Whether logprobs are recorded."""
    PREFIX_CACHE = "prefix_cache"
    """Whether the prompt comes from the engine's prefix cache."""
    COLD_START = "cold_start"
    """Whether the request is the first after the engine's start."""


class GuardOutcome(StrEnum):
    """What one experiment showed, for this prompt on this engine."""

    SAME = "SAME"
    DRIFTED = "DRIFTED"
    """The same tokens, other probabilities."""
    DIFFERENT = "DIFFERENT"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    """What is guarded against plays no part here."""
    UNDECIDED = "UNDECIDED"


GuardReason = Literal[
    "control_differs",
    "others_running",
    "load_unknown",
    "incomparable",
    "cache_off",
    "never_cached",
    "always_cached",
    "cache_not_told",
    "not_fresh",
]


class Guard(Frozen):
    """One experiment: the control (nothing changed), and the comparison with one thing changed."""

    guarded: Guarded
    outcome: GuardOutcome
    reason: GuardReason | None = None
    """With `NOT_APPLICABLE` and `UNDECIDED`; `cache_not_told` also goes with a result."""
    control: Comparison | None = None
    comparison: Comparison | None = None
    diagnosis: Diagnosis | None = None
    cached_prompt_tokens: tuple[int | None, int | None] = (None, None)
    """Of the two runs of `comparison`; None when the engine did not tell."""
    run_ids: tuple[str, ...] = ()
    served_before: int | None = None
    """For `COLD_START`: requests that the engine had finished before; None when it did not tell."""


def judge_guard(
    control: Comparison, comparison: Comparison, engine: EngineFingerprint, neighbours: int | None
) -> tuple[GuardOutcome, GuardReason | None]:
    """Whether one change matters where none does not.

    A control that differs, or others running, leave it open.
    `neighbours`: the most other requests seen during any of the runs; None when the engine did not tell.
    """
    if Verdict.INCOMPARABLE in (control.verdict, comparison.verdict):
        return GuardOutcome.UNDECIDED, "incomparable"
    if comparison.verdict is Verdict.IDENTICAL:
        return GuardOutcome.SAME, None
    if control.verdict is not Verdict.IDENTICAL:
        return GuardOutcome.UNDECIDED, "control_differs"
    if reason := _load_reason(neighbours, engine):
        return GuardOutcome.UNDECIDED, reason
    drifted = comparison.verdict is Verdict.DRIFTED
    return (GuardOutcome.DRIFTED if drifted else GuardOutcome.DIFFERENT), None


def most_neighbours(seen: Iterable[int | None]) -> int | None:
    """None as soon as one of the runs does not know."""
    counts = list(seen)
    known = [count for count in counts if count is not None]
    return max(known) if known and len(known) == len(counts) else None


def _load_reason(
    neighbours: int | None, engine: EngineFingerprint
) -> Literal["others_running", "load_unknown"] | None:
    """Whether other requests may have changed an answer's numbers."""
    if engine.batch_invariant or engine.max_num_seqs == 1 or neighbours == 0:
        return None
    return "load_unknown" if neighbours is None else "others_running"

"""What the stored comparisons prove for one run: for exactly its engine, its settings and its load.

A comparison counts when both its runs ended by themselves or at their limit, on engines with this
run's fingerprint digest, with settings of the same class (`sampling_class`), and could be compared at
all. Nothing else counts: not another driver, not another temperature. Load counts only where it was
seen (`Run.neighbours`), never what was asked for; of the two runs' loads the larger known one.

The claim reaches no further than what was measured: a run with a longer prompt, a longer answer or
more neighbours than any comparison had is beyond it. One different answer, under whatever load and at
whatever length, and nothing is claimed. The trials are those people happened to make, many of the
same question; the Wilson bound is about repeating such trials, not about all questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

from llm_backend.compare import Verdict
from llm_backend.engine_changes import EngineChange, engine_changes
from llm_backend.receipt import EngineFingerprint, Frozen, Sampling
from llm_backend.run import Run

ENOUGH = 10
"""Comparisons from which on people are told "proven": ten of ten support 72 % (Wilson 95 %). Fewer
are "so far"."""

_NEVER_IN_CLASS = {"seed", "max_tokens", "top_logprobs"}

UNSEEDED = "unseeded"


class ProofState(StrEnum):
    """What may be said about a run."""

    PROVEN = "proven"
    """Every comparison came out the same, probabilities included, and there are `ENOUGH`."""
    SAME_WORDS = "same_words"
    """Every comparison had the same tokens; in some, probabilities moved."""
    SO_FAR = "so_far"
    """Like `PROVEN` or `SAME_WORDS`, from fewer comparisons than `ENOUGH`."""
    DIFFERENT = "different"
    BEYOND = "beyond"
    """Others came out the same, but this run is longer or was busier than any of them."""
    NONE = "none"
    UNSEEDED = "unseeded"
    """Sampled without a seed: a different answer is what was asked for."""


class Seen(Frozen):
    """Stored comparisons with one load and one verdict."""

    neighbours: int | None
    verdict: Verdict
    comparisons: int
    prompt_tokens: int
    """The longest prompt among them."""
    answer_tokens: int
    """The longest answer among them."""


class LoadTally(Frozen):
    """All comparisons with one number of neighbours."""

    neighbours: int | None
    comparisons: int
    same: int
    """Same tokens."""
    identical: int
    """Same tokens and bit-equal probabilities, as far as they are known."""


Exceeded = Literal["prompt", "answer", "neighbours"]


class Proof(Frozen):
    """A tally and what it amounts to for one run."""

    state: ProofState
    settings: str
    """The class of settings, `sampling_class`."""
    comparisons: int = 0
    same: int = 0
    identical: int = 0
    longest_prompt: int = 0
    """Tokens, among comparisons that came out the same; 0 when the engine does not tell."""
    longest_answer: int = 0
    neighbours: int | None = None
    """`ENOUGH` comparisons (all, when there are fewer) had at least so many; None: load unknown."""
    exceeded: tuple[Exceeded, ...] = ()
    """In what this run goes beyond all that came out the same."""
    loads: tuple[LoadTally, ...] = ()
    """By neighbours, the fewest first, unknown last."""

    @property
    def different(self) -> int:
        return self.comparisons - self.same

    @property
    def different_loads(self) -> tuple[int, ...]:
        """The known loads under which an answer came out differently."""
        return tuple(
            load.neighbours
            for load in self.loads
            if load.neighbours is not None and load.same < load.comparisons
        )


class EngineNow(Frozen):
    """How the engine that runs now compares with the one that answered."""

    state: Literal["same", "changed", "unknown", "away"]
    """`unknown`: nothing bit-relevant is known to differ, but not everything is known on both sides.
    `away`: no engine answers, so there is nothing to compare with."""
    changes: tuple[EngineChange, ...] = ()
    """Bit-relevant first."""


def sampling_class(sampling: Sampling) -> str:
    """Settings that make two runs trials of one claim: "greedy", "temperature=0.8 top_p=0.95".

    Effective values, those that differ from neutral; seed and answer limit vary freely within a class
    (each comparison has both runs' equal, or it diverges and counts as different), and recorded
    alternatives never reach a token.
    """
    effective, neutral = sampling.effective(), Sampling()
    words = ["greedy"] if sampling.greedy else []
    words += [
        f"{name}={getattr(effective, name):g}"
        for name in Sampling.model_fields
        if name not in _NEVER_IN_CLASS and getattr(effective, name) != getattr(neutral, name)
    ]
    if not sampling.greedy and sampling.seed is None:
        words.append(UNSEEDED)
    return " ".join(words)


def tally_proof(run: Run, seen: Iterable[Seen]) -> Proof:
    """What `seen`, the comparisons of the run's engine and settings, amount to for `run`."""
    counted = [group for group in seen if group.verdict is not Verdict.INCOMPARABLE]
    settings = run.sampling_class or ""
    same = [group for group in counted if group.verdict is not Verdict.DIVERGED]
    total, equal = _count(counted), _count(same)
    proof = Proof(
        state=ProofState.NONE,
        settings=settings,
        comparisons=total,
        same=equal,
        identical=_count(group for group in same if group.verdict is Verdict.IDENTICAL),
        longest_prompt=max((group.prompt_tokens for group in same), default=0),
        longest_answer=max((group.answer_tokens for group in same), default=0),
        neighbours=_well_tried(same),
        loads=_loads(counted),
    )
    exceeded = tuple(_exceeded(run, proof, same)) if equal else ()
    return proof.model_copy(update={"exceeded": exceeded, "state": _state(proof, exceeded)})


def compare_engines(
    recorded: EngineFingerprint, live: EngineFingerprint | None, *, seeded: bool
) -> EngineNow:
    """Whether what was measured on `recorded` may be said of the engine that runs now.

    A live identity has no `system_fingerprint` before it answered a request, so that is left out.
    """
    if live is None:
        return EngineNow(state="away")
    comparable = live.model_copy(update={"system_fingerprint": recorded.system_fingerprint})
    changes = engine_changes(recorded, comparable, seeded=seeded)
    if any(change.relevance == "bit-relevant" for change in changes):
        return EngineNow(state="changed", changes=changes)
    unknown = any(change.relevance == "unknown" for change in changes)
    return EngineNow(state="unknown" if unknown else "same", changes=changes)


def _state(proof: Proof, exceeded: tuple[Exceeded, ...]) -> ProofState:
    if UNSEEDED in proof.settings.split():
        return ProofState.UNSEEDED
    if not proof.comparisons:
        return ProofState.NONE
    if proof.different:
        return ProofState.DIFFERENT
    if exceeded:
        return ProofState.BEYOND
    if proof.comparisons < ENOUGH:
        return ProofState.SO_FAR
    return ProofState.PROVEN if proof.identical == proof.comparisons else ProofState.SAME_WORDS


def _exceeded(run: Run, proof: Proof, same: Sequence[Seen]) -> Iterable[Exceeded]:
    if (run.prompt_tokens or 0) > proof.longest_prompt:
        yield "prompt"
    if (run.completion_tokens or 0) > proof.longest_answer:
        yield "answer"
    busiest = max((group.neighbours for group in same if group.neighbours is not None), default=0)
    if (run.neighbours or 0) > busiest:
        yield "neighbours"


def _well_tried(groups: Sequence[Seen]) -> int | None:
    """The largest load that `ENOUGH` comparisons had at least; one busy replay is no proof of load."""
    wanted = min(ENOUGH, _count(groups))
    had = 0
    for group in sorted(
        (group for group in groups if group.neighbours is not None),
        key=lambda group: -(group.neighbours or 0),
    ):
        had += group.comparisons
        if had >= wanted:
            return group.neighbours
    return None


def _loads(groups: Sequence[Seen]) -> tuple[LoadTally, ...]:
    by_load: dict[int | None, list[Seen]] = {}
    for group in groups:
        by_load.setdefault(group.neighbours, []).append(group)
    tallies = [
        LoadTally(
            neighbours=neighbours,
            comparisons=_count(members),
            same=_count(group for group in members if group.verdict is not Verdict.DIVERGED),
            identical=_count(group for group in members if group.verdict is Verdict.IDENTICAL),
        )
        for neighbours, members in by_load.items()
    ]
    return tuple(sorted(tallies, key=lambda load: (load.neighbours is None, load.neighbours or 0)))


def _count(groups: Iterable[Seen]) -> int:
    return sum(group.comparisons for group in groups)

"""Why a replay came out differently: the best explanation that the records support, never more.

The rules run from what would explain anything to what explains least; the first whose evidence is in
the records wins, and evidence of the others goes along. A cause is "consistent with" its evidence:
two receipts cannot prove it. The sentences live in `locale/` under the evidence keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from llm_backend.compare import Comparison, Fork, NearTie, Verdict, logprob_of
from llm_backend.receipt import EngineFingerprint, Frozen, Receipt, Sampling, TokenRecord

# What decides how much is told and how it is sent, not what is generated.
_OBSERVATION = frozenset(
    {"top_logprobs", "logprobs", "stream", "return_token_ids", "return_tokens_as_token_ids"}
)
_NEVER_IN_TOKENS = _OBSERVATION | {"max_tokens", "cache_salt"}
_SETTINGS = frozenset(Sampling.model_fields)


class Cause(StrEnum):
    """What the evidence points to."""

    NONE = "none"
    """Nothing to explain: the same, or not comparable for the reasons the comparison names."""
    TRUNCATED = "truncated"
    """The same over what exists; a side was cut short."""
    REQUEST_DIFFERS = "request_differs"
    UNSEEDED = "unseeded"
    """Sampled without a seed: a different answer is what was asked for."""
    ENGINE_CHANGED = "engine_changed"
    SEED_NOT_HONOURED = "seed_not_honoured"
    """Equal distributions up to and at the fork, the same seed, another token."""
    EXACT_TIE = "exact_tie"
    LOAD_DEPENDENT = "load_dependent"
    PREFIX_CACHE = "prefix_cache"
    COLD_START = "cold_start"
    """One of the runs was the first after the engine's start."""
    NEAR_TIE = "near_tie"
    UNEXPLAINED = "unexplained"


Values = dict[str, str | int | float | None]


class Evidence(Frozen):
    """One fact for the explanation; `strings.text(key, lang, **values)` says it."""

    key: str
    values: Values = Field(default_factory=dict)


class Diagnosis(Frozen):
    """A cause and what speaks for it, the deciding evidence first."""

    cause: Cause
    evidence: tuple[Evidence, ...] = ()


def diagnose(
    comparison: Comparison,
    reference: Receipt,
    candidate: Receipt,
    *,
    neighbours: int | None,
    first_after_start: bool = False,
) -> Diagnosis:
    """Explain a comparison.

    `neighbours`: other requests the engine was running during the busier of the two runs; None when
    neither is known. `first_after_start`: one of the two was the engine's first request, the other was
    not; False also where nobody knows.
    """
    if [reason.kind for reason in comparison.reasons] == ["other_prompt"]:
        evidence = tuple(_other_prompt(comparison, reference, candidate))
        return Diagnosis(cause=Cause.REQUEST_DIFFERS, evidence=evidence)
    if comparison.verdict in (Verdict.IDENTICAL, Verdict.INCOMPARABLE):
        same_but_cut = comparison.partial and comparison.verdict is Verdict.IDENTICAL
        cause = Cause.TRUNCATED if same_but_cut else Cause.NONE
        return Diagnosis(cause=cause, evidence=tuple(_cuts(comparison)) if same_but_cut else ())
    found = list(_explanations(comparison, reference, candidate, neighbours, first_after_start))
    cause = found[0][0] if found else Cause.UNEXPLAINED
    evidence = tuple(piece for _, piece in found) or tuple(_excluded(reference, candidate, neighbours))
    evidence += tuple(_observed_differently(comparison))
    return Diagnosis(cause=cause, evidence=evidence)


def _explanations(
    comparison: Comparison,
    reference: Receipt,
    candidate: Receipt,
    neighbours: int | None,
    first_after_start: bool,
) -> Iterator[tuple[Cause, Evidence]]:
    """Every rule that applies with its evidence, strongest first."""
    fork = comparison.first_divergence
    sampled = not (reference.request.sampling.greedy and candidate.request.sampling.greedy)
    unseeded = sampled and None in (reference.request.sampling.seed, candidate.request.sampling.seed)
    asked = [change for change in comparison.request_changes if change.field not in _NEVER_IN_TOKENS]
    if fork:  # what was asked cannot move logprobs: they are taken before sampling
        for change in asked:
            yield Cause.REQUEST_DIFFERS, Evidence(key="evidence.request", values=change.model_dump())
        if unseeded:
            yield Cause.UNSEEDED, Evidence(key="evidence.unseeded")
    for difference in comparison.engine_changes:
        if difference.relevance == "bit-relevant":
            values = difference.model_dump(exclude={"relevance"})
            yield Cause.ENGINE_CHANGED, Evidence(key="evidence.engine", values=values)
    equal = same_distribution_at_fork(comparison)
    if fork and equal and sampled and not unseeded and not asked:
        yield Cause.SEED_NOT_HONOURED, Evidence(key="evidence.seed", values={"position": fork.position})
    if fork and equal and fork.exact_tie and not sampled:
        yield Cause.EXACT_TIE, Evidence(key="evidence.exact_tie", values={"position": fork.position})
    if neighbours and not equal and (key := _load_key(reference.engine, candidate.engine)):
        yield Cause.LOAD_DEPENDENT, Evidence(key=key, values={"neighbours": neighbours})
    cached = reference.completion.cached_prompt_tokens, candidate.completion.cached_prompt_tokens
    if None not in cached and cached[0] != cached[1] and not candidate.engine.batch_invariant:
        values = {"reference": cached[0], "candidate": cached[1]}
        yield Cause.PREFIX_CACHE, Evidence(key="evidence.prefix_cache", values=values)
    if first_after_start and not equal:
        yield Cause.COLD_START, Evidence(key="evidence.cold_start")
    gap = _gap(fork) if fork and not sampled and not equal else None
    if fork and gap is not None and gap <= fork.threshold.nats:
        yield Cause.NEAR_TIE, Evidence(key="evidence.near_tie", values={"margin": gap})
        yield Cause.NEAR_TIE, _threshold(fork.threshold)


def _threshold(near: NearTie) -> Evidence:
    values = {"threshold": near.nats, "positions": near.positions}
    return Evidence(key=f"evidence.threshold.{near.basis}", values=values)


def same_distribution_at_fork(comparison: Comparison) -> bool:
    """Whether both engines gave bit-equal numbers up to a fork and there, all known: only the draw differs.

    At the fork the alternatives that both recorded are compared, at least two: a token that was drawn
    without being among the most likely stands in its own side's list alone.
    """
    fork = comparison.first_divergence
    if fork is None or fork.reference is None or fork.candidate is None:
        return False
    before, after = _distribution(fork.reference), _distribution(fork.candidate)
    undrifted = comparison.drifted_positions == 0 and comparison.unknown_logprobs == 0
    common = before.keys() & after.keys()
    return undrifted and len(common) > 1 and all(before[each] == after[each] for each in common)


def distributions_moved(comparison: Comparison) -> bool:
    """Whether some known number differs up to a fork or at it: then not only the draw may differ."""
    fork = comparison.first_divergence
    if comparison.drifted_positions:
        return True
    if fork is None or fork.reference is None or fork.candidate is None:
        return False
    before, after = _distribution(fork.reference), _distribution(fork.candidate)
    return any(before[each] != after[each] for each in before.keys() & after.keys())


def _distribution(token: TokenRecord) -> dict[int, float | None]:
    return {other.id: other.logprob for other in token.top if other.logprob is not None}


def _load_key(reference: EngineFingerprint, candidate: EngineFingerprint) -> str | None:
    """The sentence about load, or None where the engine keeps requests apart."""
    for engine in (reference, candidate):
        if engine.batch_invariant or engine.max_num_seqs == 1:
            return None
    if reference.batch_invariant is None or candidate.batch_invariant is None:
        return "evidence.load_unknown_invariance"
    return "evidence.load"


def _gap(fork: Fork) -> float | None:
    """Nats between the two chosen tokens as the reference saw them; None when it did not record both."""
    if fork.reference is None or fork.candidate is None:
        return None
    chosen = logprob_of(fork.reference.id, fork.reference)
    other = logprob_of(fork.candidate.id, fork.reference)
    return None if chosen is None or other is None else abs(chosen - other)


def _excluded(reference: Receipt, candidate: Receipt, neighbours: int | None) -> Iterator[Evidence]:
    """For an unexplained difference: what was looked at and does not explain it."""
    if neighbours is None:
        yield Evidence(key="evidence.load_not_known")
    elif neighbours == 0:
        yield Evidence(key="evidence.no_neighbours")
    elif reference.engine.batch_invariant and candidate.engine.batch_invariant:
        yield Evidence(key="evidence.invariance_broken", values={"neighbours": neighbours})
    else:
        yield Evidence(key="evidence.one_at_a_time", values={"neighbours": neighbours})


def _other_prompt(comparison: Comparison, reference: Receipt, candidate: Receipt) -> Iterator[Evidence]:
    """Why the prompts differ: the messages, else whatever made tokens of them."""
    before, after = reference.request.messages, candidate.request.messages
    if before != after:
        same = [old == new for old, new in zip(before, after, strict=False)]
        first = same.index(False) if False in same else len(same)
        values = {"message": first + 1, "reference": len(before), "candidate": len(after)}
        yield Evidence(key="evidence.messages", values=values)
        return
    for change in comparison.request_changes:
        if change.field not in _NEVER_IN_TOKENS | _SETTINGS:
            yield Evidence(key="evidence.request", values=change.model_dump())
    templates = reference.engine.chat_template_digest, candidate.engine.chat_template_digest
    if None in templates:
        yield Evidence(key="evidence.template_unknown")
    elif templates[0] != templates[1]:
        yield Evidence(key="evidence.template")
    else:
        yield Evidence(key="evidence.template_same")


def _observed_differently(comparison: Comparison) -> Iterator[Evidence]:
    """Should change nothing; named, because two records cannot show that it did not."""
    for change in comparison.request_changes:
        if change.field in _OBSERVATION:
            yield Evidence(key="evidence.observation", values=change.model_dump())


def _cuts(comparison: Comparison) -> Iterator[Evidence]:
    for side, end in (("recorded", comparison.reference_end), ("replayed", comparison.candidate_end)):
        if end in ("stopped", "interrupted", "length"):
            yield Evidence(key=f"evidence.cut_{side}", values={"end": end})

"""The seed probe and the guards in sentences: what was tried, what it shows, and what it leaves open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llm_backend.phrases import diagnosis_sentence, verdict_line
from llm_backend.probes import Guard, Guarded, GuardOutcome, SeedOutcome, SeedProbe, SeedTrial
from llm_backend.strings import Language, text

SEED_SHAPES = {
    SeedOutcome.HONOURED: "●",
    SeedOutcome.NOT_HONOURED: "✕",
    SeedOutcome.IGNORED: "✕",
    SeedOutcome.UNDECIDED: "?",
}

GUARD_SHAPES = {
    GuardOutcome.SAME: "●",
    GuardOutcome.DRIFTED: "◐",
    GuardOutcome.DIFFERENT: "✕",
    GuardOutcome.NOT_APPLICABLE: "–",
    GuardOutcome.UNDECIDED: "?",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One experiment for people: the line that says the result, and what it rests on."""

    title: str
    sentences: tuple[str, ...]


def seed_finding(probe: SeedProbe, lang: Language = "en") -> Finding:
    """`● Seed honoured — the same seed gave the same tokens twice, another seed gave others.`"""
    key = f"probe.seed.{probe.outcome.value.lower()}"
    detail = text(f"probe.seed.reason.{probe.reason}" if probe.reason else f"{key}.detail", lang)
    shape = SEED_SHAPES[probe.outcome]
    title = text("verdict.line", lang, shape=shape, title=text(key, lang), detail=detail)
    sentences = [*([probe.detail] if probe.detail else []), *(_trial(trial, lang) for trial in probe.trials)]
    if probe.trials:
        sentences.append(text("probe.seed.scope", lang, temperature=probe.temperature))
    return Finding(title, tuple(sentences))


def guard_finding(guard: Guard, lang: Language = "en") -> Finding:
    """`● Recording changed nothing — …`, with the control and the comparison that it rests on."""
    name = f"guard.{guard.guarded.value}"
    outcome = text(f"guard.outcome.{guard.outcome.value.lower()}", lang)
    title = text(
        "guard.title", lang, shape=GUARD_SHAPES[guard.outcome], name=text(name, lang), outcome=outcome
    )
    return Finding(title, tuple(_guard_sentences(guard, lang)))


def _guard_sentences(guard: Guard, lang: Language) -> Iterator[str]:
    if guard.reason:
        yield text(f"guard.reason.{guard.reason}", lang, served=guard.served_before)
    if guard.control is None or guard.comparison is None:
        return
    changed = text(f"guard.{guard.guarded.value}.changed", lang)
    yield text("guard.line", lang, what=changed, verdict=verdict_line(guard.comparison, lang))
    yield text(
        "guard.line", lang, what=text("guard.control", lang), verdict=verdict_line(guard.control, lang)
    )
    if guard.outcome in (GuardOutcome.DRIFTED, GuardOutcome.DIFFERENT):
        yield text("guard.shown", lang)
    elif (
        guard.diagnosis
        and not guard.comparison.reproduced
        and (explained := diagnosis_sentence(guard.diagnosis, lang))
    ):
        yield explained
    if guard.guarded is Guarded.COLD_START:
        yield text("guard.cold_start.served", lang, served=guard.served_before)
    missed, hit = guard.cached_prompt_tokens
    yield text("guard.cached", lang, first=missed, second=hit)


def _trial(trial: SeedTrial, lang: Language) -> str:
    comparison = trial.comparison
    values = {
        "first": trial.seeds[0],
        "second": trial.seeds[1],
        "tokens": comparison.compared,
        "position": comparison.first_divergence.position if comparison.first_divergence else None,
        "chance": _power_of_ten(trial.chance, lang),
    }
    kind = "same" if comparison.reproduced else "other" if comparison.first_divergence else "incomparable"
    return text(f"probe.seed.trial.{kind}", lang, **values)


def _power_of_ten(chance: float | None, lang: Language) -> str:
    """A chance too small for a percentage, rounded up: "at most 1e-35"."""
    if chance is None:
        return text("value.unknown", lang)
    if chance <= 0:
        return text("probe.chance.below", lang, power=-300)
    return text("probe.chance.below", lang, power=math.ceil(math.log10(chance)))

"""The proof badge in sentences: what has been proven, how often, under which load, and for which engine."""

from __future__ import annotations

import math

from llm_backend.phrases import field_label
from llm_backend.proof import EngineNow, LoadTally, Proof, ProofState
from llm_backend.receipt import EngineFingerprint
from llm_backend.strings import Language, text
from llm_backend.tally import wilson_lower

SHAPES = {
    ProofState.PROVEN: "●",
    ProofState.SAME_WORDS: "◐",
    ProofState.SO_FAR: "◔",
    ProofState.DIFFERENT: "✕",
    ProofState.BEYOND: "○",
    ProofState.NONE: "○",
    ProofState.UNSEEDED: "○",
}

NAMED_CHANGES = 3
"""What changed in the engine is named up to here; the panel lists the rest."""


def proof_sentence(proof: Proof, lang: Language = "en") -> str:
    """`Proven for this engine, greedy, prompts up to 512 and answers up to 300 tokens, …: 40 of 40.`"""
    key = f"proof.{proof.state.value}"
    values = _values(proof, lang)
    if proof.state is ProofState.BEYOND:
        values["beyond"] = text("proof.and", lang).join(
            text(f"proof.beyond.{what}", lang) for what in proof.exceeded
        )
    if proof.state is ProofState.DIFFERENT:
        values["where"] = _where(proof.different_loads, lang)
    sentence = text(key, lang, **values)
    if proof.state is ProofState.SO_FAR and proof.identical < proof.same:
        sentence += text("proof.moved", lang, **values)
    return sentence


def proof_short(proof: Proof, now: EngineNow, lang: Language = "en") -> str:
    """The same for the quiet line under an answer."""
    short = text(f"proof.short.{proof.state.value}", lang, **_values(proof, lang))
    return text("proof.short.other_engine", lang, short=short) if now.state == "changed" else short


def load_line(load: LoadTally, lang: Language = "en") -> dict[str, str]:
    """One row of the table by neighbours."""
    where = _load(load.neighbours, lang, "row")
    key = "proof.row.moved" if load.identical < load.same else "proof.row"
    values = {"same": load.same, "n": load.comparisons, "moved": load.same - load.identical}
    return {"load": where, "result": text(key, lang, **values)}


def engine_now_sentence(now: EngineNow, lang: Language = "en") -> str:
    """What is not said for the engine that runs now; "" when it is the one that answered."""
    if now.state == "same":
        return ""
    if now.state != "changed":
        return text(f"proof.engine.{now.state}", lang)
    labels = [
        field_label("engine", change.field, lang)
        for change in now.changes
        if change.relevance == "bit-relevant"
    ]
    named = text("proof.list", lang).join(labels[:NAMED_CHANGES])
    more = len(labels) - NAMED_CHANGES
    key = "proof.engine.changed_more" if more > 0 else "proof.engine.changed"
    return text(key, lang, what=named, more=more)


def told_little(engine: EngineFingerprint, lang: Language = "en") -> str:
    """A caveat for an engine whose fingerprint hardly tells it from another; "" for one Encore started."""
    return "" if engine.argv else text("proof.told_little", lang)


def _values(proof: Proof, lang: Language) -> dict[str, str | int | None]:
    count = proof.comparisons
    lengths = {"prompt": proof.longest_prompt, "answer": proof.longest_answer}
    return {
        "settings": settings_words(proof.settings, lang),
        "lengths": text("proof.lengths" if lengths["prompt"] else "proof.lengths.answer", lang, **lengths),
        "load": _load(proof.neighbours, lang, "load"),
        "same": proof.same,
        "different": proof.different,
        "moved": proof.same - proof.identical,
        "n": count,
        "bound": math.floor(100 * wilson_lower(proof.same, count)) if count else None,
    }


def settings_words(settings: str, lang: Language = "en") -> str:
    """A class of settings for people: "greedy", "temperature 0.8, top_p 0.95"."""
    words = [
        text("run.greedy", lang) if word == "greedy" else word.replace("=", " ") for word in settings.split()
    ]
    return text("proof.list", lang).join(words) or text("run.sampled", lang)


def _load(neighbours: int | None, lang: Language, kind: str) -> str:
    if neighbours is None:
        return text(f"proof.{kind}.unknown", lang)
    return text(f"proof.{kind}.among" if neighbours else f"proof.{kind}.alone", lang, n=neighbours)


def _where(loads: tuple[int, ...], lang: Language) -> str:
    if not loads:
        return ""
    if len(loads) == 1:
        return text("proof.where.one" if loads[0] else "proof.where.alone", lang, n=loads[0])
    return text("proof.where.range", lang, least=loads[0], most=loads[-1])

"""The proof badge: what has been proven for a run, and whether the engine running now may claim it.

The tally is about the past and comes from the store; the one live question, which engine answers now,
is asked here and nowhere else, so that neither the panel nor the line under an answer waits for it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header

from llm_backend.errors import EngineError
from llm_backend.phrases import field_label
from llm_backend.proof import EngineNow, Proof, compare_engines, tally_proof
from llm_backend.proof_phrases import (
    SHAPES,
    engine_now_sentence,
    load_line,
    proof_sentence,
    proof_short,
    told_little,
)
from llm_backend.receipt import EngineFingerprint
from llm_backend.run import Run
from llm_backend.strings import Language, pick_language, text
from llm_backend.ui.backend import backend

router = APIRouter()

KEPT_ENGINES = 32
_engines: dict[str, EngineFingerprint] = {}


@router.get("/runs/{run_id}/proof")
async def run_proof(
    run_id: str, accept_language: Annotated[str | None, Header()] = None
) -> dict[str, Any] | None:
    """The badge of one run, in a long and a short form; null while the run is going."""
    store, lang = backend().store, pick_language(accept_language)
    run = await store.run(run_id)
    if run.fingerprint_digest is None:
        return None
    recorded = await _engine(run.fingerprint_digest)
    proof = tally_proof(run, await store.seen(run))
    return proof_view(proof, recorded, await _now(run, recorded), lang)


def proof_view(proof: Proof, recorded: EngineFingerprint, now: EngineNow, lang: Language) -> dict[str, Any]:
    """The badge as plain JSON values; `grey` when the engine running now is known to be another one."""
    return {
        "state": proof.state.value,
        "shape": SHAPES[proof.state],
        "sentence": proof_sentence(proof, lang),
        "short": proof_short(proof, now, lang),
        "loads": [load_line(load, lang) for load in proof.loads],
        "caveat": told_little(recorded, lang) if proof.comparisons else "",
        "grey": now.state == "changed",
        "engine": now.state,
        "engine_sentence": engine_now_sentence(now, lang),
        "changes": [
            {
                "key": change.field,
                "field": field_label("engine", change.field, lang),
                "reference": change.reference,
                "candidate": change.candidate,
                "relevance": change.relevance,
                "relevance_label": text(f"relevance.{change.relevance}", lang),
            }
            for change in now.changes
            if now.state == "changed"
        ],
    }


async def _engine(digest: str) -> EngineFingerprint:
    """Engines are few and never change under a digest: each is read from the store once."""
    if digest not in _engines:
        found = await backend().store.engine(digest)
        if len(_engines) >= KEPT_ENGINES:
            del _engines[next(iter(_engines))]
        _engines[digest] = found
    return _engines[digest]


async def _now(run: Run, recorded: EngineFingerprint) -> EngineNow:
    live = None
    if (await backend().watch.status()).ready:
        with suppress(EngineError):
            live = await backend().engines.choose(run.engine_url).identity()
    return compare_engines(recorded, live, seeded=run.greedy or run.seed is not None)

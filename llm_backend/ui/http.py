"""The HTTP routes beside the chat: receipts, comparisons and runs for the panel, health, metrics.

Sentences come in the language of the request's Accept-Language header. What is recorded never changes,
so the costly views (two receipts of 32,768 tokens read, hashed and aligned) are kept a while.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import TypeAdapter

from llm_backend import __version__
from llm_backend.bench import prices
from llm_backend.compare import Comparison
from llm_backend.config import ROOT
from llm_backend.diff import token_window
from llm_backend.engine.embedded import EMBEDDED_MODEL
from llm_backend.errors import EncoreError, EngineError, ReceiptNotFound
from llm_backend.phrases import run_summary, run_warning
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Receipt, TokenRecord
from llm_backend.store import StoredComparison
from llm_backend.strings import Language, catalogue, pick_language, text
from llm_backend.ui import answering, engines, forking, metrics, proof, sharing, views, wall_http
from llm_backend.ui.backend import backend
from llm_backend.ui.engine_watch import status_sentence
from llm_backend.ui.findings import all_outcomes, latest_outcomes, telling_replay
from llm_backend.ui.login import only_theirs, request_user
from llm_backend.ui.panel import TITLES
from llm_backend.ui.verifying import report_file

router = APIRouter()

AcceptLanguage = Annotated[str | None, Header()]

KEPT_VIEWS = 32
LARGEST_WINDOW = 1000
"""Tokens per request of `/receipts/{digest}/tokens`."""

HOW_TO_GET_REAL_ANSWERS = "https://huggingface.co/microsoft/Phi-4-mini-reasoning"

PANEL_PARTS = ROOT / "public" / "panel"

_TOKENS = TypeAdapter(tuple[TokenRecord, ...])
_comparisons: dict[tuple[str, Language], dict[str, Any]] = {}


def add_routes(app: FastAPI) -> None:
    """Serve the routes of this module; what they raise becomes one sentence."""
    panel = (answering.router, proof.router, engines.router, forking.router, sharing.router)
    for part in (router, *panel, wall_http.router):
        app.include_router(part, dependencies=[Depends(only_theirs)])
    app.add_exception_handler(EncoreError, _refused)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """404 for what is not there, 503 for the engine, 409 for a record that is not sound."""
    assert isinstance(error, EncoreError)
    status = 404 if isinstance(error, ReceiptNotFound) else 503 if isinstance(error, EngineError) else 409
    return JSONResponse({"detail": error.diagnostics()}, status)


@router.get("/healthz")
async def health(accept_language: AcceptLanguage = None) -> JSONResponse:
    """For machines: 200 when a question asked now would be answered, else 503 and what is wrong."""
    lang, draining = pick_language(accept_language), backend().draining
    found = await backend().health.look(lang)
    status, members = found.status, await backend().engines.look()
    document = {
        "app": "stopping" if draining else "ok",
        "ready": found.ready and not draining,
        "problem": text("health.stopping", lang) if draining else found.sentence,
        "version": __version__,
        "engine": {
            "kind": status.kind,
            "detail": status.detail,
            "phase": status.phase.key if status.phase else None,
        },
        "engines": {"configured": len(members), "ready": sum(member.ready for member in members)},
    }
    return JSONResponse(document, 200 if document["ready"] else 503, headers={"Cache-Control": "no-store"})


@router.get("/status")
async def status(accept_language: AcceptLanguage = None) -> dict[str, Any]:
    """For people, polled by the page: the engine's state in words, and what it is not good for."""
    lang = pick_language(accept_language)
    known = await backend().watch.status()
    demo = known.ready and await _is_demo()
    return {
        "engine": known.kind,
        "sentence": "" if known.ready else status_sentence(known, lang),
        "last_line": known.phase.last_line if known.phase and not known.ready else "",
        "note": text("demo.note", lang) if demo else "",
        "note_link": text("demo.link", lang) if demo else "",
        "note_href": HOW_TO_GET_REAL_ANSWERS,
    }


async def _is_demo() -> bool:
    try:
        return EMBEDDED_MODEL in (await backend().engine.identity()).model
    except EngineError:
        return False


@router.get("/metrics")
async def metrics_page() -> Response:
    parts = backend()
    status = await parts.watch.status()
    ready = [member.client for member in parts.engines.members if member.ready]
    running = _sum_known(await asyncio.gather(*(engine.running() for engine in ready)))
    waiting = _sum_known(await asyncio.gather(*(engine.waiting() for engine in ready)))
    page = metrics.exposition(active=parts.active, state=status.kind, running=running, waiting=waiting)
    return Response(page, media_type="text/plain; version=0.0.4")


def _sum_known(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


@router.get("/strings")
async def strings(accept_language: AcceptLanguage = None) -> dict[str, str]:
    """The panel's labels."""
    words = catalogue(pick_language(accept_language))
    return {key: sentence for key, sentence in words.items() if key.startswith("panel.")}


@router.get("/runs")
async def runs(
    request: Request,
    chat: str | None = None,
    before: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    replays: bool = True,
    accept_language: AcceptLanguage = None,
) -> list[dict[str, Any]]:
    """Newest first; of one chat, or of all that are theirs."""
    lang, user = pick_language(accept_language), request_user(request)
    found = await backend().store.runs(chat, limit=limit, before=before, replays=replays, user=user)
    return [views.run_item(run, lang) for run in found]


@router.get("/runs/{run_id}")
async def run(run_id: str, accept_language: AcceptLanguage = None) -> dict[str, Any]:
    """One run with its settings, its engine as it was then, and what was found out about it since."""
    store, lang = backend().store, pick_language(accept_language)
    found = await store.run(run_id)
    if found.digest is None:
        raise ReceiptNotFound(f"Run {run_id} is still going, so it has no receipt yet.")
    document = await asyncio.to_thread(json.loads, await store.receipt_json(found.digest))
    recorded = document["receipt"]
    outcomes = all_outcomes(await _replays(run_id), await store.findings(run_id), lang)
    return {
        **views.run_view(
            found,
            GenerationRequest.model_validate(recorded["request"]),
            EngineFingerprint.model_validate(recorded["engine"]),
            recorded["completion"],
            lang,
            await asyncio.to_thread(prices, backend().settings),
        ),
        "engine_number": engines.engine_number(found.engine_url),
        "outcomes": outcomes,
        "telling_replay": telling_replay(outcomes),
    }


@router.get("/runs/{run_id}/line")
async def run_line(run_id: str, accept_language: AcceptLanguage = None) -> dict[str, Any]:
    """The quiet line under an answer, and the latest verdicts about it."""
    store, lang = backend().store, pick_language(accept_language)
    latest = [*await store.findings(run_id, kind="repeat", limit=1)]
    latest += await store.findings(run_id, kind="check", limit=1)
    run = await store.run(run_id)
    return {
        "id": run_id,
        "summary": run_summary(run, lang),
        "warning": run_warning(run.invalid_positions, lang),
        "outcomes": latest_outcomes(await _replays(run_id), latest, lang),
    }


async def _replays(run_id: str) -> list[StoredComparison]:
    return [
        stored for stored in await backend().store.comparisons(run_id) if stored.reference_run_id == run_id
    ]


@router.get("/comparisons/{comparison_id}")
async def comparison(comparison_id: str, accept_language: AcceptLanguage = None) -> dict[str, Any]:
    """Verdict, explanation and a window around the fork."""
    key = comparison_id, pick_language(accept_language)
    if key not in _comparisons:
        store = backend().store
        stored = await store.comparison(comparison_id)
        reference, candidate = await asyncio.gather(
            store.receipt_of(stored.reference_run_id), store.receipt_of(stored.candidate_run_id)
        )
        names = await _names_at_fork(stored.comparison, reference, candidate)
        view = await asyncio.to_thread(views.comparison_view, stored, reference, candidate, key[1], names)
        if len(_comparisons) >= KEPT_VIEWS:
            del _comparisons[next(iter(_comparisons))]
        _comparisons[key] = view
    return _comparisons[key]


async def _names_at_fork(comparison: Comparison, reference: Receipt, candidate: Receipt) -> dict[int, str]:
    """Texts of the alternatives at the fork, where the engine that knows them is the one running now."""
    if comparison.first_divergence is None:
        return {}
    position = comparison.first_divergence.position
    ids = {
        other.id
        for receipt in (reference, candidate)
        for token in receipt.completion.tokens[position : position + 1]
        for other in token.top
    }
    try:
        engine = backend().engine
        if (await engine.identity()).model != reference.engine.model:
            return {}
        return await engine.token_texts(sorted(ids))
    except EngineError:
        return {}


@router.get("/receipts/{digest}")
async def receipt(digest: str, download: bool = False) -> Response:
    """The receipt under a digest or the only one that begins so, as `Receipt.to_json` writes it."""
    store = backend().store
    found = (await store.run_by_digest_prefix(digest)).digest
    assert found is not None
    headers = {}
    if download:
        name = f"encore-{found.removeprefix('sha256:')[:12]}.json"
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return Response(await store.receipt_json(found), media_type="application/json", headers=headers)


@router.get("/receipts/{digest}/tokens")
async def tokens(
    digest: str, start: Annotated[int, Query(ge=0)] = 0, stop: Annotated[int | None, Query(ge=0)] = None
) -> list[dict[str, Any]]:
    """Tokens [start, stop) as the panel shows them, at most `LARGEST_WINDOW`."""
    store = backend().store
    found = (await store.run_by_digest_prefix(digest)).digest
    assert found is not None
    end = min(start + LARGEST_WINDOW, stop if stop is not None else start + LARGEST_WINDOW)
    records = _TOKENS.validate_python(await store.tokens(found, start, end))
    shown = token_window(records, 0, len(records))
    return [{**token, "position": start + token["position"]} for token in shown]


@router.get("/reports/{report_id}")
async def report(report_id: str) -> Response:
    """The report of a verification made in the chat."""
    return FileResponse(report_file(backend().settings, report_id), media_type="text/html")


@router.get("/public/elements/{title}.jsx")
async def element(title: str) -> Response:
    """An element's source. The panel exists under its title in each language and in several files."""
    if title in TITLES.values():
        parts = [part.read_text(encoding="utf-8") for part in sorted(PANEL_PARTS.glob("*.jsx"))]
        return Response("\n".join(parts), media_type="text/javascript")
    file = ROOT / "public" / "elements" / f"{Path(title).name}.jsx"
    if not file.is_file():
        return JSONResponse({"detail": f"There is no element {title}."}, 404)
    return FileResponse(file, media_type="text/javascript")

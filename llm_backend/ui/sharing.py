"""Links to single runs for people without a login: a read-only page and its receipt, and nothing else.

The token in the address is the permission. It is kept as a hash, sent to no other site, and revocable.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import HTMLResponse, Response

from llm_backend.errors import ReceiptNotFound
from llm_backend.phrases import short_digest
from llm_backend.share import shared_file, shared_page
from llm_backend.share_html import style_hash
from llm_backend.strings import pick_language
from llm_backend.ui.backend import backend

router = APIRouter()

AcceptLanguage = Annotated[str | None, Header()]


def _private() -> dict[str, str]:
    """Only the page's own style may do anything, and the address is told to nobody."""
    policy = (
        f"default-src 'none'; style-src '{style_hash()}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "X-Robots-Tag": "noindex",
    }


@router.get("/runs/{run_id}/shares")
async def shares(run_id: str) -> dict[str, int]:
    """How many links open this run."""
    return {"links": await backend().store.share_count(run_id)}


@router.post("/runs/{run_id}/shares")
async def share(run_id: str) -> dict[str, Any]:
    """A new link. Its path is told here and never again."""
    store = backend().store
    if (await store.run(run_id)).digest is None:
        raise ReceiptNotFound(f"Run {run_id} is still going, so it has no receipt yet.", "Wait for its end.")
    token = await store.share(run_id)
    return {"path": f"/shared/{token}", "links": await store.share_count(run_id)}


@router.delete("/runs/{run_id}/shares")
async def revoke(run_id: str) -> dict[str, int]:
    """Every link to this run opens nothing from now on."""
    return {"revoked": await backend().store.revoke_run(run_id), "links": 0}


@router.get("/runs/{run_id}/file")
async def file(run_id: str, accept_language: AcceptLanguage = None) -> Response:
    """The run as one HTML file with its receipt inside."""
    store = backend().store
    page = await shared_file(store, run_id, pick_language(accept_language))
    name = f"encore-{short_digest((await store.run(run_id)).digest or run_id)}.html"
    headers = {**_private(), "Content-Disposition": f'attachment; filename="{name}"'}
    return HTMLResponse(page, headers=headers)


@router.get("/shared/{token}")
async def shared(token: str, accept_language: AcceptLanguage = None) -> Response:
    """The page behind a link."""
    run_id, lang = await _shared(token), pick_language(accept_language)
    # Relative: the page may be served below a prefix.
    page = await shared_page(backend().store, run_id, lang, f"{token}/receipt")
    return HTMLResponse(page, headers=_private())


@router.get("/shared/{token}/receipt")
async def shared_receipt(token: str) -> Response:
    """The receipt of a shared run."""
    store = backend().store
    digest = (await store.run(await _shared(token))).digest
    assert digest is not None
    headers = {
        **_private(),
        "Content-Disposition": f'attachment; filename="encore-{short_digest(digest)}.json"',
    }
    return Response(await store.receipt_json(digest), media_type="application/json", headers=headers)


async def _shared(token: str) -> str:
    run_id = await backend().store.shared_run(token)
    if run_id is None:
        raise ReceiptNotFound("There is nothing here.", "The link was revoked, or is not complete.")
    return run_id

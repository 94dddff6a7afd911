"""A run as a page for others: read-only, for a link or as a file of its own."""

from __future__ import annotations

import asyncio
import base64
import gzip

from llm_backend.errors import ReceiptNotFound
from llm_backend.phrases import VerdictLine, verdict_line
from llm_backend.receipt import Receipt
from llm_backend.run import Run
from llm_backend.share_html import run_html
from llm_backend.store import Store
from llm_backend.strings import Language

MOST_VERDICTS = 20
"""Replays told on the page, the newest."""


async def shared_page(store: Store, run_id: str, lang: Language, receipt_href: str) -> str:
    """The page of a run; its receipt is behind `receipt_href`. Raises `ReceiptNotFound`."""
    run, receipt, verdicts = await _facts(store, run_id, lang)
    return await asyncio.to_thread(run_html, run, receipt, verdicts, lang, receipt_href, ".json")


async def shared_file(store: Store, run_id: str, lang: Language) -> str:
    """The page with the receipt inside it, compressed. Raises `ReceiptNotFound`."""
    run, receipt, verdicts = await _facts(store, run_id, lang)
    document = await store.receipt_json(receipt.digest)

    def render() -> str:
        packed = base64.b64encode(gzip.compress(document.encode(), mtime=0)).decode()
        href = f"data:application/gzip;base64,{packed}"
        return run_html(run, receipt, verdicts, lang, href, ".json.gz")

    return await asyncio.to_thread(render)


async def _facts(store: Store, run_id: str, lang: Language) -> tuple[Run, Receipt, list[VerdictLine]]:
    run = await store.run(run_id)
    if run.digest is None:
        raise ReceiptNotFound(f"Run {run_id} is still going, so it has no receipt yet.", "Wait for its end.")
    replays = [found for found in await store.comparisons(run_id) if found.reference_run_id == run_id]
    verdicts = [verdict_line(found.comparison, lang) for found in replays[:MOST_VERDICTS]]
    return run, await store.receipt(run.digest), verdicts

"""`encore share`: a run for others, as a link to a read-only page or as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from llm_backend.access import open_store
from llm_backend.cli.base import REPRODUCED, UNDECIDED, app, run_async, say
from llm_backend.config import load_settings
from llm_backend.engine.preflight import reachable
from llm_backend.errors import EncoreError
from llm_backend.exchange import new_file
from llm_backend.share import shared_file
from llm_backend.strings import Language


@app.command()
def share(
    run: Annotated[str, typer.Argument(metavar="RECEIPT", help="A digest or its first digits.")],
    revoke: Annotated[bool, typer.Option("--revoke", help="Make every link to it open nothing.")] = False,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the page to a file; never overwritten.")
    ] = None,
    language: Annotated[str, typer.Option("--language", help="Of the file: en or zh-CN.")] = "en",
) -> None:
    """Print a link to a read-only page of a run, or write that page as one file, its receipt inside."""
    if revoke and file is not None:
        raise EncoreError("--revoke makes no file.", "Leave one of the two out.")
    lang: Language = _language(language)
    settings = load_settings()

    async def work() -> int:
        async with open_store(settings) as store:
            found = await store.run_by_digest_prefix(run)
            assert found.digest is not None
            if revoke:
                count = await store.revoke_receipt(found.digest)
                say(f"{count} {'link' if count == 1 else 'links'} revoked.")
                return REPRODUCED if count else UNDECIDED
            if file is not None:
                page = await shared_file(store, found.id, lang)
                with new_file(file) as out:
                    out.write(page.encode())
                say(f"→ {file}")
                return REPRODUCED
            host = reachable(settings.host)
            token = await store.share(found.id)
            print(f"http://{host}:{settings.app_port}{settings.root_path}/shared/{token}")
            return REPRODUCED

    sys.exit(run_async(work()))


def _language(name: str) -> Language:
    match name:
        case "en" | "zh-CN":
            return name
    raise EncoreError(f"There is no language {name!r}.", "Take en or zh-CN.")

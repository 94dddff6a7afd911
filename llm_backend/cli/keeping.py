"""Delete what was recorded: a chat's data, or what is old."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from llm_backend.access import open_store
from llm_backend.cli.base import REPRODUCED, UNDECIDED, app, progress, run_async, say
from llm_backend.config import load_settings
from llm_backend.errors import EncoreError
from llm_backend.store import Deleted, Selection

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

_UNITS = {"d": 1, "w": 7, "y": 365}
_AGE = re.compile(r"([1-9][0-9]{0,4})([dwy])")


@app.command()
def forget(
    chat: Annotated[str, typer.Argument(metavar="CHAT", help="Id of the chat, as encore list shows it.")],
    yes: YesOption = False,
) -> None:
    """Delete a chat's runs, their replays wherever they were made, and every receipt nobody else shares."""
    _delete(Selection(chat_id=chat), f"of the chat {chat}", yes)


@app.command()
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Days, weeks or years: 90d, 12w, 1y.")
    ],
    yes: YesOption = False,
) -> None:
    """Delete runs older than AGE, their replays, and every receipt no younger run shares."""
    match = _AGE.fullmatch(older_than)
    if match is None:
        raise EncoreError(f"{older_than!r} is no age.", "Write a number and d, w or y, such as 90d.")
    before = datetime.now(UTC) - timedelta(days=int(match[1]) * _UNITS[match[2]])
    _delete(Selection(before=before), f"from before {before:%Y-%m-%d %H:%M} UTC", yes)


def _delete(selection: Selection, which: str, yes: bool) -> None:
    settings = load_settings()

    async def count() -> int:
        async with open_store(settings) as store:
            return await store.count(selection)

    async def work() -> Deleted:
        async with open_store(settings) as store:
            with progress.status("deleting") as status:
                return await store.delete(
                    selection, lambda done: status.update(f"deleting: {done.runs:,} of about {found:,} runs")
                )

    found = run_async(count())
    if found == 0:
        print(f"No run {which} is stored; nothing was deleted.")
        sys.exit(REPRODUCED)
    say(f"{_runs(found)} {which} will be deleted for good, with their replays and receipts.")
    if not yes and not _confirmed():
        say("Nothing was deleted.")
        sys.exit(UNDECIDED)
    deleted = run_async(work())
    kept = f"; {deleted.kept_receipts:,} kept, other runs share them" if deleted.kept_receipts else ""
    print(
        f"Deleted {_runs(deleted.runs)}, {_count(deleted.receipts, 'receipt')}{kept}, "
        f"{_count(deleted.comparisons, 'comparison')} and {_count(deleted.findings, 'finding')}."
    )


def _runs(number: int) -> str:
    return _count(number, "run")


def _count(number: int, of: str) -> str:
    return f"{number:,} {of if number == 1 else of + 's'}"


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise EncoreError("Nobody is there to confirm.", "Say --yes to delete without asking.")
    say("Type yes to go on:")
    return sys.stdin.readline().strip().lower() == "yes"

"""Fork a recorded answer at a token: take another one and let the model go on."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_backend import fork_phrases as phrases
from llm_backend.access import find_receipt, find_run, open_calibrations, open_engine, open_store
from llm_backend.answer_judge import AnswerJudge
from llm_backend.cli.base import (
    CLI_CHAT,
    EngineOption,
    Format,
    FormatOption,
    ReceiptArgument,
    app,
    progress,
    rendered,
    run_async,
    terminal_language,
)
from llm_backend.config import Settings, load_settings
from llm_backend.fork import Take, parse_take
from llm_backend.fork_run import fork as fork_run
from llm_backend.fork_run import fork_answers, threshold_of
from llm_backend.layout import columns, markdown_table, strict_json
from llm_backend.phrases import short_digest
from llm_backend.strings import text

MOST_CALLS = 10
"""Positions listed where none is given."""

REPORTS = {
    Format.TEXT: phrases.fork_text,
    Format.JSON: phrases.fork_json,
    Format.MARKDOWN: phrases.fork_markdown,
}


@app.command()
def fork(
    receipt: ReceiptArgument,
    at: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Position of the token, 0-based; without it: the closest calls."
        ),
    ] = None,
    take: Annotated[
        str | None,
        typer.Option(
            metavar="RANK|id:ID",
            help="Which token: 1 is the most likely, id:1234 one by id; else the likeliest not generated.",
        ),
    ] = None,
    engine: EngineOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Take another token at a position, let the model go on from there, and compare the answers."""
    settings = load_settings()
    if at is None:
        run_async(_list_close_calls(settings, receipt, format))
    else:
        run_async(_fork(settings, receipt, at, None if take is None else parse_take(take), engine, format))


async def _list_close_calls(settings: Settings, name: str, format: Format) -> None:
    recorded = await find_receipt(settings, name)
    threshold = threshold_of(open_calibrations(settings), recorded.engine)
    calls = phrases.close_calls_report(recorded, threshold, MOST_CALLS)
    if format is Format.JSON:
        print(strict_json(calls))
        return
    lang = terminal_language()
    rows = phrases.close_calls_rows(calls, lang)
    heading = text("fork.close.heading", lang, total=len(recorded.completion.tokens))
    how = text("fork.close.how", lang, digest=short_digest(recorded.digest))
    if not rows:
        print(text("fork.close.none", lang))
    elif format is Format.MARKDOWN:
        print("\n".join([heading, "", markdown_table([("", "", "", ""), *rows]), "", how]))
    else:
        print("\n".join([heading, *(f"  {line}" for line in columns(rows)), how]))


async def _fork(
    settings: Settings, name: str, position: int, take: Take | None, url: str | None, format: Format
) -> None:
    async with open_store(settings) as store, open_engine(settings, url) as client:
        parent = await find_run(store, name)
        with progress.status("forking") as status:

            def show(done: int, room: int) -> None:
                status.update(text("fork.progress", terminal_language(), done=done, room=room))

            result = await fork_run(client, store, parent, position, take, chat_id=CLI_CHAT, on_tokens=show)
        names = await client.token_texts(sorted({result.point.recorded.id, result.point.taken.id}))
    async with AnswerJudge() as judge:
        pair = await fork_answers(judge, result)
    threshold = threshold_of(open_calibrations(settings), result.parent.engine)
    said = result.parent, result.receipt, result.point, threshold, names, pair
    print(rendered(REPORTS, format, *said))

"""Ask, and look at what was recorded."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llm_backend import render
from llm_backend.access import find_receipt, open_engine, open_store
from llm_backend.cli.base import (
    CLI_CHAT,
    EngineOption,
    Format,
    FormatOption,
    Level,
    LevelOption,
    ReceiptArgument,
    app,
    exit_code,
    print_comparison,
    run_async,
    say,
)
from llm_backend.compare import compare
from llm_backend.config import Settings, load_settings
from llm_backend.diagnose import diagnose
from llm_backend.receipt import Message, Receipt, Sampling
from llm_backend.record import build_request, record
from llm_backend.sampling import parse_sampling
from llm_backend.store import Run


@app.command()
def ask(
    prompt: Annotated[str, typer.Argument(help="The question; - reads it from standard input.")],
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    seed: Annotated[str | None, typer.Option(help="Integer, 64 bits, not -1.")] = None,
    temperature: Annotated[str | None, typer.Option(help="0 (greedy) to 2.")] = None,
    top_p: Annotated[str | None, typer.Option(help="Above 0, up to 1.")] = None,
    top_k: Annotated[str | None, typer.Option(help="0 (off) or more.")] = None,
    min_p: Annotated[str | None, typer.Option(help="0 to 1.")] = None,
    max_tokens: Annotated[str | None, typer.Option(help="1 or more.")] = None,
    top_logprobs: Annotated[
        str | None, typer.Option(help="Alternatives recorded per token, 0 to 20.")
    ] = None,
    engine: EngineOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Ask once, print the answer as it comes, keep the receipt."""
    settings = load_settings()
    given = {
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "max_tokens": max_tokens,
        "top_logprobs": top_logprobs,
    }
    sampling = parse_sampling(
        {name: value for name, value in given.items() if value is not None}, Sampling(seed=settings.seed)
    )
    question = sys.stdin.read() if prompt == "-" else prompt
    messages = [Message(role="user", content=question)]
    if system:
        messages.insert(0, Message(role="system", content=system))
    run_async(_ask(settings, engine, messages, sampling, format))


async def _ask(
    settings: Settings, url: str | None, messages: list[Message], sampling: Sampling, format: Format
) -> None:
    async with open_store(settings) as store, open_engine(settings, url) as client:
        identity = await client.identity()
        recording = record(client, store, build_request(identity.model, messages, sampling), chat_id=CLI_CHAT)
        try:
            async with recording:
                async for delta in recording:
                    if format is Format.TEXT:
                        print(delta.text, end="", flush=True)
        finally:
            if format is Format.TEXT:
                print()
            if recording.run is not None:
                say(render.run_line(recording.run))
        assert recording.receipt is not None
        if format is Format.JSON:
            print(recording.receipt.to_json())
        elif format is Format.MARKDOWN:
            print(render.receipt_markdown(recording.receipt, recording.run))


@app.command("compare")
def compare_receipts(
    reference: ReceiptArgument,
    candidate: ReceiptArgument,
    level: LevelOption = Level.LOGPROBS,
    format: FormatOption = Format.TEXT,
) -> None:
    """Compare two receipts that are already recorded."""

    async def work() -> tuple[Receipt, Receipt]:
        settings = load_settings()
        return await find_receipt(settings, reference), await find_receipt(settings, candidate)

    recorded, other = run_async(work())
    comparison = compare(recorded, other)
    print_comparison(comparison, diagnose(comparison, recorded, other, neighbours=None), format)
    sys.exit(exit_code([comparison], level))


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, newest first.")] = 20,
    format: FormatOption = Format.TEXT,
) -> None:
    """List recorded runs, newest first."""

    async def work() -> list[Run]:
        async with open_store(load_settings()) as store:
            return await store.runs(limit=limit)

    runs = run_async(work())
    if format is Format.JSON:
        print(render.runs_json(runs))
    elif format is Format.MARKDOWN:
        print(render.runs_markdown(runs))
    else:
        print(render.runs_text(runs))


@app.command()
def show(receipt: ReceiptArgument, format: FormatOption = Format.TEXT) -> None:
    """Show one receipt: settings as sent and effective, engine, answer."""
    recorded = run_async(find_receipt(load_settings(), receipt))
    if format is Format.JSON:
        print(recorded.to_json())
    elif format is Format.MARKDOWN:
        print(render.receipt_markdown(recorded))
    else:
        print(render.receipt_text(recorded))

"""Ask, and look at what was recorded."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import typer

from llm_backend import render
from llm_backend.access import find_receipt, open_engine, open_store, receipt_file
from llm_backend.answer_judge import AnswerJudge, answers_after_fork, check_receipt_answer
from llm_backend.answer_phrases import answer_line
from llm_backend.answers import AnswerPair, read_expected
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
    terminal_language,
)
from llm_backend.compare import Comparison, Verdict, compare
from llm_backend.config import Settings, load_settings
from llm_backend.diagnose import diagnose
from llm_backend.distributions import measure_distributions
from llm_backend.phrases import run_warning
from llm_backend.proof import Proof, tally_proof
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
    expect: Annotated[str, typer.Option(help="The right answer, kept beside the run.")] = "",
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
    run_async(_ask(settings, engine, messages, sampling, format, read_expected(expect)))


async def _ask(
    settings: Settings,
    url: str | None,
    messages: list[Message],
    sampling: Sampling,
    format: Format,
    expected: str | None,
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
                lang = terminal_language()
                say(render.run_line(recording.run, lang))
                if warning := run_warning(recording.run.invalid_positions, lang):
                    say(warning)
        assert recording.run is not None
        assert recording.receipt is not None
        if expected is not None:
            await store.expect(recording.run.id, expected)
        if line := await _answer_line(recording.receipt, expected):
            say(line)
        if format is Format.JSON:
            print(recording.receipt.to_json())
        elif format is Format.MARKDOWN:
            print(render.receipt_markdown(recording.receipt, recording.run, terminal_language()))


async def _answer_line(receipt: Receipt, expected: str | None) -> str:
    """Empty where nothing was expected and nothing is in a box: most questions are no exercises."""
    async with AnswerJudge() as judge:
        check = await check_receipt_answer(judge, receipt, typed=expected)
    return answer_line(check, terminal_language()) if check.answer is not None or check.source else ""


@app.command("compare")
def compare_receipts(
    reference: ReceiptArgument,
    candidate: ReceiptArgument,
    level: LevelOption = Level.LOGPROBS,
    format: FormatOption = Format.TEXT,
) -> None:
    """Compare two receipts that are already recorded."""

    async def work() -> tuple[Receipt, Receipt, Comparison, AnswerPair | None]:
        settings = load_settings()
        recorded, other = await find_receipt(settings, reference), await find_receipt(settings, candidate)
        comparison = compare(recorded, other)
        async with AnswerJudge() as judge:
            answers = await answers_after_fork(judge, comparison, recorded, other)
        return recorded, other, comparison, answers

    recorded, other, comparison, answers = run_async(work())
    diagnosis = diagnose(comparison, recorded, other, neighbours=None)
    distributions = measure_distributions(recorded, other, comparison)
    print_comparison(comparison, diagnosis, format, distributions, answers)
    sys.exit(exit_code([comparison], level))


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, newest first.")] = 20,
    search: Annotated[str, typer.Option(help="Words of the question.")] = "",
    verdict: Annotated[
        Verdict | None, typer.Option(case_sensitive=False, help="Replays with this verdict.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Runs of one model, by its full name.")] = None,
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="Of one day (UTC).")
    ] = None,
    chat: Annotated[str | None, typer.Option(metavar="ID", help="Of one chat.")] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """List recorded runs, newest first."""

    async def work() -> list[Run]:
        async with open_store(load_settings()) as store:
            return await store.runs(
                chat,
                limit=limit,
                search=search,
                verdict=verdict and verdict.value,
                model=model,
                day=day and day.date(),
            )

    runs = run_async(work())
    if format is Format.JSON:
        print(render.runs_json(runs))
    elif format is Format.MARKDOWN:
        print(render.runs_markdown(runs, terminal_language()))
    else:
        print(render.runs_text(runs, terminal_language()))


@app.command()
def show(receipt: ReceiptArgument, format: FormatOption = Format.TEXT) -> None:
    """Show one receipt: settings as sent and effective, engine, answer, and what has been proven for it."""
    recorded, proof, expected = run_async(_with_proof(load_settings(), receipt))
    if format is Format.JSON:
        print(recorded.to_json())
    elif format is Format.MARKDOWN:
        print(render.receipt_markdown(recorded, lang=terminal_language(), proof=proof))
    else:
        print(render.receipt_text(recorded, lang=terminal_language(), proof=proof))
        if line := run_async(_answer_line(recorded, expected)):
            print(f"\n{line}")


async def _with_proof(settings: Settings, name: str) -> tuple[Receipt, Proof | None, str | None]:
    """The receipt, what is proven and what answer is expected.

    A file is shown without looking into any database, so neither is known for it.
    """
    if (recorded := receipt_file(name)) is not None:
        return recorded, None, None
    async with open_store(settings) as store:
        run = await store.run_by_digest_prefix(name)
        proof = tally_proof(run, await store.seen(run))
        return await store.receipt_of(run.id), proof, run.expected_answer

"""`encore`: the chat's main job from a terminal.

The report goes to stdout, progress to stderr, and the exit code says the verdict as diff(1) would:
0 reproduced, 1 not reproduced, 2 undecided (bad usage, engine away, incomparable). Commands parse,
call a use case, render its result and exit; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import typer
from rich.console import Console

from llm_backend import __version__, render
from llm_backend.access import find_receipt, find_run, open_engine, open_store
from llm_backend.check import Calibrations
from llm_backend.check import check as check_receipt
from llm_backend.compare import Comparison, Verdict, compare
from llm_backend.config import Settings, load_settings
from llm_backend.diagnose import Diagnosis, diagnose
from llm_backend.doctor import examine
from llm_backend.errors import EncoreError
from llm_backend.load import parse_neighbours
from llm_backend.receipt import Message, Receipt, Sampling
from llm_backend.record import build_request, record
from llm_backend.repeat import Repetition
from llm_backend.repeat_phrases import progress_line
from llm_backend.replay import replay as replay_run
from llm_backend.sampling import parse_sampling
from llm_backend.scoring import Check, CheckVerdict
from llm_backend.store import Run
from llm_backend.tally import Shape

REPRODUCED, NOT_REPRODUCED, UNDECIDED = 0, 1, 2

CLI_CHAT = "cli"
"""Runs asked from a terminal belong to this chat in `encore list` and the panel."""

app = typer.Typer(
    name="encore",
    help="Ask, keep the receipt, replay it and see whether the same tokens come back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
progress = Console(stderr=True)
T = TypeVar("T")


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class Level(StrEnum):
    TOKENS = "tokens"
    LOGPROBS = "logprobs"


REPEATS = {
    Format.TEXT: render.repeats_text,
    Format.JSON: render.repeats_json,
    Format.MARKDOWN: render.repeats_markdown,
}

FormatOption = Annotated[Format, typer.Option("--format", help="How to print the report.")]
LevelOption = Annotated[
    Level, typer.Option(help="What must be equal to count as reproduced: the tokens, or their logprobs too.")
]
EngineOption = Annotated[
    str | None, typer.Option("--engine", metavar="URL", help="An engine other than the configured one.")
]
ReceiptArgument = Annotated[
    str, typer.Argument(metavar="RECEIPT", help="A digest or its first digits, or a receipt file.")
]


def main(argv: list[str] | None = None) -> None:
    """Entry point: one place where an Encore error becomes a sentence and an exit code."""
    try:
        app(argv, prog_name="encore")
    except EncoreError as error:
        fail(error)


def say(line: str) -> None:
    """One line on stderr, never wrapped: people grep it."""
    progress.print(line, highlight=False, markup=False, soft_wrap=True)


def fail(error: EncoreError) -> NoReturn:
    say(error.diagnostics())
    sys.exit(UNDECIDED)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        # What was recorded so far is stored by the cancelled task itself.
        say("Stopped.")
        sys.exit(130)


def exit_code(comparisons: list[Comparison], level: Level) -> int:
    """2 if any pair could not be compared, 1 if any differs at `level`, else 0."""
    verdicts = {comparison.verdict for comparison in comparisons}
    if Verdict.INCOMPARABLE in verdicts:
        return UNDECIDED
    different = {Verdict.DIVERGED} | ({Verdict.DRIFTED} if level is Level.LOGPROBS else set())
    return NOT_REPRODUCED if verdicts & different else REPRODUCED


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


@app.command()
def replay(
    receipt: ReceiptArgument,
    times: Annotated[int, typer.Option(min=1, max=1000, help="How often, one after the other.")] = 1,
    neighbours: Annotated[
        str | None,
        typer.Option(metavar="K[,K2,…]", help="Other requests kept in flight meanwhile; several: a sweep."),
    ] = None,
    shape: Annotated[Shape, typer.Option(help="What the neighbours ask.")] = Shape.MIXED,
    engine: EngineOption = None,
    level: LevelOption = Level.LOGPROBS,
    format: FormatOption = Format.TEXT,
) -> None:
    """Send the recorded request again and compare, token by token."""
    settings = load_settings()
    if times == 1 and neighbours is None:
        comparisons = [run_async(_replay(settings, receipt, engine, format))]
    else:
        counts = parse_neighbours(neighbours or "0")
        comparisons = run_async(_repeat(settings, receipt, times, counts, shape, engine, format))
    sys.exit(exit_code(comparisons, level))


async def _replay(settings: Settings, name: str, url: str | None, format: Format) -> Comparison:
    async with open_store(settings) as store, open_engine(settings, url) as client:
        reference = await find_run(store, name)
        with progress.status("replaying") as status:

            def show(done: int, recorded: int) -> None:
                status.update(f"replay: {done} of {recorded} tokens")

            result = await replay_run(client, store, reference, chat_id=CLI_CHAT, on_tokens=show)
        print_comparison(result.comparison, result.diagnosis, format)
    return result.comparison


async def _repeat(
    settings: Settings,
    name: str,
    times: int,
    counts: tuple[int, ...],
    shape: Shape,
    url: str | None,
    format: Format,
) -> list[Comparison]:
    async with open_store(settings) as store, open_engine(settings, url) as client:
        reference = await find_run(store, name)
        with progress.status("replaying") as status:
            repetition = Repetition(
                client,
                store,
                reference,
                times=times,
                counts=counts,
                shape=shape,
                chat_id=CLI_CHAT,
                on_progress=lambda now: status.update(progress_line(now)),
            )
            try:
                await repetition.run()
            finally:
                # Stopped or broken off, what was measured until then is still the result.
                if repetition.report.steps:
                    status.stop()
                    print(REPEATS[format](repetition.report))
    return repetition.report.comparisons


@app.command()
def check(receipt: ReceiptArgument, engine: EngineOption = None, format: FormatOption = Format.TEXT) -> None:
    """Ask the engine for its probabilities of a recorded answer, in a fraction of a replay's time."""
    result = run_async(_check(load_settings(), receipt, engine))
    report = {
        Format.TEXT: render.check_text,
        Format.JSON: render.check_json,
        Format.MARKDOWN: render.check_markdown,
    }
    print(report[format](result))
    if result.verdict is CheckVerdict.UNCHECKABLE:
        sys.exit(UNDECIDED)
    sys.exit(REPRODUCED if result.passed else NOT_REPRODUCED)


async def _check(settings: Settings, name: str, url: str | None) -> Check:
    recorded = await find_receipt(settings, name)
    calibrations = Calibrations(settings.data_dir / "calibrations.json")
    async with open_engine(settings, url) as client:
        with progress.status("checking") as status:

            def show(stage: Literal["check", "calibrate"], done: int, total: int) -> None:
                doing = "checking" if stage == "check" else "measuring this engine's tolerance, once"
                status.update(f"{doing}: {done} of {total} tokens")

            return await check_receipt(client, recorded, calibrations, on_progress=show)


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


def print_comparison(comparison: Comparison, diagnosis: Diagnosis, format: Format) -> None:
    if format is Format.JSON:
        print(render.comparison_json(comparison, diagnosis))
    elif format is Format.MARKDOWN:
        print(render.comparison_markdown(comparison, diagnosis))
    else:
        print(render.comparison_text(comparison, diagnosis))


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


@app.command()
def export(
    receipt: ReceiptArgument,
    output: Annotated[Path, typer.Argument(help="File to write; refuses to overwrite.")],
) -> None:
    """Write a receipt to a file that `replay`, `show` and `compare` accept anywhere."""
    recorded = run_async(find_receipt(load_settings(), receipt))
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(recorded.to_json() + "\n")
    except FileExistsError:
        raise EncoreError(f"{output} exists already.", "Choose another name.") from None
    except OSError as error:
        raise EncoreError(f"{output} cannot be written: {error.strerror}.") from None
    say(f"{recorded.digest} → {output}")


@app.command()
def doctor(engine: EngineOption = None, format: FormatOption = Format.TEXT) -> None:
    """Say what is installed, what runs, with which flags and why."""
    settings = load_settings()

    async def work() -> tuple[str, bool]:
        async with open_engine(settings, engine) as client:
            report = await examine(settings, client)
            return (report.to_json() if format is Format.JSON else report.to_text()), report.ready

    report, ready = run_async(work())
    print(report)
    sys.exit(REPRODUCED if ready else UNDECIDED)


@app.command()
def version() -> None:
    """Print Encore's version."""
    print(__version__)

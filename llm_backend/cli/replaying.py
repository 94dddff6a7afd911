"""Run a receipt again, or have the engine score it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from llm_backend import render
from llm_backend.access import find_run, open_calibrations, open_engine, open_store, receipt_file
from llm_backend.answer_judge import AnswerJudge, answers_after_fork
from llm_backend.batch import LOG_SUFFIX
from llm_backend.check import check as check_receipt
from llm_backend.cli.base import (
    CLI_CHAT,
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    EngineOption,
    Format,
    FormatOption,
    Level,
    LevelOption,
    ReceiptArgument,
    app,
    exit_code,
    print_comparison,
    progress,
    rendered,
    run_async,
    terminal_language,
)
from llm_backend.cli.batching import replay_file
from llm_backend.compare import Comparison
from llm_backend.config import Settings, load_settings
from llm_backend.distributions import measure_distributions
from llm_backend.errors import EncoreError
from llm_backend.load import parse_neighbours
from llm_backend.receipt import Receipt
from llm_backend.repeat import Repetition
from llm_backend.repeat_phrases import progress_line
from llm_backend.replay import replay as replay_run
from llm_backend.scoring import Check, CheckVerdict
from llm_backend.tally import Shape

REPEATS = {
    Format.TEXT: render.repeats_text,
    Format.JSON: render.repeats_json,
    Format.MARKDOWN: render.repeats_markdown,
}


@app.command()
def replay(
    receipt: Annotated[
        str | None,
        typer.Argument(metavar="[RECEIPT]", help="A digest or its first digits, or a receipt file."),
    ] = None,
    times: Annotated[int, typer.Option(min=1, max=1000, help="How often, one after the other.")] = 1,
    neighbours: Annotated[
        str | None,
        typer.Option(metavar="K[,K2,…]", help="Other requests kept in flight meanwhile; several: a sweep."),
    ] = None,
    shape: Annotated[Shape, typer.Option(help="What the neighbours ask.")] = Shape.MIXED,
    engine: EngineOption = None,
    level: LevelOption = Level.LOGPROBS,
    format: FormatOption = Format.TEXT,
    file: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Replay every receipt of an exported file; resumable."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="With --from: replays at a time, each other's load.")
    ] = 1,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"With --from: what is done so far; FILE{LOG_SUFFIX} unless given."
        ),
    ] = None,
) -> None:
    """Send the recorded request again and compare, token by token."""
    if (receipt is None) == (file is None):
        raise EncoreError("What shall be replayed?", "Name one receipt, or a file of many with --from.")
    if file is not None:
        if times != 1 or neighbours is not None:
            raise EncoreError(
                "--times and --neighbours repeat one receipt.", "With --from, use --concurrency for load."
            )
        sys.exit(replay_file(file, log, concurrency, engine, level, format))
    if concurrency != 1 or log is not None:
        raise EncoreError(
            "--concurrency and --log are for many receipts.",
            "Use them with --from, or --neighbours for load.",
        )
    assert receipt is not None
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

            result = await replay_run(
                client,
                store,
                reference,
                chat_id=CLI_CHAT,
                on_tokens=show,
                calibrations=open_calibrations(settings),
            )
        recorded, replayed = await store.receipt_of(reference.id), await store.receipt_of(result.run.id)
    async with AnswerJudge() as judge:
        answers = await answers_after_fork(judge, result.comparison, recorded, replayed)
    distributions = measure_distributions(recorded, replayed, result.comparison)
    print_comparison(result.comparison, result.diagnosis, format, distributions, answers)
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
                on_progress=lambda now: status.update(progress_line(now, terminal_language())),
                calibrations=open_calibrations(settings),
            )
            try:
                await repetition.run()
            finally:
                # Stopped or broken off, what was measured until then is still the result.
                if repetition.report.steps:
                    status.stop()
                    print(rendered(REPEATS, format, repetition.report))
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
    print(rendered(report, format, result))
    if result.verdict is CheckVerdict.UNCHECKABLE:
        sys.exit(UNDECIDED)
    sys.exit(REPRODUCED if result.passed else NOT_REPRODUCED)


async def _check(settings: Settings, name: str, url: str | None) -> Check:
    """A receipt file is checked without the store; for a stored run, its panel shows the result too."""
    if (recorded := receipt_file(name)) is not None:
        return await _check_receipt(settings, recorded, url)
    async with open_store(settings) as store:
        run = await store.run_by_digest_prefix(name)
        result = await _check_receipt(settings, await store.receipt_of(run.id), url)
        await store.add_finding(run.id, result)
    return result


async def _check_receipt(settings: Settings, recorded: Receipt, url: str | None) -> Check:
    calibrations = open_calibrations(settings)
    async with open_engine(settings, url) as client:
        with progress.status("checking") as status:

            def show(stage: Literal["check", "calibrate"], done: int, total: int) -> None:
                doing = "checking" if stage == "check" else "measuring this engine's tolerance, once"
                status.update(f"{doing}: {done} of {total} tokens")

            return await check_receipt(client, recorded, calibrations, on_progress=show)

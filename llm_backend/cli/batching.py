"""`encore replay --from FILE`: every receipt of a file, resumable, with one summary."""

from __future__ import annotations

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from llm_backend.access import open_calibrations, open_engine, open_store
from llm_backend.batch import LOG_SUFFIX, BatchReplay, BatchReport
from llm_backend.batch_phrases import batch_json, batch_markdown, batch_text
from llm_backend.cli.base import (
    CLI_CHAT,
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    Format,
    Level,
    progress,
    rendered,
    run_async,
)
from llm_backend.compare import Verdict
from llm_backend.config import load_settings

_REPORTS = {Format.TEXT: batch_text, Format.JSON: batch_json, Format.MARKDOWN: batch_markdown}


def replay_file(
    file: Path, log: Path | None, concurrency: int, url: str | None, level: Level, format: Format
) -> int:
    """Replay what the log does not have yet, print the summary, return the exit code."""
    return _exit_code(run_async(_replay_file(file, log, concurrency, url, format)), level)


async def _replay_file(
    file: Path, log: Path | None, concurrency: int, url: str | None, format: Format
) -> BatchReport:
    settings = load_settings()
    columns = TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    async with open_store(settings) as store, open_engine(settings, url) as client:
        with Progress(*columns, console=progress, transient=True) as bar:
            task = bar.add_task("replaying", total=None)
            batch = BatchReplay(
                client,
                store,
                file,
                log or file.with_name(file.name + LOG_SUFFIX),
                concurrency=concurrency,
                chat_id=CLI_CHAT,
                calibrations=open_calibrations(settings),
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
            try:
                await batch.run()
            finally:
                # Stopped or broken off, what was replayed until then is still the result.
                bar.stop()
                if batch.report().receipts:
                    print(rendered(_REPORTS, format, batch.report()))
    return batch.report()


def _exit_code(report: BatchReport, level: Level) -> int:
    """2 if anything could not be read, replayed or compared, 1 if any differs at `level`, else 0."""
    verdicts = report.verdicts
    if report.failed or report.refused or report.left or verdicts[Verdict.INCOMPARABLE]:
        return UNDECIDED
    drifted = verdicts[Verdict.DRIFTED] if level is Level.LOGPROBS else 0
    return NOT_REPRODUCED if verdicts[Verdict.DIVERGED] + drifted else REPRODUCED

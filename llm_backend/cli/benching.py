"""What each profile and flag costs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from llm_backend.bench import BenchPlan, BenchProgress, Session, keep
from llm_backend.cli.base import (
    REPRODUCED,
    UNDECIDED,
    Format,
    FormatOption,
    app,
    progress,
    rendered,
    run_async,
    say,
    terminal_language,
)
from llm_backend.config import Settings, load_settings
from llm_backend.engine.profiles import Profile
from llm_backend.errors import SettingsError
from llm_backend.load import parse_neighbours
from llm_backend.price import BASELINE, Bench
from llm_backend.price_phrases import bench_json, bench_markdown, bench_progress, bench_text

REPORTS = {Format.TEXT: bench_text, Format.JSON: bench_json, Format.MARKDOWN: bench_markdown}

NONE = "none"


@app.command()
def bench(
    profiles: Annotated[
        str, typer.Option(metavar="P[,P2]", help="Profiles to measure; fast is always, as the baseline.")
    ] = "fast,strict",
    flags: Annotated[
        str | None,
        typer.Option(metavar="F[,F2,…]", help="Single flags to measure, or none; else this device's list."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=2, max=2048, show_default="32 on a CPU, 256 on a GPU", help="Of each answer."),
    ] = None,
    times: Annotated[int, typer.Option(min=1, max=100, help="Measurements of each figure.")] = 3,
    neighbours: Annotated[
        str | None,
        typer.Option(
            metavar="K[,K2,…]",
            show_default="8 on a CPU, 8,32 on a GPU",
            help="Other requests in flight besides alone.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write the report to; refuses to overwrite.")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Start each profile and flag in turn, measure speed, waiting, memory and start, and keep the result."""
    settings = load_settings()
    plan = BenchPlan(
        profiles=_profiles(profiles),
        flags=None if flags is None else tuple(_names(flags) if flags != NONE else ()),
        tokens=tokens,
        times=times,
        neighbours=None if neighbours is None else _loads(neighbours),
    )
    if output is not None and output.exists():
        raise SettingsError(f"{output} exists already.", "Choose another name.")
    result = run_async(_bench(settings, plan, format, output))
    sys.exit(REPRODUCED if any(row.samples for row in result.engines) else UNDECIDED)


async def _bench(settings: Settings, plan: BenchPlan, format: Format, output: Path | None) -> Bench:
    with progress.status("starting") as status:

        def show(now: BenchProgress) -> None:
            line = bench_progress(
                name=now.name,
                number=now.number,
                engines=now.engines,
                round_=now.round,
                rounds=now.rounds,
                left=now.seconds_left,
                lang=terminal_language(),
            )
            status.update(line)

        session = Session(settings, plan, on_progress=show, say=say)
        try:
            await session.run()
        finally:
            # Stopped, what was measured until then is still the result.
            report = session.report
            if report.engines:
                status.stop()
                _write(rendered(REPORTS, format, report), output)
            if any(row.samples for row in report.engines) and not keep(settings, report):
                say("Not kept: the complete session that was measured here earlier stays.")
    return report


def _write(report: str, output: Path | None) -> None:
    if output is None:
        print(report)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(report + "\n")
    except OSError as error:
        print(report)
        say(f"{output} cannot be written: {error.strerror}. The report is above.")
        return
    say(f"Written: {output}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _profiles(text: str) -> tuple[Profile, ...]:
    names = _names(text)
    known: tuple[Profile, ...] = get_args(Profile)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(
            f"--profiles {text!r} names {unknown[0]!r}, which is none.", f"There are {' and '.join(known)}."
        )
    return (BASELINE, *(profile for profile in known if profile in names and profile != BASELINE))


def _loads(text: str) -> tuple[int, ...]:
    """Alone is always measured, so 0 adds nothing."""
    return tuple(sorted(set(parse_neighbours(text)) - {0}))

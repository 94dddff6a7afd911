"""What flips a recorded result: one thing changed at a time."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llm_backend.access import find_run, open_engine, open_store
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
    progress,
    rendered,
    run_async,
    say,
    terminal_language,
)
from llm_backend.config import Settings, load_settings
from llm_backend.errors import SettingsError
from llm_backend.isolate import Climb, Plan
from llm_backend.isolate_phrases import (
    isolate_progress,
    isolation_json,
    isolation_markdown,
    isolation_text,
)
from llm_backend.ladder import LIVE, OWN, Isolation, Rung
from llm_backend.load import MOST_NEIGHBOURS
from llm_backend.tally import Shape

REPORTS = {
    Format.TEXT: isolation_text,
    Format.JSON: isolation_json,
    Format.MARKDOWN: isolation_markdown,
}

EXIT_CODES = {"flipped": NOT_REPRODUCED, "not_flipped": REPRODUCED, "undecided": UNDECIDED}


@app.command()
def isolate(
    receipt: ReceiptArgument,
    times: Annotated[int, typer.Option(min=2, max=1000, help="Replays of each rung.")] = 3,
    own: Annotated[
        bool, typer.Option("--own", help="Also start engines of Encore's own, each with one thing changed.")
    ] = False,
    rungs: Annotated[
        str | None,
        typer.Option(metavar="RUNG[,RUNG2,…]", help=f"Only these: {', '.join(rung.value for rung in Rung)}."),
    ] = None,
    go_on: Annotated[bool, typer.Option("--all", help="Go on after the first that flips it.")] = False,
    neighbours: Annotated[
        int, typer.Option(min=1, max=MOST_NEIGHBOURS, metavar="K", help="Other requests of the loaded rung.")
    ] = 8,
    shape: Annotated[Shape, typer.Option(help="What the neighbours ask.")] = Shape.MIXED,
    engine: EngineOption = None,
    level: LevelOption = Level.LOGPROBS,
    format: FormatOption = Format.TEXT,
) -> None:
    """Change one thing at a time until the result flips; exit code 1 then, 0 if nothing did, 2 undecided."""
    plan = Plan(
        rungs=parse_rungs(rungs, own=own),
        times=times,
        level="tokens" if level is Level.TOKENS else "logprobs",
        go_on=go_on,
        neighbours=neighbours,
        shape=shape,
        patient=rungs is not None,
    )
    report = run_async(_isolate(load_settings(), receipt, plan, engine, format))
    sys.exit(EXIT_CODES[report.outcome])


def parse_rungs(names: str | None, *, own: bool) -> tuple[Rung, ...]:
    """The named rungs in the ladder's order, each with its baseline; without names, all there are."""
    if names is None:
        return (*LIVE, *OWN) if own else LIVE
    asked = {name.strip() for name in names.split(",")}
    unknown = sorted(asked - {rung.value for rung in Rung})
    if unknown:
        raise SettingsError(
            f"--rungs {names!r} names {', '.join(unknown)!r}, which is no rung.",
            f"There are {', '.join(rung.value for rung in Rung)}.",
        )
    chosen = {Rung(name) for name in asked}
    baselines = {Rung.ALONE} | ({Rung.RESTART} if chosen & set(OWN) else set())
    return tuple(rung for rung in Rung if rung in chosen | baselines)


async def _isolate(settings: Settings, name: str, plan: Plan, url: str | None, format: Format) -> Isolation:
    async with open_store(settings) as store, open_engine(settings, url) as client:
        reference = await find_run(store, name)
        with progress.status("isolating") as status:
            climb = Climb(
                settings,
                client,
                store,
                reference,
                plan,
                chat_id=CLI_CHAT,
                on_progress=lambda now: status.update(isolate_progress(now, terminal_language())),
                say=say,
            )
            try:
                await climb.run()
            finally:
                # Stopped or broken off, what was measured until then is still the result.
                if climb.report.tried:
                    status.stop()
                    print(rendered(REPORTS, format, climb.report))
    return climb.report

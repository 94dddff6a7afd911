"""What is installed and what runs."""

from __future__ import annotations

import sys

from llm_backend import __version__
from llm_backend.access import open_engine
from llm_backend.cli.base import REPRODUCED, UNDECIDED, EngineOption, Format, FormatOption, app, run_async
from llm_backend.config import load_settings
from llm_backend.doctor import examine


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

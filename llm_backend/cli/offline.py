"""Full logits and attention weights: what the guide compares and no HTTP API gives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_backend.access import find_receipt
from llm_backend.cli.base import (
    NOT_REPRODUCED,
    REPRODUCED,
    Format,
    FormatOption,
    ReceiptArgument,
    app,
    progress,
    rendered,
    run_async,
)
from llm_backend.config import load_settings
from llm_backend.inspection import Inspection
from llm_backend.inspection_phrases import inspection_json, inspection_markdown, inspection_text
from llm_backend.internals import MOST_POSITIONS, look_at_attention, look_at_logits

LastOption = Annotated[
    int, typer.Option(min=1, max=MOST_POSITIONS, help="How many of the answer's last tokens to look at.")
]
SaveOption = Annotated[
    Path | None, typer.Option(help="Keep the values in this file (safetensors) for another day.")
]
AgainstOption = Annotated[
    Path | None, typer.Option(help="Compare with a file that --save wrote for the same receipt.")
]

REPORTS = {
    Format.TEXT: inspection_text,
    Format.JSON: inspection_json,
    Format.MARKDOWN: inspection_markdown,
}


@app.command()
def logits(
    receipt: ReceiptArgument,
    last: LastOption = 8,
    save: SaveOption = None,
    against: AgainstOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Compute the full logits at the end of an answer several times, and compare every bit."""
    _look(look_at_logits, receipt, last, save, against, format)


@app.command()
def attention(
    receipt: ReceiptArgument,
    last: LastOption = 8,
    save: SaveOption = None,
    against: AgainstOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Compute the attention weights at the end of an answer several times, layer by layer."""
    _look(look_at_attention, receipt, last, save, against, format)


def _look(
    look: Callable[..., Coroutine[Any, Any, Inspection]],
    name: str,
    last: int,
    save: Path | None,
    against: Path | None,
    format: Format,
) -> None:
    settings = load_settings()

    async def work() -> Inspection:
        recorded = await find_receipt(settings, name)
        with progress.status("starting") as status:

            def show(stage: str, done: int, total: int) -> None:
                status.update(f"{stage}: {done} of {total}")

            return await look(settings, recorded, last=last, save=save, against=against, on_stage=show)

    report = run_async(work())
    print(rendered(REPORTS, format, report))
    sys.exit(REPRODUCED if report.same else NOT_REPRODUCED)

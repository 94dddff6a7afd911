"""Try the engine itself: does the seed decide, and does anything beside the request change an answer?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
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
    app,
    progress,
    run_async,
    terminal_language,
)
from llm_backend.config import Settings, load_settings
from llm_backend.guards import ask_sample, guard_replays
from llm_backend.probe_phrases import guard_finding, seed_finding
from llm_backend.probes import Guard, GuardOutcome, SeedOutcome, SeedProbe
from llm_backend.render import findings_markdown, findings_text
from llm_backend.seed_probe import probe_seed


@app.command()
def probe(
    receipt: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECEIPT]", help="Guard this recorded answer; left out, a sample is asked first."
        ),
    ] = None,
    engine: EngineOption = None,
    level: LevelOption = Level.LOGPROBS,
    format: FormatOption = Format.TEXT,
) -> None:
    """Try whether the seed decides, and whether recording or the prefix cache changes an answer."""
    seed, guards = run_async(_probe(load_settings(), receipt, engine))
    lang = "en" if format is Format.JSON else terminal_language()
    findings = [seed_finding(seed, lang), *(guard_finding(guard, lang) for guard in guards)]
    if format is Format.JSON:
        document = {
            "summary": [found.title for found in findings],
            "seed": seed.model_dump(mode="json"),
            "guards": [guard.model_dump(mode="json") for guard in guards],
        }
        print(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))
    else:
        print(findings_markdown(findings) if format is Format.MARKDOWN else findings_text(findings))
    sys.exit(_exit_code(seed, guards, level))


async def _probe(settings: Settings, name: str | None, url: str | None) -> tuple[SeedProbe, Sequence[Guard]]:
    async with open_store(settings) as store, open_engine(settings, url) as client:
        reference = await find_run(store, name) if name else None
        with progress.status("seed probe") as status:

            def show(doing: str, done: int, total: int) -> None:
                status.update(f"{doing}: {done} of {total} tokens")

            seed = await probe_seed(
                client, store, chat_id=CLI_CHAT, on_tokens=lambda *now: show("seed probe", *now)
            )
            reference = reference or await ask_sample(client, store, chat_id=CLI_CHAT)
            guards = await guard_replays(
                client, store, reference, chat_id=CLI_CHAT, on_tokens=lambda *now: show("guards", *now)
            )
    return seed, guards


def _exit_code(seed: SeedProbe, guards: Sequence[Guard], level: Level) -> int:
    """1 if anything is shown to fail, else 2 if anything is undecided."""
    bad = {GuardOutcome.DIFFERENT} | ({GuardOutcome.DRIFTED} if level is Level.LOGPROBS else set())
    if seed.outcome in (SeedOutcome.NOT_HONOURED, SeedOutcome.IGNORED):
        return NOT_REPRODUCED
    if any(guard.outcome in bad for guard in guards):
        return NOT_REPRODUCED
    undecided = seed.outcome is SeedOutcome.UNDECIDED
    undecided |= any(guard.outcome is GuardOutcome.UNDECIDED for guard in guards)
    return UNDECIDED if undecided else REPRODUCED

"""Acceptance after deployment: `encore verify`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from llm_backend.access import find_run, open_calibrations, open_engine, open_store
from llm_backend.baseline import read_baseline, save_baseline
from llm_backend.cli.base import (
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    EngineOption,
    Level,
    LevelOption,
    app,
    progress,
    run_async,
    say,
    terminal_language,
)
from llm_backend.config import Settings, load_settings
from llm_backend.diagnose import Evidence
from llm_backend.engine.client import EngineClient
from llm_backend.engine.profiles import Profile
from llm_backend.errors import EncoreError, SettingsError
from llm_backend.load import parse_neighbours
from llm_backend.receipt import EngineFingerprint
from llm_backend.store import Store
from llm_backend.strings import Language
from llm_backend.suite import Acceptance
from llm_backend.suites import DEFAULT, SUFFIX, load_suite
from llm_backend.tally import Shape
from llm_backend.variant import Variant, engine_variant
from llm_backend.verification import Outcome, Verification
from llm_backend.verify_html import verification_html
from llm_backend.verify_phrases import doing_line
from llm_backend.verify_plan import Choice, Plan, Relaunch, Target, choose, targets_of
from llm_backend.verify_render import (
    verification_json,
    verification_junit,
    verification_markdown,
    verification_text,
)


class ReportFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    HTML = "html"


REPORTS = {
    ReportFormat.TEXT: verification_text,
    ReportFormat.JSON: verification_json,
    ReportFormat.JUNIT: verification_junit,
    ReportFormat.MARKDOWN: verification_markdown,
    ReportFormat.HTML: verification_html,
}

SUFFIXES = {
    ".txt": ReportFormat.TEXT,
    ".json": ReportFormat.JSON,
    ".xml": ReportFormat.JUNIT,
    ".md": ReportFormat.MARKDOWN,
    ".html": ReportFormat.HTML,
}

EXIT_CODES = {Outcome.PASSED: REPRODUCED, Outcome.FAILED: NOT_REPRODUCED, Outcome.UNDECIDED: UNDECIDED}


class ReportLanguage(StrEnum):
    ENGLISH = "en"
    CHINESE = "zh-CN"


@app.command()
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE.toml | RECEIPT...]",
            help="A suite file, or receipts (digests or files); without any, the maths suite shipped here.",
            show_default=False,
        ),
    ] = None,
    times: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Replays of each prompt under each load; default by device."),
    ] = None,
    neighbours: Annotated[
        str | None,
        typer.Option(metavar="K[,K2,…]", help="Numbers of other requests kept in flight; default by device."),
    ] = None,
    shape: Annotated[Shape, typer.Option(help="What the neighbours ask.")] = Shape.MIXED,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer prompts, loads and replays.")] = False,
    restart: Annotated[
        bool, typer.Option(help="Replay on a second engine too, where Encore started the first.")
    ] = True,
    anonymous: Annotated[
        bool,
        typer.Option("--anonymous", help="Accept an engine that does not tell all that decides its bits."),
    ] = False,
    engine: EngineOption = None,
    level: LevelOption = Level.LOGPROBS,
    format: Annotated[ReportFormat, typer.Option("--format", help="Of the report.")] = ReportFormat.TEXT,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report here instead of printing it.")
    ] = None,
    write: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Also write it here, as the name says: .txt .json .xml .md .html. May be repeated.",
        ),
    ] = None,
    save_baseline_file: Annotated[
        Path | None,
        typer.Option("--save-baseline", metavar="FILE", help="Keep today's answers for a later --baseline."),
    ] = None,
    baseline_file: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Compare today's answers with those of a baseline."),
    ] = None,
    lang: Annotated[
        ReportLanguage | None, typer.Option(help="Language of the report; default from LANG.")
    ] = None,
) -> None:
    """Verify an engine: repeats alone and under load, seeds, probabilities, a restart, an earlier day."""
    settings = load_settings()
    language = _language(lang)
    files = [(path, _format_of(path)) for path in write or []]
    files += [(output, format)] if output else []
    for path in [*(path for path, _ in files), *([save_baseline_file] if save_baseline_file else [])]:
        _check_writable(path, new=path is save_baseline_file)
    options = _Options(
        what or [],
        times,
        parse_neighbours(neighbours) if neighbours else None,
        shape,
        quick,
        restart,
        anonymous,
        engine,
        level,
        baseline_file,
        language,
    )
    acceptance = run_async(_verify(settings, options))
    report = acceptance.report
    for path, kind in files:
        _write(path, REPORTS[kind](report, language) + "\n")
        say(f"→ {path}")
    if output is None:
        print(REPORTS[format](report, language))
    if save_baseline_file:
        _keep_baseline(save_baseline_file, acceptance, report)
    sys.exit(UNDECIDED if report.cut_short else EXIT_CODES[report.outcome])


@dataclass(frozen=True, slots=True)
class _Options:
    what: list[str]
    times: int | None
    counts: tuple[int, ...] | None
    shape: Shape
    quick: bool
    restart: bool
    anonymous: bool
    url: str | None
    level: Level
    baseline: Path | None
    lang: Language


async def _verify(settings: Settings, options: _Options) -> Acceptance:
    """Ctrl-C cancels this task; what was measured until then is the result all the same."""
    async with open_store(settings) as store, open_engine(settings, options.url) as client:
        identity = await client.identity()
        plan = await _plan(settings, options, store, identity)
        with progress.status("verifying") as status:
            acceptance = Acceptance(
                client,
                store,
                plan,
                identity,
                open_calibrations(settings),
                on_progress=lambda now: status.update(doing_line(now, options.lang)),
            )
            with suppress(asyncio.CancelledError):
                await acceptance.run()
    return acceptance


async def _plan(settings: Settings, options: _Options, store: Store, identity: EngineFingerprint) -> Plan:
    name, targets = await _targets(options, store)
    choice = choose(identity, quick=options.quick)
    times, counts = options.times or choice.times, options.counts or choice.counts
    if options.times or options.counts:
        listed = ", ".join(map(str, counts))
        choice = Choice(
            times, counts, Evidence(key="verify.chosen.you", values={"times": times, "counts": listed})
        )
    return Plan(
        suite=name,
        targets=targets,
        times=times,
        counts=counts,
        shape=options.shape,
        level=options.level.value,
        chosen=choice.evidence,
        relaunch=_relaunch(settings, options, identity),
        anonymous=options.anonymous,
        baseline=read_baseline(options.baseline) if options.baseline else None,
    )


async def _targets(options: _Options, store: Store) -> tuple[str, tuple[Target, ...]]:
    suites = [name for name in options.what if name.endswith(SUFFIX)]
    if suites and len(options.what) > 1:
        raise SettingsError(
            "A suite is verified by itself.", "Name one suite file, or receipts, or nothing at all."
        )
    if suites or not options.what:
        suite = load_suite(Path(suites[0]) if suites else DEFAULT)
        return suite.name, targets_of(suite.quick() if options.quick else suite)
    targets = []
    for name in dict.fromkeys(options.what):
        run = await find_run(store, name)
        request = (await store.receipt_of(run.id)).request
        targets.append(Target(Path(name).name, request.messages, request.sampling, run))
    return "receipts", tuple(targets)


def _relaunch(settings: Settings, options: _Options, identity: EngineFingerprint) -> Relaunch | Evidence:
    """Only an engine that start.sh launched has a plan; an engine elsewhere has none of ours."""
    if not options.restart:
        return Evidence(key="verify.restart.not_wanted")
    if identity.profile not in get_args(Profile):
        return Evidence(key="verify.restart.not_ours")
    variant = Variant(name="restart", profile=cast(Profile, identity.profile))

    @asynccontextmanager
    async def relaunch() -> AsyncIterator[EngineClient]:
        async with engine_variant(settings, variant, say=say) as owned:
            yield owned.client

    return relaunch


def _language(asked: ReportLanguage | None) -> Language:
    return asked.value if asked is not None else terminal_language()


def _format_of(path: Path) -> ReportFormat:
    try:
        return SUFFIXES[path.suffix.lower()]
    except KeyError:
        known = " ".join(SUFFIXES)
        raise SettingsError(f"--write {path}: the name does not end in one of {known}.") from None


def _check_writable(path: Path, *, new: bool) -> None:
    """Before anything is measured: minutes of work must not end in a file that cannot be written."""
    if new and path.exists():
        raise EncoreError(f"{path} exists already.", "A baseline is never overwritten; name another.")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise EncoreError(f"{path} cannot be written.", "Name a file in a folder that exists and is yours.")


def _write(path: Path, content: str) -> None:
    """In one step: a report of an earlier day is replaced whole or not at all."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.write_text(content, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise EncoreError(f"{path} cannot be written: {error.strerror}.") from None


def _keep_baseline(path: Path, acceptance: Acceptance, report: Verification) -> None:
    """Only of a whole run that found nothing wrong: another is no base to hold a later day against."""
    if report.cut_short or report.outcome is Outcome.FAILED:
        say(f"{path} was not written: a baseline needs a whole verification without a failed check.")
        return
    save_baseline(path, report.suite, report.started_at, acceptance.receipts)
    say(f"→ {path}")

"""What every command shares: the Typer app, its common options, exit codes and how things are printed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from typer.core import TyperGroup

from llm_backend import render
from llm_backend.answers import AnswerPair
from llm_backend.compare import Comparison, Verdict
from llm_backend.diagnose import Diagnosis
from llm_backend.distributions import Distributions
from llm_backend.errors import EncoreError
from llm_backend.strings import Language, pick_language

REPRODUCED, NOT_REPRODUCED, UNDECIDED = 0, 1, 2

CLI_CHAT = "cli"
"""Runs asked from a terminal belong to this chat in `encore list` and the panel."""

ORDER = (
    *("ask", "replay", "check", "fork", "compare"),
    *("probe", "isolate", "verify", "bench", "logits", "attention"),
    *("list", "show", "export", "import", "keygen", "sign", "verify-signature", "share"),
    *("forget", "prune", "user", "doctor", "version"),
)
"""Commands as `encore --help` lists them: the everyday ones first."""


class InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    name="encore",
    cls=InOrder,
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


def terminal_language() -> Language:
    """The terminal's own language, as gettext would find it."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return pick_language(next((name for name in names if name), None))


def rendered(reports: Mapping[Format, Callable[..., str]], format: Format, *report: Any, **more: Any) -> str:
    """A report for people in the terminal's language; JSON is for programs, and the same everywhere."""
    if format is Format.JSON:
        return reports[format](*report, **more)
    return reports[format](*report, **more, lang=terminal_language())


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


_COMPARISONS = {
    Format.TEXT: render.comparison_text,
    Format.JSON: render.comparison_json,
    Format.MARKDOWN: render.comparison_markdown,
}


def print_comparison(
    comparison: Comparison,
    diagnosis: Diagnosis,
    format: Format,
    distributions: Distributions,
    answers: AnswerPair | None = None,
) -> None:
    said = {"distributions": distributions, "answers": answers}
    print(rendered(_COMPARISONS, format, comparison, diagnosis, **said))

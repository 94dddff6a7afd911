"""`encore`: the chat's main job from a terminal.

The report goes to stdout, progress to stderr, and the exit code says the verdict as diff(1) would:
0 reproduced, 1 not reproduced, 2 undecided (bad usage, engine away, incomparable). Commands parse,
call a use case, render its result and exit; nothing is decided here. Each module adds its commands to
`base.app`.
"""

from __future__ import annotations

from llm_backend.cli import (
    benching,
    evidence,
    forking,
    isolating,
    keeping,
    offline,
    probing,
    recording,
    replaying,
    sharing,
    system,
    users,
    verifying,
)
from llm_backend.cli.base import app, fail
from llm_backend.errors import EncoreError

__all__ = [
    "benching",
    "evidence",
    "forking",
    "isolating",
    "keeping",
    "main",
    "offline",
    "probing",
    "recording",
    "replaying",
    "sharing",
    "system",
    "users",
    "verifying",
]


def main(argv: list[str] | None = None) -> None:
    """Entry point: one place where an Encore error becomes a sentence and an exit code."""
    try:
        app(argv, prog_name="encore")
    except EncoreError as error:
        fail(error)

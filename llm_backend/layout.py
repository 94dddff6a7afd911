"""How rows become text, Markdown and JSON, whatever they are about.

Everything a model or a file wrote is escaped: control characters for terminals, markup for Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len

from llm_backend.token_text import printable

LINE_WIDTH = 60
"""Characters of a question in a list."""


def columns(table: Iterable[tuple[str, ...]]) -> list[str]:
    """Left-aligned columns; Chinese characters are two cells wide. Long cells keep to one line."""
    rows = [tuple(one_line(cell, limit=None) for cell in row) for row in table]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def markdown_table(table: Sequence[tuple[str, ...]]) -> str:
    header, *rows = ([literal(cell) for cell in row] for row in table)
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def literal(content: str) -> str:
    """Literal text inside a Markdown line or table cell."""
    flat = one_line(content, limit=None)
    return "".join(f"\\{character}" if character in "\\`*_[]<>|#~$!&" else character for character in flat)


def fenced(content: str) -> str:
    """A code block whose fence the content cannot close."""
    longest = max((len(run) for run in _backtick_runs(content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{printable(content)}\n{fence}"


def _backtick_runs(content: str) -> list[str]:
    return "".join(character if character == "`" else " " for character in content).split()


def one_line(content: str, limit: int | None = LINE_WIDTH) -> str:
    flat = printable(" ".join(content.split()))
    return flat if limit is None or len(flat) <= limit else flat[: limit - 1] + "…"


def strict_json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)

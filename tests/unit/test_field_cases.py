"""Every case from the field has a test that names it, so that none gets lost when tests are rewritten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

CASES = {
    "RC-01": "Cold run vs warm run (prefix cache)",
    "RC-02": "Other traffic changes the answer",
    "RC-03": "Seed has no effect (dropped, or the constant default is used)",
    "RC-04": "Seed at and beyond the legal range",
    "RC-06": "Model-supplied sampling defaults leak in",
    "RC-08": "Replay on a different machine, version or model",
    "RC-10": "Default context of 4096 truncates reasoning",
    "RC-11": "Replay sends other messages than the original turn",
    "RC-12": "-inf / NaN / null probabilities break JSON",
    "RC-13": "Probabilities missing or chunk ≠ token",
    "RC-14": "Too many alternatives requested",
    "RC-15": "Characters split over tokens",
    "RC-17": "Probabilities and reasoning parser do not line up",
    "RC-18": "Same tokens, slightly different probabilities",
    "RC-20": "Opening think tag missing",
    "RC-21": "Thinking never closes; empty or cut-off answer",
    "RC-22": "Tag cut across chunks; lone " < "",
    "RC-24": "Field renamed: reasoning_content → reasoning",
    "RC-25": "Backslash delimiters shown as plain brackets",
    "RC-26": "Money rendered as math",
    "RC-27": "Text after a colon disappears",
    "RC-29": "Half-open formula, fence or table while streaming",
    "RC-30": "Chinese next to LaTeX and bold",
    "RC-31": "HTML and remote content from model or prompt",
    "RC-32": "32k-token answer stalls the page",
    "RC-33": "Stop during a run",
    "RC-35": "Two tabs or users share state",
    "RC-36": "Reload or dropped connection loses the run",
    "RC-37": "Sidebar shows something other than what the run used",
    "RC-38": "Sub-path and websockets behind a proxy",
    "RC-39": "Port taken, script run twice",
    "RC-40": "Not ready yet",
    "RC-41": "Model path missing or no internet",
    "RC-42": "GPU absent, busy or too small",
    "RC-43": "llm.log cannot be written, is empty, or hides the exit code",
    "RC-44": "Ctrl-C after start leaves workers",
    "RC-46": "Server dies mid-answer",
    "RC-47": "Prompt + answer too long (400)",
    "RC-48": "Export opened elsewhere",
    "RC-50": "Same answer, different writing",
}
"""What went wrong with other people's servers and chats, by the id that docstrings give."""

OPEN: frozenset[str] = frozenset(
    {"RC-25", "RC-26", "RC-27", "RC-29", "RC-30", "RC-31", "RC-32", "RC-36", "RC-38", "RC-48"}
)
"""Not named by any test yet."""


def docstrings(file: Path) -> Iterator[str]:
    """Of the file's tests and of the classes they are in."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name.lower()
            if name.startswith("test") and (said := ast.get_docstring(node)):
                yield said


@cache
def named() -> frozenset[str]:
    said = " ".join(text for file in TESTS.rglob("test_*.py") for text in docstrings(file))
    return frozenset(re.findall(r"\bRC-\d\d\b", said))


@pytest.mark.parametrize("case", [case for case in CASES if case not in OPEN])
def test_a_case_from_the_field_is_named_by_the_test_that_covers_it(case: str) -> None:
    assert case in named(), CASES[case]


def test_no_test_names_a_case_that_does_not_exist() -> None:
    assert named() <= CASES.keys()

"""Finds the final answer in a model's text, and says what was found out about it.

The answer is the last complete box of the answer part: `\\boxed{…}` or `\\fbox{…}`, or `\\boxed 5` around a
single digit or letter, which is all that TeX would box. Boxes in the thinking or in code, unfinished ones
and empty ones are none. It is kept verbatim; whether two answers mean the same is for mathematics to say
(`answer_judge`), and it never changes a replay's verdict, which is about tokens.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from llm_backend.errors import EncoreError
from llm_backend.receipt import Frozen
from llm_backend.segments import segments
from llm_backend.strings import Language
from llm_backend.strings import text as phrase
from llm_backend.thinking import ThinkSplitter

LONGEST = 1000
"""Characters of an answer that are looked at as mathematics; a longer one is only compared as text."""

_BOX = re.compile(
    r"\\\\"  # a line break in a formula, not the beginning of a command
    r"|\\(?:boxed|fbox)\s*(?P<brace>\{)"
    r"|\\boxed\s*(?P<bare>\d|(?<=\s)[A-Za-z])(?![0-9A-Za-z]|[.,]\d)"
)
_WRITTEN_AS_FORMULA = re.compile(r"\$\$(.+)\$\$|\$(.+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)


class Sameness(StrEnum):
    """Whether two answers have the same value. Unknown is an answer; a guess is a defect."""

    SAME = "SAME"
    DIFFERENT = "DIFFERENT"
    UNKNOWN = "UNKNOWN"


Reason = Literal["timeout", "memory", "unreadable", "too_long", "rounded", "units", "words", "symbols"]
"""Why it cannot be told."""


class Opinion(Frozen):
    """What the judge says about two answers."""

    sameness: Sameness
    reason: Reason | None = None
    value: str | None = None
    """The value computed for an arithmetic question; None when it is no such question or too long."""


Source = Literal["typed", "starter", "arithmetic"]
"""Who says what the answer should be: a person, the starter that was clicked, or SymPy."""


class AnswerCheck(Frozen):
    """The answer line of one run."""

    answer: str | None
    """Verbatim; None when the answer part has no complete box."""
    source: Source | None = None
    """None when nobody said what to expect."""
    expected: str | None = None
    """Verbatim, or as computed."""
    expression: str | None = None
    """What was computed, when the source is "arithmetic"."""
    opinion: Opinion | None = None
    """None when there is nothing to compare, or nothing to compare with."""


class AnswerPair(Frozen):
    """The answers of two runs that came out in different words."""

    reference: str | None
    candidate: str | None
    opinion: Opinion | None = None
    """None unless both gave one."""


def boxed_answer(text: str) -> str | None:
    """The final answer in `text`, a model's whole raw text with its thinking; verbatim."""
    answer = _answer_part(text)
    # Code in the answer talks about boxes ("put it in `\\boxed{}`") and is none.
    return last_box("".join(" " if part.kind == "code" else part.source for part in segments(answer)))


def last_box(text: str) -> str | None:
    """The content of the last complete box in `text` that is not empty."""
    found: str | None = None
    position = 0
    while box := _BOX.search(text, position):
        position = box.end()
        if box["bare"]:
            found = box["bare"]
        elif box["brace"]:
            end = closing_brace(text, box.end())
            if end is None:
                continue
            content = text[box.end() : end]
            if content.strip():
                found = last_box(content) if _is_box(content) else content
            position = end + 1
    return found


def closing_brace(text: str, begin: int) -> int | None:
    """Where the brace closes that was opened just before `begin`; None if it does not."""
    depth, position = 1, begin
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
            if not depth:
                return position
        position += 1
    return None


def typed_answer(text: str) -> str:
    """What a person meant who typed an expected answer: dollars, brackets and a box around it fall off."""
    typed = text.strip()
    if formula := _WRITTEN_AS_FORMULA.fullmatch(typed):
        typed = next(inside for inside in formula.groups() if inside is not None).strip()
    return (last_box(typed) or typed).strip()


def read_expected(text: str, lang: Language = "en") -> str | None:
    """What is kept of an expected answer that a person typed, verbatim; None when nothing was typed."""
    if len(text) > LONGEST:
        raise EncoreError(phrase("problem.expected", lang, n=LONGEST))
    return text.strip() or None


def _answer_part(text: str) -> str:
    splitter = ThinkSplitter()
    splitter.feed(text)
    splitter.finish()
    return splitter.answer


def _is_box(content: str) -> bool:
    """The content is one box and nothing else: a box in a box."""
    content = content.strip()
    box = _BOX.match(content)
    if box is None or not box["brace"]:
        return False
    return closing_brace(content, box.end()) == len(content) - 1

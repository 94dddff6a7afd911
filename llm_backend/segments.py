"""Cuts a model's Markdown into code, formulas and prose, the way models write them.

Models mark formulas with `\\( \\)`, `\\[ \\]`, `$`, `$$`, bare environments and bare `\\boxed{}`; money has
dollar signs too. This module only finds out which is which; `math_display` rewrites them. Cutting is
lossless: the `source` of all segments, joined, is the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["prose", "code", "inline", "display", "open"]

ENVIRONMENTS = frozenset(
    {"align", "alignat", "aligned", "alignedat", "gather", "gathered", "equation", "multline", "eqnarray"}
    | {"split", "cases", "rcases", "dcases", "array", "smallmatrix"}
    | {f"{style}matrix" for style in ("", "p", "b", "B", "v", "V")}
)
"""LaTeX environments taken for formulas when they stand bare; all others stay as they are written."""

LONGEST_INLINE = 240
"""Characters after which a lone `$` is money, not a formula still being written."""

LONGEST_OPEN = 4000
"""Characters after which a formula that has not ended is taken for prose: it must not hide the answer."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of the text. `open` is a formula whose end has not come yet; it reaches to the end."""

    kind: Kind
    source: str
    formula: str = ""
    """What stands between the delimiters; with them where they are part of the formula."""


_BACKTICKS = re.compile(r"`+")
_MARK = re.compile(
    r"\\\\|\\\$|\\`"  # an escape is never a delimiter
    r"|(?P<fence>^[ \t]{0,3}(?:[-*+>][ \t]+|\d+[.)][ \t]+)*(?P<ticks>`{3,}|~{3,})[^\n`]*$)"
    r"|(?P<code>`+)"
    r"|(?P<bracket>\\[\[(])"
    r"|(?P<dollars>\$\$)"
    r"|(?P<dollar>\$)"
    r"|\\begin\{(?P<environment>[A-Za-z]+\*?)\}"
    r"|(?P<boxed>\\boxed\s*\{)",
    re.MULTILINE,
)
_CLOSING = {"\\[": "\\]", "\\(": "\\)"}
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")


def segments(text: str) -> Iterator[Segment]:
    """The segments of `text` in order."""
    start = position = 0
    while mark := _MARK.search(text, position):
        found = _segment_at(text, mark)
        if found is None:
            position = mark.end()
            continue
        if mark.start() > start:
            yield Segment("prose", text[start : mark.start()])
        yield found
        start = position = mark.start() + len(found.source)
    if start < len(text):
        yield Segment("prose", text[start:])


def _segment_at(text: str, mark: re.Match[str]) -> Segment | None:
    """The code or formula that begins at `mark`, or None when it is prose after all."""
    at = mark.start()
    if mark["fence"]:
        end = re.compile(rf"^[ \t>]*{mark['ticks']}[{mark['ticks'][0]}]*[ \t]*$", re.MULTILINE)
        closing = end.search(text, mark.end())
        return Segment("code", text[at : closing.end() if closing else len(text)])
    if mark["code"]:
        closing = _same_backticks(text, mark)
        return Segment("code", text[at : closing.end()]) if closing else None
    if mark["bracket"]:
        return _delimited(text, at, mark["bracket"], _CLOSING[mark["bracket"]])
    if mark["dollars"]:
        return _delimited(text, at, "$$", "$$")
    if mark["dollar"]:
        return _dollar(text, at)
    if mark["environment"]:
        return _environment(text, at, mark["environment"])
    if mark["boxed"]:
        return _boxed(text, at, mark.end())
    return None


def _same_backticks(text: str, mark: re.Match[str]) -> re.Match[str] | None:
    paragraph = _PARAGRAPH_END.search(text, mark.end())
    limit = paragraph.start() if paragraph else len(text)
    candidates = _BACKTICKS.finditer(text, mark.end(), limit)
    return next((run for run in candidates if run.group() == mark["code"]), None)


def _delimited(text: str, at: int, opening: str, closing: str) -> Segment | None:
    begin = at + len(opening)
    end = text.find(closing, begin)
    if end < 0:
        return _still_open(text, at)
    formula = text[begin:end]
    if not formula.strip():
        return None
    # `\(` inside one sentence; a paragraph's end within it means that it was not a formula.
    if opening == "\\(" and _PARAGRAPH_END.search(formula):
        return None
    kind: Kind = "inline" if opening == "\\(" else "display"
    return Segment(kind, text[at : end + len(closing)], formula.strip())


def _environment(text: str, at: int, name: str) -> Segment | None:
    if name.rstrip("*") not in ENVIRONMENTS:
        return None
    closing = f"\\end{{{name}}}"
    end = text.find(closing, at)
    if end < 0:
        return _still_open(text, at)
    source = text[at : end + len(closing)]
    return Segment("display", source, source)


def _boxed(text: str, at: int, begin: int) -> Segment | None:
    depth, position = 1, begin
    while position < len(text) and depth:
        if text[position] == "\\":
            position += 1
        elif text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
        position += 1
    if depth:
        return _still_open(text, at)
    source = text[at:position]
    return Segment("inline", source, source)


def _still_open(text: str, at: int) -> Segment | None:
    return Segment("open", text[at:]) if len(text) - at <= LONGEST_OPEN else None


def _dollar(text: str, at: int) -> Segment | None:
    """A formula between single dollars, by Pandoc's rule and then by how its inside reads.

    The opening one is followed by no space, the closing one preceded by no space and not followed by a
    digit; "`$ x $`" with spaces on both sides is taken only if its inside looks like mathematics.
    """
    begin = at + 1
    paragraph = _PARAGRAPH_END.search(text, begin)
    limit = min(paragraph.start() if paragraph else len(text), begin + LONGEST_INLINE)
    for closing in re.finditer(r"\\.|\$", text[begin:limit], re.DOTALL):
        if closing.group() != "$":
            continue
        end = begin + closing.start()
        inside, after = text[begin:end], text[end + 1 : end + 2]
        if after.isdigit() or after == "$" or not inside.strip():
            return None
        padded = inside[0].isspace(), inside[-1].isspace()
        if any(padded) and not (all(padded) and _reads_as_mathematics(inside)):
            return None
        return None if _reads_as_money(inside) else Segment("inline", text[at : end + 1], inside.strip())
    unfinished = limit == len(text) and text[begin : begin + 1] not in ("", " ", "\n")
    return Segment("open", text[at:]) if unfinished and not _reads_as_money(text[begin:]) else None


def _reads_as_mathematics(inside: str) -> bool:
    return bool(re.search(r"[\\^_=+<>]", inside)) or len(inside.strip()) == 1


def _reads_as_money(inside: str) -> bool:
    """An amount and then words: "5 or even 10 per head"."""
    return bool(re.match(r"\d[\d,.]*(?:[^\w\\^_=+*/<>]|\s)*(?:[^\W\d_]{2,})", inside)) and "\\" not in inside

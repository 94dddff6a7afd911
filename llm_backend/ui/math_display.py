"""What the chat shows for a model's text: display only, the record keeps the raw text.

Chainlit renders Markdown with formulas in dollars and nothing else, eats words after a colon as
"directives", and loads images. Here formulas are put between dollars, money is kept money, and prose
is escaped so that every character the model wrote is seen. Code is left as it is.
"""

from __future__ import annotations

import re

from llm_backend.segments import Segment, segments
from llm_backend.ui.prose import ATOM, readable_prose

_LIST_OR_QUOTE = re.compile(r"^((?:[ \t]*>)*[ \t]*)([-*+][ \t]+|\d+[.)][ \t]+)?")
_CJK = "\u3000-\u303f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef"
_CJK_OR_TEXT = re.compile(rf"(\\(?:text|mbox|textbf|textrm|mathrm)\s*\{{[^{{}}]*\}})|([{_CJK}]+)")
_WRAPPED = re.compile(r"\\begin\{(equation|multline|eqnarray)(\*?)\}(.*)\\end\{\1\2\}", re.DOTALL)
_CLOSING_LINE = re.compile(r"^[ \t>]*(?:\$\$|`{3,}|~{3,})[ \t]*\Z", re.MULTILINE)
_ALONE_ON_LINE = re.compile(r"[ \t]*(?:\n|$)")


def display(text: str, *, final: bool = True) -> str:
    """Markdown for Chainlit. While streaming (`final=False`) a formula whose end is not there yet is
    held back; once final, one that never ended is shown as the plain text it is."""
    text = text.replace("\x00", "\ufffd").replace("\u200b", "")
    parts: list[str] = []
    atoms: list[str] = []
    source = ""
    found = list(segments(text))
    for index, segment in enumerate(found):
        if segment.kind == "open" and not final:
            break
        if segment.kind in ("prose", "open"):
            parts.append(segment.source)
        else:
            following = found[index + 1].source if index + 1 < len(found) else ""
            atoms.append(_render(segment, source.rpartition("\n")[2], following))
            parts.append(ATOM)
        source += segment.source
    shown = iter(atoms)
    prose = "".join(parts)
    if not final and prose.endswith("\\"):  # half of a delimiter
        prose = prose[:-1]
    markdown = re.sub(ATOM, lambda _: next(shown), readable_prose(prose))
    if not final and _CLOSING_LINE.search(markdown):
        # Chainlit puts its cursor right behind the text, and "$$▌" closes no formula.
        markdown += "\n"
    return markdown


def _render(segment: Segment, line: str, following: str) -> str:
    """`line` is what stands before the segment on its line, `following` what comes after it."""
    if segment.kind == "code":
        return segment.source
    formula = _katex(segment.formula)
    if line.lstrip().startswith("|"):  # a table cell holds one line, and its bars are cell borders
        cell = _one_line(formula).replace("\\|", "\\Vert ").replace("|", "\\vert ")
        return f"${cell}$"
    if segment.kind == "inline":
        return f"${_one_line(formula)}$"
    before = _LIST_OR_QUOTE.match(line)
    assert before is not None
    indent = before[1] + " " * len(before[2] or "")
    lines = [entry.strip() for entry in formula.splitlines() if entry.strip()]
    block = f"\n{indent}".join(["$$", *lines, "$$"])
    opening = "" if line == indent else f"\n{indent}"
    closing = "" if _ALONE_ON_LINE.match(following) else f"\n{indent}"
    return f"{opening}{block}{closing}"


def _katex(formula: str) -> str:
    """The same formula in KaTeX's dialect: no unknown environments, Chinese inside \\text."""
    if wrapped := _WRAPPED.fullmatch(formula):
        formula = wrapped[3].strip()
        if wrapped[1] != "equation":
            formula = f"\\begin{{aligned}}{formula}\\end{{aligned}}"
    return _CJK_OR_TEXT.sub(lambda found: found[1] or f"\\text{{{found[2]}}}", formula)


def _one_line(formula: str) -> str:
    return " ".join(formula.split())

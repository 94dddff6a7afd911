"""Escapes in a model's prose whatever Markdown would swallow, so that people see what it wrote.

Emphasis, lists, headings, tables and links stay Markdown: models use them on purpose. Formulas and code
have been cut out before and stand here as one `ATOM` each.
"""

from __future__ import annotations

import re
import unicodedata

ATOM = "\x00"
"""Stands for one formula or piece of code; cannot occur in text, Markdown forbids it."""

_EATEN: tuple[tuple[re.Pattern[str], str], ...] = (
    # LaTeX outside a formula keeps its backslash.
    (re.compile(r"\\(?=[()\[\]{},;!|:])"), r"\\\\"),
    # A colon before a letter starts a "directive" in Chainlit, and the word is dropped.
    (re.compile(r"(?<!\\):(?=[A-Za-z:])"), r"\\:"),
    # Tags are text, and an image would be fetched.
    (re.compile(r"(?<!\\)<(?=[A-Za-z/!?])"), r"\\<"),
    (re.compile(r"(?<!\\)!\[([^\]\n]*)\]"), r"!\\[\1\\]"),
    # Money, now that formulas are out of the way.
    (re.compile(r"(?<!\\)\$"), r"\\$"),
    # "3~5" strikes nothing out; "~~" does.
    (re.compile(r"(?<![\\~])~(?!~)"), r"\\~"),
    # 2*3*4 multiplies; 2**10 is a power.
    (re.compile(r"(?<=[0-9A-Za-z)])\*(?=[0-9A-Za-z(])"), r"\\*"),
    (re.compile(r"(?<=[0-9])\*\*(?=[0-9])"), r"\\*\\*"),
)
_EMPHASIS = re.compile(r"(?<![\\*])(\*{1,3})(?![\s*])([^*\n]*[^\s*\\])\1(?!\*)")


def readable_prose(text: str) -> str:
    """`text` with what Markdown would swallow escaped, and emphasis beside CJK punctuation repaired."""
    for pattern, replacement in _EATEN:
        text = pattern.sub(replacement, text)
    return _EMPHASIS.sub(_emphasis_that_closes, text)


def _emphasis_that_closes(found: re.Match[str]) -> str:
    """CommonMark takes `**结论：**得` for no emphasis at all: a closing mark may not stand between
    punctuation and a letter. Moving the punctuation out of the emphasis shows the same characters."""
    text, (start, end) = found.string, found.span()
    stars, inside = found[1], found[2]
    head = tail = ""
    if _letter(text[start - 1 : start]):
        while inside and (_punctuation(inside[0]) or (head and inside[0].isspace())):
            head, inside = head + inside[0], inside[1:]
    if _letter(text[end : end + 1]):
        while inside and (_punctuation(inside[-1]) or (tail and inside[-1].isspace())):
            inside, tail = inside[:-1], inside[-1] + tail
    if not inside.strip():
        return head + inside + tail
    return f"{head}{stars}{inside}{stars}{tail}"


def _letter(character: str) -> bool:
    """Neither space nor punctuation; an atom shows as a formula, which counts as a symbol."""
    return bool(character) and not character.isspace() and not _punctuation(character)


def _punctuation(character: str) -> bool:
    return character == ATOM or unicodedata.category(character)[0] in "PS"

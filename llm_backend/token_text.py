"""How single tokens are shown: never U+FFFD, never an invisible nothing.

A token of a byte-level vocabulary may hold part of a character. Such tokens are shown by the
character they build together and their place in it, `⟨🧮 2/3⟩`, or by their bytes in hex when the
character was never finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_backend.receipt import TokenRecord

LONGEST_CHARACTER = 4
"""Bytes, so also the most tokens that one UTF-8 character can be spread over."""


def token_texts(tokens: Sequence[TokenRecord]) -> list[str]:
    """Display text of each token; a character split over the start of `tokens` shows as hex."""
    shown: list[str] = []
    while len(shown) < len(tokens):
        start = len(shown)
        whole = _decoded(tokens[start].bytes)
        if whole:
            shown.append(whole)
            continue
        character, size = _character_from(tokens, start)
        if size:
            shown += [f"⟨{character} {part}/{size}⟩" for part in range(1, size + 1)]
        else:
            shown.append(_bare(tokens[start]))
    return shown


def alternative_text(token_id: int, names: Mapping[int, str]) -> str:
    """The token's text where it is known and whole characters, else its id."""
    name = names.get(token_id, "")
    return f"⟨id {token_id}⟩" if not name or "\ufffd" in name else name


def quoted(text: str) -> str:
    """In double quotes with everything invisible or terminal-controlling escaped; spaces stay."""
    return (
        '"' + "".join(character if _harmless(character) else _escaped(character) for character in text) + '"'
    )


def printable(text: str) -> str:
    """Model text for a terminal: lines and tabs stay, other control characters are escaped."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else _escaped(character)
        for character in text
    )


def _decoded(raw: bytes | None) -> str:
    try:
        return (raw or b"").decode()
    except UnicodeDecodeError:
        return ""


def _character_from(tokens: Sequence[TokenRecord], start: int) -> tuple[str, int]:
    """The text that tokens from `start` on build together and how many they are; size 0 if none.

    Engines give the bytes of a part, or nothing for the parts and the whole character with the last.
    """
    joined = b""
    for size in range(1, min(LONGEST_CHARACTER, len(tokens) - start) + 1):
        raw = tokens[start + size - 1].bytes or b""
        joined += raw
        text = _decoded(joined)
        if size > 1 and text and not text[0].isascii():
            return text, size
        if text or (raw and _decoded(raw)):
            return "", 0
    return "", 0


def _bare(token: TokenRecord) -> str:
    return f"⟨{token.bytes.hex(' ').upper()}⟩" if token.bytes else f"⟨id {token.id}⟩"


def _harmless(character: str) -> bool:
    return character.isprintable() and character not in '"\\'


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode() if character != '"' else '\\"'

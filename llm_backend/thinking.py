"""Splits a model's raw text into its thinking and its answer as it streams.

The tags are found in the text itself, not by the engine's reasoning parser, so the record stays raw
and any chunking gives the same result. At most one tag's length of text is held back. Three shapes
occur in practice and all end right: both tags, no tag at all, and a closing tag alone (the chat
template had already opened the block); in the last one, what was taken for the answer turns out to be
thinking when the tag arrives, so readers must look at both strings again after every `feed`.
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Feed text, read `thinking` and `answer`; `finish` releases what was held back."""

    def __init__(self) -> None:
        self.thinking = ""
        self.answer = ""
        self.opened = False
        self.closed = False
        self._held = ""

    @property
    def unclosed(self) -> bool:
        """Thinking began and has not ended."""
        return self.opened and not self.closed

    def feed(self, text: str) -> None:
        """Take in the next piece, of any length."""
        text, self._held = self._held + text, ""
        while text:
            found = min(((at, tag) for tag in self._expected() if (at := text.find(tag)) >= 0), default=None)
            if found is None:
                held = max((_overlap(text, tag) for tag in self._expected()), default=0)
                self._held = text[len(text) - held :]
                self._add(text[: len(text) - held])
                return
            at, tag = found
            self._add(text[:at])
            self._pass(tag)
            text = text[at + len(tag) :]

    def finish(self) -> None:
        """The stream has ended: a half tag was text after all."""
        self._add(self._held)
        self._held = ""

    def _expected(self) -> tuple[str, ...]:
        if self.closed:
            return ()  # a tag in the answer is something the answer says
        return (CLOSE,) if self.opened else (OPEN, CLOSE)

    def _add(self, text: str) -> None:
        if self.unclosed:
            self.thinking += text
        else:
            self.answer += text

    def _pass(self, tag: str) -> None:
        if tag == OPEN:
            self.opened = True
            return
        if not self.opened:
            self.thinking, self.answer = self.answer, ""
        self.opened = self.closed = True


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that could be the start of `tag`."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)

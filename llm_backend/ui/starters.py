"""Questions to begin with, in the browser's language."""

from __future__ import annotations

import chainlit as cl

from llm_backend.strings import LANGUAGES, pick_language, text

NAMES = ("product", "pythagoras", "knights")

_ANSWERS = {"product": "112330"}
"""Where a starter has one right answer that can be compared as mathematics."""


def starters(language: str | None) -> list[cl.Starter]:
    """One-click questions for the welcome screen."""
    lang = pick_language(language)
    return [
        cl.Starter(
            label=text(f"starter.{name}.label", lang),
            message=text(f"starter.{name}.question", lang),
            icon=f"/public/starters/{name}.svg",
        )
        for name in NAMES
    ]


def starter_answer(question: str) -> str | None:
    """The right answer where `question` is, word for word, a starter that has one."""
    for name, answer in _ANSWERS.items():
        if any(question.strip() == text(f"starter.{name}.question", lang) for lang in LANGUAGES):
            return answer
    return None

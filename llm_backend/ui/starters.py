"""Questions to begin with, in the browser's language."""

from __future__ import annotations

import chainlit as cl

from llm_backend.strings import pick_language, text

NAMES = ("product", "pythagoras", "knights")


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

"""Opens the reproducibility panel and tells it news.

The only place that uses what Chainlit does not document: `emitter.emit` with an event of our own, and
one `display="side"` element whose name is the panel's title. Updating such an element remounts it and
reopens a closed panel, so it is sent only when someone asks for the panel; everything else travels as
small `encore` events with ids, and the panel fetches the rest over HTTP. Chainlit is pinned for this.
"""

from __future__ import annotations

from typing import Any

import chainlit as cl

from llm_backend.strings import Language
from llm_backend.ui.session import ChatSession

EVENT = "encore"

TITLES: dict[Language, str] = {"en": "Reproducibility", "zh-CN": "可复现性"}
"""Chainlit titles the side view with the element's name, which is also its file's name."""

RUN_LINE = "RunLine"
"""The element under each answer, `public/elements/RunLine.jsx`."""


async def open_panel(session: ChatSession, run_id: str | None = None) -> None:
    """Show the panel, at `run_id` or at the newest run; the reader has asked for it."""
    props = {"chat": session.chat_id, "run": run_id}
    if session.panel is None:
        session.panel = cl.CustomElement(name=TITLES[session.lang], props=props, display="side")
    session.panel.props = props
    await session.panel.send(for_id="")


async def announce_ready() -> None:
    """Tell the page that this chat exists; a wide one answers by asking for the panel."""
    await cl.send_window_message({"type": "encore:ready"})


async def tell(kind: str, /, **data: Any) -> None:
    """News for the panel and the run lines: ids, counts, and how far something has come in words."""
    await cl.context.emitter.emit(EVENT, {"type": kind, **data})


async def list_chat(interaction: str) -> None:
    """Have the sidebar look for this chat: Chainlit looked before its first run was there."""
    session = cl.context.session
    await cl.context.emitter.emit(
        "first_interaction", {"interaction": interaction, "thread_id": session.thread_id}
    )


async def add_run_line(message: cl.Message, run_id: str, note: str = "") -> None:
    """Put the line with seed, tokens, speed and verdict under an answer."""
    element = cl.CustomElement(name=RUN_LINE, props={"run": run_id, "note": note}, display="inline")
    await element.send(for_id=message.id)

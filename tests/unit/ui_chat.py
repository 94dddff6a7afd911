"""A Chainlit session without a browser: real emitter, real session, events kept in a list."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chainlit.chat_context import chat_context
from chainlit.context import ChainlitContext, context_var
from chainlit.session import WebsocketSession


class Chat:
    """What one browser tab was sent, and what it shows because of it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def emit(self, event: str, data: Any) -> None:
        self.events.append((event, data))

    def of(self, event: str) -> list[Any]:
        return [data for name, data in self.events if name == event]

    def steps(self) -> dict[str, dict[str, Any]]:
        """Messages and steps on screen by id, after all updates, streams and removals."""
        shown: dict[str, dict[str, Any]] = {}
        for name, data in self.events:
            if name in ("new_message", "update_message", "stream_start"):
                shown[data["id"]] = dict(data)
            elif name == "stream_token" and data["id"] in shown:
                step = shown[data["id"]]
                step["output"] = data["token"] if data["isSequence"] else step["output"] + data["token"]
            elif name == "delete_message":
                shown.pop(data["id"], None)
        return shown

    def answers(self) -> list[str]:
        return [
            s["output"]
            for s in self.steps().values()
            if s["type"] == "assistant_message" and not s["isError"]
        ]

    def problems(self) -> list[str]:
        return [step["output"] for step in self.steps().values() if step["isError"]]

    def thinking(self) -> list[dict[str, Any]]:
        return [step for step in self.steps().values() if step["type"] == "tool"]

    def actions(self, name: str) -> list[dict[str, Any]]:
        return [action for action in self.of("action") if action["name"] == name]

    def news(self, kind: str) -> list[dict[str, Any]]:
        return [data for data in self.of("encore") if data["type"] == kind]

    def doing(self) -> str:
        """The latest words about work that a button began."""
        told = self.news("progress")
        return str(told[-1]["said"]) if told else ""


@contextmanager
def chat_session(language: str = "en-GB,en;q=0.9") -> Iterator[Chat]:
    """Chainlit's context for one new chat."""
    chat = Chat()
    session = WebsocketSession(
        id=str(uuid.uuid4()),
        socket_id=str(uuid.uuid4()),
        emit=chat.emit,
        emit_call=chat.emit,
        user_env={},
        client_type="webapp",
        environ={"HTTP_ACCEPT_LANGUAGE": language},
    )
    token = context_var.set(ChainlitContext(session))
    try:
        yield chat
    finally:
        chat_context.clear()
        context_var.reset(token)

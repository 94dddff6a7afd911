"""A student's page without a browser: speaks to the app's socket as Chainlit's own page does."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import socketio


class ChatClient:
    """One page. What it shows is in `messages` (by id, in order); `pieces` has (seconds, text) of what came.

    `async with ChatClient(url) as page: answer = await page.ask("…")`. Times are `time.monotonic()`.
    """

    def __init__(self, url: str, *, language: str = "en-US", session_id: str | None = None) -> None:
        self.session_id = session_id or str(uuid.uuid4())
        self.messages: dict[str, dict[str, Any]] = {}
        self.pieces: list[tuple[float, str]] = []
        self.actions: list[dict[str, Any]] = []
        self._url = url
        self._language = language
        self._socket = socketio.AsyncClient(reconnection=False)
        self._idle, self._changed = asyncio.Event(), asyncio.Event()
        self._started, self._greeted = asyncio.Event(), False
        self._socket.on("*", self._on_event)

    async def __aenter__(self) -> ChatClient:
        auth = {
            "clientType": "webapp",
            "sessionId": self.session_id,
            "threadId": "",
            "userEnv": "{}",
            "chatProfile": "",
        }
        await self._socket.connect(
            self._url,
            socketio_path="/ws/socket.io",
            auth=auth,
            transports=["websocket"],
            headers={"Accept-Language": self._language},
            wait_timeout=30,
        )
        await self._socket.emit("connection_successful")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.disconnect()

    async def ready(self) -> None:
        """Wait for what a new chat is sent first."""
        await asyncio.wait_for(self._started.wait(), 30)

    async def send(self, question: str) -> None:
        self._idle.clear()
        message = {
            "id": str(uuid.uuid4()),
            "type": "user_message",
            "output": question,
            "name": "User",
            "createdAt": "2026-01-01T00:00:00Z",
        }
        await self._socket.emit("client_message", {"message": message, "fileReferences": []})

    async def ask(self, question: str, *, patience_s: float = 60) -> str:
        """Send a question and return the assistant's last message once the app is done."""
        await self.ready()
        await self.send(question)
        await asyncio.wait_for(self._idle.wait(), patience_s)
        return self.answers()[-1]

    def answers(self) -> list[str]:
        """What the assistant's messages say, in the order they came; removed ones are gone."""
        return [str(m["output"]) for m in self.messages.values() if m.get("type") == "assistant_message"]

    def retry_buttons(self) -> list[dict[str, Any]]:
        return [action for action in self.actions if action["name"] == "retry"]

    async def until(self, condition: Callable[[], bool], what: str, *, patience_s: float = 30) -> None:
        """Wait until what the page shows fulfils `condition`."""
        deadline = time.monotonic() + patience_s
        while not condition():
            self._changed.clear()
            left = deadline - time.monotonic()
            assert left > 0, f"gave up waiting until {what}; shown: {self.answers()}"
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    async def _on_event(self, event: str, *data: Any) -> None:
        now = time.monotonic()
        match event:
            case "new_message" | "update_message" | "stream_start":
                step = data[0]
                self.messages[step["id"]] = {**self.messages.get(step["id"], {}), **step}
                if event == "stream_start" and step["output"]:
                    self.pieces.append((now, step["output"]))
            case "stream_token":
                piece = data[0]
                known = self.messages.setdefault(piece["id"], {"output": ""})
                known["output"] = piece["token"] if piece["isSequence"] else known["output"] + piece["token"]
                self.pieces.append((now, piece["token"]))
            case "delete_message":
                self.messages.pop(data[0]["id"], None)
            case "action":
                self.actions.append(data[0])
            case "chat_settings":
                self._greeted = True
            case "task_end":
                # What starts a chat is a task too; what comes before it only clears the page.
                if self._greeted and not self._started.is_set():
                    self._started.set()
                else:
                    self._idle.set()
        self._changed.set()

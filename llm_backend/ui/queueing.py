"""The place of a question in the engine's queue: told while it waits, instead of a silent spinner.

An engine that computes one answer at a time (strict without batch invariance) serves in the order of
arrival. Ahead of a question are the questions this process sent before it and has no token of, or no
end yet, and what others asked of the engine before it: the engine tells only how many requests it has,
so those are counted when the question is sent, and can only become fewer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import chainlit as cl

from llm_backend.engine.client import EngineClient
from llm_backend.strings import Language, text

LOOK_S = 1.0
"""Between two looks at the engine's metrics, however many questions wait."""


class Line:
    """The questions of this process that the engine has and has not finished, in the order sent."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._places: list[Place] = []
        self._lock = asyncio.Lock()
        self._known: tuple[int, int] | None = None
        self._known_at = float("-inf")

    @asynccontextmanager
    async def place(self, at_once: int | None) -> AsyncIterator[Place]:
        """A place for one question, held until its answer has ended.

        `at_once`: how many sequences the engine computes together, None where it does not tell.
        """
        place = Place(self, at_once)
        self._places.append(place)
        try:
            yield place
        finally:
            self._places.remove(place)

    async def look(self) -> tuple[int, int] | None:
        """Requests (running, waiting) on the engine, at most `LOOK_S` old; None where it does not tell."""
        async with self._lock:
            if time.monotonic() - self._known_at >= LOOK_S:
                running, waiting = await asyncio.gather(self._engine.running(), self._engine.waiting())
                self._known = None if running is None or waiting is None else (running, waiting)
                self._known_at = time.monotonic()
            return self._known

    def before(self, place: Place) -> int:
        return self._places.index(place)

    def __len__(self) -> int:
        return len(self._places)


class Place:
    """See `Line.place`."""

    def __init__(self, line: Line, at_once: int | None) -> None:
        self._line = line
        self._at_once = at_once
        self._others: int | None = None

    async def ahead(self) -> int:
        """Answers that have to end before this one can begin; 0 when it could begin now."""
        seen = await self._line.look()
        before = self._line.before(self)
        if seen is None:
            return max(0, before + 1 - self._at_once) if self._at_once else 0
        running, waiting = seen
        others = max(0, running + waiting - len(self._line))
        self._others = others if self._others is None else min(self._others, others)
        at_once = self._at_once or (running if waiting else 0)
        return max(0, before + self._others + 1 - at_once) if at_once else 0


@asynccontextmanager
async def place_shown(place: Place, lang: Language) -> AsyncIterator[Callable[[], None]]:
    """Tell the place in the chat while the block waits; call what it yields at the first token."""
    begun = asyncio.Event()
    telling = asyncio.create_task(_tell(place, lang, begun))
    try:
        yield begun.set
    finally:
        begun.set()
        await telling


async def _tell(place: Place, lang: Language, begun: asyncio.Event) -> None:
    message: cl.Message | None = None
    while not begun.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(begun.wait(), LOOK_S)
            break
        ahead = await place.ahead()
        content = text("queue.one" if ahead == 1 else "queue.many", lang, n=ahead) if ahead else ""
        if begun.is_set() or (not content and message is None):
            continue
        if message is None:
            message = cl.Message(content=content)
            await message.send()
        elif not content:
            await message.remove()
            message = None
        elif content != message.content:
            message.content = content
            await message.update()
    if message is not None:
        await message.remove()

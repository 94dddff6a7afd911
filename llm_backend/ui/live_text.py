"""Growing text on screen, at a pace the browser can follow.

The browser renders the whole text anew for every piece it gets, so pieces are collected: the first is
shown at once, later ones in batches whose interval grows with what is already there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

SHORTEST_INTERVAL_S = 0.1
INTERVAL_PER_CHARACTER_S = 0.1 / 4000
"""100 ms more for every thousand tokens or so already shown. Rendering those takes 20 ms of a processor,
so a browser a few times slower keeps up; where one does not, batches pile up and Stop waits behind them."""


class Target(Protocol):
    """A Chainlit message or step."""

    async def stream_token(self, token: str, is_sequence: bool = False) -> None: ...


class LiveText:
    """One text in one message or step."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._shown = ""

    async def show(self, text: str) -> None:
        """Bring the screen to `text`, sending only what is new where the beginning has not changed."""
        if text == self._shown:
            return
        if text.startswith(self._shown):
            await self._target.stream_token(text[len(self._shown) :])
        else:
            await self._target.stream_token(text, is_sequence=True)
        self._shown = text


class Pacer:
    """Calls `flush` soon after `poke`, never more often than the interval allows.

    The clock is a task of its own, so the last piece is shown even when no other follows it.
    """

    def __init__(self, flush: Callable[[], Awaitable[int]]) -> None:
        """`flush` returns how many characters are on screen."""
        self._flush = flush
        self._news = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def poke(self) -> None:
        self._news.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        async with self._flushing:  # what is being sent now is sent whole
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            async with self._flushing:
                characters = await self._flush()
            if characters:  # as long as nothing is on screen, every piece may be the first
                await asyncio.sleep(max(SHORTEST_INTERVAL_S, characters * INTERVAL_PER_CHARACTER_S))

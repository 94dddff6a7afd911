"""An open database and its two kinds of transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from llm_backend.store.database import open_database, refusals_as_sentences, writing

BUSY_TIMEOUT_S = 10.0
"""How long a transaction waits for another process's write lock (SQLite)."""


class Connected:
    """Open with `await Store.open(url)`; one per process, shared by everything in it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writer = writing(engine)

    @classmethod
    async def open(cls, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """Connect to an async SQLAlchemy URL and bring its tables up to date."""
        return cls(await open_database(url, busy_timeout_s=busy_timeout_s))

    async def close(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[AsyncConnection]:
        with refusals_as_sentences():
            async with self._engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[AsyncConnection]:
        with refusals_as_sentences():
            async with self._writer.begin() as connection:
                yield connection

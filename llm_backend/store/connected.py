"""What every part of the store stands on: an open database, and transactions whose refusals are sentences."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from llm_backend.store.database import open_database, refusals_as_sentences, writing
from llm_backend.store.receipts import fetch_body

BUSY_TIMEOUT_S = 10.0
"""How long a transaction waits for another process's write lock (SQLite)."""


class Connected:
    """One engine and its transactions; the parts of the store build on it."""

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

    async def _body(self, digest: str) -> str:
        async with self._read() as connection:
            return await fetch_body(connection, digest)

"""Databases for tests that hold for SQLite and PostgreSQL alike, and a way in behind the store's back."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from postgres_server import REQUIRED, find_binaries
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool


@dataclass(frozen=True)
class Database:
    """One empty database, by URL."""

    url: str

    async def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run raw SQL with :named values behind the store's back."""
        async with self.connect() as connection:
            done = await connection.execute(text(statement), values)
            return [tuple(row) for row in done] if done.returns_rows else []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        engine = create_async_engine(self.url, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()


def missing_postgres() -> str | None:
    """Why there is no PostgreSQL to test with; None if there is."""
    if find_binaries() is None:
        return "PostgreSQL is not installed (Debian: apt install postgresql)"
    try:
        import asyncpg  # noqa: F401
    except ImportError:
        return "asyncpg is not installed (./start.sh install --with-tests)"
    return None


def skip_without_postgres() -> None:
    """Skip with the reason; fail where the tests must not be skipped."""
    if (reason := missing_postgres()) is not None:
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)


@asynccontextmanager
async def new_postgres_database(server: str) -> AsyncIterator[Database]:
    """An empty database on `server` (HOST:PORT), dropped at the end."""
    name = f"test_{uuid.uuid4().hex}"
    admin = create_async_engine(
        f"postgresql+asyncpg://encore@{server}/postgres", isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    async with admin.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield Database(f"postgresql+asyncpg://encore@{server}/{name}")
    finally:
        async with admin.connect() as connection:
            await connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        await admin.dispose()

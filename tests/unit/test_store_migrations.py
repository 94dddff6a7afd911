"""The migrations build exactly the tables the code expects, and can be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from databases import Database
from sqlalchemy import Connection, inspect
from sqlalchemy.ext.asyncio import AsyncEngine

from llm_backend.store.database import migrate, migrate_down, open_database, writing
from llm_backend.store.models import Base

T = TypeVar("T")

TABLES = {"receipts", "receipt_bodies", "runs", "run_tokens", "comparisons", "findings", "chats", "shares"}


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    engine = await open_database(database.url, busy_timeout_s=1)
    yield engine
    await engine.dispose()


async def on(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
    async with writing(engine).begin() as connection:
        return await connection.run_sync(work)


def tables(connection: Connection) -> set[str]:
    """All but those of the search index, which SQLite keeps in tables of its own."""
    found = set(inspect(connection).get_table_names()) - {"alembic_version"}
    return {name for name in found if not name.startswith("run_search")}


async def test_opening_brings_a_new_database_up_to_date(engine: AsyncEngine) -> None:
    assert await on(engine, tables) == TABLES


async def test_migrations_and_models_agree(engine: AsyncEngine) -> None:
    def differences(connection: Connection) -> list[Any]:
        def is_ours(thing: Any, name: str | None, kind: str, *_: Any) -> bool:
            # SQLite searches in a virtual table, PostgreSQL through an index of its own kind.
            return not (kind == "table" and str(name).startswith("run_search")) and name != "ix_runs_terms"

        context = MigrationContext.configure(connection, opts={"include_object": is_ours})
        return list(compare_metadata(context, Base.metadata))

    assert await on(engine, differences) == []


async def test_down_and_up_again(engine: AsyncEngine) -> None:
    await on(engine, migrate_down)
    assert await on(engine, tables) == set()
    await on(engine, migrate)
    assert await on(engine, tables) == TABLES


async def test_a_failed_migration_leaves_the_tables_as_they_were(engine: AsyncEngine) -> None:
    def down_then_fail(connection: Connection) -> None:
        migrate_down(connection)
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        await on(engine, down_then_fail)
    assert await on(engine, tables) == TABLES


async def test_sqlite_is_set_up_for_several_writers(tmp_path: Path) -> None:
    engine = await open_database(f"sqlite+aiosqlite:///{tmp_path / 'encore.db'}", busy_timeout_s=1)
    async with engine.connect() as connection:
        settings = {
            name: (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "busy_timeout", "foreign_keys")
        }
    await engine.dispose()
    assert settings == {"journal_mode": "wal", "busy_timeout": 1000, "foreign_keys": 1}

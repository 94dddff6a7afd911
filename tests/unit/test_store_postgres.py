"""What only PostgreSQL has: a server that refuses, goes away, comes back; processes that start at once."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator

import pytest
from databases import Database, new_postgres_database
from sample_receipts import ENGINE, receipt, request

from llm_backend.errors import StoreError
from llm_backend.store import Store

OPENER = "import asyncio, sys; from llm_backend.store import Store; asyncio.run(Store.open(sys.argv[1]))"

WAITING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
async def database(postgres_server: str) -> AsyncIterator[Database]:
    async with new_postgres_database(postgres_server) as created:
        yield created


async def test_processes_that_start_at_once_migrate_once(database: Database) -> None:
    """The second waits for the first one's migrations and finds nothing left to do."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPENER, database.url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in processes:
        _, said = await process.communicate()
        assert process.returncode == 0, said.decode()
    assert len(await database.sql("SELECT version_num FROM alembic_version")) == 1


async def test_a_migration_waits_for_the_lock(database: Database) -> None:
    """Whoever holds the lock is migrating: nobody else changes a table meanwhile."""
    async with database.connect() as migrating:
        await migrating.exec_driver_sql(f"SELECT pg_advisory_xact_lock({0x656E636F7265})")
        opening = asyncio.create_task(Store.open(database.url))
        async with asyncio.timeout(30):
            while not await database.sql(
                "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            ):
                assert not opening.done()
        assert await database.sql("SELECT 1 FROM pg_tables WHERE tablename = 'runs'") == []
    await (await opening).close()
    assert await database.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_connections_that_the_server_ended_are_replaced(database: Database) -> None:
    """After a restart of PostgreSQL the app goes on without one of its own."""
    store = await Store.open(database.url)
    await store.runs()
    await database.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    run = await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
    assert (await store.finish(run.id, receipt(), ttft_s=None, duration_s=None)).status == "complete"
    await store.close()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
async def test_urls_as_other_programs_write_them(database: Database, scheme: str) -> None:
    await (await Store.open(database.url.replace("postgresql+asyncpg", scheme))).close()


@pytest.mark.parametrize(
    ("change", "says", "advice"),
    [
        (("/test_", "/nosuch_"), "no database of this name", "createdb"),
        (("encore@", "stranger:x@"), "does not accept this user", "createuser"),
        (("asyncpg", "psycopg"), "driver psycopg .* not installed", "postgresql.asyncpg"),
    ],
)
async def test_a_url_that_is_refused(
    database: Database, change: tuple[str, str], says: str, advice: str
) -> None:
    with pytest.raises(StoreError, match=says) as refused:
        await Store.open(database.url.replace(*change))
    assert re.search(advice, refused.value.advice)


async def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreError, match="cannot be reached") as refused:
        await Store.open("postgresql+asyncpg://encore@127.0.0.1:1/encore")
    assert "runs" in refused.value.advice


async def test_a_read_only_database(database: Database) -> None:
    store = await Store.open(database.url)
    name = database.url.rpartition("/")[2]
    await database.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await database.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with pytest.raises(StoreError, match="read-only"):
        await store.begin(request(), ENGINE, chat_id="chat", kind="ask")
    assert await store.runs() == []
    await store.close()

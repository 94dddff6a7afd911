"""Open a database, bring its tables up to date, and turn its refusals into sentences."""

from __future__ import annotations

import asyncio
import errno
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from llm_backend.errors import StoreError

_MIGRATIONS = Path(__file__).parent / "migrations"

_BEGIN = "encore_begin"
"""Execution option: how a transaction begins on SQLite; empty for statements that must be outside one."""

_MIGRATION_LOCK = 0x656E636F7265
"""Any number that other programs in the same PostgreSQL database do not use: "encore"."""

POOL_SIZE = 10
"""Connections of one process to PostgreSQL: transactions are short, so thirty chats share them."""

_WAL_PAUSE_S = 0.02

_POOLS: dict[str, dict[str, Any]] = {
    # A restarted server is noticed before a transaction begins, not by it. Statements are planned for
    # the values they are given: how often a verdict or a word occurs decides which index serves a list.
    "postgresql": {
        "pool_pre_ping": True,
        "pool_size": POOL_SIZE,
        "max_overflow": 0,
        "connect_args": {"server_settings": {"plan_cache_mode": "force_custom_plan"}},
    },
}

# What drivers say (regular expressions), what it means, and what people can do about it.
_REFUSALS = (
    (
        "disk is full|No space left on device",
        "The disk is full, so the database could not be written.",
        "Free some space; what was stored before is safe.",
    ),
    (
        "readonly|read-only transaction",
        "The database is read-only.",
        "Check who owns the file and its folder, or set ENCORE_DATABASE_URL.",
    ),
    (
        "locked",
        "The database is busy: another process holds its lock.",
        "Try again; if it lasts, stop other programs that have it open.",
    ),
    (
        "unable to open",
        "The database file cannot be opened.",
        "Check that its folder exists and may be written, or set ENCORE_DATABASE_URL.",
    ),
    (
        "not a database",
        "The file is not an Encore database.",
        "Move it away, or set ENCORE_DATABASE_URL to another file.",
    ),
    (
        "malformed",
        "The database file is damaged.",
        "Restore a copy; the .recover command of sqlite3 may save most of it.",
    ),
    (
        'database ".*" does not exist',
        "PostgreSQL has no database of this name.",
        "Make it with createdb, or correct ENCORE_DATABASE_URL.",
    ),
    (
        'role ".*" does not exist|authentication failed',
        "PostgreSQL does not accept this user or password.",
        "Correct ENCORE_DATABASE_URL, or make the user with createuser.",
    ),
    (
        "too many clients|connection slots are reserved",
        "PostgreSQL has no connection left.",
        f"Each app process takes up to {POOL_SIZE}; raise max_connections, or run fewer.",
    ),
    (
        "connection was closed|terminating connection|shutting down|starting up",
        "The connection to PostgreSQL was lost.",
        "Try again once it runs; what was stored before is safe.",
    ),
)


async def open_database(url: str, *, busy_timeout_s: float) -> AsyncEngine:
    """Connect, create the SQLite file's folder if needed, and migrate to the newest tables."""
    with refusals_as_sentences():
        engine = _connectable(url, busy_timeout_s)
        try:
            if engine.dialect.name == "sqlite":
                await _write_ahead(engine, busy_timeout_s)
            async with writing(engine).begin() as connection:
                if engine.dialect.name == "postgresql":  # SQLite's write lock is held already
                    await connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                await connection.run_sync(migrate)
        except CommandError as error:
            await engine.dispose()
            raise StoreError(
                f"The database was written by another version of Encore: {_first_line(error)}.",
                "Use the version that wrote it, or set ENCORE_DATABASE_URL to another database.",
            ) from error
        except BaseException:
            await engine.dispose()
            raise
    return engine


def writing(engine: AsyncEngine) -> AsyncEngine:
    """The same pool for transactions that write: SQLite's take the write lock at once.

    A transaction that starts by reading and writes later fails at once when another wrote meanwhile;
    one that starts by taking the lock waits its turn (up to the busy timeout).
    """
    return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})


def migrate(connection: Connection, revision: str = "head") -> None:
    """Bring the tables up to `revision`; the caller's transaction decides whether it holds."""
    command.upgrade(_alembic(connection), revision)


def migrate_down(connection: Connection, revision: str = "base") -> None:
    """Take the tables back to `revision`, dropping what later ones added."""
    command.downgrade(_alembic(connection), revision)


@contextmanager
def refusals_as_sentences() -> Iterator[None]:
    """Any refusal of the database leaves as a `StoreError` that says what to do."""
    try:
        yield
    except DBAPIError as error:
        raise _refusal(str(error.orig)) from error
    except SQLAlchemyError as error:
        raise _refusal(str(error)) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _refusal("disk is full") from error
        raise StoreError(
            f"The database cannot be reached: {error.strerror or error}.",
            "Check ENCORE_DATABASE_URL, and that the database server runs.",
        ) from error


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _connectable(url: str, busy_timeout_s: float) -> AsyncEngine:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):  # as other programs and providers write it
            parsed = parsed.set(drivername="postgresql+asyncpg")
        engine = create_async_engine(parsed, **_POOLS.get(parsed.get_backend_name(), {}))
    except ModuleNotFoundError as error:
        raise StoreError(
            f"The driver {error.name} for this database is not installed.",
            "For PostgreSQL write postgresql+asyncpg://…; Encore brings that driver.",
        ) from error
    except (ArgumentError, InvalidRequestError) as error:
        raise StoreError(
            f"ENCORE_DATABASE_URL is not usable: {_first_line(error)}.",
            "It needs an async driver, for example sqlite+aiosqlite:///encore.db.",
        ) from error
    match parsed.get_backend_name():
        case "sqlite":
            _create_folder(parsed)
            _prepare_sqlite(engine, busy_timeout_s)
        case "postgresql":
            pass
        case other:
            raise StoreError(f"Encore does not know {other} databases.", "Use SQLite or PostgreSQL.")
    return engine


def _create_folder(url: URL) -> None:
    if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


def _prepare_sqlite(engine: AsyncEngine, busy_timeout_s: float) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # The driver must not open transactions on its own: it would leave DDL outside them.
        connection.isolation_level = None
        try:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {round(busy_timeout_s * 1000)}")
            cursor.execute("PRAGMA foreign_keys = ON")
            # With write-ahead logging a killed process loses nothing; a power cut may lose the last
            # moments but never breaks the file.
            cursor.execute("PRAGMA synchronous = NORMAL")
            cursor.close()
        except BaseException:  # cancelled: nobody else knows of this connection yet
            connection.terminate()
            raise

    ending: set[asyncio.Task[None]] = set()

    @event.listens_for(engine.sync_engine, "invalidate")
    def give_up(connection: Any, _record: Any, _error: Any) -> None:
        # A cancelled task's connection is closed while a statement of it may still be referenced, and
        # SQLite then keeps the connection, and with it the write lock, alive: end the transaction first.
        # This task is scheduled before the one that closes, and the connection works in that order.
        task = asyncio.get_running_loop().create_task(_roll_back(connection.driver_connection))
        ending.add(task)
        task.add_done_callback(ending.discard)

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        statement = connection.get_execution_options().get(_BEGIN, "BEGIN")
        if statement:
            connection.exec_driver_sql(statement)


async def _roll_back(connection: Any) -> None:
    with suppress(Exception):  # it never connected, or is closed already: nothing is held
        await connection.rollback()


async def _write_ahead(engine: AsyncEngine, busy_timeout_s: float) -> None:
    """Switch the file to write-ahead logging, where readers never wait for the writer.

    For this one statement SQLite does not wait while another process is doing the same.
    """
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            async with engine.execution_options(**{_BEGIN: ""}).connect() as connection:
                await connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                return
        except OperationalError as error:
            if "locked" not in str(error.orig) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_WAL_PAUSE_S)


_DRIVERS_CLASS = re.compile(r"^<class '[^']*'>: ")
"""How SQLAlchemy's asyncpg dialect begins what the server said."""


def _refusal(said: str) -> StoreError:
    for words, problem, advice in _REFUSALS:
        if re.search(words, said):
            return StoreError(problem, advice)
    return StoreError(f"The database refused: {_DRIVERS_CLASS.sub('', said).splitlines()[0].rstrip('.')}.")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")

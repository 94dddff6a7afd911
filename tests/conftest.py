"""Fixtures every layer uses. Nothing here reads the developer's own settings or data."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Chainlit writes its config into the app root on import; keep that out of the checkout.
os.environ.setdefault("CHAINLIT_APP_ROOT", tempfile.mkdtemp(prefix="encore-chainlit-"))

from databases import Database, new_postgres_database, skip_without_postgres
from postgres_server import find_binaries, running_postgres
from scripted_engine import Script, ScriptedEngine, serving

from llm_backend.engine.client import EngineClient
from llm_backend.store import Store


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's ENCORE_* variables must not decide what a test sees."""
    for name in [name for name in os.environ if name.startswith("ENCORE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")  # what the terminal reports are in


@pytest.fixture
def engine_script() -> Script:
    return Script()


@pytest.fixture
def scripted_url(engine_script: Script) -> Iterator[str]:
    with serving(ScriptedEngine(engine_script)) as url:
        yield url


@pytest.fixture
async def engine(scripted_url: str) -> AsyncIterator[EngineClient]:
    async with EngineClient(scripted_url, stall_timeout=2.0) as client:
        yield client


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables and no rows, made once: migrating takes longer than most tests."""
    file = tmp_path_factory.mktemp("migrated") / "encore.db"

    async def migrate() -> None:
        await (await Store.open(f"sqlite+aiosqlite:///{file}")).close()

    thread = threading.Thread(target=asyncio.run, args=(migrate(),))  # this one may have a loop already
    thread.start()
    thread.join()
    return file


@pytest.fixture
async def store(tmp_path: Path, empty_database: Path) -> AsyncIterator[Store]:
    file = tmp_path / "encore.db"
    shutil.copy(empty_database, file)
    store = await Store.open(f"sqlite+aiosqlite:///{file}")
    yield store
    await store.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """HOST:PORT of a real PostgreSQL server, started once."""
    skip_without_postgres()
    binaries = find_binaries()
    assert binaries is not None
    with running_postgres(binaries) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A new database of either kind: what holds for one must hold for the other."""
    if request.param == "sqlite":
        yield Database(f"sqlite+aiosqlite:///{tmp_path / 'new folder' / '数据.db'}")
        return
    async with new_postgres_database(request.getfixturevalue("postgres_server")) as created:
        yield created

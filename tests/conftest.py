"""Fixtures every layer uses. Nothing here reads the developer's own settings or data."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Chainlit writes its config into the app root on import; keep that out of the checkout.
os.environ.setdefault("CHAINLIT_APP_ROOT", tempfile.mkdtemp(prefix="encore-chainlit-"))

from scripted_engine import Script, ScriptedEngine, serving

from llm_backend.engine.client import EngineClient
from llm_backend.store import Store


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's ENCORE_* variables must not decide what a test sees."""
    for name in [name for name in os.environ if name.startswith("ENCORE_")]:
        monkeypatch.delenv(name)


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


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(f"sqlite+aiosqlite:///{tmp_path / 'encore.db'}")
    yield store
    await store.close()

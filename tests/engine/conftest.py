"""Real vLLM servers on CPU, started by start.sh as a user would, one profile at a time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port

from llm_backend.config import Settings
from llm_backend.engine.client import EngineClient

ROOT = Path(__file__).resolve().parents[2]

INSTALLED = {
    name: value
    for name in ("engine_python", "models_dir")
    if (value := os.environ.get(f"ENCORE_{name.upper()}"))
}
"""Where the engine is, if not in this checkout; read now, because tests do not see ENCORE_ variables."""


@contextmanager
def started(folder: Path, profile: str, **extra: str) -> Iterator[tuple[str, Path]]:
    """`./start.sh engine --detach` with its own ports and files; yields the URL and the manifest."""
    port = free_port()
    installed = {f"ENCORE_{name.upper()}": value for name, value in INSTALLED.items()}
    environ = (
        os.environ
        | installed
        | {
            "ENCORE_ENGINE": "cpu",
            "ENCORE_PROFILE": profile,
            "ENCORE_ENGINE_PORT": str(port),
            "ENCORE_RUN_DIR": str(folder / "run"),
            "ENCORE_DATA_DIR": str(folder / "data"),
            "ENCORE_LOG_FILE": str(folder / "llm.log"),
            **extra,
        }
    )
    start = ["bash", str(ROOT / "start.sh")]
    done = subprocess.run(
        [*start, "engine", "--detach"], env=environ, capture_output=True, text=True, check=False
    )
    try:
        assert done.returncode == 0, done.stderr
        yield f"http://127.0.0.1:{port}", folder / "run" / "manifest.json"
    finally:
        subprocess.run([*start, "stop"], env=environ, capture_output=True, check=False)


@pytest.fixture(scope="class")
def fast_launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with started(tmp_path_factory.mktemp("fast"), "fast") as launch:
        yield launch


@pytest.fixture(scope="class")
def strict_launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with started(tmp_path_factory.mktemp("strict"), "strict") as launch:
        yield launch


@pytest.fixture
async def fast_engine(fast_launch: tuple[str, Path]) -> AsyncIterator[EngineClient]:
    url, manifest = fast_launch
    async with EngineClient(url, manifest_file=manifest) as client:
        yield client


@pytest.fixture
async def strict_engine(strict_launch: tuple[str, Path]) -> AsyncIterator[EngineClient]:
    url, manifest = strict_launch
    async with EngineClient(url, manifest_file=manifest) as client:
        yield client


@pytest.fixture
def own_settings(tmp_path: Path) -> Settings:
    """For engines of Encore's own beside the one under test."""
    places = {"run_dir": tmp_path / "run", "data_dir": tmp_path / "data", "log_file": tmp_path / "llm.log"}
    return Settings(engine="cpu", **INSTALLED, **places)

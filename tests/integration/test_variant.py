"""Engines of Encore's own beside whatever runs: started with one thing changed, and always ended.

The engine is the fake one of `test_start_sh.py`; the real one is measured in `tests/engine`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llm_backend.config import Settings
from llm_backend.engine import preflight
from llm_backend.engine.process import Owned, read_pid_file
from llm_backend.errors import LaunchError
from llm_backend.variant import Variant, engine_variant

FAKE = Path(__file__).resolve().parents[1] / "fakes" / "engine_python"
PATIENCE = 30.0
"""Seconds after which something that should have happened has not."""

EAGER = Variant("fast, one at a time", "fast", (("--max-num-seqs", "1"),), frozenset({"--enforce-eager"}))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    return Settings(
        engine="cpu",
        engine_python=FAKE,
        model=str(model),
        run_dir=tmp_path / "run",
        data_dir=tmp_path / "data",
        log_file=tmp_path / "llm.log",
    )


async def gone(process: Owned) -> None:
    async with asyncio.timeout(PATIENCE):
        while process.members():
            await asyncio.sleep(0.05)


def processes(settings: Settings) -> list[Owned]:
    found = [read_pid_file(file) for file in (settings.run_dir / "own").glob("*/engine.pid")]
    return [process for process in found if process]


async def started(settings: Settings) -> Owned:
    async with asyncio.timeout(PATIENCE):
        while not (found := processes(settings)):
            await asyncio.sleep(0.05)
    return found[0]


async def test_it_runs_with_one_thing_changed_and_ends_with_the_block(settings: Settings) -> None:
    phases: list[str] = []
    async with engine_variant(settings, EAGER, on_phase=lambda phase, _: phases.append(phase.key)) as engine:
        process = engine.running.child.process
        assert process.alive()
        identity = await engine.client.identity()
        assert (identity.max_num_seqs, identity.enforce_eager, identity.profile) == (1, False, "fast")
        assert engine.plan.port != settings.engine_port
        assert engine.start_seconds > 0
        assert engine.memory_bytes is not None
        assert engine.memory_bytes > 10**6
    assert phases
    assert not process.members()
    assert not list((settings.run_dir / "own").iterdir())
    assert not settings.log_file.exists()


async def test_cancelling_a_start_ends_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE_HOLD", str(tmp_path / "never"))

    async def use() -> None:
        async with engine_variant(settings, EAGER):
            pytest.fail("it was never ready")

    task = asyncio.create_task(use())
    process = await started(settings)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not process.members()
    assert not processes(settings), "only a start that failed leaves its log"


async def test_an_error_in_the_block_ends_it(settings: Settings) -> None:
    with pytest.raises(ZeroDivisionError):
        async with engine_variant(settings, EAGER) as engine:
            _ = 1 / 0
    assert not engine.running.child.process.members()


async def test_a_start_that_fails_says_why_and_keeps_its_log(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE_EXIT", "7")
    with pytest.raises(LaunchError, match="exit code 7"):
        async with engine_variant(settings, EAGER):
            pass
    (log,) = (settings.run_dir / "own").glob("*/llm.log")
    assert "no such weights" in log.read_text()


async def test_it_is_refused_where_there_is_no_memory(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 10**9)
    with pytest.raises(LaunchError, match=r"needs about 4\.0 GiB .* 0\.9 GiB are free") as refusal:
        async with engine_variant(settings, EAGER):
            pass
    assert "./start.sh stop" in refusal.value.advice
    assert not processes(settings)


def test_it_dies_with_its_owner(settings: Settings, tmp_path: Path) -> None:
    """Killed outright, the owner can end nothing itself; the guard does."""
    script = tmp_path / "owner.py"
    script.write_text(
        "import asyncio, sys\n"
        "from llm_backend.config import Settings\n"
        "from llm_backend.variant import Variant, engine_variant\n"
        "async def main():\n"
        "    settings = Settings.model_validate_json(sys.argv[1])\n"
        "    async with engine_variant(settings, Variant('fast', 'fast')):\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    document = json.dumps(settings.model_dump(mode="json", exclude_none=True))
    with subprocess.Popen([sys.executable, str(script), document], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        (process,) = processes(settings)
        assert process.alive()
        os.kill(owner.pid, signal.SIGKILL)
    asyncio.run(gone(process))

"""What people are told about an engine that cannot answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from llm_backend.engine.client import EngineState
from llm_backend.ui.engine_watch import EngineStatus, EngineWatch, status_sentence

LOADING = "INFO 12-01 03:40:00 Starting to load model x\nINFO 12-01 03:40:07 Loading safetensors 1/2\n"


class FakeEngine:
    def __init__(self, *kinds: str) -> None:
        self.kinds = list(kinds)
        self.asked = 0

    async def state(self) -> EngineState:
        self.asked += 1
        return EngineState(self.kinds.pop(0) if len(self.kinds) > 1 else self.kinds[0])  # type: ignore[arg-type]


def watch(kind: str, log: Path) -> EngineWatch:
    return EngineWatch(FakeEngine(kind), log)  # type: ignore[arg-type]


async def test_a_growing_log_makes_an_absent_engine_a_loading_one(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.write_text(LOADING)
    for kind in ("unreachable", "dead"):
        status = await watch(kind, log).status()
        assert status.kind == "loading"
        assert status.phase is not None
        assert status.phase.key == "loading_weights"
        assert status.seconds is not None
        assert status.seconds >= 7
        assert "loading the model's weights… 7 s" in status_sentence(status, "en")


async def test_an_old_log_says_nothing(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.write_text(LOADING)
    long_ago = time.time() - 3600
    os.utime(log, (long_ago, long_ago))
    assert (await watch("unreachable", log).status()).kind == "unreachable"


async def test_an_engine_that_served_and_went_is_dead_not_loading(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.write_text(LOADING + "INFO Application startup complete.\n")
    assert (await watch("dead", log).status()).kind == "dead"
    log.write_text("INFO some request\n" * 300)
    assert (await watch("dead", log).status()).kind == "dead"


async def test_a_failed_start_is_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.write_text(LOADING + "ERROR EngineCore failed to start.\n")
    assert (await watch("unreachable", log).status()).kind == "dead"


async def test_many_pages_ask_the_engine_once(tmp_path: Path) -> None:
    engine = FakeEngine("ready")
    shared = EngineWatch(engine, tmp_path / "none.log")  # type: ignore[arg-type]
    assert all([(await shared.status()).ready for _ in range(20)])
    assert engine.asked == 1


async def test_waiting_ends_when_the_engine_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_backend.ui.engine_watch.MAX_AGE_S", 0.0)
    engine = FakeEngine("unreachable", "loading", "ready")
    shared = EngineWatch(engine, tmp_path / "none.log")  # type: ignore[arg-type]
    assert [status.kind async for status in shared.until_ready()] == ["unreachable", "loading"]


@pytest.mark.parametrize("kind", ["loading", "unreachable", "dead"])
def test_every_state_has_a_sentence_in_both_languages(kind: str) -> None:
    status = EngineStatus(kind)  # type: ignore[arg-type]
    assert status_sentence(status, "en") != status_sentence(status, "zh-CN")

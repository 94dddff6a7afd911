"""What goes wrong around a chat, with real processes: the app as started by start.sh, an engine one can kill.

| Fault | Shown here, or in |
|---|---|
| engine killed mid-answer, started again | here; start.sh ends (`test_start_sh.py`) |
| engine stalls, stream cut, invalid chunk | here (chat) and `test_record_replay.py` (record) |
| 400, 401, 404, 413, 429, 500 | here |
| database locked | here; disk full, read-only: here and `tests/unit/test_store.py` |
| log on a full disk | `tests/unit/test_log_writer.py` |
| app killed mid-run | here and `tests/unit/test_store_recovery.py` |
| asked to stop mid-run | here |
| clock jumps | here |
| two starts at once | `test_start_sh.py` |
| client gone, page reload mid-stream | here |
"""

# ruff: noqa: ASYNC210, ASYNC221  # blocking this loop delays nobody
from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_client import ChatClient
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0


class Server:
    """One process of ours that answers HTTP at `url`."""

    def __init__(self, argv: list[str], port: int, log: Path, **environ: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._argv, self._log, self._environ = argv, log, environ
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("ENCORE_", "CHAINLIT_"))
        }
        with self._log.open("a") as output:
            self.process = subprocess.Popen(
                self._argv, cwd=ROOT, env=inherited | self._environ, stdout=output, stderr=output
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            try:
                httpx.get(f"{self.url}/bodies", timeout=5)
                return self.process
            except httpx.HTTPError:
                time.sleep(0.05)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    argv = [sys.executable, str(ROOT / "tests" / "scripted_engine.py"), "--port", str(port)]
    server = Server(argv, port, tmp_path_factory.mktemp("engine") / "log")
    yield server
    server.end()


@contextmanager
def app_for(engine: Server, folder: Path, **extra: str) -> Iterator[Server]:
    port = free_port()
    environ = {
        "ENCORE_APP_PORT": str(port),
        "ENCORE_ENGINE_URLS": engine.url,
        "ENCORE_DATA_DIR": str(folder),
        "ENCORE_RUN_DIR": str(folder),
        "ENCORE_LOG_FILE": str(folder / "llm.log"),
        "ENCORE_STALL_TIMEOUT": "2",
        "ENCORE_STOP_GRACE": "0",
        **extra,
    }
    server = Server([sys.executable, "-m", "llm_backend.ui"], port, folder / "app.log", **environ)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def app(engine: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with app_for(engine, tmp_path_factory.mktemp("app")) as server:
        yield server


def script(engine: Server, *replies: dict[str, Any]) -> None:
    httpx.post(f"{engine.url}/script", json=list(replies)).raise_for_status()


def runs(app: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{app.url}/runs", timeout=30).json()
    return found


SLOW = {"text": "word " * 300, "tokens_per_second": 30}


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "temperature must be non-negative"),
        (401, "Unauthorized"),
        (404, "Not Found"),
        (413, "Request Entity Too Large"),
        (429, "Too many requests"),
        (500, "EngineDeadError"),
        (503, "overloaded"),
    ],
)
async def test_every_refusal_is_one_readable_sentence_and_the_question_can_be_asked_again(
    engine: Server, app: Server, status: int, message: str, language: str
) -> None:
    known = len(runs(app))
    async with ChatClient(app.url, language=language) as page:
        await page.ready()
        script(engine, {"status": status, "error": message})
        said = await page.ask("Why?")
        assert not any(sign in said for sign in ("{", "Traceback", "Error code")), said
        assert said.rstrip().endswith((".", "。")), said
        if language == "zh-CN":
            assert any("\u4e00" <= character <= "\u9fff" for character in said), said
        await page.until(lambda: bool(page.retry_buttons()), "the question can be asked again")
        assert len(runs(app)) == known, "nothing was generated, nothing is recorded"
        assert "112330" in await page.ask("And now?")


@pytest.mark.parametrize("ending", ["close", "error", "garbage", "no_finish", "stall"])
async def test_a_broken_answer_is_kept_said_and_can_be_asked_again(
    engine: Server, app: Server, ending: str
) -> None:
    async with ChatClient(app.url) as page:
        await page.ready()
        script(engine, {"ending": ending, "ending_after": 40})
        said = await page.ask("Why?")
        assert "after 40 tokens" in said
        assert runs(app)[0]["status"] == "interrupted"
        await page.until(lambda: bool(page.retry_buttons()), "the question can be asked again")


async def test_an_engine_killed_mid_answer_is_waited_for_and_the_next_question_is_answered(
    engine: Server, app: Server
) -> None:
    async with ChatClient(app.url) as page:
        await page.ready()
        script(engine, SLOW)
        await page.send("Why?")
        await page.until(lambda: len(page.pieces) > 2, "the answer streams")
        engine.kill()
        await page.until(lambda: bool(page.retry_buttons()), "the question can be asked again")
        assert runs(app)[0]["status"] == "interrupted"
        health = httpx.get(f"{app.url}/healthz", timeout=30)
        assert health.status_code == 503
        assert health.json()["problem"]
        await page.send("And now?")
        await page.until(lambda: any("kept" in said for said in page.answers()), "the question is kept")
        engine.start()
        await page.until(lambda: any("112330" in said for said in page.answers()), "it is answered")


async def test_a_killed_app_loses_nothing_but_the_end_of_one_answer(engine: Server, tmp_path: Path) -> None:
    with app_for(engine, tmp_path) as app:
        async with ChatClient(app.url) as page:
            await page.ask("Before?")
            script(engine, SLOW)
            await page.send("Why?")
            await page.until(lambda: len(runs(app)) == 2 and len(page.pieces) > 20, "tokens are stored")
            before = runs(app)[1]
            app.kill()
        app.start()
        after = runs(app)
        assert [run["status"] for run in after] == ["interrupted", "complete"]
        assert after[1] == before
        assert httpx.get(f"{app.url}/receipts/{after[0]['digest']}").json()["receipt"]["completion"]["tokens"]
        async with ChatClient(app.url) as page:
            assert "112330" in await page.ask("After?")


@pytest.mark.parametrize(("grace", "status"), [("20", "complete"), ("0.2", "interrupted")])
async def test_a_stop_lets_an_answer_finish_in_the_stated_time_or_marks_it(
    engine: Server, tmp_path: Path, grace: str, status: str
) -> None:
    with app_for(engine, tmp_path, ENCORE_STOP_GRACE=grace, ENCORE_LOG_FORMAT="json") as app:
        async with ChatClient(app.url) as page:
            await page.ready()
            script(engine, {"text": "word " * 60 + "end", "tokens_per_second": 30})
            await page.send("What is my secret-4711?")
            await page.until(lambda: len(page.pieces) > 2, "the answer streams")
            app.process.terminate()
            if status == "complete":
                await page.until(lambda: any("end" in said for said in page.answers()), "the end is seen")
                async with ChatClient(app.url) as other:
                    await other.send("One more?")
                    await other.until(lambda: bool(other.answers()), "it is refused")
                    assert "being stopped" in other.answers()[-1]
            await asyncio.to_thread(app.process.wait, 30)
        app.start()
        (run,) = runs(app)
        assert run["status"] == status
    lines = (tmp_path / "app.log").read_text().splitlines()
    assert not any("secret-4711" in line for line in lines)
    ended = [json.loads(line) for line in lines if '"run ended"' in line]
    assert [line["status"] for line in ended] == [status]
    assert ended[0]["digest"] == run["digest"]


async def test_a_reload_mid_answer_is_one_generation_and_the_run_is_found_again(
    engine: Server, app: Server
) -> None:
    asked = len(httpx.get(f"{engine.url}/bodies").json())
    async with ChatClient(app.url) as page:
        await page.ready()
        script(engine, {"text": "word " * 60 + "end", "tokens_per_second": 60})
        await page.send("Why?")
        await page.until(lambda: len(page.pieces) > 2, "the answer streams")
    async with ChatClient(app.url, session_id=page.session_id) as again:
        await again.until(lambda: runs(app)[0]["status"] == "complete", "the run is complete")
    assert len(httpx.get(f"{engine.url}/bodies").json()) == asked + 1
    assert runs(app)[0]["question"] == "Why?"


async def test_a_locked_database_is_said_and_the_next_question_works(engine: Server, tmp_path: Path) -> None:
    with app_for(engine, tmp_path) as app:
        async with ChatClient(app.url) as page:
            await page.ready()
            other = sqlite3.connect(tmp_path / "encore.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            said = await page.ask("Why?", patience_s=90)
            other.execute("ROLLBACK")
            other.close()
            assert "database" in said.lower()
            assert "Traceback" not in said
            await page.until(lambda: bool(page.retry_buttons()), "the question can be asked again")
            assert "112330" in await page.ask("And now?")


def fill(file: Path) -> None:
    """Take all the room there is."""
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(b"0" * 4096):
            pass


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")
async def test_a_full_disk_is_said_and_room_made_later_is_used(engine: Server, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"this machine lets nobody mount: {mounted.stderr.decode().strip()}")
    try:
        environ = {"ENCORE_DATABASE_URL": f"sqlite+aiosqlite:///{disk}/encore.db"}
        with app_for(engine, tmp_path, **environ) as app:
            async with ChatClient(app.url) as page:
                await page.ask("Before?")
                fill(disk / "filler")
                script(engine, {"text": "word " * 3000})
                said = await page.ask("Why?")
                assert "full" in said
                (disk / "filler").unlink()
                assert "112330" in await page.ask("And now?")
            assert runs(app)[-1]["status"] == "complete"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_durations_are_measured_with_a_clock_that_cannot_jump() -> None:
    """A wall clock set back gives negative times; only what is shown as a date may use it."""
    program = """
import asyncio, itertools, sys, time
from datetime import datetime
backwards = itertools.count(2_000_000_000, -1_000)
time.time = lambda: float(next(backwards))
sys.path.insert(0, 'tests')
from scripted_engine import Reply, Script, ScriptedEngine, serving
from llm_backend.engine.client import EngineClient
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.store import Store

async def main(url):
    store = await Store.open('sqlite+aiosqlite:///:memory:')
    request = build_request('scripted', [Message(role='user', content='x')], Sampling())
    async with EngineClient(url) as engine, record(engine, store, request, chat_id='c') as recording:
        async for _ in recording:
            pass
    print(recording.run.ttft_s, recording.run.duration_s)
    await store.close()

with serving(ScriptedEngine()) as url:
    asyncio.run(main(url))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    ttft, duration = map(float, done.stdout.split())
    assert 0 <= ttft <= duration < 30

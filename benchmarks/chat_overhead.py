"""What the app costs over the raw engine stream, and what opening a long run costs.

One scripted engine emits at a fixed rate; the same answer is read once straight from it and once
through the app's socket, in turn, so that a slow machine slows both. Prints a table; exits 1 when a
budget is missed.

    python benchmarks/chat_overhead.py
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import httpx
import socketio

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from scripted_engine import Reply, Script, ScriptedEngine, serving  # noqa: E402  # found by the line above

from llm_backend.engine.client import EngineClient  # noqa: E402
from llm_backend.receipt import Message, Sampling  # noqa: E402
from llm_backend.record import build_request, record  # noqa: E402
from llm_backend.store import Store  # noqa: E402

ROUNDS = 7
RATE = 200.0
"""Tokens per second of the scripted engine: above any CPU, near one stream on a GPU."""
WORDS = 400
LONG_RUN = 32_768

TTFT_BUDGET_S = 0.050
SPEED_BUDGET = 0.97
PANEL_BUDGET_S = 1.0
MEMORY_BUDGET_MIB = 400


async def raw(url: str, question: str) -> tuple[float, float]:
    """Seconds to the first token and tokens per second after it, straight from the engine."""
    request = build_request("scripted", [Message(role="user", content=question)], Sampling())
    first, count = 0.0, 0
    async with EngineClient(url) as engine:
        await engine.identity()  # opens what a long-lived client has open
        started = time.monotonic()
        async with engine.stream(request) as stream:
            async for delta in stream:
                first = first or time.monotonic()
                count += len(delta.tokens)
    return first - started, (count - 1) / (time.monotonic() - first)


async def through_app(url: str, question: str) -> tuple[float, float]:
    """The same as a browser sees it: from sending the message to the text arriving on the socket."""
    client = socketio.AsyncClient()
    first = 0.0
    chunks: list[str] = []
    ready, done = asyncio.Event(), asyncio.Event()

    @client.on("*")
    def anything(event: str, *data: object) -> None:
        nonlocal first
        # Chainlit's stream_start carries the text of the first piece, stream_token the rest.
        if event == "stream_start" and data[0]["output"]:  # type: ignore[index]
            first = time.monotonic()
            chunks.append(str(data[0]["output"]))  # type: ignore[index]
        elif event == "stream_token":
            chunks.append(str(data[0]["token"]))  # type: ignore[index]
        elif event == "task_end" and chunks:
            done.set()
        elif event in ("init_thread", "chat_settings", "new_message", "set_commands"):
            ready.set()

    auth = {
        "clientType": "webapp",
        "sessionId": str(uuid.uuid4()),
        "threadId": "",
        "userEnv": "{}",
        "chatProfile": "",
    }
    await client.connect(url, socketio_path="/ws/socket.io", auth=auth, transports=["websocket"])
    await client.emit("connection_successful")
    await asyncio.wait_for(ready.wait(), 30)
    message = {
        "id": str(uuid.uuid4()),
        "type": "user_message",
        "output": question,
        "name": "User",
        "createdAt": "2026-01-01T00:00:00Z",
    }
    started = time.monotonic()
    await client.emit("client_message", {"message": message, "fileReferences": []})
    await asyncio.wait_for(done.wait(), 120)
    finished = time.monotonic()
    await client.disconnect()
    return first - started, (WORDS - 1) / (finished - first)


async def panel_window(url: str, digest: str) -> float:
    """Seconds to get what the panel shows of a long run."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        started = time.monotonic()
        response = await http.get(f"/receipts/{digest}/tokens", params={"start": 16_000, "stop": 16_400})
        response.raise_for_status()
        return time.monotonic() - started


async def record_long_run(engine_url: str, data: Path) -> str:
    store = await Store.open(f"sqlite+aiosqlite:///{data / 'encore.db'}")
    request = build_request("scripted", [Message(role="user", content="long")], Sampling(max_tokens=LONG_RUN))
    async with (
        EngineClient(engine_url) as engine,
        record(engine, store, request, chat_id="benchmark") as recording,
    ):
        async for _ in recording:
            pass
    await store.close()
    assert recording.receipt is not None
    assert len(recording.receipt.completion.tokens) == LONG_RUN
    return recording.receipt.digest


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def start_app(environ: dict[str, str], log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "llm_backend.ui"], cwd=ROOT, env=environ, stdout=log, stderr=log
        )


async def measure(engine_url: str, script: Script, folder: Path) -> list[tuple[str, str, str, bool]]:
    script.enqueue(Reply(text="a" + " b" * LONG_RUN, tokens_per_chunk=64))
    digest = await record_long_run(engine_url, folder / "data")
    script.default = Reply(text=" word" * WORDS, tokens_per_second=RATE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = os.environ | {
        "ENCORE_APP_PORT": str(port),
        "ENCORE_ENGINE_URLS": engine_url,
        "ENCORE_DATA_DIR": str(folder / "data"),
        "ENCORE_RUN_DIR": str(folder / "run"),
    }
    url = f"http://127.0.0.1:{port}"
    app = start_app(environ, folder / "app.log")
    try:
        async with httpx.AsyncClient() as http, asyncio.timeout(60):
            while True:
                try:
                    await http.get(f"{url}/healthz")
                    break
                except httpx.HTTPError:
                    await asyncio.sleep(0.1)
        straight, shown, windows = [], [], []
        for _ in range(ROUNDS):
            straight.append(await raw(engine_url, "question"))
            shown.append(await through_app(url, "question"))
            windows.append(await panel_window(url, digest))
        memory = resident_mib(app.pid)
    finally:
        app.terminate()
        app.wait(20)
    ttft = statistics.median(b[0] - a[0] for a, b in zip(straight, shown, strict=True))
    speed = statistics.median(b[1] / a[1] for a, b in zip(straight, shown, strict=True))
    window = statistics.median(windows)
    return [
        ("time to first token, app minus raw", f"{ttft * 1000:.1f} ms", "≤ 50 ms", ttft <= TTFT_BUDGET_S),
        ("tokens per second, app over raw", f"{speed:.3f}", "≥ 0.97", speed >= SPEED_BUDGET),
        ("window of a 32,768-token run", f"{window * 1000:.0f} ms", "≤ 1 s", window <= PANEL_BUDGET_S),
        ("app memory, peak", f"{memory:.0f} MiB", "≤ 400 MiB", memory <= MEMORY_BUDGET_MIB),
    ]


def main() -> int:
    script = Script()
    with tempfile.TemporaryDirectory() as folder, serving(ScriptedEngine(script)) as url:
        (Path(folder) / "data").mkdir()
        table = asyncio.run(measure(url, script, Path(folder)))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"n = {ROUNDS}, medians"
    )
    for name, measured, budget, kept in table:
        print(f"  {name:36} {measured:>10}   budget {budget:9} {'kept' if kept else 'MISSED'}")
    return int(not all(kept for *_, kept in table))


if __name__ == "__main__":
    sys.exit(main())

"""How much faster the instant check is than generating the answer again.

One launch of the CPU engine records an answer, then replays and checks it in turn, so that a slow
machine slows both. Prints a table; exits 1 when the ratio is missed.

    python benchmarks/instant_check.py [URL of a running engine]
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from llm_backend.check import Calibrations, check  # noqa: E402  # found by the line above
from llm_backend.engine.client import EngineClient  # noqa: E402
from llm_backend.receipt import Message, Sampling  # noqa: E402
from llm_backend.record import build_request, record  # noqa: E402
from llm_backend.replay import replay  # noqa: E402
from llm_backend.store import Store  # noqa: E402

QUESTION = "List fifty animals and say one sentence about each."
TOKENS = 512
ROUNDS = 3
RATIO_BUDGET = 20.0
"""What is wanted; on an H200 195 was measured."""


@contextmanager
def launched(folder: Path) -> Iterator[str]:
    """The CPU engine as `./start.sh` starts it, with files and a port of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = os.environ | {
        "ENCORE_ENGINE": "cpu",
        "ENCORE_ENGINE_PORT": str(port),
        "ENCORE_RUN_DIR": str(folder / "run"),
        "ENCORE_LOG_FILE": str(folder / "llm.log"),
    }
    start = ["bash", str(ROOT / "start.sh")]
    try:
        subprocess.run([*start, "engine", "--detach"], env=environ, stdout=sys.stderr, check=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([*start, "stop"], env=environ, stdout=sys.stderr, check=False)


async def measure(url: str, folder: Path) -> int:
    store = await Store.open(f"sqlite+aiosqlite:///{folder / 'encore.db'}")
    calibrations = Calibrations(folder / "calibrations.json")
    async with EngineClient(url) as engine:
        model = (await engine.identity()).model
        request = build_request(model, [Message(role="user", content=QUESTION)], Sampling(max_tokens=TOKENS))
        async with record(engine, store, request, chat_id="benchmark") as recording:
            async for _ in recording:
                pass
        assert recording.run is not None
        assert recording.receipt is not None
        assert len(recording.receipt.completion.tokens) == TOKENS, "the answer ended early"
        started = time.monotonic()
        result = await check(engine, recording.receipt, calibrations)
        first = time.monotonic() - started
        replays, checks = [], []
        for _ in range(ROUNDS):
            started = time.monotonic()
            await replay(engine, store, recording.run, chat_id="benchmark")
            replays.append(time.monotonic() - started)
            started = time.monotonic()
            await check(engine, recording.receipt, calibrations)
            checks.append(time.monotonic() - started)
    await store.close()
    ratio = statistics.median(replays) / statistics.median(checks)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, model {model}")
    print(f"{TOKENS} tokens, {ROUNDS} rounds, medians (range)")
    for name, seconds in (("replay", replays), ("check", checks)):
        print(f"  {name:<7}{statistics.median(seconds):8.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    print(f"  ratio  {ratio:8.1f}    (at least {RATIO_BUDGET:.0f})")
    print(f"first check, with the engine's self-check: {first:.2f} s; verdict {result.verdict}")
    return 0 if ratio >= RATIO_BUDGET and result.passed else 1


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:]:
            return asyncio.run(measure(sys.argv[1].rstrip("/"), Path(folder)))
        with launched(Path(folder)) as url:
            return asyncio.run(measure(url, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())

"""Thirty students on one app process: what is lost or mixed up, how late words come, whether memory grows.

Each speaks to the app's socket as Chainlit's page does and asks again as soon as it is answered; the
scripted engine answers each at 50 tokens a second and repeats the question, so a mixed-up answer shows.
A piece's delay is the time from its last token's due moment, by the engine's clock, to its arrival,
less the display's own interval (it collects pieces for at least 100 ms, on purpose).

    python benchmarks/students.py [--seconds 60] [--students 30]     (1800 for the half-hour soak)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from chat_client import ChatClient  # noqa: E402  # found by the line above
from scripted_engine import Reply, Script, ScriptedEngine, serving  # noqa: E402

STUDENTS = 30
RATE = 50.0
"""Tokens per second for each."""
TOKENS = 400

DELAY_BUDGET_S = 0.150
GROWTH_BUDGET_MIB_PER_HOUR = 100.0
"""After the first quarter, which fills caches."""


@dataclass
class Report:
    """What was measured."""

    asked: int = 0
    lost: int = 0
    mixed_up: int = 0
    """Answers to somebody else's question."""
    said_instead: list[str] = field(default_factory=list)
    """What came for an answer that was lost: a refusal of the app, the part that had arrived."""
    delays_s: list[float] = field(default_factory=list)
    memory_mib: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, resident MiB) of the app."""

    @property
    def p95_s(self) -> float:
        return statistics.quantiles(self.delays_s, n=20)[-1]

    @property
    def growth_mib_per_hour(self) -> float:
        settled = self.memory_mib[len(self.memory_mib) // 4 :]
        slope = statistics.linear_regression([at for at, _ in settled], [mib for _, mib in settled]).slope
        return slope * 3600


@contextmanager
def app_process(engine_url: str, folder: Path) -> Iterator[tuple[str, int]]:
    """The app on a port of its own; yields its address and pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ENCORE_")} | {
        "ENCORE_APP_PORT": str(port),
        "ENCORE_ENGINE_URLS": engine_url,
        "ENCORE_DATA_DIR": str(folder),
        "ENCORE_RUN_DIR": str(folder),
        "ENCORE_LOG_FILE": str(folder / "llm.log"),
        "ENCORE_STOP_GRACE": "0",
    }
    with (folder / "app.log").open("w") as log:
        app = subprocess.Popen(
            [sys.executable, "-m", "llm_backend.ui"], cwd=ROOT, env=environ, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{url}/status", timeout=5)
                break
            except httpx.HTTPError:
                assert app.poll() is None, (folder / "app.log").read_text()
                assert time.monotonic() < deadline, "the app did not start"
                time.sleep(0.1)
        yield url, app.pid
    finally:
        app.terminate()
        app.wait(timeout=30)


async def measure(folder: Path, *, seconds: float, students: int = STUDENTS, tokens: int = TOKENS) -> Report:
    """Let `students` ask and ask again for `seconds`; everyone's last answer is waited for."""

    def reply(body: dict[str, Any]) -> Reply:
        name = body["messages"][-1]["content"]
        return Reply(text=f"{name} says{' word' * (tokens - 4)} end", tokens_per_second=RATE)

    report = Report()
    engine = ScriptedEngine(Script(answer=reply))
    with serving(engine) as engine_url, app_process(engine_url, folder) as (url, pid):
        until = time.monotonic() + seconds
        watching = asyncio.create_task(_watch(pid, report))
        await asyncio.gather(*(_student(url, number, until, report) for number in range(students)))
        watching.cancel()
    return report


async def _student(url: str, number: int, until: float, report: Report) -> None:
    rounds = 0
    while time.monotonic() < until:
        async with ChatClient(url) as page:  # a new chat: a longer one would be another measurement
            rounds += 1
            name = f"{chr(97 + number % 26) * (1 + number // 26)}q" + "x" * (rounds % 5)
            report.asked += 1
            try:
                answer = await page.ask(name, patience_s=120)
            except TimeoutError:
                report.lost += 1
                continue
            whose = re.match(r"([a-z]{1,2}qx*) says", answer)
            if whose and whose[1] != name:
                report.mixed_up += 1
            elif not whose or not answer.endswith("end"):
                report.lost += 1
                report.said_instead.append(answer)
            report.delays_s += _delays(page.pieces)


def _delays(pieces: list[tuple[float, str]]) -> list[float]:
    """How much later than in the smoothest stream of this answer each piece came.

    Tokens come at a fixed rate, so arrival minus due time is constant in a stream without delay; the
    display's own interval is allowed for once.
    """
    if len(pieces) < 3:
        return []
    words, ages = 0, []
    for at, piece in pieces:
        words += piece.count(" ") or 1
        ages.append(at - words / RATE)
    earliest = min(ages)
    return [max(0.0, age - earliest) for age in ages]


async def _watch(pid: int, report: Report) -> None:
    started = time.monotonic()
    while True:
        report.memory_mib.append((time.monotonic() - started, _resident_mib(pid)))
        await asyncio.sleep(1)


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--students", type=int, default=STUDENTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(measure(Path(folder), seconds=options.seconds, students=options.students))
    first, last = report.memory_mib[0][1], report.memory_mib[-1][1]
    growth = report.growth_mib_per_hour
    # A minute of warm-up says nothing about an hour: the slope counts from ten minutes on.
    long_enough = options.seconds >= 600
    good = (
        (report.lost, report.mixed_up) == (0, 0)
        and report.p95_s <= DELAY_BUDGET_S
        and (not long_enough or growth <= GROWTH_BUDGET_MIB_PER_HOUR)
    )
    print(f"{options.students} students at {RATE:.0f} tokens/s for {options.seconds:.0f} s")
    print(f"asked {report.asked}, lost {report.lost}, mixed up {report.mixed_up}")
    print(
        f"added delay per piece: median {statistics.median(report.delays_s) * 1000:.0f} ms, "
        f"p95 {report.p95_s * 1000:.0f} ms (at most {DELAY_BUDGET_S * 1000:.0f})"
    )
    print(f"memory {first:.0f} MiB at first, {last:.0f} at last, {growth:+.0f} MiB/h after the first quarter")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run a script of `llm_backend/offline` with the engine's interpreter: a job in, its result out.

The script's own lines are JSON on standard output; everything libraries print goes to a log file. A
cancelled call ends the script and every process it started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from llm_backend.config import ROOT
from llm_backend.engine.phase import tail
from llm_backend.errors import LaunchError

Script = Literal["logits", "attention"]

OnStage = Callable[[str, int, int], None]
"""Called with the stage's name, how much of it is done, and of how much."""

_LINE_LIMIT = 2**24
"""Bytes; the result is one line."""

_END_SECONDS = 10.0


async def run_offline(
    script: Script,
    job: dict[str, Any],
    *,
    interpreter: Path,
    environ: Mapping[str, str],
    log: Path,
    on_stage: OnStage,
) -> dict[str, Any]:
    """The script's result. Raises `LaunchError` when it refuses the job or dies."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as chatter:
        process = await asyncio.create_subprocess_exec(
            *(str(interpreter), "-m", f"llm_backend.offline.{script}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=chatter,
            env={**environ, "PYTHONPATH": str(ROOT)},
            limit=_LINE_LIMIT,
            start_new_session=True,
        )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job, allow_nan=False).encode())
        process.stdin.close()
        async for line in process.stdout:
            message = json.loads(line)
            if "refused" in message:
                raise LaunchError(message["refused"])
            if "result" in message:
                result: dict[str, Any] = message["result"]
                return result
            on_stage(message["stage"], message["done"], message["total"])
        code = await process.wait()
        last = next(reversed(tail(log, 20)), "it printed nothing")
        raise LaunchError(f"The {script} script ended with code {code}: {last}", f"All it printed: {log}.")
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let it finish what it is closing, then end its whole session: vLLM starts processes of its own."""
    try:
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
    except TimeoutError:
        pass
    finally:
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(session: int, number: signal.Signals) -> None:
    try:
        os.killpg(session, number)
    except ProcessLookupError:
        return

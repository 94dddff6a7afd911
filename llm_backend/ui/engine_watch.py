"""Whether an engine can answer now, and what the first one is doing if none can.

Many pages ask at once; the engine is asked at most once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_backend.engine.phase import Phase, phase_of, tail
from llm_backend.engine_pool import EnginePool
from llm_backend.strings import Language, text

MAX_AGE_S = 1.0
LOG_LINES = 200
_BEING_STARTED = ("loading_weights", "compiling", "warming_up")

FRESH_LOG_S = 120.0
"""A log that has been silent for longer belongs to a start that is over."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """For people: the client's word joined with the phase that the engine's log tells."""

    kind: Literal["ready", "loading", "unreachable", "dead"]
    detail: str = ""
    phase: Phase | None = None
    seconds: float | None = None
    """Since the phase began."""

    @property
    def ready(self) -> bool:
        return self.kind == "ready"


class EngineWatch:
    """Shared by all chats; see `status` and `until_ready`."""

    def __init__(self, engines: EnginePool, log_file: Path) -> None:
        self._engines = engines
        self._log_file = log_file
        self._lock = asyncio.Lock()
        self._known = EngineStatus("unreachable")
        self._known_at = float("-inf")

    async def status(self) -> EngineStatus:
        """At most `MAX_AGE_S` old; never raises."""
        async with self._lock:
            if time.monotonic() - self._known_at >= MAX_AGE_S:
                self._known = await self._look()
                self._known_at = time.monotonic()
            return self._known

    async def until_ready(self) -> AsyncIterator[EngineStatus]:
        """The status once a second for as long as the engine cannot answer."""
        while not (status := await self.status()).ready:
            yield status
            await asyncio.sleep(MAX_AGE_S)

    async def _look(self) -> EngineStatus:
        state = await self._engines.state()
        if state.kind == "ready":
            return EngineStatus("ready")
        written = await asyncio.to_thread(_last_written, self._log_file)
        silent = None if written is None else time.time() - written
        if silent is None or silent > FRESH_LOG_S:
            return EngineStatus(state.kind, state.detail)
        phase = phase_of(await asyncio.to_thread(tail, self._log_file, LOG_LINES))
        if phase.key == "failed":
            return EngineStatus("dead", state.detail, phase)
        # An engine being started answers nowhere until its weights are loaded, but its log grows.
        # "starting" may only mean that the telling lines have scrolled away: not enough after a death.
        starting = phase.key in _BEING_STARTED or (phase.key == "starting" and state.kind == "unreachable")
        kind = "loading" if starting else state.kind
        seconds = None if phase.seconds is None else phase.seconds + silent
        return EngineStatus(kind, state.detail, phase, seconds)


def _last_written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def status_sentence(status: EngineStatus, lang: Language) -> str:
    """Why the engine cannot answer now, in one sentence: "The engine is loading its weights… 12 s"."""
    if status.kind != "loading":
        return text(f"engine_state.{status.kind}", lang)
    key = status.phase.key if status.phase and status.phase.key != "ready" else "starting"
    sentence = text(f"engine_state.{key}", lang)
    return sentence if status.seconds is None else f"{sentence} {status.seconds:.0f} s"

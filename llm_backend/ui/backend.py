"""What all chats of this process share: settings, store and engines. Nothing about any one chat.

`server.py` opens it with the application and closes it after the last run has been stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_backend.access import open_engines, open_store
from llm_backend.config import Settings
from llm_backend.engine.client import EngineClient
from llm_backend.engine_pool import EnginePool
from llm_backend.record import APP_STOPPED
from llm_backend.store import Store
from llm_backend.ui.engine_watch import EngineWatch
from llm_backend.ui.health import HealthCheck
from llm_backend.ui.judging import Judging
from llm_backend.ui.queueing import Line
from llm_backend.ui.walls import Walls

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts, ready to use."""

    settings: Settings
    store: Store
    engines: EnginePool
    watch: EngineWatch
    health: HealthCheck
    walls: Walls = field(default_factory=Walls)
    judging: Judging = field(default_factory=Judging)
    _work: set[asyncio.Task[None]] = field(default_factory=set)
    _lines: dict[str, Line] = field(default_factory=dict)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def active(self) -> int:
        """Pieces of work under way: answers, replays, repetitions."""
        return len(self._work)

    @property
    def draining(self) -> bool:
        """The process was asked to end: what runs may finish, nothing new begins."""
        return self._stopping.is_set()

    async def drain(self, seconds: float) -> None:
        """Begin nothing new, and give what runs at most so many seconds to finish."""
        self._stopping.set()
        if self._work:
            log.info("stopping: waiting for work", extra={"active": len(self._work), "seconds": seconds})
            await asyncio.wait(tuple(self._work), timeout=seconds)

    @property
    def engine(self) -> EngineClient:
        """Where the next request goes; ask again for each."""
        return self.engines.choose()

    def line(self, engine: EngineClient) -> Line:
        """The questions waiting for `engine`."""
        return self._lines.setdefault(engine.url, Line(engine))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the request that asked for it; stopped, not lost, when the app closes."""
        task = asyncio.create_task(work)
        self.track(task)
        return task

    def track(self, task: asyncio.Task[None]) -> None:
        """Have the app wait for `task` when it closes."""
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def stop_work(self) -> None:
        """Cancel what still runs and wait until it has stored what it has."""
        self._stopping.set()
        tasks = tuple(self._work)
        for task in tasks:
            task.cancel(APP_STOPPED)
        await asyncio.gather(*tasks, return_exceptions=True)


_running: Backend | None = None


def backend() -> Backend:
    """The backend of the running application."""
    assert _running is not None, "the application has not started"
    return _running


@asynccontextmanager
async def running_backend(settings: Settings) -> AsyncIterator[Backend]:
    """Open everything; runs that an earlier process left unfinished become interrupted ones."""
    global _running
    async with open_store(settings) as store, open_engines(settings) as engines:
        await store.recover()
        watch = EngineWatch(engines, settings.log_file)
        _running = Backend(settings, store, engines, watch, HealthCheck(engines, watch))
        try:
            yield _running
            await _running.health.close()
            await _running.stop_work()
            await _running.judging.close()
        finally:
            _running = None

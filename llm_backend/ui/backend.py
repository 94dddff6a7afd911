"""What all chats of this process share: settings, store and engines. Nothing about any one chat.

`server.py` opens it with the application and closes it after the last run has been stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_backend.access import open_engines, open_store
from llm_backend.config import Settings
from llm_backend.engine.client import EngineClient
from llm_backend.engine_pool import EnginePool
from llm_backend.store import Store
from llm_backend.ui.engine_watch import EngineWatch


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts, ready to use."""

    settings: Settings
    store: Store
    engines: EnginePool
    watch: EngineWatch
    _work: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def engine(self) -> EngineClient:
        """Where the next request goes; ask again for each."""
        return self.engines.choose()

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
        tasks = tuple(self._work)
        for task in tasks:
            task.cancel()
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
        _running = Backend(settings, store, engines, EngineWatch(engines, settings.log_file))
        try:
            yield _running
            await _running.stop_work()
        finally:
            _running = None

"""The web application: our routes, Chainlit under them, one guard around both."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from chainlit.session import ws_sessions_id
from chainlit.utils import mount_chainlit
from fastapi import FastAPI
from starlette.types import ASGIApp

from llm_backend.config import ROOT, Settings
from llm_backend.ui.backend import backend, running_backend
from llm_backend.ui.guard import Guard
from llm_backend.ui.history import open_named_threads
from llm_backend.ui.http import add_routes
from llm_backend.ui.login import configure_login


def create_app(settings: Settings) -> ASGIApp:
    """The application for one process. Chainlit keeps its state in module globals: one per process."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running_backend(settings):
            yield
        # Mounted, Chainlit leaves what it wrote for its sessions behind; only ours, another instance may run.
        for session in tuple(ws_sessions_id.values()):
            await session.delete()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    # Before Chainlit: at path "" it answers whatever is left with its single page.
    add_routes(app)
    mount_chainlit(app, str(ROOT / "app.py"), path="")
    open_named_threads()
    configure_login(settings)
    return Guard(app, settings.root_path)


class DrainingServer(uvicorn.Server):
    """Asked to end, it lets running answers finish while their pages are still connected.

    uvicorn itself would close the websockets first. A second signal ends the waiting (`force_exit`).
    """

    def __init__(self, config: uvicorn.Config, grace_s: float) -> None:
        super().__init__(config)
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.create_task(backend().drain(self._grace_s))
        while not draining.done() and not self.force_exit:
            await asyncio.wait((draining,), timeout=0.1)
        draining.cancel()
        await super().shutdown(sockets)

"""The web application: our routes, Chainlit under them, one guard around both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chainlit.session import ws_sessions_id
from chainlit.utils import mount_chainlit
from fastapi import FastAPI
from starlette.types import ASGIApp

from llm_backend.config import ROOT, Settings
from llm_backend.ui.backend import running_backend
from llm_backend.ui.guard import Guard
from llm_backend.ui.http import add_routes


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
    return Guard(app)

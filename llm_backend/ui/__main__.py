"""`python -m llm_backend.ui`: serve the chat on the configured host and port, in one process.

The port is taken before Chainlit is imported: importing it prepares its files folder, and a second
instance that failed later would delete the one of the first when it exits.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import uvicorn

from llm_backend.config import ROOT, Settings, load_settings
from llm_backend.engine.preflight import check_login
from llm_backend.errors import EncoreError
from llm_backend.store import Store
from llm_backend.ui import logs


def main() -> int:
    """Serve until a signal; 0 after an orderly end, 2 when it could not start."""
    try:
        settings = load_settings()
        check_login(settings)
        asyncio.run(_check_database(settings))
        with _listen(settings) as listening:
            _serve(settings, listening)
    except EncoreError as error:
        print(error.diagnostics(), file=sys.stderr)
        return 2
    return 0


async def _check_database(settings: Settings) -> None:
    """Its refusal is one sentence here, and a traceback inside the server's startup."""
    await (await Store.open(settings.database())).close()


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.app_port), family=family, backlog=2048)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise EncoreError(
            f"The chat cannot listen on {settings.host}:{settings.app_port}: {why}.",
            "Stop what uses the port, or choose another with ENCORE_APP_PORT.",
        ) from None


def _serve(settings: Settings, listening: socket.socket) -> None:
    # Chainlit reads its config from here when it is imported.
    os.environ["CHAINLIT_APP_ROOT"] = str(ROOT)
    if settings.root_path:
        # What Chainlit's page prefixes to every address; `guard.py` takes it off again.
        os.environ["CHAINLIT_PARENT_ROOT_PATH"] = settings.root_path
    logs.configure(settings.log_format)
    from llm_backend.ui.server import DrainingServer, create_app

    logs.configure(settings.log_format)  # again: importing Chainlit sets up its own

    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=5,
        # One process: Chainlit keeps sessions in memory.
        workers=1,
    )
    DrainingServer(config, settings.stop_grace).run(sockets=[listening])


if __name__ == "__main__":
    sys.exit(main())

"""What Chainlit leaves open to other origins, closed for the whole application.

Chainlit accepts websockets from any origin. Here a request that another site's page sends, on a
websocket or with any method that changes something, is refused; a content security policy keeps model text
from loading anything and this page from being framed; and pages link to nothing elsewhere (`page_links`).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm_backend.ui.login import client_address, without_ended_login
from llm_backend.ui.page_links import OwnLinks

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SOCKET_PATH = "/ws/"

POLICY = "; ".join(
    (
        "default-src 'self'",
        # The panel is compiled in the browser, as every Chainlit element is.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "frame-ancestors 'self'",
    )
)


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope = without_ended_login(self._below_root(scope))
        client_address.set(scope["client"][0] if scope.get("client") else "")
        if _from_elsewhere(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                refusal = PlainTextResponse("This page may not use Encore: it is of another origin.", 403)
                await refusal(scope, receive, send)
            return

        send = OwnLinks(send).send

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", POLICY)  # a stricter one of a page stands
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Referrer-Policy", "same-origin")
                if scope.get("scheme") == "https":
                    _only_by_https(headers)
                if scope["path"].startswith("/public/"):
                    # These files keep their names when they change: have browsers ask (an ETag answers).
                    headers["Cache-Control"] = "no-cache"
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _below_root(self, scope: Scope) -> Scope:
        """Without the prefix under which a proxy serves us, whether or not the proxy took it off."""
        root, path = self._root_path, scope["path"]
        if not root or not (path == root or path.startswith(f"{root}/")):
            return scope
        raw = scope.get("raw_path") or path.encode()
        return {**scope, "path": path[len(root) :] or "/", "raw_path": raw[len(root) :] or b"/"}


def _only_by_https(headers: MutableHeaders) -> None:
    """Chainlit marks its login cookie so only where it may be sent to other sites."""
    cookies = headers.getlist("set-cookie")
    del headers["set-cookie"]
    for cookie in cookies:
        marked = "secure" in cookie.lower().split("; ")
        headers.append("set-cookie", cookie if marked else f"{cookie}; Secure")


def _from_elsewhere(scope: Scope) -> bool:
    """Whether a browser says that a page of another host sent this; programs send no Origin."""
    reads_only = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
    if reads_only and not scope["path"].startswith(_SOCKET_PATH):
        return False
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host", "")

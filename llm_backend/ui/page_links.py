"""Takes links to other machines out of the pages that are served.

Chainlit's page asks a CDN for KaTeX's stylesheet and font hosts for a connection. The vendored stylesheet is
what is used, and the content security policy refuses the other; without the links nothing is asked for at
all, which is what a school wants that has no internet or must answer for who asks whom.
"""

from __future__ import annotations

import gzip
import re

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

_LINK_ELSEWHERE = re.compile(rb"""<link\b[^>]*\bhref=["']?(?:https?:)?//[^>]*>\s*""", re.IGNORECASE)


class OwnLinks:
    """One response on its way out: a page is held until it is whole, everything else passes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        """In place of the server's `send`."""
        if message["type"] == "http.response.start" and _is_page(MutableHeaders(scope=message)):
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                body = _without_links(MutableHeaders(scope=self._start), bytes(self._body))
                await self._send(self._start)
                await self._send({"type": "http.response.body", "body": body})
        else:
            await self._send(message)


def _is_page(headers: MutableHeaders) -> bool:
    encoding = headers.get("content-encoding", "identity")
    return headers.get("content-type", "").startswith("text/html") and encoding in ("identity", "gzip")


def _without_links(headers: MutableHeaders, body: bytes) -> bytes:
    """The page without them; `headers` then fit it. A page that has none stays as it was sent."""
    compressed = headers.get("content-encoding") == "gzip"
    page, links = _LINK_ELSEWHERE.subn(b"", gzip.decompress(body) if compressed and body else body)
    if not links:
        return body
    if compressed:  # a few kilobytes: sent as they are
        del headers["content-encoding"]
    headers["content-length"] = str(len(page))
    return page

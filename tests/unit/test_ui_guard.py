"""Other sites' pages may not use the application; its own page may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from llm_backend.ui.guard import Guard

HERE, ELSEWHERE = "http://testserver", "http://evil.example"


async def page(_: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


@pytest.fixture
def client() -> Iterator[TestClient]:
    routes = [
        Route("/page", page, methods=["GET", "POST"]),
        Route("/ws/socket.io/", page),
        Route("/public/x.css", page),
        WebSocketRoute("/ws/socket.io", socket),
    ]
    with TestClient(Guard(Starlette(routes=routes))) as client:
        yield client


@pytest.mark.parametrize("headers", [{}, {"origin": HERE}])
def test_the_own_page_and_programs_may(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/page", headers=headers).text == "page"
    with client.websocket_connect("/ws/socket.io", headers=headers) as websocket:
        assert websocket.receive_text() == "hello"


@pytest.mark.parametrize("origin", [ELSEWHERE, "http://testserver:81", "null"])
def test_pages_of_other_origins_may_not(client: TestClient, origin: str) -> None:
    headers = {"origin": origin}
    assert client.post("/page", headers=headers).status_code == 403
    assert client.get("/ws/socket.io/", headers=headers).status_code == 403, "socket.io's polling"
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/ws/socket.io", headers=headers) as websocket,
    ):
        websocket.receive_text()


def test_reading_a_page_needs_no_origin_but_carries_the_policy(client: TestClient) -> None:
    response = client.get("/page", headers={"origin": ELSEWHERE})
    assert response.status_code == 200
    assert "img-src 'self' data: blob:" in response.headers["content-security-policy"]
    assert "access-control-allow-origin" not in response.headers


def test_files_that_keep_their_names_are_asked_for_again(client: TestClient) -> None:
    assert client.get("/public/x.css").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("prefix", ["", "/math"])
def test_below_a_proxys_prefix_it_matters_not_whether_the_proxy_takes_it_off(prefix: str) -> None:
    """RC-38."""
    routes = [Route("/page", page), Route("/", page), WebSocketRoute("/ws/socket.io", socket)]
    with TestClient(Guard(Starlette(routes=routes), "/math")) as client:
        assert client.get(f"{prefix}/page").text == "page"
        assert client.get(f"{prefix}/").text == "page"
        assert client.get(prefix or "/").text == "page"
        with client.websocket_connect(f"{prefix}/ws/socket.io", headers={"origin": HERE}) as websocket:
            assert websocket.receive_text() == "hello"
        assert client.get("/mathematics").status_code == 404
        refused = client.get(f"{prefix}/ws/socket.io", headers={"origin": ELSEWHERE})
        assert refused.status_code == 403, "the guard sees what the application sees"


@pytest.mark.parametrize(("base", "secure"), [("http://testserver", False), ("https://testserver", True)])
def test_cookies_given_by_https_stay_there(base: str, secure: bool) -> None:
    async def give(_: Request) -> PlainTextResponse:
        answer = PlainTextResponse("in")
        answer.set_cookie("access_token", "t", httponly=True, samesite="lax")
        answer.set_cookie("other", "o", secure=True)
        return answer

    with TestClient(Guard(Starlette(routes=[Route("/login", give)])), base_url=base) as client:
        first, second = client.get("/login").headers.get_list("set-cookie")
    assert first.startswith("access_token=t; HttpOnly; ")
    assert ("; Secure" in first) is secure
    assert second.count("Secure") == 1


def test_a_stricter_policy_of_a_page_stands() -> None:
    """Shared pages allow nothing at all, and tell nobody their address."""

    async def give(_: Request) -> PlainTextResponse:
        own = {"Content-Security-Policy": "default-src 'none'", "Referrer-Policy": "no-referrer"}
        return PlainTextResponse("", headers=own)

    with TestClient(Guard(Starlette(routes=[Route("/shared", give)]))) as client:
        headers = client.get("/shared").headers
    assert headers["content-security-policy"] == "default-src 'none'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


PAGE = """<!doctype html><head>
<link rel="preconnect" href="https://fonts.gstatic.com" crossorigin />
<link
  rel="stylesheet"
  href="https://cdn.jsdelivr.net/npm/katex@0.16.22/dist/katex.min.css"
/><LINK href=//cdn.example/x.css rel=stylesheet><link rel="stylesheet" href="/public/encore.css">
</head><body>公式 <a href="https://example.org">about</a></body>"""
OWN = """<!doctype html><head>
<link rel="stylesheet" href="/public/encore.css">
</head><body>公式 <a href="https://example.org">about</a></body>"""


@pytest.mark.parametrize("accepted", ["identity", "gzip"])
@pytest.mark.parametrize("streamed", [False, True])
def test_pages_link_to_nothing_on_other_machines(accepted: str, streamed: bool) -> None:
    async def give(_: Request) -> HTMLResponse | StreamingResponse:
        pieces = (PAGE[at : at + 50] for at in range(0, len(PAGE), 50))
        return StreamingResponse(pieces, media_type="text/html") if streamed else HTMLResponse(PAGE)

    app = Starlette(routes=[Route("/", give)])
    app.add_middleware(GZipMiddleware, minimum_size=10)
    with TestClient(Guard(app)) as client:
        answer = client.get("/", headers={"accept-encoding": accepted})
    assert answer.text == OWN
    assert answer.headers["content-length"] == str(len(OWN.encode()))
    assert "content-encoding" not in answer.headers


def test_what_has_no_such_link_is_sent_as_it_was() -> None:
    async def give(request: Request) -> HTMLResponse | PlainTextResponse:
        return HTMLResponse(OWN) if request.url.path == "/page" else PlainTextResponse(PAGE)

    app = Starlette(routes=[Route("/page", give), Route("/text", give)])
    app.add_middleware(GZipMiddleware, minimum_size=10)
    with TestClient(Guard(app)) as client:
        page, text = client.get("/page"), client.get("/text")
    assert page.headers["content-encoding"] == "gzip"
    assert (page.text, text.text) == (OWN, PAGE)

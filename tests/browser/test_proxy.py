"""RC-38: below a sub-path behind nginx, with the file that deploy/ ships, in a real Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser.conftest import ROOT, Open, answers, ask, running_app
from playwright.sync_api import expect
from ports import free_port
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") or "nginx"


@contextmanager
def proxied(app: str, folder: Path, *, strip: bool, extra: str = "", idle: str = "60s") -> Iterator[str]:
    """nginx in front of `app` as deploy/nginx.conf says; yields the address below /math/."""
    port = free_port()
    site = (ROOT / "deploy" / "nginx.conf").read_text()
    site = site.replace("listen 80;", f"listen 127.0.0.1:{port};").replace("60s", idle)
    site = site.replace("proxy_pass http://127.0.0.1:8000;", f"proxy_pass {app};")
    if strip:
        site = site.replace(f"proxy_pass {app};", f"proxy_pass {app}/;", 1)
    site = site.replace("location /math/ {", f"location /math/ {{\n{extra}", 1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.conf").write_text(site)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{ worker_connections 256; }}\n"
        f"http {{ access_log off; {temporary} include {folder}/site.conf; }}\n"
    )
    server = subprocess.Popen([NGINX, "-e", folder / "error.log", "-c", config])
    try:
        url = f"http://127.0.0.1:{port}/math/"
        while not _answers(f"{url}healthz"):
            assert server.poll() is None, (folder / "error.log").read_text()
        yield url
    finally:
        server.terminate()
        server.wait(timeout=10)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def app_below_math(
    shared_engine: tuple[Script, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with running_app(shared_engine[1], tmp_path_factory.mktemp("math"), ENCORE_ROOT_PATH="/math") as url:
        yield url


NO_UPGRADE = "if ($http_upgrade) { return 400; }"


@pytest.mark.parametrize(
    ("strip", "extra"),
    [(False, ""), (True, ""), (False, NO_UPGRADE)],
    ids=["prefix kept", "prefix taken off", "polling only"],
)
def test_page_socket_replay_panel_and_download_work_below_a_sub_path(
    app_below_math: str, engine_script: Script, open_page: Open, tmp_path: Path, strip: bool, extra: str
) -> None:
    with proxied(app_below_math, tmp_path / "nginx", strip=strip, extra=extra) as url:
        page = open_page(url)
        missing: list[str] = []
        sockets: list[str] = []
        page.on("websocket", lambda socket: sockets.append(socket.url))
        page.on(
            "response",
            lambda answer: (
                missing.append(f"{answer.status} {answer.url}")
                if answer.status >= 400 and "socket.io" not in answer.url
                else None
            ),
        )
        page.on(
            "request",
            lambda request: (
                missing.append(f"outside /math: {request.url}")
                if re.match(r"(http|ws)://127", request.url) and "/math/" not in request.url
                else None
            ),
        )
        page.reload()
        expect(page.locator("#chat-input")).to_be_visible(timeout=30_000)
        ask(page, "What is 235 × 478?")
        expect(answers(page).last).to_contain_text("the answer is", timeout=30_000)
        expect(page.get_by_test_id("run-line-summary")).to_have_count(1)
        page.get_by_role("button", name=re.compile("^Replay")).last.click()
        expect(page.get_by_test_id("run-line-verdict").last).to_contain_text("Came out the same")
        with page.expect_download() as download:
            page.get_by_test_id("export-receipt").click()
        assert '"receipt"' in download.value.path().read_text()
        assert missing == []
        if not extra:
            assert sockets
            assert all("/math/ws/" in socket for socket in sockets)


def test_an_answer_slower_than_the_proxys_idle_timeout_arrives(
    app_below_math: str, engine_script: Script, open_page: Open, tmp_path: Path
) -> None:
    """Nothing is said for longer than nginx waits; only the heartbeat (25 s) keeps the socket."""
    engine_script.enqueue(Reply(text="late", tokens_per_second=1 / 31))
    with proxied(app_below_math, tmp_path / "nginx", strip=False, idle="28s") as url:
        page = open_page(url)
        ask(page, "slow?")
        expect(answers(page).last).to_contain_text("late", timeout=60_000)
        expect(page.get_by_test_id("run-line-summary")).to_have_count(1, timeout=60_000)
        assert len([body for body in engine_script.bodies if b"slow?" in body]) == 1

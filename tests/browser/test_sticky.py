"""Two app processes on one PostgreSQL behind deploy/nginx-sticky.conf: everything keeps working."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser.conftest import ROOT, answers, ask, running_app
from playwright.sync_api import Page, expect
from ports import free_port
from postgres_server import find_binaries

MOST_PEOPLE = 10
"""Routes are random: that ten people all land on one of two processes happens once in 500 times."""


def _create_database(server: str, name: str) -> None:
    binaries = find_binaries()
    assert binaries is not None
    host, port = server.split(":")
    created = [str(binaries / "createdb"), f"--host={host}", f"--port={port}", "--username=encore", name]
    subprocess.run(created, check=True)


def runs_of(app: str) -> float:
    """Runs that ended in this process."""
    with urllib.request.urlopen(f"{app}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("encore_runs_total"))


@pytest.fixture
def behind_nginx(
    postgres_server: str, shared_engine: tuple[object, str], tmp_path: Path
) -> Iterator[tuple[str, tuple[str, str]]]:
    """The address of nginx, and those of the two processes behind it."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed (Debian: apt install nginx-light)")
    name = f"sticky_{uuid.uuid4().hex}"
    _create_database(postgres_server, name)
    database = f"postgresql://encore@{postgres_server}/{name}"
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with (
        running_app(shared_engine[1], folders[0], ENCORE_DATABASE_URL=database) as one,
        running_app(shared_engine[1], folders[1], ENCORE_DATABASE_URL=database) as two,
    ):
        port = free_port()
        given = (ROOT / "deploy" / "nginx-sticky.conf").read_text()
        given = given.replace("127.0.0.1:8000", one.removeprefix("http://"))
        given = given.replace("127.0.0.1:8001", two.removeprefix("http://"))
        given = given.replace("listen 80;", f"listen 127.0.0.1:{port};")
        (tmp_path / "encore.conf").write_text(given)
        temporary = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;\n"
            f"{'user root;' if os.geteuid() == 0 else ''}\n"
            f"events {{}}\nhttp {{ access_log off; {temporary} include {tmp_path}/encore.conf; }}\n"
        )
        server = subprocess.Popen([nginx, "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)])
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_up(server, address)
            yield address, (one, two)
        finally:
            server.terminate()
            server.wait(timeout=20)


def _wait_until_up(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert server.poll() is None, "nginx ended"
        assert time.monotonic() < deadline, "nginx does not answer"
        try:
            urllib.request.urlopen(f"{address}/healthz", timeout=5).close()
            return
        except OSError:
            continue


@pytest.mark.browser
def test_chats_actions_panel_and_downloads_work_in_both_processes(
    open_page: Callable[..., Page], behind_nginx: tuple[str, tuple[str, str]]
) -> None:
    address, apps = behind_nginx
    served: set[str] = set()
    for _ in range(MOST_PEOPLE):
        before = {app: runs_of(app) for app in apps}
        page = open_page(address)
        ask(page, "What is 235 × 478?")
        expect(answers(page)).to_have_count(1)
        panel = page.get_by_test_id("panel")
        panel.get_by_test_id("panel-replay").click()
        expect(panel.get_by_test_id("replay-verdict")).to_contain_text("Came out the same")
        with page.expect_download() as download:
            panel.get_by_test_id("export-receipt").click()
        assert download.value.suggested_filename.startswith("encore-")
        grew = {app for app in apps if runs_of(app) > before[app]}
        assert len(grew) == 1, "the question and its replay ran in one process"
        served |= grew
        page.context.close()
        if len(served) == len(apps):
            return
    pytest.fail("one of the two processes served nobody")

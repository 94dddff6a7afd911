"""A real Chromium on a real app process; the engine behind it is scripted unless a test says otherwise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright
from ports import free_port
from scripted_engine import Script, ScriptedEngine, serving

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
START_DEADLINE_S = 60.0

expect.set_options(timeout=15_000)


@contextmanager
def running_app(engine_url: str, folder: Path, **extra: str) -> Iterator[str]:
    """The app as its own process; yields its address once /healthz answers. Its log is in `folder`."""
    port = free_port()
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("ENCORE_", "CHAINLIT_"))
    }
    environ |= {
        "ENCORE_APP_PORT": str(port),
        "ENCORE_ENGINE_URLS": engine_url,
        "ENCORE_DATA_DIR": str(folder / "data"),
        "ENCORE_RUN_DIR": str(folder / "run"),
        "ENCORE_LOG_FILE": str(folder / "llm.log"),
        "ENCORE_STOP_GRACE": "0",
        **extra,
    }
    log_path = folder / "app.log"
    # A file, not a pipe: nobody reads a pipe while the test runs, and a full one stops the app.
    with log_path.open("w") as log:
        app = subprocess.Popen(
            [sys.executable, "-m", "llm_backend.ui"],
            cwd=ROOT,
            env=environ,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(app, url, log_path)
        yield url
    finally:
        app.terminate()
        app.wait(timeout=20)


def _wait_until_up(app: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        assert app.poll() is None, f"the app ended with {app.returncode}:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=2):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            continue
    pytest.fail(f"the app did not answer within {START_DEADLINE_S:.0f} s:\n{log.read_text()}")


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[tuple[Script, str]]:
    engine = ScriptedEngine()
    with serving(engine) as url:
        yield engine.script, url


@pytest.fixture(scope="session")
def shared_app(shared_engine: tuple[Script, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_app(shared_engine[1], tmp_path_factory.mktemp("app")) as url:
        yield url


@pytest.fixture
def engine_script(shared_engine: tuple[Script, str]) -> Script:
    """The running engine's script, as good as new."""
    script, _ = shared_engine
    fresh = Script()
    for name in (field.name for field in fields(Script) if field.name != "in_flight"):
        setattr(script, name, getattr(fresh, name))
    return script


@pytest.fixture
def app_url(shared_app: str, engine_script: Script) -> str:
    """One app for all browser tests; every page is a new person with a new chat."""
    return shared_app


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Not for the session: Playwright's own event loop would still run when asyncio tests follow."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(chromium: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens pages as different people would: `open_page(url, locale="zh-CN", width=390, dark=True)`.

    Every context refuses requests that leave the machine, and the test fails if one was tried.
    """
    contexts: list[BrowserContext] = []
    outside: list[str] = []

    def opened(
        url: str,
        *,
        locale: str = "en-US",
        width: int = 1440,
        dark: bool = False,
        awaits: str = "#chat-input",
    ) -> Page:
        context = chromium.new_context(
            locale=locale,
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            has_touch=width < 768,
        )
        contexts.append(context)
        context.tracing.start(screenshots=True, snapshots=True)

        def only_here(route: Any) -> None:
            outside.append(route.request.url)
            route.abort()

        context.route(
            lambda target: not re.match(r"(https?|ws)://127\.0\.0\.1[:/]|data:|blob:", target), only_here
        )
        page = context.new_page()
        page.goto(url)
        expect(page.locator(awaits)).to_be_visible(timeout=30_000)
        return page

    yield opened
    failed = getattr(request.node, "failed", False)
    for index, context in enumerate(contexts):
        if failed:
            context.tracing.stop(path=ROOT / "test-results" / f"{request.node.name}-{index}.zip")
        context.close()
    assert outside == [], "the page asked for something outside this machine"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]


def ask(page: Page, question: str) -> None:
    """Type a question and send it, as a person does."""
    page.locator("#chat-input").fill(question)
    page.locator("#chat-submit").click()


def answers(page: Page) -> Locator:
    return page.locator(".step[data-step-type=assistant_message]")

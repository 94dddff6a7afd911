"""The login in a browser: who is let in, and that runs are seen by their owner only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from browser.accessibility import cut_off, serious_findings
from browser.conftest import Open, ask, running_app
from browser.test_chat import expect_answered
from playwright.sync_api import Page, expect
from scripted_engine import Script

from llm_backend.users import UserFile

pytestmark = pytest.mark.browser

PASSWORD = "eight squared is 64"


@pytest.fixture
def login_url(shared_engine: tuple[Script, str], engine_script: Script, tmp_path: Path) -> Iterator[str]:
    users = UserFile(tmp_path / "users")
    for name in ("ada", "bob"):
        users.put(name, PASSWORD)
    with running_app(shared_engine[1], tmp_path, ENCORE_USERS_FILE=str(users.path)) as url:
        yield url


def log_in(page: Page, name: str, password: str = PASSWORD) -> None:
    page.locator("input[name=email], input#email").fill(name)
    page.locator("input[type=password]").fill(password)
    page.locator("button[type=submit]").click()


def test_a_run_is_for_who_asked_and_a_wrong_password_lets_nobody_in(login_url: str, open_page: Open) -> None:
    ada = open_page(login_url, awaits="input[type=password]", width=390)
    log_in(ada, "ada", "wrong password")
    expect(ada.get_by_text("Name or password is wrong.")).to_be_visible()
    assert [*serious_findings(ada), *cut_off(ada, "form")] == []
    ada.set_viewport_size({"width": 1440, "height": 900})
    assert ada.request.get(f"{login_url}/runs").status == 401
    log_in(ada, "ada")
    ask(ada, "235 × 478?")
    expect_answered(ada)
    (run,) = ada.request.get(f"{login_url}/runs").json()
    assert ada.request.get(f"{login_url}/runs/{run['id']}").status == 200
    (kept,) = [c for c in ada.context.cookies() if c["name"] == "access_token"]
    assert (kept["httpOnly"], kept["sameSite"], kept["secure"]) == (True, "Lax", False)

    bob = open_page(login_url, awaits="input[type=password]")
    log_in(bob, "bob")
    expect(bob.locator("#chat-input")).to_be_visible()
    assert bob.request.get(f"{login_url}/runs").json() == []
    for path in (f"runs/{run['id']}", f"receipts/{run['digest']}"):
        assert bob.request.get(f"{login_url}/{path}").status == 404
        assert httpx.get(f"{login_url}/{path}").status_code == 401


def test_guessing_is_slowed_down(login_url: str, open_page: Open) -> None:
    """The real route, with the address the server sees; the page says what to do."""

    def attempt(name: str, password: str) -> int:
        form = {"username": name, "password": password}
        return httpx.post(f"{login_url}/login", data=form, timeout=30).status_code

    assert [attempt("ada", f"wrong password {n}") for n in range(5)] == [401] * 5
    assert attempt("ada", PASSWORD) == 429
    for locale, said in (("en-US", "Too many attempts."), ("zh-CN", "尝试次数过多")):
        page = open_page(login_url, locale=locale, awaits="input[type=password]")
        log_in(page, "ada")
        expect(page.get_by_text(said)).to_be_visible()
    assert attempt("bob", PASSWORD) == 200
    secure = httpx.post(
        f"{login_url}/login",
        data={"username": "bob", "password": PASSWORD},
        headers={"X-Forwarded-Proto": "https"},
    ).headers["set-cookie"]
    assert re.search(r"HttpOnly;.*SameSite=lax; Secure", secure, re.IGNORECASE)

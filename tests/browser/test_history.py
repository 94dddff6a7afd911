"""A user's chats outlive the page and the app: found in the sidebar, opened again, replayed from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from browser.conftest import Open, answers, ask, running_app
from browser.test_chat import change_settings, expect_answered, latest_verdict, replay_last
from browser.test_login import log_in
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

from llm_backend.users import UserFile

pytestmark = pytest.mark.browser

PASSWORD = "eight squared is 64"


class Restarting:
    """An app that can be started anew on the same data; `url` is where it is now."""

    def __init__(self, engine_url: str, folder: Path) -> None:
        self._engine_url, self._folder = engine_url, folder
        self._stack = ExitStack()
        self._users = UserFile(folder / "users")
        for name in ("ada", "bob"):
            self._users.put(name, PASSWORD)
        self.url = ""

    def restart(self) -> str:
        self.stop()
        app = running_app(self._engine_url, self._folder, ENCORE_USERS_FILE=str(self._users.path))
        self.url = self._stack.enter_context(app)
        return self.url

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def app(shared_engine: tuple[Script, str], engine_script: Script, tmp_path: Path) -> Iterator[Restarting]:
    app = Restarting(shared_engine[1], tmp_path)
    app.restart()
    yield app
    app.stop()


def log_in_at(open_page: Open, url: str, name: str, **how: object) -> Page:
    page = open_page(url, awaits="input[type=password]", **how)
    log_in(page, name, PASSWORD)
    expect(page.locator("#chat-input")).to_be_visible()
    return page


def asked_of(script: Script) -> list[bytes]:
    """Requests for answers; the health check asks for a token now and then."""
    return [body for body in script.bodies if b"top_logprobs" in body]


def test_a_chat_is_opened_again_after_a_restart_and_goes_on(
    app: Restarting, open_page: Open, engine_script: Script
) -> None:
    page = log_in_at(open_page, app.url, "ada")
    change_settings(page, seed="9223372036854775807")
    engine_script.enqueue(Reply(text="<think>eight *eights*</think>It is $8^2=64$, **sure**."))
    ask(page, "How much is 8 × 8?")
    expect_answered(page)
    ask(page, "And the root of that?")
    expect_answered(page, 2)
    expect(page.locator("#thread-history").get_by_text("How much is 8 × 8?")).to_be_visible()
    (second, first) = page.request.get(f"{app.url}/runs").json()

    page.goto(app.restart())
    expect(page.locator("#chat-input")).to_be_visible()
    asked = len(asked_of(engine_script))
    page.locator("#thread-history").get_by_text("How much is 8 × 8?").click()
    expect_answered(page, 2)
    assert len(asked_of(engine_script)) == asked, "opening asks nothing"
    expect(page.locator(".step[data-step-type=user_message]")).to_have_text(
        ["How much is 8 × 8?", "And the root of that?"]
    )
    expect(answers(page).first.locator(".katex").first).to_be_visible()
    expect(page.get_by_role("button", name="Thought")).to_have_count(2)
    lines = page.get_by_test_id("run-line")
    assert [lines.nth(n).get_attribute("data-run") for n in (0, 1)] == [first["id"], second["id"]]
    panel = page.get_by_test_id("panel")
    expect(panel.get_by_test_id("run-question")).to_have_text("And the root of that?")
    expect(panel.get_by_test_id("run-seed")).to_contain_text("9223372036854775807")

    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Came out the same")
    replayed = json.loads(asked_of(engine_script)[-1])
    assert replayed["messages"] == json.loads(asked_of(engine_script)[-2])["messages"]
    assert replayed["seed"] == 9223372036854775807

    ask(page, "Go on")
    expect_answered(page, 3)
    sent = json.loads(asked_of(engine_script)[-1])
    assert [m["content"] for m in sent["messages"] if m["role"] == "user"] == [
        "How much is 8 × 8?",
        "And the root of that?",
        "Go on",
    ]
    assert sent["messages"][-4]["content"] == "It is $8^2=64$, **sure**."
    assert sent["seed"] == 9223372036854775807

    page.reload()
    expect_answered(page, 3)
    expect(panel.get_by_test_id("run-question")).to_have_text("Go on")


def test_nobody_sees_or_opens_the_chats_of_another(app: Restarting, open_page: Open) -> None:
    ada = log_in_at(open_page, app.url, "ada")
    ask(ada, "A secret question")
    expect_answered(ada)
    ada.wait_for_url("**/thread/*")
    thread = ada.url.rsplit("/", 1)[1]

    bob = log_in_at(open_page, app.url, "bob")
    expect(bob.locator("#thread-history")).to_be_attached()
    expect(bob.get_by_text("A secret question")).to_have_count(0)
    bob.goto(f"{app.url}/thread/{thread}")
    expect(bob.get_by_text("Couldn't resume chat")).to_be_visible()
    expect(bob.get_by_text("A secret question")).to_have_count(0)
    headers = {"content-type": "application/json"}
    for answer in (
        bob.request.get(f"{app.url}/project/thread/{thread}"),
        bob.request.get(f"{app.url}/project/share/{thread}"),
        bob.request.delete(
            f"{app.url}/project/thread", data=json.dumps({"threadId": thread}), headers=headers
        ),
    ):
        assert answer.status in (401, 404)
        assert "secret" not in answer.text()
    assert len(ada.request.get(f"{app.url}/runs").json()) == 1


def test_an_answer_that_is_being_given_is_found_after_a_reload(
    app: Restarting, open_page: Open, engine_script: Script
) -> None:
    """One generation, and the page that comes back shows its end."""
    page = log_in_at(open_page, app.url, "ada", locale="zh-CN")
    engine_script.enqueue(Reply(text="Slowly " * 80 + "it comes to its end.", tokens_per_second=4))
    ask(page, "slow")
    expect(answers(page).first).to_contain_text("Slow")
    page.wait_for_url("**/thread/*")
    page.reload()
    expect(page.get_by_text("这个回答仍在生成")).to_be_visible()
    expect(answers(page).first).to_contain_text("comes to its end.", timeout=40_000)
    expect_answered(page)
    assert len(asked_of(engine_script)) == 1

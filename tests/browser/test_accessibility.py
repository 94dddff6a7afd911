"""Every screen: axe-core finds nothing serious, nothing is cut off, keys suffice."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from browser.accessibility import OURS, cut_off, serious_findings, tab_to
from browser.conftest import Open, answers
from browser.test_wall_page import start
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

from llm_backend.engine.embedded import EMBEDDED_MODEL

pytestmark = pytest.mark.browser

QUESTION = "What is 235 × 478?"


@dataclass
class Inspection:
    """Collects what is wrong on each screen, so that one failure does not hide the next."""

    page: Page
    problems: list[str] = field(default_factory=list)

    def look(self, screen: str, roots: str = OURS) -> None:
        # What slides in is seen by nobody until it has arrived.
        self.page.evaluate(
            "Promise.all(document.getAnimations().filter((one) => one.effect.getTiming().iterations === 1)"
            ".map((one) => one.finished.catch(() => null)))"
        )
        found = [*serious_findings(self.page), *cut_off(self.page, roots)]
        self.problems += [f"{screen}: {problem}" for problem in found]


@pytest.mark.parametrize(
    ("locale", "width", "dark"),
    [("en-US", 1024, False), ("zh-CN", 1024, True), ("en-US", 390, True), ("zh-CN", 390, False)],
)
def test_every_screen_is_readable_by_everybody_and_nothing_is_cut_off(
    app_url: str, open_page: Open, engine_script: Script, locale: str, width: int, dark: bool
) -> None:
    engine_script.model = EMBEDDED_MODEL  # with its permanent note
    engine_script.health = 503
    page = open_page(app_url, locale=locale, width=width, dark=dark)
    seen = Inspection(page)
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN" if locale == "zh-CN" else "en")
    expect(page.locator("#encore-engine")).to_be_visible()
    if width >= 1024:
        expect(page.get_by_test_id("runs-this-chat")).not_to_have_text("")  # the panel has its words
    seen.look("engine away")
    engine_script.health = 200
    expect(page.locator("#encore-engine")).to_have_count(0)
    expect(page.locator("#encore-note")).to_be_visible()
    seen.look("welcome")
    page.reload()  # now the note may be there before Chainlit's header
    expect(page.locator("#encore-note")).to_be_visible()
    expect(page.locator("#chat-input")).to_be_visible()

    page.locator("#chat-input").fill(QUESTION)
    page.locator("#chat-submit").click()
    expect(page.get_by_test_id("run-line-summary")).to_be_visible()
    expect(page.locator("#chat-submit")).to_be_visible()
    top = page.get_by_text(QUESTION, exact=True).first.bounding_box()
    note = page.locator("#encore-note").bounding_box()
    assert top is not None
    assert note is not None
    assert top["y"] >= note["y"] + note["height"] or width > 900, "the note stands on the conversation"
    engine_script.enqueue(Reply(fork_at=31, drift=-0.001))
    page.get_by_role("button", name=re.compile("^(Replay|重放)")).last.click()
    verdict = page.get_by_test_id("run-line-verdict")
    expect(verdict).to_be_visible()
    assert verdict.evaluate("element => Boolean(element.closest('[role=status], [aria-live]'))")
    seen.look("answer with verdict")

    if width < 1024:
        page.locator('a[href="#encore-panel"]').first.click()
    expect(page.get_by_test_id("fork")).to_be_visible()
    page.get_by_test_id("panel").locator("details").evaluate_all("all => all.map((one) => (one.open = true))")
    page.get_by_test_id("fork").scroll_into_view_if_needed()
    seen.look("panel with diff", ".encore-panel")
    if width < 1024:
        page.keyboard.press("Escape")
        expect(page.get_by_test_id("panel")).to_have_count(0)

    answers(page).last.get_by_role("button", name=re.compile("^(Wall|展示墙)")).click()
    link = page.get_by_role("link", name=re.compile("Open the wall|打开重放墙"))
    expect(link).to_be_visible()
    page.goto(app_url.rstrip("/") + str(link.get_attribute("href")))
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN" if locale == "zh-CN" else "en")
    expect(page.locator("#setup button")).to_be_visible()
    seen.look("wall, before", "body")
    engine_script.enqueue(Reply(), Reply(fork_at=40))
    start(page, 2)
    expect(page.locator("#again")).to_be_visible()
    seen.look("wall, done", "body")
    assert seen.problems == []


def test_ask_replay_and_read_the_diff_without_a_mouse(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    page = open_page(app_url)
    page.keyboard.press("Tab")
    tab_to(page, page.locator("#chat-input"))
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("run-line-summary")).to_be_visible()
    expect(page.locator("#chat-submit")).to_be_visible()
    engine_script.enqueue(Reply(fork_at=31), Reply())
    replay = page.get_by_role("button", name=re.compile("^Replay")).first
    for count, verdict in ((1, "Different from token 31 on"), (2, "Came out the same")):
        tab_to(page, replay, back=True)
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("run-line-verdict").first).to_contain_text(verdict)
        expect(page.get_by_test_id("replay-item")).to_have_count(count)
        page.locator("#chat-input").focus()
    same, forked = page.get_by_test_id("replay-item").all()
    tab_to(page, same)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("fork")).to_have_count(0)
    tab_to(page, forked)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("fork")).to_be_visible()
    unfold = page.get_by_test_id("unfold")
    tab_to(page, unfold)
    page.keyboard.press("Enter")
    expect(unfold).to_have_count(0)
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_test_id("folded")).to_contain_text("Multiply 2")
    tokens = page.get_by_test_id("after-replayed").locator(".encore-token")
    tab_to(page, tokens.first)
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("picked-token")).to_contain_text("32")
    expect(tokens.nth(1)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Tab")
    expect(tokens.nth(2)).not_to_be_focused()

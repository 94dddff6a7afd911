"""Why this token, and forking there, as people meet it in the panel: by mouse and by keyboard alone."""

from __future__ import annotations

import pytest
from browser.accessibility import cut_off, serious_findings
from browser.conftest import Open, ask
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

HOSTILE = "<think>\nWell.\n</think>\n\n<img src=x onerror=alert(1)> \\(\\boxed{5}\\) **so**"


def opened(page: Page) -> None:
    """Ask, and open the answer's tokens in the panel."""
    ask(page, "What is 235 × 478?")
    expect(page.get_by_test_id("run-line-summary")).to_be_visible()
    page.get_by_test_id("tokens").locator("summary").click()
    expect(page.get_by_test_id("flow-token").first).to_be_visible()


def test_a_token_shows_its_alternatives_and_a_fork_is_compared(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    page = open_page(app_url)
    opened(page)
    expect(page.get_by_test_id("near-ties")).to_contain_text("near ties on this page, marked ≈")
    token = page.get_by_test_id("flow-token").nth(10)
    expect(token).to_contain_text("≈")
    expect(token).to_have_attribute("data-heat", "near")
    token.click()
    expect(token).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_test_id("alternative")).to_have_count(2)
    expect(page.get_by_test_id("alternatives-margin")).to_contain_text("margin 0.05 nats, a near tie")
    engine_script.enqueue(Reply(text="\n</think>\n\nSo \\(\\boxed{5}\\).", tokens_per_second=20))
    page.get_by_test_id("fork-here").click()
    expect(page.get_by_test_id("fork-progress")).to_contain_text("Forking")
    expect(page.get_by_test_id("fork-answers")).to_contain_text("recorded 112330, forked 5")
    expect(page.get_by_test_id("fork-forked-text")).to_contain_text("boxed{5}")
    expect(page.get_by_test_id("fork-recorded-text")).to_contain_text("boxed{112330}")
    page.get_by_test_id("fork-other-run").click()
    expect(page.get_by_test_id("fork-other-run")).to_have_text("Show the run it was forked off")
    expect(page.get_by_test_id("run-item").first).to_contain_text("fork ·")
    engine_script.enqueue(Reply(text="\n</think>\n\nSo \\(\\boxed{5}\\)."))
    page.get_by_test_id("panel-replay").click()
    expect(page.get_by_test_id("diff-verdict")).to_contain_text("Came out")


def test_the_recorded_token_taken_again_says_that_it_went_on_as_recorded(
    app_url: str, open_page: Open
) -> None:
    page = open_page(app_url, locale="zh-CN")
    opened(page)
    page.get_by_test_id("flow-token").nth(10).click()
    page.get_by_test_id("take-again").click()
    expect(page.get_by_test_id("fork-sentences")).to_contain_text("得到了原来的后续")


def test_keys_alone_reach_a_token_and_fork_there(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = Reply(text=HOSTILE)
    page = open_page(app_url)
    opened(page)
    summary = page.get_by_test_id("tokens").locator("summary")
    summary.focus()
    page.keyboard.press("Tab")
    focused = page.locator("[data-testid=flow-token]:focus")
    expect(focused).to_have_attribute("data-position", "0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")  # from near tie to near tie
    expect(focused).to_have_attribute("data-position", "2")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Home")
    expect(focused).to_have_attribute("data-position", "0")
    page.keyboard.press("Tab")
    expect(page.locator("[data-testid=flow-token]:focus")).to_have_count(0)
    page.keyboard.press("Shift+Tab")
    expect(focused).to_have_attribute("data-position", "0")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("alternative")).to_have_count(2)
    page.get_by_test_id("fork-here").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("fork-outcome")).to_be_visible()
    expect(page.get_by_test_id("panel-tokens").locator("img")).to_have_count(0)
    expect(page.get_by_test_id("fork-forked-text")).to_contain_text("<img src=x")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1024, True)])
def test_it_fits_small_screens_and_axe_finds_nothing_serious(
    app_url: str, open_page: Open, engine_script: Script, width: int, dark: bool
) -> None:
    engine_script.default = Reply(text="x" * 300 + " long\n" * 120)
    page = open_page(app_url, locale="zh-CN", width=width, dark=dark)
    ask(page, "What is 235 × 478?")
    expect(page.get_by_test_id("run-line-summary")).to_be_visible()
    page.get_by_role("button", name="详情").last.click()
    page.get_by_test_id("tokens").locator("summary").click()
    page.get_by_test_id("flow-token").nth(2).click()
    page.get_by_test_id("fork-here").click()
    expect(page.get_by_test_id("fork-outcome")).to_be_visible()
    assert serious_findings(page) == []
    assert cut_off(page, "[data-testid=panel-tokens]") == []
    for part in ("panel-tokens", "fork-outcome", "alternatives"):
        wide, seen = page.get_by_test_id(part).evaluate("(part) => [part.scrollWidth, part.clientWidth]")
        assert wide <= seen, part
    box = page.get_by_test_id("fork-outcome").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width


def test_a_long_answer_is_read_page_by_page(app_url: str, open_page: Open, engine_script: Script) -> None:
    engine_script.default = Reply(text="word " * 450)
    page = open_page(app_url)
    opened(page)
    pages = page.get_by_test_id("token-pages")
    expect(pages).to_contain_text("Tokens 0 to 399 of")
    expect(page.get_by_test_id("tokens-earlier")).to_be_disabled()
    page.get_by_test_id("tokens-later").click()
    expect(page.get_by_test_id("flow-token").first).to_have_attribute("data-position", "400")
    expect(page.get_by_test_id("tokens-later")).to_be_disabled()
    expect(page.get_by_test_id("alternatives")).to_have_count(0)

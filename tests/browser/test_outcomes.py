"""Repeating and checking in a browser: the buttons, the form, progress, stopping, and what is told."""

from __future__ import annotations

import re

import pytest
from browser.conftest import Open, answers, ask
from playwright.sync_api import Locator, Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

SHORT = Reply(text="One two three four five six seven eight nine ten.")


def asked(page: Page) -> None:
    ask(page, "Count to ten")
    expect(page.get_by_test_id("run-line-summary")).to_have_count(1)
    expect(page.locator("#chat-submit")).to_be_visible()


def press(page: Page, name: str) -> None:
    """A button under the answer; the panel has some with the same names."""
    answers(page).last.get_by_role("button", name=re.compile(f"^{name}")).click()


def told(page: Page, kind: str) -> Locator:
    return page.locator(f"[data-testid=run-line-verdict][data-kind={kind}]")


def test_ten_equal_replays_say_how_much_that_supports(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = SHORT
    page = open_page(app_url)
    asked(page)
    before = answers(page).count()
    press(page, "×10")
    expect(told(page, "repeat")).to_have_text(
        "● 10 of 10 came out the same alone — so at least 72 % (Wilson 95 %)"
    )
    expect(told(page, "replay")).to_have_count(0)
    assert answers(page).count() == before, "repeating adds nothing to the conversation"
    panel = page.get_by_test_id("panel")
    expect(panel.get_by_test_id("repeat-verdict")).to_contain_text("10 of 10 came out the same")
    expect(panel.get_by_test_id("replay-item").first).to_be_hidden()
    panel.get_by_test_id("repeat-each").locator("summary").click()
    expect(panel.get_by_test_id("replay-item")).to_have_count(10)
    expect(panel.get_by_test_id("run-item")).to_have_count(1)
    panel.get_by_test_id("runs-replays").check()
    expect(panel.get_by_test_id("run-item")).to_have_count(11)


def test_a_fork_among_ten_is_shown_as_a_tree_and_its_diff_opens(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = SHORT
    page = open_page(app_url)
    asked(page)
    engine_script.enqueue(SHORT, Reply(text=SHORT.text, fork_at=4), Reply(text=SHORT.text, fork_at=7))
    press(page, "×10")
    expect(told(page, "repeat")).to_contain_text("✕ 8 of 10 came out the same alone")
    expect(told(page, "repeat")).to_contain_text("First fork at token 4; 3 different answers in 11 runs")
    step = page.get_by_test_id("repeat-step")
    expect(step).to_contain_text("token 4:")
    expect(step).to_contain_text("token 7:")
    expect(page.get_by_test_id("fork-title")).to_contain_text("4")
    page.get_by_test_id("repeat-each").locator("summary").click()
    page.locator("[data-testid=replay-item][data-verdict=DIVERGED]").last.click()
    expect(page.get_by_test_id("fork-title")).to_contain_text("7")


def test_the_panel_s_form_repeats_among_neighbours_and_tells_the_load(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = Reply(text=SHORT.text, tokens_per_second=100)
    page = open_page(app_url)
    asked(page)
    form = page.get_by_test_id("repeat")
    form.locator("summary").click()
    expect(form).to_contain_text("The neighbours are load themselves")
    form.get_by_label("How often").select_option("3")
    form.get_by_label("Other requests meanwhile").select_option("0")
    expect(form.get_by_label("What the others ask")).to_be_disabled()
    expect(form).not_to_contain_text("The neighbours are load themselves")
    form.get_by_label("Other requests meanwhile").select_option("4")
    form.get_by_label("What the others ask").select_option("prefix")
    form.get_by_role("button", name="Start").click()
    expect(page.get_by_test_id("run-line-progress")).to_contain_text(
        re.compile("Waiting until 4 neighbours|among 4 neighbours")
    )
    expect(told(page, "repeat")).to_contain_text("3 of 3 came out the same among 4 neighbours")
    expect(page.get_by_test_id("repeat-step")).to_contain_text("Load, measured")


def test_stopping_a_repetition_keeps_its_part_and_says_that_it_is_one(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    page = open_page(app_url)
    asked(page)
    engine_script.enqueue(Reply(), Reply(), Reply(tokens_per_second=10))
    press(page, "×10")
    progress = page.get_by_test_id("run-line-progress")
    expect(progress).to_contain_text("Replay 3 of 10, alone")
    expect(progress).to_contain_text("left")
    expect(page.get_by_test_id("progress")).to_contain_text("Replay 3 of 10, alone")
    expect(page.get_by_test_id("panel-replay")).to_be_disabled()
    page.locator("#stop-button").click()
    expect(told(page, "repeat")).to_contain_text("2 of 2 came out the same alone")
    expect(told(page, "repeat")).to_contain_text("Stopped after 2 of 10 replays")
    expect(progress).to_have_count(0)
    expect(page.get_by_text("Task manually stopped")).to_have_count(0)
    expect(page.get_by_test_id("repeat-outcome")).to_contain_text("Stopped after 2 of 10 replays")
    expect(page.get_by_test_id("panel-replay")).to_be_enabled()


@pytest.mark.parametrize(
    ("replies", "verdict", "line"),
    [
        ([], "BIT_EXACT", "Check: Bit-exact"),
        ([Reply(drift=0.01), Reply(), Reply(drift=0.01)], "WITHIN_TOLERANCE", "Check: Within tolerance"),
        ([Reply(drift=1.0), Reply(), Reply(drift=0.01)], "OUTSIDE", "Check: Outside tolerance, first at"),
    ],
    ids=["bit-exact", "within", "outside"],
)
def test_a_check_says_what_the_command_line_says(
    app_url: str, open_page: Open, engine_script: Script, replies: list[Reply], verdict: str, line: str
) -> None:
    engine_script.version = f"1.0-{verdict}"  # an engine of its own: tolerances are kept per engine
    page = open_page(app_url)
    asked(page)
    engine_script.enqueue(*replies)
    press(page, "Check")
    expect(told(page, "check")).to_contain_text(line)
    outcome = page.get_by_test_id("check-outcome")
    expect(outcome).to_have_attribute("data-verdict", verdict)
    expect(outcome.locator("li")).not_to_have_count(0)
    expect(page.get_by_test_id("replay-item")).to_have_count(0)


def test_what_cannot_be_checked_says_why(app_url: str, open_page: Open, engine_script: Script) -> None:
    engine_script.enqueue(Reply(token_ids=False))
    page = open_page(app_url)
    asked(page)
    press(page, "Check")
    expect(told(page, "check")).to_contain_text("? Check: Can't be checked — ")
    expect(page.get_by_test_id("check-outcome")).to_have_attribute("data-verdict", "UNCHECKABLE")


def test_what_was_found_survives_a_reload_of_the_page(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = SHORT
    page = open_page(app_url)
    asked(page)
    press(page, "Check")
    expect(told(page, "check")).to_have_count(1)
    press(page, "×10")
    expect(told(page, "repeat")).to_have_count(1)
    page.reload()
    panel = page.get_by_test_id("panel")
    panel.get_by_test_id("runs-all").click()
    panel.get_by_test_id("run-item").first.click()
    expect(panel.get_by_test_id("repeat-verdict")).to_contain_text("10 of 10 came out the same")
    expect(panel.get_by_test_id("check-verdict")).to_contain_text("Bit-exact")


def test_everything_is_in_chinese_for_chinese_browsers(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = SHORT
    page = open_page(app_url, locale="zh-CN")
    asked(page)
    press(page, "检验")
    expect(told(page, "check")).to_contain_text("检验：逐位相等")
    press(page, "×10")
    expect(told(page, "repeat")).to_contain_text("单独运行，10 次中 10 次完全一致")
    page.get_by_test_id("repeat").locator("summary").click()
    outcomes = page.get_by_test_id("panel-outcomes")
    expect(outcomes).to_contain_text("并发请求本身就是负载")
    english = re.compile("[A-Za-z]{4,}")
    said = re.sub(r"Wilson|\d+:\d+:\d+ [AP]M", "", outcomes.inner_text())
    assert not english.findall(said), said


def test_a_repetition_is_started_with_the_keyboard_alone(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = SHORT
    page = open_page(app_url)
    asked(page)
    page.get_by_test_id("repeat").locator("summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_test_id("repeat-times")).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")  # the shape plays no part alone and is passed over
    expect(page.get_by_test_id("repeat-start")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("repeat").locator("summary")).to_be_focused()
    expect(told(page, "repeat")).to_contain_text("3 of 3 came out the same alone")

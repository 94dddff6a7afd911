"""The replay wall in Chromium: live cards, the fork, the keyboard, revealing, and hostile text."""

from __future__ import annotations

import re

import pytest
from browser.conftest import Open, answers, ask
from playwright.sync_api import Locator, Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

ANSWER = "First multiply 235 by 478.\n\nThat gives 112330.\n\nThe answer is \\(\\boxed{112330}\\)."
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"> <script>document.title='owned'</script>\n\n"
    "\\(\\href{javascript:alert(1)}{x}\\) \\(\\boxed{<img src=x onerror=alert(1)>}\\)"
)


def wall_of_answer(page: Page) -> Page:
    """Ask, press the button under the answer, follow the link: the wall's own page."""
    ask(page, "What is 235 × 478?")
    expect(page.get_by_test_id("run-line-summary")).to_have_count(1)
    expect(page.locator("#chat-submit")).to_be_visible()
    answers(page).last.get_by_role("button", name=re.compile("^(Wall|展示墙)")).click()
    link = page.get_by_role("link", name=re.compile("Open the wall|打开重放墙"))
    expect(link).to_be_visible()
    page.goto(page.url.split("/thread")[0].rstrip("/") + str(link.get_attribute("href")))
    return page


def start(page: Page, count: int, *, kind: str = "replays", predict: bool = False) -> None:
    page.locator(f"input[value={kind}]").check()
    page.locator("input[name=count]").fill(str(count))
    page.locator("input[value=turns]").check()
    if predict:
        page.locator("input[name=predict]").check()
    page.locator("#setup button").click()


def card(page: Page, number: int) -> Locator:
    return page.get_by_test_id("card").nth(number)


def test_cards_fill_live_and_the_fork_is_marked_in_place(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = Reply(text=ANSWER)
    page = wall_of_answer(open_page(app_url))
    slow = Reply(text=ANSWER, tokens_per_second=12)
    engine_script.enqueue(slow, Reply(text=ANSWER, fork_at=6, tokens_per_second=12))
    start(page, 2)
    expect(page.get_by_test_id("card")).to_have_count(3)
    expect(card(page, 1)).to_have_attribute("data-state", "running")
    expect(card(page, 1).get_by_test_id("text")).to_contain_text("First multiply")
    expect(page.get_by_test_id("sentence")).to_have_text("2 replays: 1 × 112330, 1 × no boxed answer")
    expect(page.get_by_test_id("tokens")).to_contain_text("1 of 2 came out the same as the first")
    expect(card(page, 1)).to_contain_text("● the same")
    expect(card(page, 1).locator("mark")).to_have_count(0)
    expect(card(page, 2)).to_contain_text("✕ forked at token 6")
    expect(card(page, 2).locator("mark")).to_have_count(1)
    expect(card(page, 2).locator(".same")).to_have_text("First multiply 235")
    expect(page.get_by_test_id("load")).to_contain_text("no load for each other")


def test_predict_first_hides_until_asked_and_the_keyboard_does_everything(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = Reply(text=ANSWER)
    page = wall_of_answer(open_page(app_url))
    start(page, 2, predict=True)
    expect(page.locator("#again")).to_be_visible()
    expect(page.get_by_test_id("sentence")).to_contain_text("What do you expect?")
    wall = page.locator("#wall")
    expect(wall).not_to_contain_text("112330")
    page.keyboard.press(" ")
    expect(card(page, 0).get_by_test_id("text")).to_have_text("First multiply 235 by 478.\n\n")
    expect(wall).not_to_contain_text("112330")
    page.keyboard.press(" ")
    expect(card(page, 0).get_by_test_id("text")).to_contain_text("That gives 112330.")
    page.keyboard.press("Shift+ ")
    expect(wall).not_to_contain_text("112330")
    page.keyboard.press("a")
    expect(card(page, 0).get_by_test_id("answer")).to_have_text("112330")
    expect(card(page, 1).get_by_test_id("answer")).to_have_text("hidden")
    expect(page.get_by_test_id("bars")).not_to_contain_text("112330")
    for _ in range(3):
        page.keyboard.press(" ")
    expect(page.get_by_test_id("sentence")).to_have_text("2 replays: 2 × 112330")
    expect(page.get_by_test_id("bars")).to_contain_text("112330 ✓")
    card(page, 0).focus()
    page.keyboard.press("ArrowRight")
    expect(card(page, 1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(card(page, 1)).to_have_class(re.compile("large"))
    page.keyboard.press("Escape")
    expect(card(page, 1)).not_to_have_class(re.compile("large"))
    page.keyboard.press("f")
    page.wait_for_function("document.fullscreenElement !== null")
    page.keyboard.press("p")
    expect(page.get_by_test_id("sentence")).to_have_text("2 replays: 2 × 112330")


def test_what_a_model_wrote_stays_text(app_url: str, open_page: Open, engine_script: Script) -> None:
    engine_script.default = Reply(text=HOSTILE)
    page = wall_of_answer(open_page(app_url))
    engine_script.enqueue(Reply(text=HOSTILE), Reply(text=HOSTILE, fork_at=3))
    start(page, 2)
    expect(page.locator("#again")).to_be_visible()
    expect(card(page, 1).get_by_test_id("answer")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(card(page, 0).get_by_test_id("text")).to_contain_text("<script>")
    expect(page.locator("#wall img, #wall script, #wall a[href^='javascript']")).to_have_count(0)
    expect(page).to_have_title(re.compile("Replay wall"))


def test_bad_numbers_are_one_sentence_and_stop_stops(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = Reply(text=ANSWER)
    page = wall_of_answer(open_page(app_url, locale="zh-CN", width=390, dark=True))
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    page.locator("input[name=count]").fill("1000")
    page.locator("#setup button").click()
    expect(page.locator("#setup-problem")).to_have_text("数量无效，请填写 1 到 24 的整数。")
    engine_script.default = Reply(text=ANSWER * 20, tokens_per_second=20)
    start(page, 2)
    expect(card(page, 1)).to_have_attribute("data-state", "running")
    page.locator("#stop").click()
    expect(page.locator("#again")).to_be_visible()
    expect(card(page, 1)).to_have_attribute("data-state", "stopped")
    expect(card(page, 2)).to_contain_text("未运行")
    page.locator("#again").click()
    expect(page.locator("#setup")).to_be_visible()


def test_the_command_makes_a_wall_of_a_question_and_is_none_itself(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    page = open_page(app_url)
    ask(page, "/wall")
    expect(page.get_by_text("There is no answer in this chat yet")).to_be_visible()
    ask(page, "/wall What is 2 + 2?")
    link = page.get_by_role("link", name="Open the wall")
    expect(link).to_be_visible()
    engine_script.answer = lambda body: Reply(text=f"\\boxed{{{4 if body['seed'] < 44 else 5}}}")
    page.goto(app_url.rstrip("/") + str(link.get_attribute("href")))
    expect(page.get_by_test_id("question")).to_have_text("What is 2 + 2?")
    page.locator("input[name=temperature]").fill("0.8")
    start(page, 3, kind="seeds")
    expect(page.get_by_test_id("sentence")).to_have_text("3 seeds: 2 × 4, 1 × 5")
    assert not any(b"/wall" in body for body in engine_script.bodies)

"""The answer's own lines in a browser: under an answer and in the panel, and typing what is expected."""

from __future__ import annotations

import re

import pytest
from browser.conftest import Open, answers, ask
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser


def asked(page: Page, question: str) -> None:
    ask(page, question)
    expect(page.get_by_test_id("run-line-summary")).to_have_count(1)
    expect(page.locator("#chat-submit")).to_be_visible()


def replay(page: Page) -> None:
    answers(page).last.get_by_role("button", name=re.compile("^(Replay|重放)")).click()


@pytest.mark.parametrize(
    ("locale", "said"),
    [
        ("en-US", "Answer 112330 · ✓ right: 235 × 478 = 112330"),
        ("zh-CN", "答案 112330 · ✓ 正确：235 × 478 = 112330"),
    ],
)
def test_an_arithmetic_answer_is_checked_by_itself(
    app_url: str, open_page: Open, locale: str, said: str
) -> None:
    page = open_page(app_url, locale=locale)
    asked(page, "235 × 478 = ?")
    expect(page.get_by_test_id("run-line-answer")).to_have_text(said)
    expect(page.get_by_test_id("panel-answer-line")).to_have_text(said)
    expect(page.get_by_test_id("run-line-pair")).to_have_count(0)


def test_a_teacher_types_what_is_right_changes_it_and_forgets_it(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = Reply(text=r"So it is \(\boxed{\frac{1}{2}}\).")
    page = open_page(app_url)
    asked(page, "How likely is heads?")
    line, panel = page.get_by_test_id("run-line-answer"), page.get_by_test_id("panel")
    expect(line).to_have_text(r"Answer \frac{1}{2}")
    expect(panel.get_by_test_id("expect-save")).to_be_disabled()
    panel.get_by_label("Expected answer").fill("0.5")
    page.keyboard.press("Enter")
    expect(line).to_have_text(r"Answer \frac{1}{2} · ✓ right: expected 0.5")
    expect(panel.get_by_test_id("panel-answer-line")).to_have_attribute("data-sameness", "SAME")
    panel.get_by_test_id("expect-input").fill("1" * 1001)
    panel.get_by_test_id("expect-save").click()
    expect(panel.get_by_test_id("expect-problem")).to_have_text(
        "An expected answer may have up to 1,000 characters."
    )
    expect(line).to_have_text(r"Answer \frac{1}{2} · ✓ right: expected 0.5")
    panel.get_by_test_id("expect-input").fill("0.6")
    panel.get_by_test_id("expect-save").click()
    expect(line).to_have_text(r"Answer \frac{1}{2} · ✗ not right: expected 0.6")
    expect(panel.get_by_test_id("expect-problem")).to_have_count(0)
    panel.get_by_test_id("expect-forget").click()
    expect(line).to_have_text(r"Answer \frac{1}{2}")
    expect(panel.get_by_test_id("expect-input")).to_have_value("")


def test_other_words_with_the_same_answer_leave_the_verdict_as_it_is(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    page = open_page(app_url)
    engine_script.enqueue(Reply(text=r"Half: \(\boxed{\frac12}\)"), Reply(text=r"It is \(\boxed{0.5}\)."))
    asked(page, "How likely is heads?")
    replay(page)
    expect(page.get_by_test_id("run-line-verdict")).to_contain_text("Different from token 0 on")
    same = r"= Words differ, answer the same: \frac12 and 0.5."
    expect(page.get_by_test_id("run-line-pair")).to_have_text(same)
    expect(page.get_by_test_id("panel-answer-pair")).to_have_text(same)
    expect(page.get_by_test_id("run-line-verdict")).not_to_contain_text("answer the same")


def test_model_text_in_a_box_stays_text(app_url: str, open_page: Open, engine_script: Script) -> None:
    engine_script.default = Reply(text=r"\boxed{<img src=x onerror=document.title='x'>}")
    page = open_page(app_url)
    asked(page, "What is 1 + 1?")
    expect(page.get_by_test_id("run-line-answer")).to_contain_text("<img src=x onerror=")
    expect(page).not_to_have_title("x")


def test_on_a_phone_nothing_of_it_is_cut_off(app_url: str, open_page: Open, engine_script: Script) -> None:
    engine_script.default = Reply(text=r"\boxed{" + "12345678" * 30 + "}")
    page = open_page(app_url, width=390)
    asked(page, "What is 1 + 1?")
    expect(page.get_by_test_id("run-line-answer")).to_contain_text("✗ not right: 1+1 = 2")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390

"""What one tab does and shows is its own, and stays as it was when it was sent."""

from __future__ import annotations

import json

import pytest
from browser.conftest import Open, answers, ask
from browser.test_chat import change_settings, expect_answered, latest_verdict, replay_last, stored_runs
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser


def close_panel(page: Page) -> None:
    page.locator("#side-view-title").get_by_role("button").first.click()
    expect(page.get_by_test_id("panel")).to_have_count(0)


def show_in_panel(page: Page, number: int) -> None:
    """Press the panel button under the answer with this number."""
    page.get_by_role("button", name="Details").nth(number).click()


def test_the_panel_is_of_one_run_and_stays_closed_until_asked_for(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-37: run 1's panel shows run 1 whatever is set now; closing sticks; words are no links."""
    page = open_page(app_url)
    change_settings(page, seed="5")
    engine_script.enqueue(Reply(text="Run a loop: Run 1. Reproducibility, RunLine."))
    ask(page, "one")
    expect_answered(page, 1)
    change_settings(page, seed="6", temperature="0.7")
    panel = page.get_by_test_id("panel")
    expect(panel.get_by_test_id("run-seed")).to_contain_text("5")
    ask(page, "two")
    expect_answered(page, 2)
    expect(panel.get_by_test_id("run-seed")).to_contain_text("6")
    show_in_panel(page, 0)
    expect(panel.get_by_test_id("run-question")).to_have_text("one")
    expect(panel.get_by_test_id("run-seed")).to_contain_text("5")
    expect(panel.get_by_test_id("setting-temperature")).to_contain_text("0")
    expect(panel.get_by_test_id("setting-repetition_penalty")).to_contain_text("1")
    close_panel(page)
    ask(page, "three")
    expect_answered(page, 3)
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Came out the same")
    expect(panel).to_have_count(0)
    show_in_panel(page, 2)
    expect(panel.get_by_test_id("run-question")).to_have_text("three")
    first = answers(page).first
    expect(first).to_contain_text("Run a loop: Run 1. Reproducibility, RunLine.")
    expect(first.get_by_role("link")).to_have_count(0)


def test_settings_changed_in_one_tab_touch_neither_its_earlier_run_nor_the_other_tab(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-35: tab A seed 11 at 0, tab B seed 22 at 0.9, sent within a second."""
    first, second = open_page(app_url), open_page(app_url)
    change_settings(first, seed="11")
    change_settings(second, seed="22", temperature="0.9")
    slow, other = Reply(text="step " * 3000, tokens_per_second=50), Reply(text="step " * 100)
    engine_script.answer = lambda body: slow if body["messages"][-1]["content"] == "A" else other
    ask(first, "A")
    ask(second, "B")
    expect(first.get_by_text("step step").first).to_be_visible()
    # While it streams, the page offers no settings; `test_ui_handlers` changes them all the same.
    expect(first.locator("#stop-button")).to_be_visible()
    assert first.locator("#chat-settings-open-modal").is_disabled()
    first.locator("#stop-button").click()
    expect_answered(first)
    change_settings(first, seed="33", temperature="0.5")
    expect_answered(second)
    ask(first, "C")
    expect_answered(first, 2)
    sent = {json.loads(body)["messages"][-1]["content"]: json.loads(body) for body in engine_script.bodies}
    assert {name: (body["seed"], body["temperature"]) for name, body in sent.items()} == {
        "A": (11, 0.0),
        "B": (22, 0.9),
        "C": (33, 0.5),
    }
    runs = stored_runs(app_url)[:3]
    assert len({run["id"] for run in runs}) == 3
    assert [run["status"] for run in runs].count("complete") == 2
    show_in_panel(first, 0)
    expect(first.get_by_test_id("run-seed")).to_contain_text("11")
    expect(second.get_by_test_id("run-seed")).to_contain_text("22")


def test_spaces_and_newlines_typed_around_a_question_are_sent_as_typed(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-11: and a replay sends the same bytes."""
    typed = "  x =\n\n    1\n  y\t= 2\n\n"
    page = open_page(app_url)
    ask(page, typed)
    expect_answered(page)
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Came out the same")
    first, second = engine_script.bodies
    assert json.loads(first)["messages"][-1]["content"] == typed
    assert second == first


def test_a_question_that_cannot_fit_stays_and_can_be_asked_again_with_less_to_write(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-47: one readable sentence, no raw JSON, nothing sent; later questions work."""
    engine_script.max_model_len = 4096
    page = open_page(app_url)
    change_settings(page, max_tokens="4096")
    question = "word " * 3000
    ask(page, question)
    problem = page.get_by_text("this engine's context holds 4,096 in all").first
    expect(problem).to_be_visible()
    assert engine_script.bodies == []
    expect(page.locator(".step[data-step-type=user_message]").last).to_contain_text("word word")
    change_settings(page, max_tokens="64")
    page.get_by_role("button", name="Retry").last.click()
    expect_answered(page, 1)
    assert json.loads(engine_script.bodies[0])["messages"][-1]["content"].strip() == question.strip()


def test_without_token_ids_the_panel_sets_the_texts_side_by_side(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-13: what cannot be compared by tokens is compared by text, and that is said."""
    bare = {"token_ids": False, "logprobs": "none"}
    engine_script.enqueue(
        Reply(text="The product is 112330.", **bare), Reply(text="The product is 112329.", **bare)
    )
    page = open_page(app_url)
    ask(page, "235 × 478")
    expect_answered(page)
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Can't be compared")
    fork = page.get_by_test_id("text-fork")
    expect(fork.get_by_test_id("text-fork-reference")).to_contain_text("112330")
    expect(fork.get_by_test_id("text-fork-candidate")).to_contain_text("112329")
    expect(fork.locator("mark").first).to_have_text("30.")
    expect(page.get_by_test_id("diff-sentences")).to_contain_text("differ from character 19 on")

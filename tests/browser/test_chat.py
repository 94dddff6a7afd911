"""The main job in a browser: ask, watch, look at the panel, replay, see the verdict."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from browser.conftest import Open, answers, ask
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

QUESTION = "What is 235 × 478?"


def expect_answered(page: Page, count: int = 1) -> None:
    """`count` answers have their run line, which appears once a run is stored."""
    expect(page.get_by_test_id("run-line-summary")).to_have_count(count)
    expect(page.locator("#chat-submit")).to_be_visible()


def replay_last(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^(Replay|重放)")).last.click()


def latest_verdict(page: Page):
    return page.get_by_test_id("run-line-verdict").last


def stored_runs(url: str) -> list[dict[str, object]]:
    with urllib.request.urlopen(f"{url}/runs") as response:
        found: list[dict[str, object]] = json.load(response)
        return found


def test_a_question_streams_an_answer_with_thinking_folded_and_formulas_set(
    app_url: str, open_page: Open
) -> None:
    page = open_page(app_url)
    ask(page, QUESTION)
    expect_answered(page)
    thought = page.locator("[id^='step-Thought']")
    expect(thought).to_be_visible()
    expect(page.get_by_text("235 × 78 = 18330")).to_be_hidden()
    expect(page.locator(".katex").first).to_be_visible()
    expect(page.get_by_text("<think>")).to_have_count(0)
    expect(page.get_by_test_id("run-line-summary")).to_contain_text("seed 42")


def test_the_panel_shows_the_run_as_it_was_not_as_settings_are_now(app_url: str, open_page: Open) -> None:
    """RC-37, RC-10: with the context length."""
    page = open_page(app_url)
    panel = page.get_by_test_id("panel")
    expect(panel).to_be_visible()
    ask(page, QUESTION)
    expect_answered(page)
    expect(panel.get_by_test_id("run-seed")).to_contain_text("42")
    expect(panel.get_by_test_id("setting-temperature")).to_be_visible()
    expect(panel.get_by_test_id("fact-model")).to_contain_text("scripted")
    expect(panel.get_by_test_id("run-item")).to_have_count(1)


def test_an_identical_replay_says_so_and_marks_nothing(app_url: str, open_page: Open) -> None:
    page = open_page(app_url)
    ask(page, QUESTION)
    expect_answered(page)
    before = answers(page).count()
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Came out the same")
    expect(page.get_by_test_id("fork")).to_have_count(0)
    assert answers(page).count() == before, "replaying adds nothing to the conversation"


def test_a_diverged_replay_marks_the_first_fork_with_both_tokens(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    page = open_page(app_url)
    ask(page, QUESTION)
    expect_answered(page)
    engine_script.enqueue(Reply(fork_at=31))
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Different from token 31 on")
    page.get_by_test_id("replay-item").first.click()
    fork = page.get_by_test_id("fork")
    expect(fork).to_be_visible()
    expect(page.get_by_test_id("fork-title")).to_contain_text("31")
    expect(page.get_by_test_id("fork-margin")).to_contain_text("0.05")
    expect(page.get_by_test_id("fork-recorded-bars")).not_to_contain_text("⟨id")


def test_replay_sends_what_was_recorded_whatever_the_settings_are_now(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-11"""
    page = open_page(app_url)
    ask(page, "Pick a prime under 30")
    expect_answered(page, 1)
    ask(page, "Square it")
    expect_answered(page, 2)
    change_settings(page, seed="6", temperature="0.7")
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Came out the same")
    assert engine_script.bodies[2] == engine_script.bodies[1]
    ask(page, "Add 1")
    expect_answered(page, 3)
    sent = json.loads(engine_script.bodies[3])
    assert (sent["seed"], sent["temperature"]) == (6, 0.7)
    assert [m["content"] for m in sent["messages"] if m["role"] == "user"] == [
        "Pick a prime under 30",
        "Square it",
        "Add 1",
    ]


def change_settings(page: Page, **values: str) -> None:
    page.locator("#chat-settings-header-button, #chat-settings-open-modal").first.click()
    for name, value in values.items():
        page.locator(f"#{name}").fill(value)
    page.get_by_role("button", name=re.compile("Confirm|确认")).click()


@pytest.mark.parametrize("typed", ["", "1.5", "1e3", "abc", "9223372036854775808", "-1"])
def test_a_bad_seed_is_refused_with_its_range_and_the_old_one_stays(
    app_url: str, open_page: Open, engine_script: Script, typed: str
) -> None:
    """RC-04"""
    page = open_page(app_url)
    change_settings(page, seed=typed)
    # The message, not the form's own help: it moves the composer, and what was typed before it is gone.
    expect(answers(page).first).to_contain_text("9223372036854775807")
    ask(page, QUESTION)
    expect_answered(page)
    assert json.loads(engine_script.bodies[0])["seed"] == 42


def test_a_64_bit_seed_survives_the_browser_digit_for_digit(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-04"""
    page = open_page(app_url)
    change_settings(page, seed="9223372036854775807", temperature="0.8")
    ask(page, QUESTION)
    expect_answered(page)
    assert json.loads(engine_script.bodies[0])["seed"] == 2**63 - 1
    expect(page.get_by_test_id("run-seed")).to_contain_text("9223372036854775807")


def test_a_question_asked_while_loading_is_sent_when_the_engine_is_ready(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-40"""
    engine_script.health = 503
    page = open_page(app_url)
    ask(page, QUESTION)
    expect(page.get_by_text("Your question is kept").first).to_be_visible()
    assert engine_script.bodies == []
    engine_script.health = 200
    expect_answered(page)
    assert len(engine_script.bodies) == 1


def test_an_engine_that_dies_mid_answer_and_comes_back_needs_no_reload(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-46"""
    engine_script.enqueue(Reply(ending="close", ending_after=90))
    page = open_page(app_url)
    ask(page, QUESTION)
    expect(page.get_by_text("broke off").first).to_be_visible()
    assert stored_runs(app_url)[0]["status"] == "interrupted"
    engine_script.health = 503
    expect(page.get_by_text(re.compile("engine has stopped|not ready", re.IGNORECASE)).first).to_be_visible()
    engine_script.health = 200
    page.get_by_role("button", name="Retry").first.click()
    expect(page.get_by_text("112330").last).to_be_visible()


def test_stop_keeps_the_partial_answer_and_the_next_question_works(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-33"""
    engine_script.enqueue(Reply(text="step " * 3000, tokens_per_second=20))
    page = open_page(app_url)
    ask(page, QUESTION)
    expect(page.get_by_text("step step").first).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect_answered(page, 1)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.get_by_text("Task manually stopped")).to_have_count(0)
    assert stored_runs(app_url)[0]["status"] == "stopped"
    ask(page, "1+1?")
    expect_answered(page, 2)


def test_reload_loses_no_run(app_url: str, open_page: Open) -> None:
    page = open_page(app_url)
    ask(page, QUESTION)
    expect_answered(page)
    page.reload()
    expect(page.locator("#chat-input")).to_be_visible()
    assert stored_runs(app_url)[0]["status"] == "complete"


def test_two_tabs_keep_their_own_settings(app_url: str, open_page: Open, engine_script: Script) -> None:
    """RC-35"""
    first, second = open_page(app_url), open_page(app_url)
    change_settings(first, seed="11")
    change_settings(second, seed="22", temperature="0.9")
    ask(first, "A")
    ask(second, "B")
    expect_answered(first)
    expect_answered(second)
    sent = {json.loads(body)["messages"][-1]["content"]: json.loads(body) for body in engine_script.bodies}
    assert (sent["A"]["seed"], sent["A"]["temperature"]) == (11, 0.0)
    assert (sent["B"]["seed"], sent["B"]["temperature"]) == (22, 0.9)
    expect(first.get_by_test_id("run-seed")).to_contain_text("11")
    expect(second.get_by_test_id("run-seed")).to_contain_text("22")


def test_invalid_model_output_is_warned_of_under_the_answer_and_in_the_panel(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """RC-12: no number is made up for what is not one."""
    engine_script.default = Reply(logprobs="null_rows")
    page = open_page(app_url)
    ask(page, QUESTION)
    expect_answered(page)
    expect(page.get_by_test_id("run-warning")).to_contain_text("Model output invalid: at 24 positions")
    expect(page.get_by_test_id("panel-run-warning")).to_be_visible()
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Can't be compared")
    expect(page.locator("body")).not_to_contain_text(re.compile(r"NaN %|\bNaN\b(?!\))|(?<![\d.])0 %"))


def test_a_phone_is_not_covered_by_the_panel(app_url: str, open_page: Open) -> None:
    page = open_page(app_url, width=390)
    ask(page, QUESTION)
    expect_answered(page)
    expect(page.get_by_test_id("panel")).to_have_count(0)


def test_chinese_browsers_get_chinese(app_url: str, open_page: Open) -> None:
    page = open_page(app_url, locale="zh-CN")
    ask(page, "请计算235乘以478的结果是多少？")
    expect_answered(page)
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("完全一致")


HOSTILE = (
    '<script>document.title="x"</script> <img src=x onerror=alert(1)> <style>*{display:none}</style> '
    "if p<q and q>r ![t](http://127.0.0.1:9/leak?d=1) Map f:A→B, ratio p:q = 2:3, hence Answer:n=12. "
    "Pens are $3 and pads are $8, so 2 pens cost $6."
)


def test_model_output_is_shown_as_text_and_nothing_is_eaten(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = Reply(text=HOSTILE)
    page = open_page(app_url)
    leaks: list[str] = []
    page.on("request", lambda request: leaks.append(request.url) if "leak" in request.url else None)
    ask(page, "Say something hostile")
    expect_answered(page)
    for words in (
        "if p<q and q>r",
        "Map f:A→B, ratio p:q = 2:3, hence Answer:n=12",
        "Pens are $3 and pads are $8, so 2 pens cost $6.",
        "<script>",
    ):
        expect(page.get_by_text(words).first).to_be_visible()
    expect(page).not_to_have_title("x")
    engine_script.enqueue(Reply(text=HOSTILE, fork_at=5))
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Different from token 5 on")
    expect(page).not_to_have_title("x")
    assert leaks == []

"""The strip chart and the proof badge, as people meet them in the panel."""

from __future__ import annotations

import re

import pytest
from browser.conftest import Open, ask
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

QUESTION = "What is 235 × 478?"


def asked(page: Page) -> None:
    ask(page, QUESTION)
    expect(page.get_by_test_id("run-line-summary")).to_be_visible()


def replayed(page: Page, count: int) -> None:
    """Replay from the panel until its list has `count` replays."""
    page.get_by_test_id("panel-replay").click()
    expect(page.get_by_test_id("replay-item")).to_have_count(count)


def test_the_chart_tells_drift_and_fork_to_eyes_ears_and_keys(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    page = open_page(app_url)
    asked(page)
    engine_script.enqueue(Reply(drift=-0.001, fork_at=31))
    replayed(page, 1)
    chart = page.get_by_role(
        "img", name=re.compile("first at token 0, by up to 0.001 nats.*fork is at token 31")
    )
    expect(chart).to_be_visible()
    expect(chart.get_by_test_id("strip-drift")).to_contain_text("fork 31")
    reading = page.get_by_test_id("strip-reading")
    expect(reading).to_contain_text("Token 31: the fork")
    slider = page.get_by_test_id("strip-slider")
    slider.press("Home")
    expect(reading).to_contain_text("Token 0: moved by 0.001 nats")
    slider.press("ArrowRight")
    expect(reading).to_contain_text("Token 1:")
    box = page.get_by_test_id("strip-margin").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 16, box["y"] + 50)
    expect(reading).to_contain_text("Token 31: the fork")


def test_an_identical_replay_draws_neither_drift_nor_fork(app_url: str, open_page: Open) -> None:
    page = open_page(app_url, locale="zh-CN")
    asked(page)
    replayed(page, 1)
    chart = page.get_by_test_id("strip-chart")
    expect(chart).to_contain_text("没有已知的概率变化")
    expect(chart.get_by_test_id("strip-drift")).to_have_count(0)
    expect(chart).not_to_contain_text("分叉")


def test_the_badge_grows_with_proof_and_greys_when_the_engine_changes(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.version = "1.2.3-badge"  # other tests' comparisons are of another engine
    page = open_page(app_url)
    asked(page)
    badge, mark = page.get_by_test_id("proof"), page.get_by_test_id("run-line-proof")
    expect(mark).to_contain_text("not proven yet")
    expect(badge).to_have_attribute("data-state", "none")
    replayed(page, 1)
    expect(page.get_by_test_id("proof-claim")).to_contain_text("1 of 1, so at least 20 %")
    expect(mark).to_contain_text("the same so far: 1 of 1")
    expect(badge).to_have_attribute("data-grey", "false")
    engine_script.version = "9.9.9-badge"
    replayed(page, 2)
    expect(badge).to_have_attribute("data-grey", "true")
    expect(page.get_by_test_id("proof-engine")).to_contain_text("not the one running now: vLLM version")
    expect(page.get_by_test_id("proof-claim")).to_contain_text("1 of 1")
    expect(mark).to_contain_text("another engine runs now")


def test_a_difference_is_not_hidden_by_many_that_agree(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.version = "3.2.1-badge"
    page = open_page(app_url, width=1440, dark=True)
    asked(page)
    replayed(page, 1)
    engine_script.enqueue(Reply(fork_at=9))
    replayed(page, 2)
    expect(page.get_by_test_id("proof")).to_have_attribute("data-state", "different")
    expect(page.get_by_test_id("proof-claim")).to_contain_text("1 of 2 came out differently")

"""Replaying on another engine from the panel, in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser.conftest import answers, ask, running_app
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script, ScriptedEngine, serving


@pytest.fixture
def two_engines(tmp_path: Path) -> Iterator[tuple[str, Script]]:
    """The address of an app with two engines, and the second one's script."""
    first, second = ScriptedEngine(), ScriptedEngine(Script(version="0.1.0-scripted"))
    with (
        serving(first) as one,
        serving(second) as other,
        running_app(f"{one},{other}", tmp_path) as url,
    ):
        yield url, second.script


@pytest.mark.browser
@pytest.mark.parametrize(
    ("locale", "served", "verdict"),
    [
        ("en-US", "served by engine 1", "Different from token 20 on"),
        ("zh-CN", "由引擎 1 完成", "从第 20 个词元起不同"),
    ],
)
def test_the_same_question_on_another_machine(
    open_page: Callable[..., Page],
    two_engines: tuple[str, Script],
    locale: str,
    served: str,
    verdict: str,
) -> None:
    url, other = two_engines
    page = open_page(url, locale=locale)
    ask(page, "What is 235 × 478?")
    expect(answers(page)).to_have_count(1)
    panel = page.get_by_test_id("panel")
    expect(panel.get_by_test_id("engines-served")).to_contain_text(served)
    expect(panel.get_by_test_id("engines-choice")).to_have_value("2")
    other.enqueue(Reply(fork_at=20))
    panel.get_by_test_id("engines-replay").click()
    expect(panel.get_by_test_id("replay-verdict")).to_contain_text(verdict)
    changes = panel.get_by_test_id("engine-changes")
    expect(changes).to_contain_text("0.1.0-scripted")


@pytest.mark.browser
def test_one_engine_offers_no_choice(open_page: Callable[..., Page], app_url: str) -> None:
    page = open_page(app_url)
    ask(page, "What is 235 × 478?")
    expect(page.get_by_test_id("panel-replay")).to_be_visible()
    expect(page.get_by_test_id("engines")).to_have_count(0)

"""`/verify` as a person sees it: typed, watched, and its report opened."""

from __future__ import annotations

import re

import pytest
from browser.accessibility import cut_off, serious_findings
from browser.conftest import Open, ask
from playwright.sync_api import expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

STEADY = Reply(
    text="One two three four five six seven eight nine ten eleven twelve, and the same again.",
    tokens_per_second=300,
    seeded=True,
    cached_tokens=4,
)


def test_the_command_ends_in_a_verdict_and_a_report_that_opens(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    engine_script.default = STEADY
    page = open_page(app_url)
    ask(page, "/verify")
    link = page.get_by_role("link", name="Open the report")
    expect(link).to_be_visible(timeout=120_000)
    # The scripted engine does not tell who it is, so nothing more than "undecided" may be said.
    expect(page.get_by_text(re.compile("^. Undecided"))).to_be_visible()
    # It is no question: no run line under it, and the engine never saw it.
    expect(page.get_by_test_id("run-line-summary")).to_have_count(0)
    assert not any(b"/verify" in body for body in engine_script.bodies)
    page.goto(app_url.rstrip("/") + str(link.get_attribute("href")))
    expect(page.get_by_role("heading", level=1)).to_contain_text("Undecided")
    expect(page.get_by_role("row", name=re.compile("^Alone"))).to_contain_text("3 of 3")
    expect(page.locator("body"), "its style sheet passes both content policies").to_have_css(
        "max-width", "960px"
    )
    expect(page.locator("html")).to_have_attribute("lang", "en")
    page.set_viewport_size({"width": 390, "height": 900})
    page.locator("details").evaluate_all("all => all.map((one) => (one.open = true))")
    assert [*serious_findings(page), *cut_off(page, "body")] == []

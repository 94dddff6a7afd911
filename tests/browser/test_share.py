"""A run given to others: the panel's link and file, what they show, and that nothing in them runs."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path

import pytest
from browser.conftest import Open, ask
from browser.test_chat import expect_answered, latest_verdict, replay_last
from playwright.sync_api import Page, expect
from scripted_engine import Reply, Script

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<svg onload=document.title='owned'>",
    "</pre></main><style>*{display:none}</style>",
    '"><iframe srcdoc="<script>parent.document.title=1</script>">',
    "[x](javascript:document.title='owned') ![x](http://example.com/pixel.png)",
    "{{ 7 * 7 }} {% raw %}",
    "<a href=javascript:alert(1)>x</a><meta http-equiv=refresh content='0;url=http://example.com'>",
    "</title><link rel=stylesheet href=//example.com/x.css>",
)


def share(page: Page) -> str:
    """Make a link in the panel; returns its address."""
    box = page.get_by_test_id("share")
    box.locator("summary").click()
    box.get_by_test_id("share-link").click()
    return box.get_by_test_id("shared-address").inner_text()


def expect_harmless(page: Page, title: str) -> None:
    """Everything hostile is there to read, and nothing of it has happened."""
    for words in HOSTILE:
        expect(page.locator("body")).to_contain_text(words)
    assert page.locator("script, img, svg, iframe, link, base, form").count() == 0
    assert page.locator("[onerror], [onload], [srcdoc]").count() == 0
    assert page.locator("style").count() == 1
    assert page.locator("meta[http-equiv]").count() == 1
    assert page.locator("a").count() == 1
    assert page.title().startswith(title)
    expect(page.locator("h1")).to_be_visible()


def test_a_shared_run_is_read_by_others_until_its_link_is_revoked(
    app_url: str, open_page: Open, engine_script: Script, tmp_path: Path
) -> None:
    page = open_page(app_url)
    hostile = "\n".join(HOSTILE)
    engine_script.enqueue(
        Reply(text=f"<think>{hostile}</think>{hostile}\n\nIt is $8^2$.", tokens_per_chunk=50)
    )
    ask(page, f"8 × 8? {' '.join(HOSTILE)}")
    expect_answered(page)
    replay_last(page)
    expect(latest_verdict(page)).to_contain_text("Different")
    address = share(page)
    expect(page.get_by_test_id("share-count")).to_contain_text("1")
    assert page.evaluate("document.title") != "owned"

    other = open_page(address, awaits="h1")
    expect_harmless(other, "8 × 8?")
    expect(other.get_by_text("It is $8^2$.")).to_be_visible()
    expect(other.locator("ul.verdicts")).to_contain_text("Different from token")
    assert other.evaluate("document.documentElement.lang") == "en"
    with other.expect_download() as downloading:
        other.get_by_role("link", name="Download the receipt").click()
    receipt = json.loads(Path(downloading.value.path()).read_text())
    (run,) = page.request.get(f"{app_url}/runs?replays=false&limit=1").json()
    assert receipt["digest"] == run["digest"]

    chinese = open_page(address, awaits="h1", locale="zh-CN", dark=True, width=390)
    expect(chinese.get_by_text("由 Encore 分享 · 只读")).to_be_visible()
    assert chinese.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"

    with page.expect_download() as downloading:
        page.get_by_test_id("share-file").click()
    file = tmp_path / "run.html"
    downloading.value.save_as(file)
    page.get_by_test_id("share-revoke").click()
    expect(page.get_by_test_id("share-count")).to_have_count(0)
    assert other.request.get(address).status == 404

    # The file stands by itself: no server, no script, and the receipt inside.
    other.set_content(file.read_text(encoding="utf-8"))
    expect_harmless(other, "8 × 8?")
    packed = other.get_by_role("link", name="Download the receipt").get_attribute("href") or ""
    inside = json.loads(gzip.decompress(b64decode(packed.split("base64,")[1])))
    assert inside["digest"] == run["digest"]
    assert not re.search(r"https?://127", file.read_text(encoding="utf-8"))


def test_the_policy_alone_would_stop_a_script(app_url: str, open_page: Open) -> None:
    """The second wall: even markup that got through would do nothing."""
    page = open_page(app_url)
    ask(page, "What is 2 + 2?")
    expect_answered(page)
    other = open_page(share(page), awaits="h1")
    other.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = "document.title = 'owned'";
            document.body.append(script);
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="document.title=\\'owned\\'">');
        }"""
    )
    assert other.title().startswith("What is 2 + 2?")

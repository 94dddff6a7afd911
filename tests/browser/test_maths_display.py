"""What is on screen for a model's text: formulas, money, code, Chinese, hostile markup; streaming or not."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator

import pytest
from browser.conftest import Open, answers, ask
from playwright.sync_api import ConsoleMessage, Locator, Page, expect
from scripted_engine import Reply, Script, tokenize

pytestmark = pytest.mark.browser

WATCH_FOR_ERRORS = """
window.everRed = [];
const red = '.katex-error, .katex [style*="rgb(204, 0, 0)"]';
new MutationObserver(() => {
  for (const found of document.querySelectorAll(red)) window.everRed.push(found.textContent);
}).observe(document.documentElement, { childList: true, subtree: true, characterData: true });
"""


@pytest.fixture
def page(app_url: str, open_page: Open) -> Iterator[Page]:
    """Nothing red may ever appear, and the console stays quiet about formulas."""
    page = open_page(app_url)
    said: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if re.search("katex|latex", message.text, re.IGNORECASE):
            said.append(message.text)

    page.on("console", note)
    page.evaluate(WATCH_FOR_ERRORS)
    yield page
    assert page.evaluate("window.everRed") == []
    assert said == []


def answered(page: Page, question: str = "Show me", count: int = 1) -> Locator:
    ask(page, question)
    expect(page.get_by_test_id("run-line-summary")).to_have_count(count)
    expect(page.locator("#chat-submit")).to_be_visible()
    return answers(page).last.locator(".message-content")


def stored_text(app_url: str) -> str:
    with urllib.request.urlopen(f"{app_url}/runs?limit=1") as response:
        digest = json.load(response)[0]["digest"]
    with urllib.request.urlopen(f"{app_url}/receipts/{digest}") as response:
        return str(json.load(response)["receipt"]["completion"]["text"])


def sources(shown: Locator) -> list[str]:
    """The TeX of every formula on screen."""
    return shown.locator("annotation").all_text_contents()


def test_backslash_delimiters_are_formulas_and_code_is_left_alone(
    page: Page, app_url: str, engine_script: Script
) -> None:
    """RC-25"""
    text = (
        "Roots: \\(x=\\frac{-3\\pm\\sqrt{17}}{4}\\) and \\[\\boxed{x>0}\\]\n\n"
        "```tex\n\\(x=1\\) and \\[y\\]\n```\n\nin code: `\\(z\\)`\n\n"
        "\\begin{align}a&=b\\\\c&=d\\end{align}\n\n\\begin{cases}1\\\\0\\end{cases}\n\nbare \\boxed{7}"
    )
    engine_script.default = Reply(text=text, tokens_per_second=300)
    shown = answered(page)
    assert [source.strip() for source in sources(shown)] == [
        r"x=\frac{-3\pm\sqrt{17}}{4}",
        r"\boxed{x>0}",
        r"\begin{align}a&=b\\c&=d\end{align}",
        r"\begin{cases}1\\0\end{cases}",
        r"\boxed{7}",
    ]
    expect(shown.locator("pre code, pre")).to_contain_text([r"\(x=1\) and \[y\]"])
    expect(shown.get_by_text(r"\(z\)", exact=True)).to_be_visible()
    assert stored_text(app_url) == text, "the record is what the model wrote"


def test_money_is_money_beside_formulas_and_in_code(page: Page, engine_script: Script) -> None:
    """RC-26"""
    pens = "Pens are $3 and pads are $8, so 2 pens cost $6."
    engine_script.default = Reply(text=f"{pens}\n\n价格是$5和$6\n\nLet $k$ be 3 and pay $9.\n\n`{pens}`")
    shown = answered(page)
    expect(shown.get_by_text(pens, exact=True)).to_have_count(2)
    expect(shown.get_by_text("价格是$5和$6", exact=True)).to_be_visible()
    expect(shown.get_by_text("be 3 and pay $9.")).to_be_visible()
    assert sources(shown) == ["k"]


def test_nothing_is_eaten_by_markdowns_extensions(page: Page, engine_script: Script) -> None:
    """RC-27"""
    lines = (
        "Map f:A→B, ratio p:q = 2:3, hence Answer:n=12",
        "3~5 or ~6~, snake_case_name, 2*3*4, a|b|c, [x][y], {z}",
        "if p<q and q>r",
    )
    engine_script.default = Reply(text="\n\n".join(lines))
    shown = answered(page)
    for line in lines:
        expect(shown.get_by_text(line, exact=True)).to_be_visible()


HALF_OPEN = (
    "We get\n\n$$\n\\frac{5}{9}\n$$\n\n| n | n² |\n|--|--|\n| 4 | 16 |\n\nso \\(x\\).\n\n```py\nprint(4)"
)


def test_half_open_formulas_and_fences_show_no_errors_while_streaming(
    page: Page, engine_script: Script
) -> None:
    """RC-29"""
    engine_script.default = Reply(text=HALF_OPEN, tokens_per_second=15)
    shown = answered(page)
    assert [source.strip() for source in sources(shown)] == [r"\frac{5}{9}", "x"]
    expect(shown.locator("table td")).to_have_text(["4", "16"])
    expect(shown.locator("pre").last).to_contain_text("print(4)")
    expect(page.locator("pre").get_by_test_id("run-line-summary")).to_have_count(0)
    expect(answers(page).last.get_by_role("button", name=re.compile("^Replay"))).to_be_visible()


def test_stopped_within_a_formula_what_is_there_is_plain_text(page: Page, engine_script: Script) -> None:
    """RC-29"""
    before = "We get\n\n$$\n\\frac{5}{"
    engine_script.default = Reply(text=HALF_OPEN, ending="stall", ending_after=len(tokenize(before)))
    ask(page, "Show me")
    shown = answers(page).last.locator(".message-content")
    expect(shown).to_contain_text("We get")
    expect(shown).not_to_contain_text("frac")
    page.locator("#stop-button").click()
    expect(page.get_by_test_id("run-line-summary")).to_have_count(1)
    expect(shown).to_contain_text("\\frac{5}{")
    assert sources(shown) == []


def test_the_cursor_behind_a_formula_breaks_nothing(page: Page, engine_script: Script) -> None:
    """RC-29: Chainlit writes its cursor where the text ends, and here it ends with a closing `$$`."""
    before = "We get\n\n$$\n\\frac{5}{9}\n$$"
    engine_script.default = Reply(text=HALF_OPEN, ending="stall", ending_after=len(tokenize(before)))
    ask(page, "Show me")
    shown = answers(page).last.locator(".message-content")
    expect(shown.locator(".katex-display")).to_be_visible()
    page.locator("#stop-button").click()
    expect(page.get_by_test_id("run-line-summary")).to_have_count(1)


def test_chinese_beside_formulas_and_bold(page: Page, engine_script: Script) -> None:
    """RC-30"""
    engine_script.default = Reply(
        text="所以**结论：**得$x=8$，速度$v=\\text{路程}/t$，即$速度=1$。\n\n**答案：**是42"
    )
    shown = answered(page, "１２ 的一半是多少？")
    expect(shown.locator(".font-bold")).to_have_text(["结论", "答案"])
    expect(shown).not_to_contain_text("*")
    assert sources(shown) == ["x=8", r"v=\text{路程}/t", r"\text{速度}=1"]


HOSTILE = (
    '<script>document.title="x"</script> <img src=x onerror="document.title=\'x\'"> '
    '<iframe src="http://127.0.0.1:9/frame"></iframe> <style>*{display:none}</style> if p<q and q>r '
    "![t](http://127.0.0.1:9/leak?d=1) [go](javascript:document.title='x')"
)


def test_markup_in_prompt_and_answer_is_text_everywhere(page: Page, engine_script: Script) -> None:
    """RC-31: message, panel, token details, the fork and what follows it."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    engine_script.enqueue(Reply(text=HOSTILE), Reply(text=HOSTILE, fork_at=5))
    shown = answered(page, HOSTILE)
    question = page.locator(".step[data-step-type=user_message]")
    panel = page.get_by_test_id("panel")
    for place in (question, shown, panel.get_by_test_id("run-question")):
        for part in ("<script>", "onerror=", "<iframe", "<style>*{display:none}</style>", "if p<q and q>r"):
            expect(place).to_contain_text(part)
    answers(page).last.get_by_role("button", name=re.compile("^Replay")).click()
    expect(page.get_by_test_id("run-line-verdict")).to_contain_text("Different from token 5 on")
    panel.get_by_test_id("replay-item").first.click()
    expect(panel.get_by_test_id("fork")).to_be_visible()
    panel.locator(".encore-token").first.click()
    expect(panel.locator(".encore-picked")).to_be_visible()
    assert page.locator("iframe, img[src*='127.0.0.1:9'], a[href^='javascript']").count() == 0
    expect(page).not_to_have_title("x")
    assert [url for url in asked if "127.0.0.1:9/" in url] == []


def test_formulas_are_set_with_the_fonts_of_this_machine(
    app_url: str, open_page: Open, engine_script: Script
) -> None:
    """KaTeX's stylesheet and fonts come from here; that nothing else is asked for, `open_page` sees to."""
    engine_script.default = Reply(text=r"\(x^2 + \mathbb{R}\)")
    page = open_page(app_url)
    fonts: list[str] = []
    page.on("response", lambda got: fonts.append(got.url) if got.url.endswith(".woff2") and got.ok else None)
    shown = answered(page)
    expect(shown.locator(".katex")).to_be_visible()
    expect(shown.locator(".katex-mathml")).to_have_css("position", "absolute")
    page.wait_for_function(
        "[...document.fonts].some((f) => f.family === 'KaTeX_AMS' && f.status === 'loaded')"
    )
    assert any("katex/fonts/KaTeX_Main-Regular.woff2" in url for url in fonts)
    assert all(url.startswith(app_url) for url in fonts)

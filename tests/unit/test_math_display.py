"""What the chat shows: formulas rendered, money money, code untouched, and no character lost."""

from __future__ import annotations

import re

import pytest

from llm_backend.segments import segments
from llm_backend.ui.math_display import display

UNTOUCHED = [
    "```tex\n\\(a\\) and $5 f:A\n```",
    "`\\[b\\]` and ``$3 ` $4``",
    "~~~\n**a：**b\n~~~",
    "- item\n  ```py\n  print(4)  # never closed: f:A",
    "$x=8$",
    "| n | n² |\n|--|--|\n| 4 | 16 |",
    "# Heading\n\n1. one\n2. two\n\n**bold** and *it*",
    "see https://example.org/a?b=1 at 12:30",
]


@pytest.mark.parametrize("text", UNTOUCHED)
def test_leaves_code_and_ordinary_markdown_alone(text: str) -> None:
    assert display(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"Roots: \(x=\frac{-3\pm\sqrt{17}}{4}\).", r"Roots: $x=\frac{-3\pm\sqrt{17}}{4}$."),
        ("So \\[\\boxed{x>0}\\]", "So \n$$\n\\boxed{x>0}\n$$"),
        ("inline $$x=1$$ here", "inline \n$$\nx=1\n$$\n here"),
        ("bare \\boxed{\\frac{1}{2}}!", "bare $\\boxed{\\frac{1}{2}}$!"),
        ("A\n\\begin{align}a&=b\\\\c&=d\\end{align}", "A\n$$\n\\begin{align}a&=b\\\\c&=d\\end{align}\n$$"),
        ("\\begin{equation}x\\end{equation}", "$$\nx\n$$"),
        ("f = \\begin{cases}1\\\\0\\end{cases}", "f = \n$$\n\\begin{cases}1\\\\0\\end{cases}\n$$"),
        ("1. First \\[a\n\nb\\]\n2. x", "1. First \n   $$\n   a\n   b\n   $$\n2. x"),
        ("> so\n> \\[a\\]", "> so\n> $$\n> a\n> $$"),
        ("| \\(|x|\\) |", "| $\\vert x\\vert $ |"),
        ("with $ x^2 $ spaces", "with $x^2$ spaces"),
        ("$速度=\\text{路程}/t$", "$\\text{速度}=\\text{路程}/t$"),
        ("\\begin{itemize}", "\\begin{itemize}"),
    ],
)
def test_formulas_get_the_delimiters_that_are_rendered(text: str, shown: str) -> None:
    assert display(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "Pens are $3 and pads are $8, so 2 pens cost $6.",
            "Pens are \\$3 and pads are \\$8, so 2 pens cost \\$6.",
        ),
        ("价格是$5和$6", "价格是\\$5和\\$6"),
        ("Let $k$ be 3 and pay $9.", "Let $k$ be 3 and pay \\$9."),
        ("$5 or even $10 per head$", "\\$5 or even \\$10 per head\\$"),
        ("already \\$5 and \\$6", "already \\$5 and \\$6"),
    ],
)
def test_money_is_money(text: str, shown: str) -> None:
    assert display(text) == shown


def visible(markdown: str) -> str:
    """What remains on screen of prose without emphasis: escapes undone."""
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown)


@pytest.mark.parametrize(
    "text",
    [
        "Map f:A→B, ratio p:q = 2:3, hence Answer:n=12",
        "::note and :::tip at a line's start",
        "if p<q and q>r, <script>alert(1)</script> <img src=x onerror=y>",
        "![t](http://127.0.0.1:9/leak?d=1) and ![t][r]",
        "3~5，6~8, 2*3*4, 2**10",
        "an open \\[ x + 1 and \\{a, b\\}",
    ],
)
def test_no_character_of_prose_is_lost(text: str) -> None:
    shown = display(text)
    assert visible(shown) == text
    assert not re.search(r"(?<!\\):[A-Za-z:]|(?<!\\)<[A-Za-z/]|!\[", shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("所以**结论：**得$x=8$。", "所以**结论**：得$x=8$。"),
        ("**答案：**是42", "**答案**：是42"),
        ("他说**“好”**了", "他说“**好**”了"),
        ("**答案: $x$**是", "**答案**: $x$是"),
        ("**plain:** text", "**plain:** text"),
    ],
)
def test_emphasis_closes_beside_chinese_punctuation(text: str, shown: str) -> None:
    assert display(text) == shown


HALF_OPEN = (
    "We get\n\n$$\n\\frac{5}{9}\n$$\n\nand \\(x\\) or $y$ or \\boxed{1}, \\begin{align}a\\end{align} end"
)


def test_a_half_open_formula_is_held_back_while_streaming() -> None:
    for cut in range(len(HALF_OPEN)):
        shown = display(HALF_OPEN[:cut], final=False)
        dollars = len(re.findall(r"(?<!\\)\$", shown))
        assert dollars % 2 == 0, shown
        assert not shown.endswith("\\")


def test_a_formula_that_never_ends_is_shown_as_text_at_the_end() -> None:
    assert display("We get\n\n$$\n\\frac{5}{", final=False) == "We get\n\n"
    assert display("We get\n\n$$\n\\frac{5}{") == "We get\n\n\\$\\$\n\\frac{5}{"


def test_an_opening_that_is_none_does_not_hide_the_answer() -> None:
    long = "stray \\[ then " + "word " * 1000
    assert display(long, final=False).endswith("word ")


@pytest.mark.parametrize("text", [HALF_OPEN, *UNTOUCHED, "a\u200bb", "\\\\(x) \\$5 `a``b`"])
def test_cutting_is_lossless(text: str) -> None:
    assert "".join(segment.source for segment in segments(text)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("so\n\n$$\nx\n$$", "so\n\n$$\nx\n$$\n"),
        ("1. so \\[x\\]", "1. so \n   $$\n   x\n   $$\n"),
        ("```py\nprint(4)\n```", "```py\nprint(4)\n```\n"),
        ("so \\(x\\)", "so $x$"),
        ("```py\nprint(4)", "```py\nprint(4)"),
    ],
)
def test_while_streaming_the_cursor_stands_below_what_ends_a_block(text: str, shown: str) -> None:
    """Chainlit writes a cursor behind the text: `$$` with something behind it would close no formula."""
    assert display(text, final=False) == shown
    assert display(text) == shown.rstrip("\n")

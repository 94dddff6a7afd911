"""The thinking splitter: whatever the chunks, the same two strings."""

from __future__ import annotations

from itertools import combinations

import pytest

from llm_backend.thinking import ThinkSplitter


def split(*chunks: str) -> tuple[str, str]:
    splitter = ThinkSplitter()
    for chunk in chunks:
        splitter.feed(chunk)
    splitter.finish()
    return splitter.thinking, splitter.answer


BOTH_TAGS = "<think>ab</think>x<y, 3 <"

CASES = [
    (BOTH_TAGS, "ab", "x<y, 3 <"),
    ("Compute 6·7.\n</think>\n\nIt is 42.", "Compute 6·7.\n", "\n\nIt is 42."),
    ("It is 42.", "", "It is 42."),
    ("<think>never closes </thin", "never closes </thin", ""),
    ("\n<think>a</think>b</think>c<think>", "a", "\nb</think>c<think>"),
    ("<<think>a<b</</think>c", "a<b</", "<c"),
    ("", "", ""),
]


@pytest.mark.parametrize(("text", "thinking", "answer"), CASES)
def test_every_two_way_split_and_every_single_character_agree(text: str, thinking: str, answer: str) -> None:
    """RC-20, RC-22: tags, one tag, no tag; a final "<" is text."""
    assert split(text) == (thinking, answer)
    assert split(*text) == (thinking, answer)
    for cut in range(len(text)):
        assert split(text[:cut], text[cut:]) == (thinking, answer)


def test_every_three_way_split_agrees() -> None:
    """RC-22"""
    for first, second in combinations(range(len(BOTH_TAGS)), 2):
        chunks = BOTH_TAGS[:first], BOTH_TAGS[first:second], BOTH_TAGS[second:]
        assert split(*chunks) == ("ab", "x<y, 3 <")


def test_holds_back_no_more_than_a_tag() -> None:
    """RC-22"""
    splitter = ThinkSplitter()
    for seen, character in enumerate(BOTH_TAGS, start=1):
        splitter.feed(character)
        shown = len(splitter.thinking) + len(splitter.answer)
        assert seen - shown <= len("<think>") + len("</think>")
    splitter.feed("</thin")
    assert splitter.answer == "x<y, 3 <</thin", "after the block has closed nothing is held back"


def test_tells_whether_the_block_is_still_open() -> None:
    splitter = ThinkSplitter()
    splitter.feed("<think>a")
    assert splitter.unclosed
    splitter.feed("</think>")
    assert not splitter.unclosed

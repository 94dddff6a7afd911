"""A continuation gives the same records as a chat, though its format has other places for everything."""

from __future__ import annotations

from typing import Any

import pytest

from llm_backend.engine.fold_completions import CompletionsFold
from llm_backend.receipt import Alternative, TokenRecord


def chunk(text: str, ids: list[int], values: list[Any], tops: list[Any], **more: Any) -> dict[str, Any]:
    logprobs = {
        "tokens": [f"token_id:{one}" for one in ids],
        "token_logprobs": values,
        "top_logprobs": [{f"token_id:{one}": value for one, value in top.items()} for top in tops],
        "text_offset": [0] * len(ids),
    }
    return {"choices": [{"index": 0, "text": text, "token_ids": ids, "logprobs": logprobs, **more}]}


def test_ids_logprobs_and_alternatives_are_read() -> None:
    fold = CompletionsFold(2)
    first = fold.feed(chunk(" a", [5], [-0.5], [{5: -0.5, 6: -1.0}], prompt_token_ids=[1, 2]))
    last = fold.feed(chunk(" b", [7], [-0.25], [{7: -0.25, 8: -2.0}], finish_reason="stop"))
    told = {"choices": [], "usage": {"completion_tokens": 2}, "system_fingerprint": "f"}
    fold.feed(told)
    assert first.text + last.text == " a b"
    assert first.tokens == (TokenRecord(5, -0.5, None, (Alternative(5, -0.5), Alternative(6, -1.0))),)
    assert [token.id for token in last.tokens] == [7]
    assert fold.prompt_token_ids == (1, 2)
    assert (fold.finish_reason, fold.reported_tokens, fold.system_fingerprint) == ("stop", 2, "f")


def test_alternatives_are_ordered_and_no_more_than_were_asked_for() -> None:
    """vLLM puts the drawn token first and beside those asked for."""
    fold = CompletionsFold(2)
    (token,) = fold.feed(chunk("x", [9], [-4.0], [{9: -4.0, 5: -1.5, 6: -0.5}])).tokens
    assert token.top == (Alternative(6, -0.5), Alternative(5, -1.5))
    assert (token.id, token.logprob) == (9, -4.0)


@pytest.mark.parametrize("whole", [True, False])
def test_any_chunking_gives_the_same_tokens(whole: bool) -> None:
    """RC-13"""
    parts = [(" a", 5, -0.5), (" b", 7, -0.25), ("", 8, -0.125)]
    if whole:
        ids, values = [one for _, one, _ in parts], [value for _, _, value in parts]
        tops = [{one: value} for _, one, value in parts]
        chunks = [chunk(" a b", ids, values, tops)]
    else:
        chunks = [chunk(text, [one], [value], [{one: value}]) for text, one, value in parts]
    fold = CompletionsFold(1)
    deltas = [fold.feed(one) for one in chunks]
    assert "".join(delta.text for delta in deltas) == " a b"
    assert [token.logprob for delta in deltas for token in delta.tokens] == [-0.5, -0.25, -0.125]


def test_lists_that_do_not_pair_up_say_nothing_about_any_token() -> None:
    broken = chunk("x", [1, 2], [-0.5], [{1: -0.5}, {2: -0.5}])
    assert CompletionsFold(1).feed(broken).tokens == (TokenRecord(1), TokenRecord(2))


def test_numbers_that_are_none_are_unknown() -> None:
    fold = CompletionsFold(2)
    clamped = chunk("x", [1], [-9999.0], [{1: -9999.0, 2: -0.5}])
    rows = chunk("y", [1], [None], [{1: None, 2: None}])
    assert fold.feed(clamped).tokens[0].unknown == "floor"
    assert fold.feed(clamped).tokens[0].top == (Alternative(2, -0.5), Alternative(1, None))
    assert fold.feed(rows).tokens[0].unknown == "row_not_numbers"
    bare = {"choices": [{"text": "z", "token_ids": [3], "logprobs": None}]}
    assert fold.feed(bare).tokens == (TokenRecord(3),)

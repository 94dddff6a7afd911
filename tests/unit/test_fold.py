"""StreamFold must give the same record however the server cuts and labels its chunks."""

from __future__ import annotations

from typing import Any

import pytest

from llm_backend.engine.fold import StreamFold
from llm_backend.receipt import Alternative, TokenRecord


def entry(token_id: int, logprob: float | None, raw: bytes = b"x", top: Any = None) -> dict[str, Any]:
    return {
        "token": f"token_id:{token_id}",
        "logprob": logprob,
        "bytes": list(raw),
        "top_logprobs": [{"token": f"token_id:{i}", "logprob": lp} for i, lp in top or []],
    }


def chunk(
    content: str | None, ids: list[int] | None, entries: list[Any] | None, **delta: Any
) -> dict[str, Any]:
    logprobs = None if entries is None else {"content": entries}
    return {"choices": [{"delta": {"content": content, **delta}, "token_ids": ids, "logprobs": logprobs}]}


def fold_all(chunks: list[dict[str, Any]]) -> tuple[str, list[TokenRecord], StreamFold]:
    fold = StreamFold()
    deltas = [fold.feed(one) for one in chunks]
    return "".join(d.text for d in deltas), [t for d in deltas for t in d.tokens], fold


TOKENS = [(11, -0.5, "12"), (12, -0.25, " +"), (13, -0.125, " 7")]


@pytest.mark.parametrize("cut", [(1, 1, 1), (3,), (2, 1), (1, 2)])
def test_any_chunking_gives_the_same_tokens(cut: tuple[int, ...]) -> None:
    """RC-13: one chunk is not one token."""
    chunks, start = [], 0
    for size in cut:
        part = TOKENS[start : start + size]
        start += size
        chunks.append(
            chunk(
                "".join(text for _, _, text in part),
                [i for i, _, _ in part],
                [entry(i, lp, text.encode(), [(i, lp), (99, lp - 1)]) for i, lp, text in part],
            )
        )
    text, tokens, _ = fold_all(chunks)
    assert text == "12 + 7"
    assert tokens == [
        TokenRecord(i, lp, t.encode(), (Alternative(i, lp), Alternative(99, lp - 1))) for i, lp, t in TOKENS
    ]


def test_stream_of_every_awkward_chunk_keeps_count_and_order() -> None:
    """RC-13"""
    chunks = [
        {"choices": [{"delta": {"role": "assistant"}, "logprobs": None}], "prompt_token_ids": [1, 2, 3]},
        chunk("12 + 7", [1, 2, 3, 4], [entry(i, -0.1) for i in (1, 2, 3, 4)]),
        chunk(" =", [5], None),
        chunk("", [6], [entry(6, -0.2, b"")]),
        {"choices": [{"delta": {}, "finish_reason": "stop", "logprobs": None}]},
        {"choices": [], "usage": {"completion_tokens": 6}, "system_fingerprint": "fp"},
    ]
    text, tokens, fold = fold_all(chunks)
    assert text == "12 + 7 ="
    assert [t.id for t in tokens] == [1, 2, 3, 4, 5, 6]
    assert tokens[4].logprob is None, "a chunk without logprobs leaves its token unknown, not missing"
    assert tokens[5].bytes is None, "an unfinished character has no bytes of its own"
    assert fold.prompt_token_ids == (1, 2, 3)
    assert (fold.finish_reason, fold.reported_tokens, fold.system_fingerprint) == ("stop", 6, "fp")


def test_entries_that_do_not_pair_with_ids_leave_the_chunk_unknown() -> None:
    _, tokens, _ = fold_all([chunk("ab", [1, 2], [entry(2, -0.3)])])
    assert tokens == [TokenRecord(1), TokenRecord(2)]


NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "why"),
    [(None, "not_a_number"), (-9999.0, "floor"), (float("-inf"), "floor"), (NAN, "not_a_number")],
)
def test_values_the_engine_could_not_give_are_unknown_with_the_reason(value: float | None, why: str) -> None:
    """RC-12: one value that says nothing beside others that do."""
    _, tokens, _ = fold_all([chunk("a", [1], [entry(1, value, top=[(1, value), (2, -0.5)])])])
    assert (tokens[0].logprob, tokens[0].unknown) == (None, why)


@pytest.mark.parametrize(
    ("value", "others", "broken"),
    [
        (None, [None, None], True),  # as vLLM writes NaN
        (NAN, [NAN, NAN], True),
        (NAN, [], True),  # no alternatives asked for
        (None, [], False),  # or a server that gives no numbers at all
        (None, [None, -0.5], False),
        (-9999.0, [-9999.0], False),
    ],
    ids=str,
)
def test_a_row_without_any_number_is_invalid_output(
    value: float | None, others: list[float | None], broken: bool
) -> None:
    """RC-12: what no distribution looks like is told from a single value that is missing."""
    _, tokens, _ = fold_all([chunk("a", [1], [entry(1, value, top=list(enumerate(others)))])])
    assert (tokens[0].unknown == "row_not_numbers") is broken


def test_ids_come_from_token_names_when_the_list_is_absent() -> None:
    _, tokens, _ = fold_all([chunk("a", None, [entry(7, -1.0)])])
    assert [t.id for t in tokens] == [7]


def test_server_without_token_ids_yields_text_and_no_tokens() -> None:
    nameless = {"token": "Paris", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    text, tokens, _ = fold_all([chunk("Paris", None, [nameless])])
    assert (text, tokens) == ("Paris", [])


RAW = "<think>2+2</think>4"
REASONING_STREAMS = {
    "reasoning": [chunk(None, None, None, reasoning="2+2"), chunk("4", None, None)],
    "reasoning_content": [chunk(None, None, None, reasoning_content="2+2"), chunk("4", None, None)],
    "one and a null": [
        chunk(None, None, None, reasoning="2+2", reasoning_content=None),
        chunk("4", None, None, reasoning=None),
    ],
    "tags in content": [chunk("<think>2+2</think>", None, None), chunk("4", None, None)],
    "in pieces": [
        chunk(None, None, None, reasoning="2"),
        chunk(None, None, None, reasoning="+2"),
        chunk("4", None, None),
    ],
}


@pytest.mark.parametrize("name", REASONING_STREAMS)
def test_reasoning_is_recorded_alike_whatever_field_carries_it(name: str) -> None:
    """RC-24"""
    text, _, _ = fold_all(REASONING_STREAMS[name])
    assert text == RAW

"""An altered request differs from the recorded one in the one thing asked for, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sample_receipts import receipt

from llm_backend.altered import (
    streams,
    with_cache_salt,
    with_max_tokens,
    with_seed,
    with_temperature,
    with_top_logprobs,
    without_logprobs,
    without_stream,
)
from llm_backend.compare import compare
from llm_backend.errors import ReceiptInvalid
from llm_backend.receipt import GenerationRequest, Message, Sampling
from llm_backend.record import build_request

ASKED = build_request(
    "m",
    [Message(role="user", content="235 × 478 \u2028?")],
    Sampling(seed=2**63 - 1, temperature=0.8),
)

Change = Callable[[GenerationRequest], GenerationRequest]


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda r: with_seed(r, -(2**63)), {"seed": -(2**63)}),
        (lambda r: with_seed(r, None), {"seed": None}),
        (lambda r: with_temperature(r, 0.0), {"temperature": 0.0}),
        (lambda r: with_max_tokens(r, 7), {"max_tokens": 7}),
        (lambda r: with_top_logprobs(r, 20), {"top_logprobs": 20}),
        (without_logprobs, {"logprobs": None, "top_logprobs": None}),
        (without_stream, {"stream": False, "stream_options": None}),
        (lambda r: with_cache_salt(r, "x"), {"cache_salt": "x"}),
    ],
)
def test_only_the_named_keys_change_and_the_rest_keeps_its_order(
    change: Change, keys: dict[str, Any]
) -> None:
    before, after = json.loads(ASKED.body), json.loads(change(ASKED).body)
    expected = {key: value for key, value in (before | keys).items() if value is not None}
    assert list(after.items()) == list(expected.items())
    assert ASKED.messages == change(ASKED).messages


def test_the_settings_follow_the_body() -> None:
    greedy = with_temperature(ASKED, 0.0)
    assert (greedy.sampling.temperature, greedy.effective.seed) == (0.0, None)
    assert with_seed(ASKED, 5).effective.seed == 5
    assert without_logprobs(ASKED).sampling.top_logprobs == 0
    assert with_max_tokens(ASKED, 7).effective.max_tokens == 7


@pytest.mark.parametrize("body", ["", "not json", "[1]"])
def test_a_body_that_is_no_object_cannot_be_altered(body: str) -> None:
    unreadable = ASKED.model_copy(update={"body": body})
    assert streams(unreadable)
    with pytest.raises(ReceiptInvalid, match="not a JSON object"):
        with_seed(unreadable, 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: with_seed(r, 1), [("seed", str(2**63 - 1), "1")]),
        (without_logprobs, [("top_logprobs", "5", "0"), ("logprobs", "true", None)]),
        (without_stream, [("stream", "true", "false")]),
        (lambda r: with_cache_salt(r, "x"), [("cache_salt", None, '"x"')]),
        (lambda r: r, []),
    ],
)
def test_a_comparison_names_what_was_asked_differently(change: Change, told: list[Any]) -> None:
    result = compare(receipt(asked=ASKED), receipt(asked=change(ASKED)))
    assert [(c.field, c.reference, c.candidate) for c in result.request_changes] == told

"""The engine's `prompt_logprobs`, as vLLM 0.32 sends them and as it should not."""

from __future__ import annotations

import pytest

from llm_backend.engine.prefill import read_prefill
from llm_backend.errors import EngineRejected
from llm_backend.scoring import TokenScore


def entry(**logprobs: float | None) -> dict[str, dict[str, object]]:
    """`t504=-8.3`: token 504; ranks by the order given."""
    return {
        name[1:]: {"logprob": value, "rank": rank, "decoded_token": "x"}
        for rank, (name, value) in enumerate(logprobs.items(), start=1)
    }


def reply(*entries: object) -> dict[str, object]:
    return {"choices": [{"prompt_logprobs": list(entries)}], "system_fingerprint": "vllm-0.32.0-2a8cface"}


def test_every_token_gets_its_own_score_and_the_best_one() -> None:
    read = read_prefill(reply(None, entry(t29=-1.0, t504=-8.25), entry(t260=-0.5)), [1, 504, 260])
    assert read.scores == (None, TokenScore(-8.25, -1.0, 2), TokenScore(-0.5, -0.5, 1))
    assert read.system_fingerprint == "vllm-0.32.0-2a8cface"


def test_null_and_clamped_values_are_unknown() -> None:
    read = read_prefill(reply(None, entry(t29=-1.0, t504=None), entry(t260=-9999.0)), [1, 504, 260])
    assert read.scores == (None, TokenScore(None, -1.0, 2), TokenScore(None, None, 1))


def test_a_token_that_was_not_told_is_unknown() -> None:
    assert read_prefill(reply(None, entry(t29=-1.0), {}), [1, 504, 260]).scores == (None, None, None)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "a page",
        [],
        {},
        {"choices": []},
        {"choices": [{"text": "ry"}]},
        {"choices": [{"prompt_logprobs": None}]},
        reply(None),
        reply(None, {"504": {"rank": 1}}),
        reply(None, ["504"]),
    ],
)
def test_anything_else_is_refused_in_one_sentence(answer: object) -> None:
    with pytest.raises(EngineRejected, match="does not report log-probabilities for a prompt"):
        read_prefill(answer, [1, 504])

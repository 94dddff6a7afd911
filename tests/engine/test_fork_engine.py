"""Forks on a real engine: the recorded token goes on as recorded, the runner-up does not."""

from __future__ import annotations

import pytest
from test_real_engine import ask

from llm_backend.compare import Verdict
from llm_backend.fork import Take, close_calls
from llm_backend.fork_run import fork
from llm_backend.replay import replay

pytestmark = pytest.mark.engine

QUESTION = "Count from 1 to 30, separated by commas."
"""Its greedy answer has no near tie: with one, a prefill may fall otherwise than decoding did."""

AT = 3


class TestStrictForks:
    async def test_the_recorded_token_taken_again_gives_the_recorded_continuation(
        self, strict_engine, store
    ) -> None:
        """The control: were ids or settings sent wrong, the continuation would be another."""
        run, recorded = await ask(strict_engine, store, QUESTION)
        closest = close_calls(recorded.completion.tokens, most=1)[0]
        assert closest.margin > 0.25, "the question no longer suits this test"
        result = await fork(strict_engine, store, run, AT, Take(rank=1), chat_id="test")
        point = result.point
        assert point.same_token
        assert point.same_after == point.recorded_after == point.generated > 50
        assert result.receipt.answer == recorded.answer
        assert result.receipt.completion.finish_reason == recorded.completion.finish_reason
        assert all(len(token.top) == 5 for token in result.receipt.completion.tokens)

    async def test_the_runner_up_goes_another_way_and_its_run_can_be_replayed(
        self, strict_engine, store
    ) -> None:
        run, recorded = await ask(strict_engine, store, QUESTION)
        result = await fork(strict_engine, store, run, AT, chat_id="test")
        assert result.point.taken.rank == 2
        assert result.point.same_after < result.point.recorded_after
        assert result.receipt.answer != recorded.answer
        assert result.receipt.answer.startswith(
            b"".join(token.bytes or b"" for token in recorded.completion.tokens[:AT]).decode()
        )
        replayed = await replay(strict_engine, store, result.run, chat_id="test")
        assert replayed.comparison.verdict is Verdict.IDENTICAL
        assert replayed.comparison.level == "logprobs"

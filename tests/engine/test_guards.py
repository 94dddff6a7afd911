"""The probes on a real vLLM server: what they must show there, with the fresh start as the first thing.

One launch of `fast`: it has a prefix cache that moves probabilities, so a guard that only ever says
"changed nothing" would be seen through.
"""

from __future__ import annotations

import pytest

from llm_backend.altered import with_cache_salt, with_seed, without_logprobs, without_stream
from llm_backend.compare import Verdict
from llm_backend.diagnose import Cause
from llm_backend.guards import ask_sample, cold_request, guard_replays
from llm_backend.probes import CHANCE, GuardOutcome, SeedOutcome
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.replay import replay
from llm_backend.seed_probe import probe_seed

pytestmark = pytest.mark.engine


class TestFast:
    async def test_the_first_request_after_the_start_is_like_later_ones(self, fast_engine, store) -> None:
        """RC-01: first in this class: its engine must have served nothing but the launch's own request."""
        model = (await fast_engine.identity()).model
        request = build_request(
            model, [Message(role="user", content="What is 235 times 478?")], Sampling(max_tokens=40)
        )
        guard = await cold_request(fast_engine, store, request, chat_id="test")
        assert (guard.outcome, guard.reason) == (GuardOutcome.SAME, None)
        assert guard.served_before == 1
        assert guard.comparison.level == "logprobs"
        assert guard.cached_prompt_tokens == (0, 0)
        again = await cold_request(fast_engine, store, request, chat_id="test")
        assert (again.outcome, again.reason) == (GuardOutcome.UNDECIDED, "not_fresh")
        assert again.served_before >= 3

    async def test_the_seed_decides(self, fast_engine, store) -> None:
        probe = await probe_seed(fast_engine, store, chat_id="test")
        assert (probe.outcome, probe.reason) == (SeedOutcome.HONOURED, None)
        for trial in probe.trials:
            assert 0 < trial.chance < CHANCE
            assert trial.neighbours == 0
        assert [trial.comparison.verdict for trial in probe.same_seed] == [Verdict.IDENTICAL] * 2
        assert probe.other_seed.diagnosis.cause is Cause.REQUEST_DIFFERS

    async def test_an_answer_the_model_is_sure_of_decides_nothing_about_the_seed(
        self, fast_engine, store
    ) -> None:
        """Negative control: two tokens cannot show what 32 can."""
        probe = await probe_seed(fast_engine, store, chat_id="test", tokens=1)
        assert (probe.outcome, probe.reason) == (SeedOutcome.UNDECIDED, "likely_anyway")

    async def test_recording_changes_nothing_and_the_cache_is_judged_by_what_it_moves(
        self, fast_engine, store
    ) -> None:
        """Whether a hit moves anything depends on the machine: on one core it did, on two it did not."""
        reference = await ask_sample(fast_engine, store, chat_id="test")
        observer, cache = await guard_replays(fast_engine, store, reference, chat_id="test")
        assert observer.outcome is GuardOutcome.SAME
        assert (observer.comparison.level, observer.control.level) == ("tokens", "logprobs")
        assert observer.comparison.compared == observer.control.compared > 0
        assert cache.control.verdict is Verdict.IDENTICAL
        # Whether the model is done before its tokens run out depends on the machine too.
        alike = Cause.TRUNCATED if reference.finish_reason == "length" else Cause.NONE
        outcomes = {
            Verdict.IDENTICAL: (GuardOutcome.SAME, alike),
            Verdict.DRIFTED: (GuardOutcome.DRIFTED, Cause.PREFIX_CACHE),
            Verdict.DIVERGED: (GuardOutcome.DIFFERENT, Cause.PREFIX_CACHE),
        }
        assert (cache.outcome, cache.diagnosis.cause) == outcomes[cache.comparison.verdict]
        missed, hit = cache.cached_prompt_tokens
        assert (missed, hit > 500) == (0, True)

    async def test_one_thing_changed_is_all_that_is_reported(self, fast_engine, store) -> None:
        model = (await fast_engine.identity()).model
        sampling = Sampling(seed=7, temperature=0.8, max_tokens=24)
        asked = build_request(model, [Message(role="user", content="Name a river.")], sampling)
        async with record(fast_engine, store, asked, chat_id="test") as recording:
            async for _ in recording:
                pass
        run = recording.run
        for altered, field, level in (
            (without_stream(asked), "stream", "logprobs"),
            (with_cache_salt(asked, "other"), "cache_salt", "logprobs"),
            (without_logprobs(asked), "logprobs", "tokens"),
        ):
            result = await replay(fast_engine, store, run, chat_id="test", request=altered)
            assert (result.comparison.verdict, result.comparison.level) == (Verdict.IDENTICAL, level)
            assert field in [change.field for change in result.comparison.request_changes]
        other = await replay(fast_engine, store, run, chat_id="test", request=with_seed(asked, 8))
        assert (other.comparison.verdict, other.diagnosis.cause) == (
            Verdict.DIVERGED,
            Cause.REQUEST_DIFFERS,
        )

"""The seed probe and the guards against engines that do what they must not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from scripted_engine import DEFAULT_TEXT, Reply, Script

from llm_backend.diagnose import Cause
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EngineInterrupted
from llm_backend.guards import ask_sample, cold_request, guard_replays
from llm_backend.probes import Guard, GuardOutcome, SeedOutcome
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request
from llm_backend.seed_probe import SEEDS, probe_seed
from llm_backend.store import Store

HONEST = Reply(seeded=True, cached_tokens=16)


async def guards(engine: EngineClient, store: Store) -> tuple[Guard, Guard]:
    reference = await ask_sample(engine, store, chat_id="chat")
    return await guard_replays(engine, store, reference, chat_id="chat")


class TestSeed:
    async def test_an_honest_engine(self, engine, store, engine_script: Script) -> None:
        """RC-03: every seed twice, 0 among them, each sent as the integer it is."""
        engine_script.default = HONEST
        told: list[tuple[int, int]] = []
        probe = await probe_seed(engine, store, chat_id="chat", on_tokens=lambda *now: told.append(now))
        assert (probe.outcome, probe.reason) == (SeedOutcome.HONOURED, None)
        sent = [json.loads(body) for body in engine_script.bodies]
        assert [body["seed"] for body in sent] == [SEEDS[0], SEEDS[0], SEEDS[1], SEEDS[1]]
        assert len({body["cache_salt"] for body in sent}) == 4
        assert {body["temperature"] for body in sent} == {1.0}
        assert all(trial.chance < 1e-9 for trial in probe.trials)
        assert probe.other_seed.comparison.first_divergence is not None
        assert told == sorted(told)
        assert told[-1] == (128, 128)
        assert len(await store.runs()) == 4

    async def test_one_that_drops_the_seed_for_a_constant(self, engine, store) -> None:
        assert (await probe_seed(engine, store, chat_id="chat")).outcome is SeedOutcome.IGNORED

    async def test_one_that_drops_the_seed_for_chance(self, engine, store, engine_script: Script) -> None:
        engine_script.enqueue(*(Reply(text=word + DEFAULT_TEXT) for word in ("A", "B", "C", "D")))
        probe = await probe_seed(engine, store, chat_id="chat")
        assert probe.outcome is SeedOutcome.NOT_HONOURED

    async def test_one_that_takes_seed_0_for_none(self, engine, store, engine_script: Script) -> None:
        """The other seed twice would pass; 0 is random."""
        engine_script.enqueue(*(Reply(text=word + DEFAULT_TEXT) for word in ("A", "A", "B", "C")))
        probe = await probe_seed(engine, store, chat_id="chat")
        assert probe.outcome is SeedOutcome.NOT_HONOURED
        assert [trial.comparison.reproduced for trial in probe.same_seed] == [True, False]

    async def test_probabilities_that_move_are_not_put_down_to_the_seed(
        self, engine, store, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(), Reply(drift=-0.1, fork_at=4))
        probe = await probe_seed(engine, store, chat_id="chat")
        assert (probe.outcome, probe.reason) == (SeedOutcome.UNDECIDED, "drifted")

    @pytest.mark.parametrize("logprobs", ["null", "none"])
    async def test_without_probabilities_agreement_of_two_seeds_decides_nothing(
        self, engine, store, engine_script: Script, logprobs
    ) -> None:
        engine_script.default = Reply(logprobs=logprobs)
        probe = await probe_seed(engine, store, chat_id="chat")
        assert (probe.outcome, probe.reason) == (SeedOutcome.UNDECIDED, "chance_unknown")
        engine_script.default = replace(HONEST, logprobs=logprobs)
        assert (await probe_seed(engine, store, chat_id="chat")).outcome is SeedOutcome.HONOURED

    async def test_clamped_probabilities_count_as_certain(self, engine, store, engine_script: Script) -> None:
        engine_script.default = replace(HONEST, logprobs="clamped")
        probe = await probe_seed(engine, store, chat_id="chat")
        assert probe.outcome is SeedOutcome.HONOURED
        assert 0 < probe.trials[0].chance < 1e-9

    async def test_beside_others_a_difference_decides_nothing(
        self, engine, store, engine_script: Script
    ) -> None:
        engine_script.default, engine_script.running = HONEST, 3
        probe = await probe_seed(engine, store, chat_id="chat")
        assert (probe.outcome, probe.reason) == (SeedOutcome.UNDECIDED, "others_running")

    async def test_a_refusal_is_undecided_in_the_engines_words(
        self, engine, store, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(status=400, error="seed is not supported"))
        probe = await probe_seed(engine, store, chat_id="chat")
        assert (probe.outcome, probe.reason) == (SeedOutcome.UNDECIDED, "refused")
        assert "seed is not supported" in probe.detail

    async def test_a_broken_stream_is_an_error(self, engine, store, engine_script: Script) -> None:
        engine_script.enqueue(Reply(ending="close", ending_after=3))
        with pytest.raises(EngineInterrupted):
            await probe_seed(engine, store, chat_id="chat")


class TestGuards:
    async def test_an_honest_engine(self, engine, store, engine_script: Script) -> None:
        engine_script.default = HONEST
        observer, cache = await guards(engine, store)
        assert (observer.outcome, cache.outcome) == (GuardOutcome.SAME, GuardOutcome.SAME)
        assert (observer.comparison.level, cache.comparison.level) == ("tokens", "logprobs")
        assert observer.cached_prompt_tokens == (0, 0)
        assert cache.cached_prompt_tokens == (0, 16)
        sent = [json.loads(body) for body in engine_script.bodies[1:]]
        assert ["logprobs" in body for body in sent] == [True, True, False, True, True]
        assert ["cache_salt" in body for body in sent] == [True, True, True, False, False]

    async def test_an_engine_that_answers_otherwise_when_watched(
        self, engine, store, engine_script: Script
    ) -> None:
        engine_script.default = replace(HONEST, observed_fork_at=5)
        observer, cache = await guards(engine, store)
        assert (observer.outcome, cache.outcome) == (GuardOutcome.DIFFERENT, GuardOutcome.SAME)
        assert observer.comparison.first_divergence.position == 5
        assert [change.field for change in observer.comparison.request_changes] == [
            "top_logprobs",
            "cache_salt",
            "logprobs",
        ]
        assert observer.diagnosis.cause is not Cause.REQUEST_DIFFERS

    async def test_an_engine_that_never_repeats_itself_shows_nothing(
        self, engine, store, engine_script: Script
    ) -> None:
        engine_script.enqueue(*(Reply(fork_at=position) for position in (9, 8, 7, 6, 5, 4)))
        observer, cache = await guards(engine, store)
        assert (observer.outcome, observer.reason) == (GuardOutcome.UNDECIDED, "control_differs")
        assert (cache.outcome, cache.reason) == (GuardOutcome.UNDECIDED, "control_differs")

    @pytest.mark.parametrize(
        ("changed", "outcome", "cause"),
        [
            (replace(HONEST, drift=-0.03), GuardOutcome.DRIFTED, Cause.PREFIX_CACHE),
            (replace(HONEST, fork_at=4, drift=-0.03), GuardOutcome.DIFFERENT, Cause.PREFIX_CACHE),
        ],
    )
    async def test_a_cache_that_changes_the_numbers(
        self, engine, store, engine_script: Script, changed: Reply, outcome: GuardOutcome, cause: Cause
    ) -> None:
        engine_script.default = changed
        engine_script.enqueue(*[HONEST] * 5)
        observer, cache = await guards(engine, store)
        assert observer.outcome is GuardOutcome.SAME
        assert (cache.outcome, cache.diagnosis.cause) == (outcome, cause)

    @pytest.mark.parametrize(
        ("told", "outcome", "reason"),
        [
            (None, GuardOutcome.UNDECIDED, "cache_not_told"),
            (0, GuardOutcome.NOT_APPLICABLE, "never_cached"),
        ],
    )
    async def test_a_cache_that_was_not_seen_at_work_passes_no_guard(
        self, engine, store, engine_script: Script, told, outcome, reason
    ) -> None:
        engine_script.default = Reply(cached_tokens=told)
        _, cache = await guards(engine, store)
        assert (cache.outcome, cache.reason) == (outcome, reason)


class TestColdStart:
    REQUEST = build_request("scripted", [Message(role="user", content="Hello")], Sampling())

    async def test_the_first_request_is_set_against_two_later_ones(
        self, engine, store, engine_script: Script
    ) -> None:
        engine_script.served = 1
        guard = await cold_request(engine, store, self.REQUEST, chat_id="chat")
        assert (guard.outcome, guard.served_before) == (GuardOutcome.SAME, 1)
        engine_script.enqueue(Reply(drift=-0.01))
        guard = await cold_request(engine, store, self.REQUEST, chat_id="chat")
        assert (guard.outcome, guard.diagnosis.cause) == (GuardOutcome.DRIFTED, Cause.COLD_START)
        assert len({json.loads(body)["cache_salt"] for body in engine_script.bodies}) == 6

    async def test_an_engine_that_has_served_is_not_cold(self, engine, store, engine_script: Script) -> None:
        engine_script.served = 2
        guard = await cold_request(engine, store, self.REQUEST, chat_id="chat")
        assert (guard.outcome, guard.reason) == (GuardOutcome.UNDECIDED, "not_fresh")
        assert guard.served_before == 2
        assert not engine_script.bodies, "nothing was sent"

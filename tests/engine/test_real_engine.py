"""The main job on a real vLLM server: repeats that agree, load that forks `fast`, `strict` that holds.

The two profiles are two launches of the same engine, so this file has both halves of the claim: a
check that never sees a divergence would prove nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from llm_backend.check import Calibrations, check
from llm_backend.compare import Verdict
from llm_backend.engine.client import EngineClient
from llm_backend.errors import PromptTooLong
from llm_backend.isolate import Climb, Plan
from llm_backend.isolate_phrases import conclusion
from llm_backend.ladder import Finding, Rung
from llm_backend.load import neighbours
from llm_backend.receipt import Message, Receipt, Sampling
from llm_backend.record import build_request, record
from llm_backend.repeat import Repetition
from llm_backend.replay import ReplayResult, replay
from llm_backend.scoring import CheckVerdict
from llm_backend.store import Run, Store
from llm_backend.tally import Shape

pytestmark = pytest.mark.engine

QUESTION = "What is 235 times 478?"
TOKENS = 80
"""Longer than the position (31) at which default batching forked this prompt when measured."""

LOAD = 12


async def ask(
    engine: EngineClient, store: Store, question: str = QUESTION, **sampling: object
) -> tuple[Run, Receipt]:
    model = (await engine.identity()).model
    wanted = Sampling(**{"seed": 42, "max_tokens": TOKENS, **sampling})
    request = build_request(model, [Message(role="user", content=question)], wanted)
    async with record(engine, store, request, chat_id="test") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    assert recording.receipt is not None
    return recording.run, recording.receipt


async def replay_under_load(engine: EngineClient, store: Store, run: Run) -> ReplayResult:
    identity, recorded = await engine.identity(), await store.receipt_of(run.id)
    async with neighbours(engine, identity, recorded.request, count=LOAD, shape=Shape.SAME):
        return await replay(engine, store, run, chat_id="test")


class TestFast:
    """vLLM's defaults plus a seed."""

    async def test_alone_it_repeats_bit_for_bit(self, fast_engine, store) -> None:
        run, _ = await ask(fast_engine, store)
        result = await replay(fast_engine, store, run, chat_id="test")
        assert result.comparison.verdict is Verdict.IDENTICAL
        assert result.comparison.level == "logprobs"
        assert result.comparison.compared == TOKENS

    async def test_under_load_it_forks_and_the_fork_is_where_it_says(self, fast_engine, store) -> None:
        """RC-02: the control; without it nothing below would mean anything."""
        run, recorded = await ask(fast_engine, store)
        result = await replay_under_load(fast_engine, store, run)
        assert result.run.neighbours is not None
        assert result.run.neighbours >= LOAD
        assert result.comparison.verdict is Verdict.DIVERGED
        fork = result.comparison.first_divergence
        assert fork is not None
        replayed = await store.receipt_of(result.run.id)
        before, after = recorded.completion.token_ids, replayed.completion.token_ids
        assert before[: fork.position] == after[: fork.position]
        assert before[fork.position] != after[fork.position]
        top = recorded.completion.tokens[fork.position].top
        assert fork.logprob_margin == top[0].logprob - top[1].logprob
        assert result.comparison.max_abs_logprob_diff > 0, "drift comes before the fork"
        assert result.diagnosis.cause != "unexplained"

    @pytest.mark.parametrize("shape", Shape)
    async def test_repeats_tell_alone_from_load(self, fast_engine, store, shape: Shape) -> None:
        run, _ = await ask(fast_engine, store)
        counts = (0, LOAD)
        repetition = Repetition(fast_engine, store, run, times=2, counts=counts, shape=shape, chat_id="test")
        alone, loaded = (await repetition.run()).steps
        assert (alone.identical, alone.distinct, alone.load.running) == (2, 1, 0)
        assert loaded.load.mean > LOAD / 2, "most neighbours were producing tokens beside the replay"
        assert loaded.load.most == LOAD
        assert loaded.identical == 0
        assert loaded.largest_drift
        assert loaded.fork is not None
        assert sum(branch.runs for branch in loaded.fork.branches) == 3

    async def test_decoded_in_a_batch_an_answer_is_bit_exact_and_alone_it_is_not(
        self, fast_engine, store, tmp_path
    ) -> None:
        """On CPU a batch is computed as a prefill is, a single sequence by another kernel."""
        calibrations = Calibrations(tmp_path / "calibrations.json")
        identity = await fast_engine.identity()
        _, first = await ask(fast_engine, store)
        async with neighbours(fast_engine, identity, first.request, count=LOAD, shape=Shape.SAME):
            _, beside_others = await ask(fast_engine, store)
        result = await check(fast_engine, beside_others, calibrations)
        assert result.verdict is CheckVerdict.BIT_EXACT
        assert result.bit_equal == len(beside_others.completion.tokens)
        _, alone = await ask(fast_engine, store)
        result = await check(fast_engine, alone, calibrations)
        assert result.verdict is CheckVerdict.WITHIN_TOLERANCE
        assert result.bit_equal < TOKENS

    async def test_isolating_names_load_and_not_a_restart(self, fast_engine, store, own_settings) -> None:
        """A restarted engine gives the same bits alone; neighbours change them."""
        run, _ = await ask(fast_engine, store)
        ladder = (Rung.ALONE, Rung.LOADED, Rung.STREAM, Rung.RESTART)
        plan = Plan(rungs=ladder, times=2, go_on=True, neighbours=LOAD)
        report = await Climb(own_settings, fast_engine, store, run, plan, chat_id="test").run()
        alone, loaded, stream, restart = report.tried
        assert alone.finding is Finding.REPRODUCES
        assert loaded.finding is Finding.FLIPS
        assert loaded.load.most == LOAD
        assert loaded.control.equal_receipt == 2, "afterwards, alone, it is as before"
        assert (stream.finding, stream.tally.equal_receipt) == (Finding.NOT_SHOWN, 2)
        assert (restart.finding, restart.tally.equal_receipt) == (Finding.NOT_SHOWN, 2)
        assert restart.start_seconds > 1
        assert conclusion(report)[0].startswith("What flips it: load (neighbours 12).")
        assert await fast_engine.running() == 0


class TestStrict:
    """One sequence at a time on CPU."""

    async def test_the_engine_says_who_it_is(self, strict_engine) -> None:
        identity = await strict_engine.identity()
        assert identity.device == "cpu"
        assert identity.profile == "strict"
        assert identity.max_num_seqs == 1
        assert identity.prefix_caching is False
        assert identity.max_model_len == 4096
        assert identity.weights_digest.startswith("sha256:")
        assert identity.chat_template_digest.startswith("sha256:")
        assert identity.vllm_version.startswith("0.32.0")
        assert identity.torch_version.startswith("2.13.0")
        assert identity.cpu_flags
        assert "VLLM_BATCH_INVARIANT" not in identity.env
        assert identity.env["TORCH_COMPILE_DISABLE"] == "1", "no C++ compiler is needed while it runs"
        assert not any("key" in word.lower() for word in identity.argv)

    async def test_under_the_load_that_forks_fast_it_stays_identical(self, strict_engine, store) -> None:
        """RC-02"""
        run, _ = await ask(strict_engine, store)
        result = await replay_under_load(strict_engine, store, run)
        assert result.comparison.verdict is Verdict.IDENTICAL
        assert result.comparison.level == "logprobs"
        assert result.comparison.max_abs_logprob_diff == 0
        assert not result.comparison.engine_changes

    async def test_repeats_hold_and_say_that_neighbours_only_queue(self, strict_engine, store) -> None:
        run, _ = await ask(strict_engine, store)
        (step,) = (
            await Repetition(strict_engine, store, run, times=2, counts=(LOAD,), chat_id="test").run()
        ).steps
        assert (step.identical, step.distinct, step.largest_drift) == (2, 1, 0)
        assert step.load.one_at_a_time
        assert step.load.mean < 1

    async def test_isolating_does_not_show_that_load_matters(
        self, strict_engine, store, own_settings
    ) -> None:
        run, _ = await ask(strict_engine, store, max_tokens=40)
        ladder = (Rung.ALONE, Rung.LOADED, Rung.CACHE_COLD, Rung.LOGPROBS, Rung.SAMPLING)
        plan = Plan(rungs=ladder, times=2, neighbours=4)
        report = await Climb(own_settings, strict_engine, store, run, plan, chat_id="test").run()
        assert report.outcome == "not_flipped"
        assert [tried.finding for tried in report.tried] == [Finding.REPRODUCES, *[Finding.NOT_SHOWN] * 3]
        assert [(one.rung, one.why) for one in report.not_tried] == [(Rung.CACHE_COLD, "no_prefix_cache")]

    async def test_the_seed_decides_when_sampling(self, strict_engine, store) -> None:
        """RC-03"""
        run, first = await ask(strict_engine, store, temperature=0.8, seed=20250, max_tokens=40)
        result = await replay(strict_engine, store, run, chat_id="test")
        assert result.comparison.verdict is Verdict.IDENTICAL
        _, other = await ask(strict_engine, store, temperature=0.8, seed=20251, max_tokens=40)
        assert other.completion.token_ids != first.completion.token_ids

    async def test_asking_for_logprobs_changes_no_token(self, strict_engine, store) -> None:
        _, with_top = await ask(strict_engine, store, max_tokens=40)
        _, without = await ask(strict_engine, store, max_tokens=40, top_logprobs=0)
        assert with_top.completion.token_ids == without.completion.token_ids

    async def test_characters_split_over_tokens_lose_nothing(self, strict_engine, store) -> None:
        """RC-15"""
        _, receipt = await ask(strict_engine, store, "Repeat exactly: 🧮=算盘, 𠮷×2, naïve", max_tokens=60)
        assert receipt.completion.reported_tokens == len(receipt.completion.tokens)
        assert "�" not in receipt.completion.text.rstrip("�"), "only a cut-off end may be incomplete"

    async def test_its_own_answers_are_within_its_tolerance(self, strict_engine, store, tmp_path) -> None:
        calibrations = Calibrations(tmp_path / "calibrations.json")
        for asked in ({}, {"temperature": 0.8, "seed": 20250}):
            _, receipt = await ask(strict_engine, store, **asked)
            result = await check(strict_engine, receipt, calibrations)
            # In bfloat16 on CPU a prefill and a decoding step round differently.
            assert result.verdict is CheckVerdict.WITHIN_TOLERANCE
            assert result.known == len(receipt.completion.tokens)
            assert 0 < result.max_abs_logprob_diff <= result.tolerance < 1
            assert not result.engine_changes

    async def test_a_changed_token_is_outside_even_if_it_is_the_runner_up(
        self, strict_engine, store, tmp_path
    ) -> None:
        calibrations = Calibrations(tmp_path / "calibrations.json")
        _, receipt = await ask(strict_engine, store)
        position = TOKENS // 2
        true = receipt.completion.tokens[position]
        runner_up = next(other for other in true.top if other.id != true.id)
        for forged in (
            replace(true, id=true.id + 1),
            replace(true, id=runner_up.id, logprob=runner_up.logprob),
        ):
            tokens = list(receipt.completion.tokens)
            tokens[position] = forged
            completion = receipt.completion.model_copy(update={"tokens": tuple(tokens)})
            tampered = receipt.model_copy(update={"completion": completion})
            result = await check(strict_engine, tampered, calibrations)
            assert result.verdict is CheckVerdict.OUTSIDE
            # A runner-up may pass for its own position; what follows it does not.
            assert result.first_outside in (position, position + 1)

    async def test_a_prompt_that_cannot_fit_is_refused_with_numbers(self, strict_engine, store) -> None:
        """RC-47"""
        with pytest.raises(
            PromptTooLong, match=r"the answer may take 4,090; this engine's context holds 4,096"
        ):
            await ask(strict_engine, store, max_tokens=4090)

    async def test_stopping_frees_the_engine(self, strict_engine, store) -> None:
        """RC-33"""
        model = (await strict_engine.identity()).model
        request = build_request(
            model, [Message(role="user", content="Count to 1000.")], Sampling(max_tokens=2000)
        )
        begun = asyncio.Event()

        async def long_run() -> None:
            async with record(strict_engine, store, request, chat_id="test") as recording:
                async for _ in recording:
                    begun.set()

        task = asyncio.create_task(long_run())
        await asyncio.wait_for(begun.wait(), 120)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(2):
            while await strict_engine.running():
                await asyncio.sleep(0.05)
        (run, *_) = await store.runs()
        assert run.status == "stopped"

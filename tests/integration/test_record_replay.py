"""Record and replay through real HTTP against the scripted engine: faults, limits, fidelity."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest
from scripted_engine import Reply, Script, tokenize

from llm_backend.altered import with_seed, without_logprobs, without_stream
from llm_backend.compare import Verdict
from llm_backend.diagnose import Cause
from llm_backend.engine.client import EngineClient
from llm_backend.engine.manifest import Manifest, write_manifest
from llm_backend.errors import (
    EngineInterrupted,
    EngineNotReady,
    EngineRejected,
    EngineUnreachable,
    ModelNotServed,
    PromptTooLong,
)
from llm_backend.phrases import notes
from llm_backend.receipt import EngineFingerprint, Message, Receipt, Sampling, Status
from llm_backend.record import build_request, record
from llm_backend.replay import replay
from llm_backend.store import Run, Store


def request(text: str = "What is 235 × 478?", model: str = "scripted", **sampling: object):
    return build_request(model, [Message(role="user", content=text)], Sampling(**sampling))


async def ask(engine: EngineClient, store: Store, req=None) -> tuple[Run, Receipt]:
    async with record(engine, store, req or request(), chat_id="chat") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    assert recording.receipt is not None
    return recording.run, recording.receipt


async def test_a_run_is_stored_with_everything_needed_to_repeat_it(engine, store, engine_script) -> None:
    run, receipt = await ask(engine, store, request(seed=2**63 - 1, temperature=0.8))
    assert json.loads(engine_script.bodies[0])["seed"] == 2**63 - 1
    assert receipt.request.body.encode() == engine_script.bodies[0]
    assert receipt.completion.status is Status.COMPLETE
    assert receipt.completion.finish_reason == "stop"
    assert receipt.completion.text == Reply().text
    assert len(receipt.completion.tokens) == receipt.completion.reported_tokens
    assert b"".join(t.bytes or b"" for t in receipt.completion.tokens).decode() == receipt.completion.text
    assert receipt.request.prompt_token_ids
    assert receipt.engine.vllm_version == "0.0.0-scripted"
    assert receipt.engine.batch_invariant is None, "what nobody told stays unknown"
    assert await store.receipt(receipt.digest) == receipt
    assert run.digest == receipt.digest


@pytest.mark.parametrize("seed", [0, -5, 2**63 - 1, -(2**63)])
async def test_the_seed_reaches_the_wire_as_an_integer(engine, store, engine_script, seed) -> None:
    """RC-03, RC-04"""
    await ask(engine, store, request(seed=seed, temperature=0.8))
    assert json.loads(engine_script.bodies[0])["seed"] == seed


async def test_replay_sends_the_recorded_body_byte_for_byte(engine, store, engine_script) -> None:
    """RC-11: whatever was sent in between."""
    run, receipt = await ask(engine, store, request("  keep\n my spaces \u2028", seed=7))
    await ask(engine, store, request("Something else", seed=8))
    result = await replay(engine, store, run, chat_id="chat")
    assert engine_script.bodies[2] == engine_script.bodies[0]
    assert result.comparison.verdict is Verdict.IDENTICAL
    assert result.run.digest == run.digest, "equal content has one digest"
    assert result.run.id != run.id
    assert (await store.receipt_of(run.id)) == receipt


async def test_a_record_of_another_machine_names_each_difference_and_blames_the_first(
    engine, store, engine_script
) -> None:
    """RC-08: imported from an NVIDIA A10 with vLLM 0.9.2."""
    _, here = await ask(engine, store)
    elsewhere = {"vllm_version": "0.9.2", "device_names": ("NVIDIA A10",), "dtype": "float16"}
    there = here.model_copy(
        update={
            "engine": EngineFingerprint.model_validate(here.engine.model_dump() | elsewhere),
        }
    )
    imported = await store.add_receipt(Receipt.model_validate(there.model_dump()))
    engine_script.enqueue(Reply(fork_at=31))
    result = await replay(engine, store, imported, chat_id="chat")
    assert result.comparison.verdict is Verdict.DIVERGED
    changed = {change.field: change.reference for change in result.comparison.engine_changes}
    assert changed["vllm_version"] == "0.9.2"
    assert result.diagnosis.cause is Cause.ENGINE_CHANGED
    assert result.diagnosis.evidence[0].values["field"] in changed
    assert (await store.receipt_of(imported.id)).engine.device_names == ("NVIDIA A10",)


async def test_a_restart_between_two_runs_is_noted_and_changes_no_verdict(
    scripted_url, store, tmp_path
) -> None:
    """RC-08: the same engine, started again."""

    def started(start_id: str) -> None:
        manifest = Manifest(
            url=scripted_url,
            pid=None,
            start_id=start_id,
            started_at=datetime.now(UTC),
            log_file="",
            fingerprint=EngineFingerprint(model="scripted"),
        )
        write_manifest(tmp_path / "manifest.json", manifest)

    async with EngineClient(scripted_url, manifest_file=tmp_path / "manifest.json") as engine:
        started("first")
        run, _ = await ask(engine, store)
        assert run.engine_start == "first"
        again = await replay(engine, store, run, chat_id="chat")
        assert not again.comparison.engine_restarted
        started("second")
        result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.IDENTICAL
    assert result.comparison.engine_restarted
    assert notes(result.comparison) == ["The engine was restarted between the two runs."]


async def test_a_fork_is_found_where_it_is(engine, store, engine_script) -> None:
    run, _ = await ask(engine, store)
    engine_script.enqueue(Reply(fork_at=31))
    result = await replay(engine, store, run, chat_id="chat")
    fork = result.comparison.first_divergence
    assert result.comparison.verdict is Verdict.DIVERGED
    assert fork is not None
    assert fork.position == 31
    assert fork.reference.bytes != fork.candidate.bytes
    assert fork.logprob_margin == pytest.approx(0.05)


async def test_moved_probabilities_are_drift_not_divergence(engine, store, engine_script) -> None:
    run, _ = await ask(engine, store)
    engine_script.enqueue(Reply(drift=-0.03))
    result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.DRIFTED
    assert result.comparison.max_abs_logprob_diff == pytest.approx(0.03)
    assert result.comparison.first_divergence is None


async def test_a_changed_chat_template_is_incomparable(engine, store, engine_script) -> None:
    run, _ = await ask(engine, store)
    engine_script.enqueue(Reply(prompt_suffix="<think>"))
    result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.INCOMPARABLE


async def test_an_engine_without_token_ids_is_incomparable(engine, store, engine_script) -> None:
    engine_script.default = Reply(token_ids=False, logprobs="none")
    run, receipt = await ask(engine, store)
    assert receipt.completion.text == Reply().text
    result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.INCOMPARABLE


async def test_a_renamed_model_is_one_sentence_and_leaves_the_run(engine, store, engine_script) -> None:
    """RC-08"""
    run, receipt = await ask(engine, store)
    engine_script.model = "renamed"
    with pytest.raises(ModelNotServed, match="does not serve scripted; it serves renamed"):
        await replay(engine, store, run, chat_id="chat")
    assert await store.receipt_of(run.id) == receipt


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("close", "connection broke"),
        ("error", "EngineCore died"),
        ("garbage", "unreadable data"),
        ("no_finish", "without a finish reason"),
        ("stall", "nothing came for 2 s"),
    ],
)
async def test_a_broken_stream_is_kept_as_interrupted(engine, store, engine_script, ending, words) -> None:
    """RC-46: the end of a stream is no success; a replay of it says how far it can be compared."""
    engine_script.enqueue(Reply(ending=ending, ending_after=40))
    with pytest.raises(EngineInterrupted, match="after 40 tokens") as caught:
        await ask(engine, store)
    assert words in str(caught.value)
    (run,) = await store.runs()
    receipt = await store.receipt_of(run.id)
    assert run.status == "interrupted"
    assert len(receipt.completion.tokens) == 40
    assert receipt.completion.finish_reason is None
    assert words in receipt.completion.detail
    # A later, whole replay is compared over what exists and never called different for being longer.
    result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.IDENTICAL
    assert result.comparison.partial
    assert result.comparison.compared == 40


async def test_stop_keeps_what_arrived_and_ends_the_generation(engine, store, engine_script) -> None:
    """RC-33: the engine serves nobody within seconds."""
    engine_script.enqueue(Reply(tokens_per_second=200, text="word " * 2000))
    fifty = asyncio.Event()

    async def slow() -> None:
        async with record(engine, store, request(), chat_id="chat") as recording:
            async for _ in recording:
                if len(recording.tokens) >= 50:
                    fifty.set()

    task = asyncio.create_task(slow())
    await asyncio.wait_for(fifty.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (run,) = await store.runs()
    receipt = await store.receipt_of(run.id)
    assert run.status == "stopped"
    assert 50 <= len(receipt.completion.tokens) < 2000
    async with asyncio.timeout(5):
        while await engine.running():
            await asyncio.sleep(0)
    await ask(engine, store)


async def test_too_long_is_refused_before_sending_with_the_real_numbers(engine, store, engine_script) -> None:
    """RC-47: and the next question is answered."""
    engine_script.max_model_len = 100
    prompt = len(tokenize("<|user|>" + "x " * 30 + "<|end|><|assistant|>"))
    with pytest.raises(PromptTooLong, match=f"{prompt} tokens and the answer may take 90; .* 100 in all"):
        await ask(engine, store, request("x " * 30, max_tokens=90))
    assert engine_script.bodies == []
    assert await store.runs() == []
    await ask(engine, store, request("x", max_tokens=20))


async def test_a_refusal_is_a_sentence_without_json(engine, store, engine_script: Script) -> None:
    engine_script.enqueue(Reply(status=400, error="Requested sample logprobs of 10 > max allowed: 5"))
    with pytest.raises(EngineRejected, match="Requested sample logprobs of 10") as caught:
        await ask(engine, store)
    assert "{" not in caught.value.diagnostics()
    assert await store.runs() == []


async def test_engine_states(engine, engine_script) -> None:
    engine_script.health = 503
    assert (await engine.state()).kind == "loading"
    engine_script.health = 200
    assert (await engine.state()).kind == "ready"
    engine_script.health = 503
    assert (await engine.state()).kind == "dead"


async def test_nothing_listening_is_unreachable(store) -> None:
    async with EngineClient("http://127.0.0.1:9") as nowhere:
        assert (await nowhere.state()).kind == "unreachable"
        with pytest.raises(EngineUnreachable, match=r"127\.0\.0\.1:9"):
            await ask(nowhere, store)


async def test_a_core_that_died_is_not_ready(engine, store, engine_script) -> None:
    engine_script.enqueue(Reply(status=500, error="EngineDeadError"))
    with pytest.raises(EngineNotReady, match="HTTP 500"):
        await ask(engine, store)


async def test_missing_and_clamped_logprobs_are_unknown_never_a_difference(
    engine, store, engine_script
) -> None:
    """RC-12"""
    engine_script.default = Reply(logprobs="clamped")
    run, receipt = await ask(engine, store)
    assert receipt.completion.tokens[0].logprob is None
    assert receipt.completion.tokens[1].logprob is not None
    result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.IDENTICAL
    json.loads(receipt.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


async def test_a_sentinel_and_a_null_are_told_apart_and_no_output_is_called_invalid(
    engine, store, engine_script
) -> None:
    """RC-12: -9999.0 for one token, null for another."""
    engine_script.default = Reply(logprobs="one_of_each")
    run, receipt = await ask(engine, store)
    assert [token.unknown for token in receipt.completion.tokens[:4]] == [
        None,
        "floor",
        "not_a_number",
        None,
    ]
    assert run.invalid_positions == 0
    result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.IDENTICAL
    assert result.comparison.unknown_logprobs == 2
    json.loads(receipt.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize("rows", ["null_rows", "nan_rows"])
async def test_invalid_output_is_recorded_and_is_no_base_to_compare_with(
    engine, store, engine_script, rows
) -> None:
    """RC-12: a whole row of NaN, as vLLM writes it (null) and as other servers do (NaN)."""
    engine_script.enqueue(Reply(logprobs=rows))
    run, receipt = await ask(engine, store)
    broken = -(-len(receipt.completion.tokens) // 5)
    assert (run.invalid_positions, receipt.completion.invalid_positions) == (broken, broken)
    json.loads(receipt.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    result = await replay(engine, store, run, chat_id="chat")
    assert result.comparison.verdict is Verdict.INCOMPARABLE
    assert [(r.kind, r.reference) for r in result.comparison.reasons] == [("invalid_recorded", str(broken))]
    whole, _ = await ask(engine, store)
    engine_script.enqueue(Reply(logprobs=rows))
    result = await replay(engine, store, whole, chat_id="chat")
    assert [(r.kind, r.candidate) for r in result.comparison.reasons] == [("invalid_replayed", str(broken))]
    assert await store.seen(run) == [], "nothing is proven by it"


async def test_two_chats_at_once_keep_their_own_settings(engine, store, engine_script) -> None:
    """RC-35"""
    results = await asyncio.gather(
        ask(engine, store, request("A", seed=11)),
        ask(engine, store, request("B", seed=22, temperature=0.9)),
    )
    (run_a, a), (run_b, b) = results
    assert run_a.id != run_b.id
    assert (a.request.sampling.seed, a.request.sampling.temperature) == (11, 0.0)
    assert (b.request.sampling.seed, b.request.sampling.temperature) == (22, 0.9)


async def test_load_that_arrives_during_a_run_is_noticed(engine, store, engine_script) -> None:
    """RC-02"""
    engine_script.enqueue(Reply(tokens_per_second=40, text="word " * 60))
    async with record(engine, store, request(), chat_id="chat") as recording:
        async for _ in recording:
            engine_script.running = 12
    assert recording.run is not None
    assert recording.run.neighbours == 12


async def test_a_replay_without_logprobs_is_judged_by_its_tokens(engine, store, engine_script) -> None:
    run, recorded = await ask(engine, store)
    bare = without_logprobs(recorded.request)
    result = await replay(engine, store, run, chat_id="chat", request=bare)
    assert engine_script.bodies[1].decode() == bare.body
    comparison = result.comparison
    assert (comparison.verdict, comparison.level) == (Verdict.IDENTICAL, "tokens")
    assert comparison.compared == comparison.unknown_logprobs == len(recorded.completion.tokens)
    assert comparison.first_alternative_drift is None, "what was not recorded is not different"
    assert [change.field for change in comparison.request_changes] == ["top_logprobs", "logprobs"]
    assert result.diagnosis.cause is Cause.NONE
    assert (await store.receipt_of(result.run.id)).request.body == bare.body
    engine_script.default = Reply(fork_at=31)
    result = await replay(engine, store, run, chat_id="chat", request=bare)
    assert result.comparison.verdict is Verdict.DIVERGED
    assert result.diagnosis.cause is not Cause.REQUEST_DIFFERS, "asking for less is not asking otherwise"
    assert result.diagnosis.evidence[-1].key == "evidence.observation"


async def test_an_answer_in_one_piece_is_recorded_as_a_streamed_one(engine, store, engine_script) -> None:
    run, recorded = await ask(engine, store)
    whole = without_stream(recorded.request)
    result = await replay(engine, store, run, chat_id="chat", request=whole)
    assert json.loads(engine_script.bodies[1])["stream"] is False
    assert result.comparison.verdict is Verdict.IDENTICAL
    assert result.comparison.level == "logprobs"
    assert (await store.receipt_of(result.run.id)).completion == recorded.completion
    engine_script.enqueue(Reply(status=400, error="no"))
    with pytest.raises(EngineRejected, match="no"):
        await replay(engine, store, run, chat_id="chat", request=whole)
    engine_script.enqueue(Reply(status=500, error="no"))
    with pytest.raises(EngineNotReady):
        await replay(engine, store, run, chat_id="chat", request=whole)
    assert len(await store.runs()) == 2, "what was refused leaves nothing"


async def test_another_seed_is_named_as_the_reason(engine, store, engine_script) -> None:
    engine_script.default = Reply(seeded=True)
    run, recorded = await ask(engine, store, request(seed=1, temperature=0.8))
    result = await replay(engine, store, run, chat_id="chat", request=with_seed(recorded.request, 2))
    assert result.comparison.verdict is Verdict.DIVERGED
    assert result.diagnosis.cause is Cause.REQUEST_DIFFERS


async def test_a_difference_from_the_first_run_after_a_start_names_the_cold_start(
    engine, store, engine_script
) -> None:
    """RC-01"""
    engine_script.served = 1  # the launch's own
    run, _ = await ask(engine, store)
    assert run.first_after_start
    engine_script.served = 2
    engine_script.enqueue(Reply(drift=-0.01))
    result = await replay(engine, store, run, chat_id="chat")
    assert result.run.first_after_start is False
    assert result.diagnosis.cause is Cause.COLD_START


@pytest.mark.parametrize("served", [None, 1, 2])
async def test_two_runs_as_warm_as_each_other_are_no_cold_start(engine, store, engine_script, served) -> None:
    engine_script.served = served
    run, _ = await ask(engine, store)
    engine_script.enqueue(Reply(drift=-0.01))
    result = await replay(engine, store, run, chat_id="chat")
    assert run.served_before == served
    assert result.diagnosis.cause is Cause.UNEXPLAINED

"""The instant check against a scripted engine: what is sent, and what each reply is judged as."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_engine import DEFAULT_TEXT, Reply, Script, tokenize

from llm_backend import check as check_module
from llm_backend.check import Calibrations, check
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EngineNotReady, EngineRejected, EngineUnreachable
from llm_backend.receipt import Message, Receipt, Sampling
from llm_backend.record import build_request, record
from llm_backend.scoring import CheckVerdict
from llm_backend.store import Store

LENGTH = len(tokenize(DEFAULT_TEXT))


@pytest.fixture
def calibrations(tmp_path: Path) -> Calibrations:
    return Calibrations(tmp_path / "not yet there" / "calibrations.json")


@pytest.fixture
async def recorded(engine: EngineClient, store: Store, engine_script: Script) -> Receipt:
    request = build_request("scripted", [Message(role="user", content="What is 235 × 478?")], Sampling())
    async with record(engine, store, request, chat_id="test") as recording:
        async for _ in recording:
            pass
    engine_script.bodies.clear()
    assert recording.receipt is not None
    return recording.receipt


def tampered(receipt: Receipt, position: int) -> Receipt:
    """The same receipt with one token id changed."""
    tokens = list(receipt.completion.tokens)
    tokens[position] = replace(tokens[position], id=tokens[position].id + 1)
    completion = receipt.completion.model_copy(update={"tokens": tuple(tokens)})
    return receipt.model_copy(update={"completion": completion})


async def test_equal_values_are_bit_exact_from_one_request(
    engine, recorded, calibrations, engine_script
) -> None:
    result = await check(engine, recorded, calibrations)
    assert result.verdict is CheckVerdict.BIT_EXACT
    assert (result.known, result.most_likely) == (LENGTH, LENGTH)
    (body,) = (json.loads(raw) for raw in engine_script.bodies)
    assert body["prompt"] == [*recorded.request.prompt_token_ids, *recorded.completion.token_ids]
    assert (body["max_tokens"], body["temperature"], body["prompt_logprobs"]) == (1, 0, 1)


async def test_no_two_checks_share_a_cache_entry(engine, recorded, calibrations, engine_script) -> None:
    for _ in range(2):
        await check(engine, recorded, calibrations)
    assert len({json.loads(raw)["cache_salt"] for raw in engine_script.bodies}) == 2


async def test_drift_is_judged_by_what_the_engine_differs_from_itself(
    engine, recorded, calibrations, engine_script
) -> None:
    engine_script.enqueue(Reply(drift=0.01), Reply(), Reply(drift=0.0078125))
    result = await check(engine, recorded, calibrations)
    assert result.verdict is CheckVerdict.WITHIN_TOLERANCE
    assert result.tolerance == pytest.approx(2 * 0.0078125)
    assert result.calibration is not None
    assert result.calibration.positions == LENGTH


async def test_a_tolerance_is_measured_once_per_engine(engine, recorded, calibrations, engine_script) -> None:
    engine_script.enqueue(Reply(drift=0.01), Reply(), Reply(drift=0.01))
    first = await check(engine, recorded, calibrations)
    engine_script.bodies.clear()
    engine_script.enqueue(Reply(drift=0.5))
    later = await check(engine, recorded, calibrations)
    assert len(engine_script.bodies) == 1
    assert later.calibration == first.calibration
    assert (later.verdict, later.outside) == (CheckVerdict.OUTSIDE, LENGTH)
    engine_script.version = "0.0.1-scripted"
    engine_script.bodies.clear()
    engine_script.default = Reply(drift=0.01)
    await check(engine, recorded, calibrations)
    assert len(engine_script.bodies) == 3, "another engine has another tolerance"


async def test_a_changed_token_is_outside_where_it_was_changed(engine, recorded, calibrations) -> None:
    result = await check(engine, tampered(recorded, 17), calibrations)
    assert (result.verdict, result.first_outside, result.outside) == (CheckVerdict.OUTSIDE, 17, 1)


@pytest.mark.parametrize(
    ("logprobs", "unknown"), [("clamped", -(-LENGTH // 5)), ("missing_some", -(-LENGTH // 3))]
)
async def test_values_the_engine_does_not_give_are_unknown(
    engine, recorded, calibrations, engine_script, logprobs, unknown
) -> None:
    engine_script.enqueue(Reply(logprobs=logprobs))
    result = await check(engine, recorded, calibrations)
    assert (result.verdict, result.unknown) == (CheckVerdict.BIT_EXACT, unknown)


async def test_a_long_answer_is_checked_in_pieces_with_the_same_result(
    engine, recorded, calibrations, engine_script, monkeypatch
) -> None:
    whole = await check(engine, recorded, calibrations)
    engine_script.bodies.clear()
    monkeypatch.setattr(check_module, "PIECE", 30)
    told: list[tuple[str, int, int]] = []
    result = await check(engine, recorded, calibrations, on_progress=lambda *step: told.append(step))
    assert result == whole
    prompt = len(recorded.request.prompt_token_ids)
    lengths = [len(json.loads(raw)["prompt"]) - prompt for raw in engine_script.bodies]
    assert lengths == [*range(30, LENGTH, 30), LENGTH]
    assert told == [("check", done, LENGTH) for done in range(0, LENGTH, 30)]


async def test_the_last_token_of_a_full_context_stays_unknown(
    engine, recorded, calibrations, engine_script
) -> None:
    full = len(recorded.request.prompt_token_ids) + LENGTH
    engine_script.max_model_len = full
    result = await check(engine, recorded, calibrations)
    assert (result.verdict, result.unknown) == (CheckVerdict.BIT_EXACT, 1)
    assert len(json.loads(engine_script.bodies[0])["prompt"]) == full - 1


async def test_what_cannot_be_checked_costs_the_engine_nothing(
    engine, recorded, calibrations, engine_script
) -> None:
    request = recorded.request.model_copy(update={"prompt_token_ids": ()})
    result = await check(engine, recorded.model_copy(update={"request": request}), calibrations)
    assert [reason.kind for reason in result.reasons] == ["no_prompt_ids"]
    assert engine_script.bodies == []


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Reply(logprobs="none"), EngineRejected, "does not report log-probabilities for a prompt"),
        (Reply(ending="garbage"), EngineRejected, "does not report log-probabilities for a prompt"),
        (Reply(ending="stall"), EngineNotReady, "no answer for 2 s"),
        (Reply(status=400, error="out of vocabulary"), EngineRejected, "out of vocabulary"),
        (Reply(status=500, error="EngineCore died"), EngineNotReady, "EngineCore died"),
    ],
)
async def test_an_engine_that_will_not_is_named(
    engine, recorded, calibrations, engine_script, reply, error, words
) -> None:
    engine_script.enqueue(reply)
    with pytest.raises(error, match=words):
        await check(engine, recorded, calibrations)


@pytest.mark.parametrize("generated", [Reply(logprobs="null"), Reply(token_ids=False)])
async def test_a_self_check_without_ids_or_logprobs_is_no_tolerance(
    engine, recorded, calibrations, engine_script, generated
) -> None:
    engine_script.enqueue(Reply(drift=0.01), generated, Reply())
    with pytest.raises(EngineRejected, match="no token ids or log-probabilities to check against"):
        await check(engine, recorded, calibrations)


async def test_a_tolerance_is_not_measured_beside_other_requests(
    engine, recorded, calibrations, engine_script
) -> None:
    engine_script.running = 2
    assert (await check(engine, recorded, calibrations)).verdict is CheckVerdict.BIT_EXACT, "needs none"
    engine_script.default = Reply(drift=0.01)
    with pytest.raises(EngineNotReady, match="also serving 2 other requests"):
        await check(engine, recorded, calibrations)
    engine_script.running = 0
    assert (await check(engine, recorded, calibrations)).verdict is CheckVerdict.OUTSIDE


async def test_an_absent_engine_is_unreachable(recorded) -> None:
    async with EngineClient("http://127.0.0.1:9") as nobody:
        with pytest.raises(EngineUnreachable):
            await nobody.prefill("scripted", [1, 2])


async def test_a_damaged_file_of_tolerances_is_measured_anew(
    engine, recorded, engine_script, tmp_path: Path
) -> None:
    file = tmp_path / "calibrations.json"
    file.write_text("{", encoding="utf-8")
    engine_script.enqueue(Reply(drift=0.01), Reply(), Reply(drift=0.01))
    assert (await check(engine, recorded, Calibrations(file))).verdict is CheckVerdict.WITHIN_TOLERANCE

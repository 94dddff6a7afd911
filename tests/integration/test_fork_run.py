"""Forking through real HTTP against the scripted engine: what is sent, kept, replayed and refused."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from scripted_engine import DEFAULT_TEXT, Reply, Script, forked, token_id, tokenize
from test_cli import Encore, digest_of, encore  # noqa: F401 (a fixture)

from llm_backend.altered import with_top_logprobs, without_stream
from llm_backend.answer_judge import AnswerJudge
from llm_backend.answers import Sameness
from llm_backend.compare import Verdict
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EngineInterrupted, ModelNotServed, PromptTooLong
from llm_backend.fork import CannotFork, Take
from llm_backend.fork_run import ForkResult, fork, fork_answers, load_fork
from llm_backend.receipt import Message, Receipt, Sampling
from llm_backend.record import build_request, record
from llm_backend.replay import replay
from llm_backend.store import Run, Store

TOKENS = tokenize(DEFAULT_TEXT)
BOX = next(n for n, one in enumerate(TOKENS) if one == "boxed") + 2
"""Position of the first digit in the box."""

GOES_ON = "\n</think>\n\nSo it is \\(\\boxed{5}\\)."


async def ask(engine: EngineClient, store: Store, **sampling: Any) -> tuple[Run, Receipt]:
    request = build_request("scripted", [Message(role="user", content="235 × 478?")], Sampling(**sampling))
    async with record(engine, store, request, chat_id="chat") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    assert recording.receipt is not None
    return recording.run, recording.receipt


async def fork_at(
    engine: EngineClient, store: Store, position: int = 10, take: Take | None = None, **sampling: Any
) -> ForkResult:
    run, _ = await ask(engine, store, **sampling)
    return await fork(engine, store, run, position, take, chat_id="chat")


async def test_the_recorded_token_goes_on_as_recorded(engine, store, engine_script) -> None:
    result = await fork_at(engine, store, 10, Take(rank=1))
    point, parent = result.point, result.parent
    assert point.same_token
    assert point.same_after == point.recorded_after == point.generated == len(TOKENS) - 11
    assert [token.logprob for token in result.receipt.completion.tokens] == [
        token.logprob for token in parent.completion.tokens[11:]
    ]
    assert result.receipt.answer == parent.answer
    sent = json.loads(engine_script.bodies[1])
    assert sent["prompt"] == [*parent.request.prompt_token_ids, *parent.completion.token_ids[:11]]
    assert result.receipt.request.prompt_token_ids == tuple(sent["prompt"])


async def test_the_runner_up_goes_its_own_way_and_is_kept_as_a_run(engine, store, engine_script) -> None:
    run, recorded = await ask(engine, store, seed=7, max_tokens=900)
    engine_script.enqueue(Reply(text=GOES_ON))
    seen: list[tuple[int, int]] = []
    result = await fork(engine, store, run, 10, chat_id="chat", on_tokens=lambda *now: seen.append(now))
    taken = forked(TOKENS[10])
    assert result.point.taken.id == token_id(taken)
    assert (result.run.kind, result.run.reference_run_id) == ("fork", run.id)
    assert result.run.question == run.question
    assert result.receipt.request.body.encode() == engine_script.bodies[1]
    assert json.loads(result.receipt.request.body)["max_tokens"] == 900 - 11
    assert result.receipt.answer == "".join(TOKENS[:10]) + taken + GOES_ON
    assert seen[-1] == (result.point.generated, 900 - 11)
    assert await store.receipt_of(run.id) == recorded, "the run forked off stays what it is"
    again = await load_fork(store, await store.run(result.run.id))
    assert again.point == result.point
    async with AnswerJudge() as judge:
        pair = await fork_answers(judge, again)
    assert (pair.reference, pair.candidate) == ("112330", "5")
    assert pair.opinion is not None
    assert pair.opinion.sameness is Sameness.DIFFERENT


async def test_an_answer_is_judged_with_its_given_beginning(engine, store, engine_script) -> None:
    """Forked inside the box, the box's beginning is in no generated token."""
    run, _ = await ask(engine, store)
    engine_script.enqueue(Reply(text="7}\\)."))
    result = await fork(engine, store, run, BOX, chat_id="chat")
    async with AnswerJudge() as judge:
        pair = await fork_answers(judge, result)
    assert pair.candidate == "1~7"


async def test_a_fork_is_a_receipt_that_can_be_replayed(engine, store, engine_script) -> None:
    result = await fork_at(engine, store)
    replayed = await replay(engine, store, result.run, chat_id="chat")
    assert engine_script.bodies[2] == engine_script.bodies[1]
    assert (replayed.comparison.verdict, replayed.comparison.level) == (Verdict.IDENTICAL, "logprobs")
    assert replayed.run.digest == result.run.digest
    engine_script.enqueue(Reply(fork_at=5))
    replayed = await replay(engine, store, result.run, chat_id="chat")
    assert replayed.comparison.verdict is Verdict.DIVERGED
    whole = without_stream(result.receipt.request)
    replayed = await replay(engine, store, result.run, chat_id="chat", request=whole)
    assert replayed.comparison.verdict is Verdict.IDENTICAL
    fewer = with_top_logprobs(result.receipt.request, 1)
    replayed = await replay(engine, store, result.run, chat_id="chat", request=fewer)
    kept = await store.receipt_of(replayed.run.id)
    assert {len(token.top) for token in kept.completion.tokens} == {1}


async def test_a_fork_can_be_forked(engine, store, engine_script) -> None:
    first = await fork_at(engine, store, 4)
    second = await fork(engine, store, first.run, 3, chat_id="chat")
    sent = json.loads(engine_script.bodies[2])["prompt"]
    assert sent[:-1] == [*first.receipt.request.prompt_token_ids, *first.receipt.completion.token_ids[:3]]
    assert second.receipt.request.given.startswith(first.receipt.request.given)
    assert len(second.receipt.request.messages) == 2
    assert second.run.reference_run_id == first.run.id


async def test_nothing_is_sent_for_what_cannot_be_forked(engine, store, engine_script) -> None:
    run, recorded = await ask(engine, store)
    ending = recorded.completion.token_ids[-1]
    last = len(recorded.completion.tokens) - 1
    for position, take, reason in [
        (last + 1, None, "position"),
        (3, Take(rank=9), "not_listed"),
        (last, Take(id=ending), "end"),
    ]:
        with pytest.raises(CannotFork) as refused:
            await fork(engine, store, run, position, take, chat_id="chat")
        assert refused.value.reason == reason
    penalised, _ = await ask(engine, store, repetition_penalty=1.1)
    with pytest.raises(CannotFork, match="penalties"):
        await fork(engine, store, penalised, 3, chat_id="chat")
    assert len(engine_script.bodies) == 2
    assert len(await store.runs()) == 2


async def test_another_model_would_read_the_ids_otherwise(engine, store, engine_script) -> None:
    run, _ = await ask(engine, store)
    engine_script.model = "another"
    with pytest.raises(ModelNotServed):
        await fork(engine, store, run, 3, chat_id="chat")


async def test_the_prompts_own_ids_are_counted_and_not_the_rendered_messages(
    engine, store, engine_script
) -> None:
    run, recorded = await ask(engine, store, max_tokens=200)
    # As long as prompt and limit together: the fork keeps both, so it fits exactly.
    engine_script.max_model_len = len(recorded.request.prompt_token_ids) + 200
    await fork(engine, store, run, 50, chat_id="chat")
    engine_script.max_model_len -= 1
    with pytest.raises(PromptTooLong):
        await fork(engine, store, run, 50, chat_id="chat")


async def test_a_fork_that_breaks_off_or_is_stopped_is_kept_as_such(engine, store, engine_script) -> None:
    run, _ = await ask(engine, store)
    engine_script.enqueue(Reply(ending="close", ending_after=20))
    with pytest.raises(EngineInterrupted):
        await fork(engine, store, run, 10, chat_id="chat")
    kept = (await store.runs())[0]
    assert (kept.kind, kept.status, kept.completion_tokens) == ("fork", "interrupted", 20)
    engine_script.enqueue(Reply(ending="stall", ending_after=5))
    arrived = asyncio.Event()
    task = asyncio.create_task(
        fork(engine, store, run, 10, chat_id="chat", on_tokens=lambda done, _: done == 5 and arrived.set())
    )
    await arrived.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    stopped = (await store.runs())[0]
    assert (stopped.kind, stopped.status, stopped.completion_tokens) == ("fork", "stopped", 5)
    assert (await load_fork(store, stopped)).point.position == 10


async def test_an_ordinary_run_is_no_fork(engine, store) -> None:
    run, _ = await ask(engine, store)
    with pytest.raises(CannotFork, match="no fork of a stored run"):
        await load_fork(store, run)


def test_the_command_lists_close_calls_forks_and_refuses(encore: Encore, engine_script: Script) -> None:  # noqa: F811
    encore("ask", "What is 235 times 478?")
    digest = digest_of(encore)
    code, out, _ = encore("fork", digest)
    assert code == 0
    assert out.startswith(f"Closest calls of {len(TOKENS)} tokens")
    assert out.count("near tie") == 10
    code, out, _ = encore("fork", digest, "--format", "json")
    assert len(json.loads(out)) == 10
    engine_script.enqueue(Reply(text=GOES_ON))
    code, out, _ = encore("fork", digest, "--at", "10")
    assert code == 0
    assert "taken instead" in out
    assert "≠ The answers differ: recorded 112330, forked 5." in out
    code, out, _ = encore("fork", digest, "--at", "10", "--take", "1", "--format", "json")
    told = json.loads(out)
    assert (told["position"], told["same_after"], told["answers"]["opinion"]["sameness"]) == (
        10,
        len(TOKENS) - 11,
        "SAME",
    )
    code, out, _ = encore("fork", digest, "--at", "10", "--format", "markdown")
    assert code == 0
    assert "| recorded |" in out
    code, _, err = encore("fork", digest, "--at", "9999")
    assert code == 2
    assert "There is no token 9999" in err
    _, out, _ = encore("list")
    assert out.count("  fork  ") == 3
    assert encore("replay", json.loads(encore("list", "--format", "json")[1])[0]["digest"])[0] == 0

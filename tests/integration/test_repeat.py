"""Repeats among neighbours, on the scripted engine: load that is proven, sweeps that can be cut short."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from scripted_engine import Reply, Script

from llm_backend.compare import Verdict
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EngineRejected, SettingsError
from llm_backend.load import LONG_ANSWER, SHORT_ANSWER, neighbour_request, neighbours, parse_neighbours
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.repeat import Repetition
from llm_backend.store import Run, Store
from llm_backend.tally import Progress, Shape

ANSWER = "One two three four five six seven eight nine ten."
STEADY = Reply(text=ANSWER, tokens_per_second=200)
"""Slow enough that neighbours and the measured replay overlap."""

REQUEST = build_request(
    "scripted",
    [Message(role="system", content="Be brief."), Message(role="user", content="Count to ten.")],
    Sampling(seed=7, max_tokens=64),
)


@pytest.fixture
async def recorded(engine: EngineClient, store: Store, engine_script: Script) -> Run:
    engine_script.default = STEADY
    async with record(engine, store, REQUEST, chat_id="test") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    return recording.run


async def test_a_sweep_reports_the_load_it_saw(engine: EngineClient, store: Store, recorded: Run) -> None:
    told: list[Progress] = []
    report = await Repetition(
        engine, store, recorded, times=2, counts=(0, 3), chat_id="test", on_progress=told.append
    ).run()
    alone, loaded = report.steps
    assert report.complete
    assert (alone.load.asked, alone.load.shape, alone.load.most) == (0, None, 0)
    assert loaded.load.shape is Shape.MIXED
    assert 0 < loaded.load.mean <= loaded.load.most <= 3
    assert loaded.load.running is not None
    assert [step.identical for step in report.steps] == [2, 2]
    assert [run.verdict for run in await store.runs() if run.kind == "replay"] == ["IDENTICAL"] * 4
    assert (told[-1].replay, told[-1].replays, told[-1].neighbours) == (4, 4, 3)
    assert told[-1].tokens == told[-1].recorded_tokens
    assert told[-1].seconds_left == 0


async def test_neighbours_are_gone_when_the_measurement_ends(
    engine: EngineClient, engine_script: Script, recorded: Run
) -> None:
    identity = await engine.identity()
    async with neighbours(engine, identity, REQUEST, count=3, shape=Shape.SAME) as load:
        assert load.decoding > 0
    assert load.decoding == 0
    async with asyncio.timeout(5):
        while engine_script.in_flight:
            await asyncio.sleep(0.01)


async def test_different_answers_are_counted_and_placed(
    engine: EngineClient, store: Store, engine_script: Script, recorded: Run
) -> None:
    other = replace(STEADY, fork_at=4)
    engine_script.enqueue(other, STEADY, other)
    report = await Repetition(engine, store, recorded, times=3, chat_id="test").run()
    (step,) = report.steps
    assert (step.identical, step.comparable, step.distinct) == (1, 3, 2)
    assert step.fork is not None
    assert step.fork.position == 4
    assert [(branch.runs, branch.recorded) for branch in step.fork.branches] == [(2, True), (2, False)]


async def test_cancelling_keeps_what_was_measured(
    engine: EngineClient, store: Store, engine_script: Script, recorded: Run
) -> None:
    third = asyncio.Event()

    def watch(progress: Progress) -> None:
        if progress.replay == 3:
            third.set()

    repetition = Repetition(engine, store, recorded, times=9, counts=(2,), chat_id="test", on_progress=watch)
    task = asyncio.create_task(repetition.run())
    await asyncio.wait_for(third.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (step,) = repetition.report.steps
    assert [repeat.comparison.verdict for repeat in step.repeats] == [Verdict.IDENTICAL] * 2
    assert not repetition.report.complete
    (kept,) = await store.findings(recorded.id)
    assert kept.found == repetition.report
    async with asyncio.timeout(5):
        while engine_script.in_flight:
            await asyncio.sleep(0.01)


async def test_a_refused_neighbour_ends_the_sweep_with_the_engines_words(
    engine: EngineClient, store: Store, engine_script: Script, recorded: Run
) -> None:
    engine_script.enqueue(Reply(status=400, error="ignore_eos is not supported"))
    repetition = Repetition(engine, store, recorded, times=2, counts=(1,), chat_id="test")
    with pytest.raises(EngineRejected, match="ignore_eos is not supported"):
        await repetition.run()
    assert repetition.report.steps == ()
    assert await store.findings(recorded.id) == []


def test_each_shape_asks_what_its_name_says() -> None:
    def asked(shape: Shape, index: int) -> tuple[str, int]:
        request = neighbour_request(REQUEST, shape, index, answer_tokens=LONG_ANSWER)
        body = json.loads(request.body)
        assert body["ignore_eos"] is True
        return body["messages"][-1]["content"], body["max_tokens"]

    assert [asked(Shape.SAME, index) for index in range(3)] == [("Count to ten.", LONG_ANSWER)] * 3
    assert [asked(Shape.PREFIX, index)[0] for index in (0, 1)] == ["Count to ten. (0)", "Count to ten. (1)"]
    mixed = [asked(Shape.MIXED, index) for index in range(4)]
    assert {limit for _, limit in mixed} == {LONG_ANSWER, SHORT_ANSWER}
    assert len({(len(prompt) > 200, limit) for prompt, limit in mixed}) == 4


@pytest.mark.parametrize("text", ["", "1,", "-1", "two", "1.5", "257", "٣"])
def test_what_is_no_number_of_neighbours_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(SettingsError, match="whole numbers from 0 to 256"):
        parse_neighbours(text)


def test_a_sweep_is_written_with_commas() -> None:
    assert parse_neighbours("0, 4,16") == (0, 4, 16)

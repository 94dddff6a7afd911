"""A wall end to end against the scripted engine: its page's requests, its faults, and what is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from scripted_engine import Reply, Script

from llm_backend.config import Settings
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.run import Run
from llm_backend.store.retention import Selection
from llm_backend.ui import walls as wall_module
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.http import add_routes

ANSWER = "The sum is \\(\\boxed{112330}\\), as was to be shown."
SAME_VALUE = "It is \\(\\boxed{\\frac{224660}{2}}\\)."
OTHER = "No: \\(\\boxed{7}\\)."
SLOW = Reply(text="one two three four five six seven eight nine ten " * 20, tokens_per_second=40)


@pytest.fixture
async def backend(scripted_url: str, engine_script: Script, tmp_path: Path) -> AsyncIterator[Backend]:
    engine_script.default = Reply(text=ANSWER)
    settings = Settings(
        engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path, log_file=tmp_path / "llm.log"
    )
    async with running_backend(settings) as backend:
        yield backend


@pytest.fixture
async def page(backend: Backend) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    add_routes(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://encore") as client:
        yield client


async def recorded(backend: Backend, question: str = "What is 235 × 478?", temperature: float = 0.8) -> Run:
    sampling = Sampling(seed=42, temperature=temperature, max_tokens=500)
    request = build_request("scripted", [Message(role="user", content=question)], sampling)
    async with record(backend.engine, backend.store, request, chat_id="chat") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    return recording.run


async def started(backend: Backend, page: httpx.AsyncClient, **values: str) -> str:
    run = await recorded(backend)
    wall = await backend.walls.of_run(backend, run.id, "chat")
    reply = await page.post(f"/walls/{wall.id}/start", json={"kind": "replays", "count": "2", **values})
    assert reply.status_code == 200, reply.text
    return wall.id


async def news(page: httpx.AsyncClient, wall: str, **known: str) -> dict[str, Any]:
    reply = await page.get(f"/walls/{wall}/news", params=known)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def ended(page: httpx.AsyncClient, wall: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := await news(page, wall))["state"] != "ended":
            await asyncio.sleep(0.02)
    return found


async def running(page: httpx.AsyncClient, wall: str, tokens: int = 3) -> None:
    async with asyncio.timeout(30):
        while not all(card["tokens"] >= tokens for card in (await news(page, wall))["cards"]):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("order", ["together", "turns"])
async def test_replays_are_recorded_runs_of_their_origin_and_forks_are_found(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script, order: str
) -> None:
    run = await recorded(backend)
    engine_script.enqueue(Reply(text=ANSWER), Reply(text=ANSWER, fork_at=2), Reply(text=ANSWER))
    wall = await backend.walls.of_run(backend, run.id, "chat")
    await page.post(f"/walls/{wall.id}/start", json={"kind": "replays", "count": "3", "order": order})
    found = await ended(page, wall.id)
    forks = [card["fork"] for card in found["cards"]]
    assert [fork is not None for fork in forks].count(True) == 1
    assert next(fork for fork in forks if fork)["characters"] == len("The sum")
    assert found["tokens"].startswith("Token by token, 2 of 3 came out the same")
    runs = await backend.store.runs("chat")
    assert {one.reference_run_id for one in runs} == {None, run.id}
    assert len(runs) == 4
    assert sorted(one.verdict for one in runs if one.verdict) == ["DIVERGED", "IDENTICAL", "IDENTICAL"]
    sent = [json.loads(body) for body in engine_script.bodies[-3:]]
    assert sent[0] == sent[1] == sent[2] == json.loads(engine_script.bodies[0])


async def test_seeds_are_grouped_by_value_and_the_computed_one_is_marked(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script
) -> None:
    run = await recorded(backend)
    wall = await backend.walls.of_run(backend, run.id, "chat")
    engine_script.enqueue(Reply(text=SAME_VALUE), Reply(text=OTHER), Reply(text="no box"))
    form = {"kind": "seeds", "count": "4", "seed": "42", "temperature": "0.8", "order": "turns"}
    assert (await page.post(f"/walls/{wall.id}/start", json=form)).status_code == 200
    found = await ended(page, wall.id)
    assert found["sentence"] == "4 seeds: 2 × 112330, 1 × 7, 1 × no boxed answer"
    assert [group["mark"] for group in found["groups"]] == ["✓", "✗", ""]
    assert found["expected"] == "Computed: 112330"
    assert [card["title"] for card in found["cards"]] == ["seed 42", "seed 43", "seed 44", "seed 45"]
    seeds = [json.loads(body)["seed"] for body in engine_script.bodies]
    assert seeds == [42, 43, 44, 45], "the recorded run is the first seed and is not asked again"
    asked = {one.seed: one.reference_run_id for one in await backend.store.runs("chat")}
    assert asked == {42: None, 43: run.id, 44: run.id, 45: run.id}


async def test_a_question_nobody_asked_yet_is_recorded_first(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script
) -> None:
    question = [Message(role="user", content="Why?")]
    request = build_request("scripted", question, Sampling(seed=1, temperature=0.8, max_tokens=100))
    wall = backend.walls.of_question(request, "chat")
    await page.post(f"/walls/{wall.id}/start", json={"kind": "replays", "count": "2"})
    found = await ended(page, wall.id)
    assert [card["state"] for card in found["cards"]] == ["complete"] * 3
    runs = await backend.store.runs("chat")
    (origin,) = [run for run in runs if run.kind == "ask"]
    assert {run.reference_run_id for run in runs if run.kind == "replay"} == {origin.id}


async def test_stop_keeps_what_is_done(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script
) -> None:
    run = await recorded(backend)
    engine_script.enqueue(Reply(text=ANSWER), SLOW)
    wall = await backend.walls.of_run(backend, run.id, "chat")
    form = {"kind": "replays", "count": "3", "order": "turns"}
    await page.post(f"/walls/{wall.id}/start", json=form)
    async with asyncio.timeout(30):
        while (await news(page, wall.id))["cards"][2]["tokens"] < 3:
            await asyncio.sleep(0.02)
    assert (await page.post(f"/walls/{wall.id}/stop")).json() == {"state": "ended"}
    found = await news(page, wall.id)
    assert [card["state"] for card in found["cards"]] == ["complete", "complete", "stopped", "not_run"]
    assert found["sentence"] == "1 of 3 replays: 1 × 112330"
    statuses = sorted(one.status for one in await backend.store.runs("chat"))
    assert statuses == ["complete", "complete", "stopped"]


async def test_an_engine_that_dies_mid_wall_leaves_the_ended_cards_and_says_so(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script
) -> None:
    run = await recorded(backend)
    broken = Reply(text=ANSWER, ending="close", ending_after=3)
    engine_script.enqueue(Reply(text=ANSWER), broken, broken)
    wall = await backend.walls.of_run(backend, run.id, "chat")
    await page.post(f"/walls/{wall.id}/start", json={"kind": "replays", "count": "3", "order": "turns"})
    found = await ended(page, wall.id)
    assert [card["state"] for card in found["cards"]] == [
        "complete",
        "complete",
        "interrupted",
        "not_run",
    ], "the next card would only meet the same engine"
    assert "broke off after 3 tokens" in found["cards"][2]["problem"]
    assert "Traceback" not in json.dumps(found)
    assert len(await backend.store.runs("chat")) == 3


async def test_a_refused_card_is_one_sentence_and_the_others_go_on(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script
) -> None:
    run = await recorded(backend)
    engine_script.enqueue(Reply(status=400, error="too hot"))
    wall = await backend.walls.of_run(backend, run.id, "chat")
    await page.post(f"/walls/{wall.id}/start", json={"kind": "replays", "count": "3"})
    found = await ended(page, wall.id)
    states = sorted(card["state"] for card in found["cards"])
    assert states == ["complete", "complete", "complete", "refused"]
    (refused,) = [card for card in found["cards"] if card["state"] == "refused"]
    assert "too hot" in refused["problem"]
    assert found["sentence"] == "2 of 3 replays: 2 × 112330"


async def test_an_absent_engine_refuses_the_wall_in_words(tmp_path: Path) -> None:
    settings = Settings(
        engine_urls=("http://127.0.0.1:9",),
        data_dir=tmp_path,
        run_dir=tmp_path,
        log_file=tmp_path / "llm.log",
    )
    app = FastAPI()
    add_routes(app)
    async with (
        running_backend(settings) as backend,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://encore") as page,
    ):
        request = build_request("scripted", [Message(role="user", content="Why?")], Sampling(seed=1))
        wall = backend.walls.of_question(request, "chat")
        await page.post(f"/walls/{wall.id}/start", json={"kind": "replays", "count": "2"})
        found = await ended(page, wall.id)
        assert "No engine answers" in found["problem"]
        assert {card["state"] for card in found["cards"]} == {"not_run"}
        assert await backend.store.runs() == []


async def test_bad_forms_are_one_sentence_and_nothing_runs(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script
) -> None:
    run = await recorded(backend)
    wall = await backend.walls.of_run(backend, run.id, "chat")
    for form in ({"kind": "replays", "count": "1000"}, {"kind": "seeds", "count": "3", "seed": ""}, {}):
        reply = await page.post(f"/walls/{wall.id}/start", json=form, headers={"Accept-Language": "zh"})
        assert reply.status_code == 409
        assert reply.json()["detail"]
    assert (await news(page, wall.id))["state"] == "setup"
    assert len(await backend.store.runs()) == 1


async def test_one_wall_of_a_chat_runs_at_a_time_and_each_runs_once(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script
) -> None:
    engine_script.default = SLOW
    first = await started(backend, page)
    run = (await backend.store.runs("chat", replays=False))[0]
    second = await backend.walls.of_run(backend, run.id, "chat")
    form = {"kind": "replays", "count": "2"}
    assert "still running" in (await page.post(f"/walls/{second.id}/start", json=form)).text
    assert "begun already" in (await page.post(f"/walls/{first}/start", json=form)).text
    await page.post(f"/walls/{first}/stop")
    engine_script.default = Reply(text=ANSWER)
    assert (await page.post(f"/walls/{second.id}/start", json=form)).status_code == 200
    await ended(page, second.id)


async def test_a_wall_nobody_looks_at_is_stopped(
    backend: Backend, page: httpx.AsyncClient, engine_script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wall_module, "AWAY_S", 0.5)
    run = await recorded(backend)
    engine_script.default = SLOW
    wall = await backend.walls.of_run(backend, run.id, "chat")
    await page.post(f"/walls/{wall.id}/start", json={"kind": "replays", "count": "2"})
    assert wall.task is not None
    async with asyncio.timeout(20):
        await asyncio.wait((wall.task,))
    assert (await news(page, wall.id))["state"] == "ended"
    assert not any(card["state"] == "running" for card in (await news(page, wall.id))["cards"])


async def test_a_page_gets_only_what_it_does_not_know(backend: Backend, page: httpx.AsyncClient) -> None:
    wall = await started(backend, page)
    whole = await ended(page, wall)
    known = {
        "epoch": whole["epoch"],
        "at": ",".join(str(card["pieces"]) for card in whole["cards"]),
        "seen": ",".join(str(card["version"]) for card in whole["cards"]),
    }
    assert (await news(page, wall, **known))["cards"] == []
    later = await news(page, wall, **{**known, "seen": "0,0,0"})
    assert [card["text"] for card in later["cards"]] == ["", "", ""]
    again = await news(page, wall, **{**known, "epoch": "another start"})
    assert all(card["text"] == ANSWER for card in again["cards"])
    for nonsense in ("x", "-1,-1", "9" * 50, ",,,,", "٣"):
        assert len((await news(page, wall, epoch=whole["epoch"], at=nonsense, seen=nonsense))["cards"]) == 3


async def test_an_ended_wall_is_found_again_after_a_restart(
    scripted_url: str, engine_script: Script, tmp_path: Path
) -> None:
    settings = Settings(
        engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path, log_file=tmp_path / "llm.log"
    )
    engine_script.default = Reply(text=ANSWER)
    app = FastAPI()
    add_routes(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://encore") as page:
        async with running_backend(settings) as backend:
            engine_script.enqueue(Reply(text=ANSWER), Reply(text=ANSWER, fork_at=2))
            wall = await started(backend, page)
            before = await ended(page, wall)
        (kept,) = (tmp_path / "walls").glob("*.json")
        assert "×" not in kept.read_text(), "question and answers stay in the receipts"
        async with running_backend(settings) as backend:
            after = await news(page, wall)
            assert after["sentence"] == before["sentence"]
            assert after["groups"] == before["groups"]
            shown = ("title", "text", "fork", "answer", "line", "shape", "digest")
            for one, other in zip(before["cards"], after["cards"], strict=True):
                assert [one[key] for key in shown] == [other[key] for key in shown]
            await backend.store.delete(Selection(chat_id="chat"))
        async with running_backend(settings):
            assert (await page.get(f"/walls/{wall}/news")).status_code == 404


@pytest.mark.parametrize("wall", ["0" * 32, "..%2F..%2Fencore", "encore", "A" * 32])
async def test_what_is_no_wall_is_a_sentence(backend: Backend, page: httpx.AsyncClient, wall: str) -> None:
    for reply in (await page.get(f"/walls/{wall}"), await page.get(f"/walls/{wall}/news")):
        assert reply.status_code == 404


async def test_the_page_keeps_what_people_wrote_as_text(backend: Backend, page: httpx.AsyncClient) -> None:
    run = await recorded(backend, question='</script><img src=x onerror="alert(1)">')
    wall = await backend.walls.of_run(backend, run.id, "chat")
    shown = await page.get(f"/walls/{wall.id}", headers={"Accept-Language": "zh-CN"})
    assert "<img" not in shown.text
    assert '<html lang="zh-CN">' in shown.text

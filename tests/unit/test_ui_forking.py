"""Tokens, choices and forks as the panel asks for them, against the scripted engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from scripted_engine import DEFAULT_TEXT, Reply, Script, forked, token_id, tokenize
from ui_chat import Chat, chat_session

from llm_backend.access import open_calibrations
from llm_backend.config import Settings
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request, record
from llm_backend.run import Run
from llm_backend.scoring import Calibration
from llm_backend.ui import handlers
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.forking import PAGE, SHOWN
from llm_backend.ui.http import add_routes

TOKENS = tokenize(DEFAULT_TEXT)
GOES_ON = "\n</think>\n\nSo it is \\(\\boxed{5}\\)."
ZH = {"Accept-Language": "zh-CN"}


@pytest.fixture
async def backend(scripted_url: str, tmp_path: Path) -> AsyncIterator[Backend]:
    settings = Settings(engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path)
    async with running_backend(settings) as backend:
        yield backend


@pytest.fixture
async def client(backend: Backend) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    add_routes(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://encore") as client:
        yield client


@pytest.fixture
async def chat(backend: Backend) -> AsyncIterator[Chat]:
    with chat_session() as chat:
        await handlers.start_chat()
        yield chat


async def ask(backend: Backend, **sampling: Any) -> Run:
    asked = [Message(role="user", content="235 × 478?")]
    request = build_request("scripted", asked, Sampling(**sampling))
    async with record(backend.engine, backend.store, request, chat_id="chat") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    return recording.run


async def done(backend: Backend) -> None:
    for task in tuple(backend._work):
        await task


async def fork(backend: Backend, chat: Chat, run: Run, position: object, token: object) -> dict[str, Any]:
    await handlers.fork_run({"run": run.id, "position": position, "token": token})
    await done(backend)
    return chat.news("ended")[-1]


class TestTokens:
    async def test_they_are_told_with_how_close_each_call_was(self, backend, client) -> None:
        run = await ask(backend)
        page = (await client.get(f"/runs/{run.id}/tokens")).json()
        assert page["total"] == len(TOKENS) == len(page["tokens"])
        assert "".join(token["text"] for token in page["tokens"]) == DEFAULT_TEXT
        assert {token["heat"] for token in page["tokens"]} == {"near"}, "every margin is 0.05 nats"
        assert page["threshold"] == 0.125

    async def test_the_engines_own_measure_says_what_is_near(self, backend, client) -> None:
        run = await ask(backend)
        assert run.fingerprint_digest is not None
        open_calibrations(backend.settings).keep(
            Calibration(engine=run.fingerprint_digest, positions=64, largest=0.005)
        )
        page = (await client.get(f"/runs/{run.id}/tokens")).json()
        assert page["threshold"] == 0.01
        assert {token["heat"] for token in page["tokens"]} == {"warm"}
        told = (await client.get(f"/runs/{run.id}/choices", params={"at": 3})).json()
        assert "no near tie (more than 0.01 nats, measured on this engine)" in told["margin"]

    async def test_a_long_answer_comes_in_pages(self, backend, client, engine_script: Script) -> None:
        engine_script.enqueue(Reply(text="word " * (PAGE + 10)))
        run = await ask(backend, max_tokens=4096)
        first = (await client.get(f"/runs/{run.id}/tokens")).json()
        last = (await client.get(f"/runs/{run.id}/tokens", params={"start": PAGE})).json()
        assert len(first["tokens"]) == PAGE
        assert [last["tokens"][0]["position"], last["total"]] == [PAGE, first["total"]]
        assert len(last["tokens"]) == last["total"] - PAGE
        beyond = (await client.get(f"/runs/{run.id}/tokens", params={"start": 10**6})).json()
        assert beyond["tokens"] == []
        assert (await client.get(f"/runs/{run.id}/tokens", params={"start": -1})).status_code == 422


class TestChoices:
    async def test_each_has_its_text_probability_and_place(self, backend, client) -> None:
        run = await ask(backend)
        told = (await client.get(f"/runs/{run.id}/choices", params={"at": 10})).json()
        assert [choice["text"] for choice in told["choices"]] == [TOKENS[10], forked(TOKENS[10])]
        assert [choice["recorded"] for choice in told["choices"]] == [True, False]
        assert [choice["rank"] for choice in told["choices"]] == [1, 2]
        assert 0 < told["choices"][1]["probability"] < told["choices"][0]["probability"] < 0.5
        assert (told["refused"], told["note"], told["heat"]) == ("", "", "near")

    async def test_what_cannot_be_taken_says_why_in_the_readers_language(self, backend, client) -> None:
        run = await ask(backend, repetition_penalty=1.1)
        told = (await client.get(f"/runs/{run.id}/choices", params={"at": 10}, headers=ZH)).json()
        assert "惩罚" in told["refused"]
        run = await ask(backend)
        last = (await client.get(f"/runs/{run.id}/choices", params={"at": len(TOKENS) - 1})).json()
        assert [choice["ends"] for choice in last["choices"]] == [True, False]
        beyond = await client.get(f"/runs/{run.id}/choices", params={"at": len(TOKENS)})
        assert beyond.status_code == 409
        assert "There is no token" in beyond.json()["detail"]

    async def test_a_sampled_run_says_that_the_draw_is_not_taken_up(self, backend, client) -> None:
        run = await ask(backend, temperature=0.8, seed=1)
        told = (await client.get(f"/runs/{run.id}/choices", params={"at": 10})).json()
        assert "draws anew" in told["note"]

    async def test_without_the_engine_ids_stand_for_alternatives(
        self, backend, client, engine_script: Script
    ) -> None:
        run = await ask(backend)
        engine_script.model = "another"
        told = (await client.get(f"/runs/{run.id}/choices", params={"at": 10})).json()
        assert [choice["text"] for choice in told["choices"]] == [
            TOKENS[10],
            f"⟨id {token_id(forked(TOKENS[10]))}⟩",
        ]


class TestForks:
    async def test_the_page_hears_of_it_and_both_answers_are_compared(
        self, backend, client, chat: Chat, engine_script: Script
    ) -> None:
        run = await ask(backend)
        engine_script.enqueue(Reply(text=GOES_ON, tokens_per_second=200))
        ended = await fork(backend, chat, run, 10, token_id(forked(TOKENS[10])))
        assert (ended["kind"], ended["run"], ended["kept"], ended["comparison"]) == (
            "fork",
            run.id,
            True,
            None,
        )
        assert "Forking: " in chat.doing()
        view = (await client.get(f"/runs/{ended['fork']}/fork")).json()
        assert (view["parent"], view["position"]) == (run.id, 10)
        assert view["answers"] == "≠ The answers differ: recorded 112330, forked 5."
        assert view["taken_label"] == "taken instead"
        assert view["shared"] + view["recorded_text"] == DEFAULT_TEXT
        assert view["forked_text"].endswith("\\boxed{5}\\).")
        chinese = (await client.get(f"/runs/{ended['fork']}/fork", headers=ZH)).json()
        assert "答案不同" in chinese["answers"]
        read = (await client.get(f"/runs/{ended['fork']}/tokens")).json()
        assert "".join(token["text"] for token in read["tokens"]) == GOES_ON, "though no bytes are recorded"
        own = (await client.get(f"/runs/{ended['fork']}/choices", params={"at": 2})).json()["choices"][0]
        assert (own["text"], own["recorded"]) == (tokenize(GOES_ON)[2], True)
        line = (await client.get(f"/runs/{ended['fork']}/answer")).json()
        assert "5" in json.dumps(line), "the answer line knows forks, too"

    async def test_long_answers_are_cut_and_the_view_says_by_how_much(
        self, backend, client, chat: Chat, engine_script: Script
    ) -> None:
        run = await ask(backend, max_tokens=4096)
        engine_script.enqueue(Reply(text="x y " * SHOWN))
        ended = await fork(backend, chat, run, 10, token_id(forked(TOKENS[10])))
        view = (await client.get(f"/runs/{ended['fork']}/fork")).json()
        assert len(view["forked_text"]) == SHOWN
        assert view["forked_left_out"] > 0

    @pytest.mark.parametrize(("position", "token"), [("1", 5), (None, 5), (True, 5), (1, -5), (1, 2.5)])
    async def test_what_no_page_sends_is_refused(
        self, backend, chat: Chat, engine_script: Script, position: object, token: object
    ) -> None:
        run = await ask(backend)
        await handlers.fork_run({"run": run.id, "position": position, "token": token})
        await done(backend)
        assert len(chat.problems()) == 1
        assert len(engine_script.bodies) == 1

    async def test_a_refusal_is_in_the_readers_language(self, backend, engine_script: Script) -> None:
        run = await ask(backend, presence_penalty=0.5)
        with chat_session("zh-CN") as chat:
            await handlers.start_chat()
            ended = await fork(backend, chat, run, 10, token_id(forked(TOKENS[10])))
        assert (ended["kept"], ended["fork"]) == (False, None)
        assert "惩罚" in chat.problems()[0]

    async def test_a_run_that_is_no_fork_says_so(self, backend, client) -> None:
        run = await ask(backend)
        refused = await client.get(f"/runs/{run.id}/fork", headers=ZH)
        assert refused.status_code == 409
        assert "不是" in refused.json()["detail"]

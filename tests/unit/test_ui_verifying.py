"""`/verify` in the chat, against the scripted engine: progress, verdict, a report that the app serves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import chainlit as cl
import httpx
import pytest
from fastapi import FastAPI
from scripted_engine import Reply, Script
from ui_chat import Chat, chat_session

from llm_backend.config import Settings
from llm_backend.ui import handlers
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.http import add_routes
from llm_backend.ui.verifying import asked_to_verify

STEADY = Reply(text="One two three four five six seven eight nine ten.", tokens_per_second=400, seeded=True)


@pytest.fixture
async def backend(scripted_url: str, engine_script: Script, tmp_path: Path) -> AsyncIterator[Backend]:
    engine_script.default = STEADY
    settings = Settings(engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path)
    async with running_backend(settings.model_copy(update={"log_file": tmp_path / "llm.log"})) as backend:
        yield backend


@pytest.fixture
async def chat(backend: Backend) -> AsyncIterator[Chat]:
    with chat_session("zh-CN") as chat:
        await handlers.start_chat()
        yield chat


async def get(path: str) -> httpx.Response:
    app = FastAPI()
    add_routes(app)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://encore") as client:
        return await client.get(path)


def link(answer: str) -> str:
    found = re.search(r"\[打开报告\]\((/reports/[0-9a-f]{32})\)", answer)
    assert found, answer
    return found[1]


@pytest.mark.parametrize(
    ("typed", "full"),
    [
        ("/verify", False),
        ("  /Verify \n", False),
        ("/verify full", True),
        ("/verify everything", None),
        ("what does /verify do?", None),
    ],
)
def test_only_the_command_itself_is_one(typed: str, full: bool | None) -> None:
    assert asked_to_verify(typed) is full


async def test_it_can_be_stopped_and_its_partial_report_is_served(chat: Chat, engine_script: Script) -> None:
    asked = len(engine_script.bodies)
    # From the fourth request on, answers take longer than the test: it cannot be over before it is stopped.
    slow = replace(STEADY, tokens_per_second=0.1)
    engine_script.answer = lambda _: STEADY if len(engine_script.bodies) < asked + 4 else slow
    task = asyncio.create_task(handlers.ask_message(cl.Message(content="/verify", type="user_message")))
    async with asyncio.timeout(30):
        while len(engine_script.bodies) < asked + 4 or not any("个用例" in said for said in chat.answers()):
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (answer,) = chat.answers()
    assert "结果不完整" in answer
    report = await get(link(answer))
    assert report.headers["content-type"].startswith("text/html")
    assert "结果不完整" in report.text
    assert not chat.problems()


async def test_the_command_is_no_question_and_two_do_not_run_at_once(
    chat: Chat, backend: Backend, engine_script: Script
) -> None:
    first = asyncio.create_task(handlers.ask_message(cl.Message(content="/verify", type="user_message")))
    async with asyncio.timeout(30):
        while not chat.answers():
            await asyncio.sleep(0.01)
    with chat_session("en") as other:
        await handlers.start_chat()
        await handlers.ask_message(cl.Message(content="/verify", type="user_message"))
        assert other.problems() == [
            "A verification is running already; two at once would be each other's load."
        ]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not any(b"/verify" in body for body in engine_script.bodies)


async def test_a_report_that_is_not_there_is_a_sentence(backend: Backend) -> None:
    for name in ("0" * 32, "..%2F..%2Fencore", "encore"):
        reply = await get(f"/reports/{name}")
        assert reply.status_code == 404

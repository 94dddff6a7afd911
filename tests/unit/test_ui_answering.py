"""The answer lines in chat and panel: what is in the box, whether it is right, and what a replay's says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import chainlit as cl
import httpx
import pytest
from fastapi import FastAPI
from scripted_engine import Reply, Script
from ui_chat import Chat, chat_session

from llm_backend.answers import LONGEST, Opinion, Sameness
from llm_backend.config import Settings
from llm_backend.replay import replay
from llm_backend.ui import handlers, judging
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.http import add_routes
from llm_backend.ui.judging import Judging


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


async def asked(chat: Chat, question: str) -> str:
    """Ask in the chat; returns the run's id."""
    await handlers.ask_message(cl.Message(content=question, type="user_message"))
    return str(chat.news("run")[-1]["run"])


async def lines(client: httpx.AsyncClient, run: str, lang: str = "en") -> Any:
    response = await client.get(f"/runs/{run}/answer", headers={"Accept-Language": lang})
    assert response.status_code == 200
    return response.json()


async def replayed(backend: Backend, run: str) -> None:
    await replay(backend.engine, backend.store, await backend.store.run(run), chat_id="chat")


class TestOneRun:
    async def test_arithmetic_is_computed_without_being_asked_for(
        self, client: httpx.AsyncClient, chat: Chat
    ) -> None:
        found = await lines(client, await asked(chat, "What is 235 × 478?"))
        assert found == {
            "answer": "112330",
            "typed": "",
            "line": "Answer 112330 · ✓ right: 235 × 478 = 112330",
            "sameness": "SAME",
            "source": "arithmetic",
            "pair": None,
        }

    async def test_a_wrong_answer_is_called_so(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(text=r"First \boxed{112330}, no: $\boxed{112\,331}$ and \boxed{9"))
        found = await lines(client, await asked(chat, "What is 235 × 478?"))
        assert (found["answer"], found["sameness"]) == (r"112\,331", "DIFFERENT"), "the last complete box"
        assert found["line"] == r"Answer 112\,331 · ✗ not right: 235 × 478 = 112330"

    @pytest.mark.parametrize(
        ("lang", "question"),
        [("en", "What is 235 × 478? Show the steps."), ("zh-CN", "235 × 478 等于多少？请写出步骤。")],
    )
    async def test_a_starter_brings_its_answer(
        self, client: httpx.AsyncClient, chat: Chat, lang: str, question: str
    ) -> None:
        found = await lines(client, await asked(chat, question), lang)
        assert (found["source"], found["sameness"]) == ("starter", "SAME")
        assert "112330" in found["line"]

    async def test_no_box_and_nothing_expected_is_no_line(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(text=r"<think>\boxed{5}</think>Hello!"))
        found = await lines(client, await asked(chat, "Say hello"))
        assert (found["answer"], found["line"]) == (None, ""), "a box in the thinking is none"

    async def test_a_starter_answered_without_a_box_has_no_line(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(text="It is 112330."))
        found = await lines(client, await asked(chat, "What is 235 × 478? Show the steps."))
        assert (found["line"], found["source"]) == ("", None)

    async def test_an_unfinished_run_has_none(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.enqueue(
            Reply(text=r"\boxed{5} and more words than come", ending="close", ending_after=9)
        )
        assert await lines(client, await asked(chat, "2 + 3 = ?")) is None

    async def test_a_run_that_is_not_there_is_404(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/runs/nothing/answer")).status_code == 404


class TestExpecting:
    async def test_a_typed_answer_is_kept_compared_and_the_page_is_told(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        engine_script.enqueue(Reply(text=r"So \(\boxed{\frac{1}{2}}\)."))
        run = await asked(chat, "How likely is heads?")
        assert (await lines(client, run))["line"] == r"Answer \frac{1}{2}"
        assert await handlers.expect_answer({"run": run, "answer": " $0.5$ "}) == ""
        assert chat.news("expected") == [{"type": "expected", "run": run}]
        assert (await backend.store.run(run)).expected_answer == "$0.5$"
        found = await lines(client, run)
        assert (found["source"], found["sameness"], found["typed"]) == ("typed", "SAME", "$0.5$")
        await handlers.expect_answer({"run": run, "answer": "0.6"})
        assert (await lines(client, run))["sameness"] == "DIFFERENT"
        await handlers.expect_answer({"run": run, "answer": "both are possible"})
        found = await lines(client, run)
        assert found["sameness"] == "UNKNOWN"
        assert "cannot tell" in found["line"]

    async def test_a_typed_answer_counts_before_what_is_computed_until_it_is_forgotten(
        self, client: httpx.AsyncClient, chat: Chat
    ) -> None:
        run = await asked(chat, "What is 235 × 478?")
        await handlers.expect_answer({"run": run, "answer": "5"})
        assert (await lines(client, run))["line"] == "Answer 112330 · ✗ not right: expected 5"
        await handlers.expect_answer({"run": run, "answer": "  "})
        assert (await lines(client, run))["source"] == "arithmetic"

    async def test_an_expected_answer_shows_that_there_is_no_box(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(text="It is 7."))
        run = await asked(chat, "Pick a prime")
        await handlers.expect_answer({"run": run, "answer": "7"})
        assert (await lines(client, run))["line"] == "No answer in a box · expected 7"

    @pytest.mark.parametrize(
        ("payload", "said"),
        [
            ({"answer": "1" * (LONGEST + 1)}, "1,000 characters"),
            ({"answer": "5", "run": "nothing"}, "No run nothing is stored."),
        ],
    )
    async def test_what_cannot_be_kept_is_one_sentence_for_the_form(
        self, chat: Chat, backend: Backend, payload: dict[str, str], said: str
    ) -> None:
        run = await asked(chat, "What is 235 × 478?")
        assert said in await handlers.expect_answer({"run": run, **payload})
        assert chat.problems() == [], "it is said beside the field, not in the conversation"
        assert chat.news("expected") == []
        assert (await backend.store.run(run)).expected_answer is None


class TestReplays:
    async def test_other_words_with_the_same_answer_are_a_line_of_their_own(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        engine_script.enqueue(Reply(text=r"Half: \boxed{\frac12}"), Reply(text=r"It is \boxed{0.5}."))
        run = await asked(chat, "How likely is heads?")
        await replayed(backend, run)
        found = await lines(client, run)
        assert found["pair"]["sameness"] == "SAME"
        assert found["pair"]["line"] == r"= Words differ, answer the same: \frac12 and 0.5."
        (verdict,) = (await client.get(f"/runs/{run}/line")).json()["outcomes"]
        assert verdict["verdict"] == "DIVERGED", "never softened"
        assert "answer" not in verdict["title"] + verdict["detail"]

    async def test_other_answers_are_said_and_an_equal_replay_adds_nothing(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        engine_script.enqueue(Reply(text=r"\boxed{5}"), Reply(text=r"\boxed{5}"), Reply(text=r"\boxed{6}"))
        run = await asked(chat, "Pick a number")
        await replayed(backend, run)
        assert (await lines(client, run))["pair"] is None
        await replayed(backend, run)
        assert (await lines(client, run))["pair"]["line"] == "≠ The answers differ: recorded 5, replayed 6."

    async def test_beneath_a_newer_equal_replay_it_says_which_one_is_meant(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        engine_script.enqueue(Reply(text=r"\boxed{5}"), Reply(text=r"\boxed{6}"), Reply(text=r"\boxed{5}"))
        run = await asked(chat, "Pick a number")
        await replayed(backend, run)
        await replayed(backend, run)
        said = (await lines(client, run))["pair"]["line"]
        assert said.startswith("Of the latest replay that came out different: ≠ The answers differ")

    async def test_answers_without_boxes_are_not_compared(
        self, client: httpx.AsyncClient, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        engine_script.enqueue(Reply(text="Hello"), Reply(text="Hi"))
        run = await asked(chat, "Say hello")
        await replayed(backend, run)
        assert (await lines(client, run))["pair"] is None


class TestJudging:
    """What keeps thirty pages that show the same run from asking thirty times."""

    @pytest.fixture
    async def judged(self) -> AsyncIterator[tuple[Judging, list[str]]]:
        judged, asked = Judging(), []

        class Slow:
            async def compare(self, expected: str, answer: str) -> Opinion:
                asked.append(answer)
                await asyncio.sleep(0)
                if answer == "broken":
                    raise OSError("no process")
                return Opinion(sameness=Sameness.SAME)

            async def close(self) -> None: ...

        judged.judge = Slow()  # type: ignore[assignment]
        yield judged, asked
        await judged.close()

    async def test_equal_questions_are_asked_once(self, judged: tuple[Judging, list[str]]) -> None:
        desk, asked = judged
        await asyncio.gather(*(desk.compare("1", "2") for _ in range(30)))
        await desk.compare("1", "2")
        assert asked == ["2"]

    async def test_who_goes_away_takes_nothing_from_the_others(
        self, judged: tuple[Judging, list[str]]
    ) -> None:
        desk, asked = judged
        first = asyncio.create_task(desk.compare("1", "2"))
        second = asyncio.create_task(desk.compare("1", "2"))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).sameness is Sameness.SAME
        assert asked == ["2"]

    async def test_a_failure_is_not_remembered(self, judged: tuple[Judging, list[str]]) -> None:
        desk, asked = judged
        for _ in range(2):
            with pytest.raises(OSError, match="no process"):
                await desk.compare("1", "broken")
        assert asked == ["broken", "broken"]

    async def test_memory_is_bounded(
        self, judged: tuple[Judging, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(judging, "KEPT_OPINIONS", 2)
        desk, asked = judged
        for answer in ("a", "b", "c", "c", "a"):
            await desk.compare("1", answer)
        assert asked == ["a", "b", "c", "a"]

"""The chat against the scripted engine, with Chainlit's real emitter and session, without a browser."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import chainlit as cl
import pytest
from scripted_engine import Reply, Script
from ui_chat import Chat, chat_session

from llm_backend.config import Settings
from llm_backend.receipt import Sampling
from llm_backend.scoring import Check, CheckVerdict
from llm_backend.tally import RepeatReport
from llm_backend.ui import handlers
from llm_backend.ui.backend import Backend, running_backend
from llm_backend.ui.session import current_session

SLOW = Reply(text="<think>so</think>An answer of a good many words to stop in.", tokens_per_second=20)


@pytest.fixture
async def backend(scripted_url: str, tmp_path: Path) -> AsyncIterator[Backend]:
    settings = Settings(engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path)
    settings = settings.model_copy(update={"log_file": tmp_path / "llm.log", "stall_timeout": 2.0})
    async with running_backend(settings) as backend:
        yield backend


@pytest.fixture
async def chat(backend: Backend) -> AsyncIterator[Chat]:
    with chat_session() as chat:
        await handlers.start_chat()
        yield chat


async def ask(question: str) -> str:
    """Ask and wait for the end; returns the message's id."""
    message = cl.Message(content=question, type="user_message")
    await handlers.ask_message(message)
    return message.id


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def stop(task: asyncio.Task[str]) -> None:
    """What Chainlit's stop handler does."""
    await cl.Message(content=handlers.CHAINLITS_STOP_MESSAGE).send()
    assert cl.context.session.current_task is task
    task.cancel()
    await handlers.stop()
    with pytest.raises(asyncio.CancelledError):
        await task


def press_stop() -> None:
    """On work that a button began."""
    task = cl.context.session.current_task
    assert task is not None
    task.cancel()


async def ended(chat: Chat) -> dict[str, object]:
    """How the work that a button began came to its end; there is one such work in each test's chat."""
    await until(lambda: len(chat.of("task_end")) == len(chat.of("task_start")) > 0)
    (told,) = chat.news("ended")
    return dict(told)


def sent(script: Script) -> list[dict[str, object]]:
    return [json.loads(body) for body in script.bodies]


def roles(body: dict[str, object]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in body["messages"]]  # type: ignore[index,attr-defined]


class TestAsking:
    async def test_shows_thinking_collapsed_the_answer_and_a_run_line(self, chat: Chat) -> None:
        await ask("What is 235 × 478?")
        (thinking,) = chat.thinking()
        assert thinking["name"].startswith("Thought for ")
        assert not thinking["defaultOpen"]
        assert chat.answers() == [
            "The product is $235 \\times 478 = 112330$, so the answer is $\\boxed{112330}$."
        ]
        (line,) = [element for element in chat.of("element") if element["name"] == "RunLine"]
        (run,) = chat.news("run")
        assert line["props"] == {"run": run["run"], "note": ""}
        for name in (handlers.REPLAY, handlers.CHECK, handlers.REPEAT, handlers.SHOW):
            (button,) = chat.actions(name)
            assert button["payload"] == {"run": run["run"]}, "ids only"

    async def test_records_the_raw_text(self, chat: Chat, backend: Backend) -> None:
        await ask("What is 235 × 478?")
        receipt = await backend.store.receipt_of(chat.news("run")[0]["run"])
        assert receipt.completion.text.startswith("<think>\n")
        assert "\\(235 \\times" in receipt.completion.text

    async def test_later_turns_send_answers_without_thinking(self, chat: Chat, engine_script: Script) -> None:
        """RC-11: spaces and newlines around a question survive, too."""
        engine_script.enqueue(Reply(text="<think>hm</think>\n\n7"))
        await ask("Pick a prime under 30")
        await ask("  Square it\n")
        assert roles(sent(engine_script)[1]) == [
            ("user", "Pick a prime under 30"),
            ("assistant", "7"),
            ("user", "  Square it\n"),
        ]

    async def test_an_edited_question_takes_back_what_followed(
        self, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(text="7"), Reply(text="49"), Reply(text="343"))
        await ask("Pick a prime")
        message = cl.Message(content="Square it", type="user_message")
        await handlers.ask_message(message)
        message.content = "Cube it"
        await handlers.ask_message(message)
        assert roles(sent(engine_script)[2]) == [
            ("user", "Pick a prime"),
            ("assistant", "7"),
            ("user", "Cube it"),
        ]

    async def test_every_setting_is_sent_as_set(self, chat: Chat, engine_script: Script) -> None:
        await handlers.change_settings(
            {"seed": "9223372036854775807", "temperature": "0.8", "system_prompt": "Be brief."}
        )
        await ask("x")
        (body,) = sent(engine_script)
        assert (body["seed"], body["temperature"]) == (2**63 - 1, 0.8)
        assert roles(body) == [("system", "Be brief."), ("user", "x")]

    async def test_an_answer_may_take_a_quarter_of_the_context(
        self, chat: Chat, engine_script: Script
    ) -> None:
        await ask("x")
        assert sent(engine_script)[0]["max_tokens"] == engine_script.max_model_len // 4

    @pytest.mark.parametrize(
        ("text", "thinking"),
        [
            ("Compute 6·7.\n</think>\n\nIt is 42.", ["Compute 6·7."]),
            ("It is 42.", []),
            ("<think>Compute 6·7.\n</think>\n\nIt is 42.", ["Compute 6·7."]),
        ],
        ids=["closing tag alone", "no tag", "both tags"],
    )
    async def test_thinking_and_answer_are_told_apart_whichever_tags_come(
        self, chat: Chat, engine_script: Script, backend: Backend, text: str, thinking: list[str]
    ) -> None:
        """RC-20: an empty thinking pane is not shown, and the stored text is raw in every case."""
        engine_script.enqueue(Reply(text=text, tokens_per_second=40))
        await ask("6·7?")
        assert [step["output"] for step in chat.thinking()] == thinking
        assert chat.answers() == ["It is 42."]
        receipt = await backend.store.receipt_of(chat.news("run")[0]["run"])
        assert receipt.completion.text == text


class TestEndings:
    async def test_thinking_that_never_closes_is_said(self, chat: Chat, engine_script: Script) -> None:
        """RC-21: with what to do about it, and no spinner left."""
        engine_script.enqueue(Reply(text="<think>" + "on and on " * 100))
        await handlers.change_settings({"max_tokens": "60"})
        await ask("Prove it")
        (thinking,) = chat.thinking()
        said = "Stopped at token limit (60) – no answer produced"
        assert said in thinking["output"]
        note = next(e for e in chat.of("element") if e["name"] == "RunLine")["props"]["note"]
        assert said in note
        assert "Raise max tokens" in note
        assert thinking["end"], "the step is closed"
        assert chat.answers() == [""]

    async def test_one_token_is_an_answer_that_was_cut(self, chat: Chat, engine_script: Script) -> None:
        """RC-21: max tokens 1, within a tag's first character."""
        engine_script.enqueue(Reply(text="<think>on and on"))
        await handlers.change_settings({"max_tokens": "1"})
        await ask("Prove it")
        (line,) = [element for element in chat.of("element") if element["name"] == "RunLine"]
        assert "token limit (1)" in line["props"]["note"]

    async def test_an_empty_answer_is_said(self, chat: Chat, engine_script: Script) -> None:
        """RC-21: no token at all, finish reason stop."""
        engine_script.enqueue(Reply(text=""))
        await ask("x")
        (line,) = [element for element in chat.of("element") if element["name"] == "RunLine"]
        assert line["props"]["note"] == "The model ended without an answer."

    @pytest.mark.parametrize("moment", ["before the first token", "in the thinking", "in the answer"])
    async def test_stopping_keeps_the_part_and_frees_the_engine(
        self, chat: Chat, engine_script: Script, backend: Backend, moment: str
    ) -> None:
        """RC-33: whenever it is pressed; the next question is answered at once."""
        thinking = Reply(text="<think>" + "on and on " * 500, tokens_per_second=100)
        slow = {
            "before the first token": Reply(ending="stall", ending_after=0),
            "in the thinking": thinking,
            "in the answer": SLOW,
        }
        engine_script.enqueue(slow[moment], Reply(text="2"))
        task = asyncio.create_task(ask("Count"))
        seen: dict[str, Callable[[], object]] = {
            "before the first token": lambda: engine_script.in_flight,
            "in the thinking": lambda: any(len(step["output"]) > 50 for step in chat.thinking()),
            "in the answer": lambda: any(chat.answers()),
        }
        await until(seen[moment])
        await stop(task)
        pressed = time.monotonic()
        await until(lambda: engine_script.in_flight == 0)
        assert time.monotonic() - pressed < 2
        await until(lambda: chat.news("run"))
        (run,) = chat.news("run")
        receipt = await backend.store.receipt_of(run["run"])
        assert receipt.completion.status == "stopped"
        assert receipt.completion.finish_reason is None
        assert bool(receipt.completion.tokens) is (moment != "before the first token")
        assert handlers.CHAINLITS_STOP_MESSAGE not in chat.answers()
        await ask("1+1?")
        assert chat.answers()[-1] == "2"

    async def test_stopping_while_the_engine_has_not_begun_offers_the_question_again(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        """RC-33: in an engine's queue, before there is anything to keep."""
        engine_script.enqueue(Reply(answers_after_s=60), Reply(text="2"))
        task = asyncio.create_task(ask("1+1?"))
        await until(lambda: engine_script.bodies)
        await stop(task)
        assert chat.problems() == ["Stopped before there was an answer."]
        assert await backend.store.runs() == []
        question = chat.actions("retry")[0]["payload"]["message"]
        await handlers.retry(question)
        await until(lambda: chat.news("run"))
        assert chat.answers()[-1] == "2"

    async def test_a_stopped_run_is_replayed_and_compared_over_its_length(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        """RC-33: never called different for being shorter."""
        engine_script.enqueue(SLOW, Reply(text=SLOW.text))
        task = asyncio.create_task(ask("Count"))
        await until(lambda: any(chat.answers()))
        await stop(task)
        run = chat.news("run")[0]["run"]
        length = len((await backend.store.receipt_of(run)).completion.tokens)
        await handlers.replay_run(run)
        stored = await backend.store.comparison(str((await ended(chat))["comparison"]))
        assert (stored.verdict, stored.comparison.compared) == ("IDENTICAL", length)
        assert stored.comparison.partial

    @pytest.mark.parametrize("ending", ["close", "error", "garbage", "no_finish"])
    async def test_a_broken_answer_is_kept_and_can_be_retried(
        self, chat: Chat, engine_script: Script, backend: Backend, ending: str
    ) -> None:
        """RC-46: a red note with a retry; the half answer is no part of the conversation."""
        engine_script.enqueue(Reply(ending=ending, ending_after=40), Reply(text="42"))  # type: ignore[arg-type]
        question = await ask("again?")
        (problem,) = chat.problems()
        assert "40 tokens" in problem
        receipt = await backend.store.receipt_of(chat.news("run")[0]["run"])
        assert receipt.completion.status == "interrupted"
        (action,) = chat.actions("retry")
        assert action["payload"] == {"message": question}
        await handlers.retry(question)
        await until(lambda: len(chat.news("run")) == 2)
        assert chat.answers()[-1] == "42"
        assert roles(sent(engine_script)[1]) == [("user", "again?")], "the broken answer is not part of it"

    async def test_a_refused_request_is_one_sentence_and_leaves_no_turn(
        self, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.enqueue(Reply(status=400, error="top_k is bad"), Reply(text="fine"))
        await ask("first")
        (problem,) = chat.problems()
        assert "top_k is bad" in problem
        assert "{" not in problem
        await ask("second")
        assert roles(sent(engine_script)[1]) == [("user", "second")]

    async def test_a_prompt_that_is_too_long_is_told_with_the_numbers(
        self, chat: Chat, engine_script: Script
    ) -> None:
        engine_script.max_model_len = 100
        await ask("word " * 100)
        assert "100" in chat.problems()[0]
        assert not engine_script.bodies

    @pytest.mark.parametrize(
        ("words", "max_tokens", "numbers"),
        [(5000, None, ("5,0", "1,024", "4,096")), (3000, "4096", ("3,0", "4,096"))],
    )
    async def test_a_question_that_cannot_fit_is_one_sentence_with_the_real_numbers(
        self, chat: Chat, engine_script: Script, words: int, max_tokens: str | None, numbers: tuple[str, ...]
    ) -> None:
        """RC-47: nothing is trimmed in silence, nothing negative sent; the question can be asked again."""
        engine_script.max_model_len = 4096
        if max_tokens:
            await handlers.change_settings({"max_tokens": max_tokens})
        question = await ask("word" + " word" * (words - 1))
        (problem,) = chat.problems()
        assert all(number in problem for number in numbers), problem
        assert "lower max tokens" in problem
        assert "{" not in problem
        assert not engine_script.bodies
        assert chat.actions("retry")[0]["payload"] == {"message": question}
        await handlers.change_settings({"max_tokens": "16"})
        await ask("short")
        assert roles(sent(engine_script)[0]) == [("user", "short")]

    async def test_the_turn_that_crosses_the_limit_does_not_poison_later_ones(
        self, chat: Chat, engine_script: Script
    ) -> None:
        """RC-47: twelve turns; the refused one can be asked again with less to write, and is sent whole."""
        await handlers.change_settings({"max_tokens": "400"})
        engine_script.max_model_len = 1000
        engine_script.default = Reply(text="<think>" + "long thoughts " * 60 + "</think>" + "word " * 10)
        turns = 0
        while not chat.problems():
            turns += 1
            question = await ask(f"Question {turns}: " + "why " * 20)
        assert turns == 12, "thinking is not part of what is sent, or it would have been sooner"
        assert len(engine_script.bodies) == 11
        assert "1,000" in chat.problems()[0]
        await handlers.change_settings({"max_tokens": "100"})
        await handlers.retry(question)
        await until(lambda: len(chat.news("run")) == 12)
        body = sent(engine_script)[-1]
        users = [content for role, content in roles(body) if role == "user"]
        assert [content.split(":")[0] for content in users] == [f"Question {n}" for n in range(1, 13)]
        assert "long thoughts" not in str(body)


class TestWaiting:
    async def test_a_question_waits_for_the_engine_and_is_sent_once(
        self, chat: Chat, engine_script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RC-40: not ready is no error, and the question is not lost."""
        monkeypatch.setattr("llm_backend.ui.engine_watch.MAX_AGE_S", 0.0)
        engine_script.health = 503
        task = asyncio.create_task(ask("hi"))
        await until(lambda: any("is kept" in said for said in chat.answers()))
        engine_script.health = 200
        await task
        assert len(engine_script.bodies) == 1
        assert not any("is kept" in said for said in chat.answers())

    async def test_stopping_the_wait_offers_the_question_again(
        self, chat: Chat, engine_script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llm_backend.ui.engine_watch.MAX_AGE_S", 0.0)
        engine_script.health = 503
        task = asyncio.create_task(ask("hi"))
        await until(lambda: any("is kept" in said for said in chat.answers()))
        await stop(task)
        assert chat.actions("retry")
        assert not engine_script.bodies


class TestReplaying:
    async def replayed(self, chat: Chat, run: str) -> dict[str, object]:
        await handlers.replay_run(run)
        return await ended(chat)

    async def test_a_turn_in_the_middle_is_replayed_before_and_after_later_ones(
        self, chat: Chat, engine_script: Script
    ) -> None:
        """RC-11: byte for byte, with what came before it and nothing else; turn 4 knows of no replay."""
        await ask("Pick a prime under 30")
        await ask("  Square it\n")
        second = chat.news("run")[1]["run"]
        await self.replayed(chat, second)
        await ask("Add 1")
        await handlers.change_settings({"system_prompt": "Be brief.", "temperature": "0.7"})
        await handlers.replay_run(second)
        await until(lambda: len(chat.news("ended")) == 2)
        bodies = engine_script.bodies
        assert bodies[2] == bodies[4] == bodies[1]
        assert set(sent(engine_script)[1]) >= set(Sampling.model_fields) - {"top_logprobs"}
        await ask("And now?")
        assert [content for role, content in roles(sent(engine_script)[5]) if role != "assistant"] == [
            "Be brief.",
            "Pick a prime under 30",
            "  Square it\n",
            "Add 1",
            "And now?",
        ]

    async def test_sends_the_recorded_body_whatever_is_set_now(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        run = chat.news("run")[0]["run"]
        await handlers.change_settings({"temperature": "0.9", "system_prompt": "other"})
        await ask("two")
        told = await self.replayed(chat, run)
        assert engine_script.bodies[2] == engine_script.bodies[0]
        stored = await backend.store.comparison(str(told["comparison"]))
        assert stored.verdict == "IDENTICAL"

    async def test_adds_nothing_to_the_conversation(self, chat: Chat, engine_script: Script) -> None:
        await ask("one")
        before = current_session()
        assert before is not None
        turns, shown = list(before.turns), chat.answers()
        await self.replayed(chat, chat.news("run")[0]["run"])
        assert (before.turns, chat.answers()) == (turns, shown)

    async def test_reports_progress_and_the_verdict(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        engine_script.enqueue(Reply(fork_at=31, tokens_per_second=300))
        told = await self.replayed(chat, chat.news("run")[0]["run"])
        progress = chat.news("progress")
        assert (progress[0]["share"], progress[0]["said"]) == (0.0, "Replaying…")
        assert "of 118 tokens" in progress[-1]["said"]
        assert 0 < progress[-1]["share"] <= 1
        stored = await backend.store.comparison(str(told["comparison"]))
        assert stored.comparison.first_divergence is not None
        assert stored.comparison.first_divergence.position == 31

    async def test_can_be_stopped(self, chat: Chat, engine_script: Script) -> None:
        await ask("one")
        engine_script.enqueue(Reply(tokens_per_second=20))
        await handlers.replay_run(chat.news("run")[0]["run"])
        await until(lambda: "tokens" in chat.doing())
        press_stop()
        told = await ended(chat)
        assert "its partial run is kept" in told["said"]
        assert (told["comparison"], told["kept"]) == (None, False)
        await until(lambda: engine_script.in_flight == 0)

    async def test_a_run_that_is_not_there_is_said(self, chat: Chat) -> None:
        await handlers.replay_run("nonsense")
        await until(chat.problems)
        assert "nonsense" in chat.problems()[0]

    async def test_one_run_at_a_time(self, chat: Chat, engine_script: Script) -> None:
        engine_script.enqueue(Reply(text="ok"), Reply(tokens_per_second=30))
        await ask("one")
        await handlers.replay_run(chat.news("run")[0]["run"])
        await until(lambda: "tokens" in chat.doing())
        await ask("two")
        assert "busy" in chat.problems()[0]
        assert len(engine_script.bodies) == 2


class TestRepeating:
    async def test_the_button_replays_ten_times_alone_and_says_nothing_to_the_model(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        run = chat.news("run")[0]["run"]
        session = current_session()
        assert session is not None
        turns, shown = list(session.turns), chat.answers()
        await handlers.repeat_run({"run": run})
        told = await ended(chat)
        assert (told["run"], told["kind"], told["kept"], told["said"]) == (run, "repeat", True, "")
        (kept,) = await backend.store.findings(run)
        assert isinstance(kept.found, RepeatReport)
        assert [(step.load.asked, step.identical) for step in kept.found.steps] == [(0, 10)]
        assert (session.turns, chat.answers()) == (turns, shown)
        assert len(engine_script.bodies) == 11

    async def test_progress_comes_at_most_ten_times_a_second(
        self, chat: Chat, engine_script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llm_backend.ui.replaying.FIRST_ESTIMATE_S", 0.0)
        await ask("one")
        run = chat.news("run")[0]["run"]
        engine_script.default = Reply(tokens_per_second=400)
        began = time.monotonic()
        await handlers.repeat_run({"run": run, "times": 3, "neighbours": 1, "shape": "same"})
        await ended(chat)
        said = [progress["said"] for progress in chat.news("progress")]
        assert said[0] == "Waiting until 1 neighbour has begun to answer…"
        assert any(line.startswith("Replay 2 of 3, among 1 neighbour: ") for line in said)
        assert any("left" in line for line in said)
        shares = [progress["share"] for progress in chat.news("progress")]
        assert shares == sorted(shares)
        assert len(said) <= 10 * (time.monotonic() - began) + 2

    async def test_stopping_keeps_what_was_measured(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        run = chat.news("run")[0]["run"]
        engine_script.enqueue(Reply(), Reply(), Reply(tokens_per_second=20))
        await handlers.repeat_run({"run": run})
        await until(lambda: chat.doing().startswith("Replay 3 of 10"))
        press_stop()
        told = await ended(chat)
        assert (told["kept"], told["said"]) == (True, ""), "the verdict itself says that it is partial"
        (kept,) = await backend.store.findings(run)
        assert isinstance(kept.found, RepeatReport)
        assert [len(step.repeats) for step in kept.found.steps] == [2]
        assert not kept.found.complete
        await until(lambda: engine_script.in_flight == 0)

    async def test_a_page_that_is_gone_for_good_ends_it(
        self, chat: Chat, engine_script: Script, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handlers, "AWAY_S", 0.05)
        await ask("one")
        run = chat.news("run")[0]["run"]
        engine_script.enqueue(Reply(), Reply(tokens_per_second=20))
        await handlers.repeat_run({"run": run})
        await until(lambda: chat.doing().startswith("Replay 2 of 10"))
        await handlers.leave()
        assert (await ended(chat))["kept"]
        (kept,) = await backend.store.findings(run)
        assert isinstance(kept.found, RepeatReport)
        assert not kept.found.complete

    async def test_a_page_that_comes_back_finds_it_going_on(
        self, chat: Chat, engine_script: Script, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handlers, "AWAY_S", 0.05)
        await ask("one")
        run = chat.news("run")[0]["run"]
        engine_script.enqueue(Reply(tokens_per_second=300))
        await handlers.repeat_run({"run": run, "times": 2})
        await until(lambda: "tokens" in chat.doing())
        await handlers.leave()
        cl.context.session.restore("another socket")  # type: ignore[union-attr]
        await ended(chat)
        (kept,) = await backend.store.findings(run)
        assert isinstance(kept.found, RepeatReport)
        assert kept.found.complete

    async def test_stopped_in_the_first_replay_there_is_nothing_to_show(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        run = chat.news("run")[0]["run"]
        engine_script.enqueue(Reply(tokens_per_second=20))
        await handlers.repeat_run({"run": run})
        await until(lambda: "tokens" in chat.doing())
        press_stop()
        told = await ended(chat)
        assert told["said"].startswith("Stopped before the first replay ended")
        assert await backend.store.findings(run) == []

    async def test_a_broken_engine_is_said_and_the_part_is_kept(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        run = chat.news("run")[0]["run"]
        engine_script.enqueue(Reply(), Reply(ending="close", ending_after=10))
        await handlers.repeat_run({"run": run})
        told = await ended(chat)
        assert told["kept"]
        assert "10 tokens" in chat.problems()[0]
        assert len(await backend.store.findings(run)) == 1

    @pytest.mark.parametrize(
        "plan",
        [
            {"times": 0},
            {"times": 1001},
            {"times": "5"},
            {"times": True},
            {"neighbours": 257},
            {"shape": "round"},
        ],
        ids=str,
    )
    async def test_what_the_form_does_not_offer_is_refused_with_the_range(
        self, chat: Chat, engine_script: Script, plan: dict[str, object]
    ) -> None:
        await ask("one")
        await handlers.repeat_run({"run": chat.news("run")[0]["run"], **plan})
        assert "1 to 1,000 replays among 0 to 256 neighbours" in chat.problems()[0]
        assert len(engine_script.bodies) == 1


class TestChecking:
    async def test_the_verdict_is_kept_and_the_receipt_untouched(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        run = chat.news("run")[0]["run"]
        before = await backend.store.receipt_of(run)
        await handlers.check_run(run)
        told = await ended(chat)
        assert (told["kind"], told["kept"], told["said"]) == ("check", True, "")
        (kept,) = await backend.store.findings(run)
        assert isinstance(kept.found, Check)
        assert kept.found.verdict is CheckVerdict.BIT_EXACT
        assert await backend.store.receipt_of(run) == before
        assert len(await backend.store.runs()) == 1

    async def test_a_tolerance_is_measured_first_and_that_can_be_stopped(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        await ask("one")
        run = chat.news("run")[0]["run"]
        engine_script.enqueue(Reply(drift=0.01), Reply(tokens_per_second=30))
        await handlers.check_run(run)
        await until(lambda: "tolerance, once" in chat.doing())
        press_stop()
        told = await ended(chat)
        assert told["said"] == "The check was stopped; nothing was measured."
        assert await backend.store.findings(run) == []
        await until(lambda: engine_script.in_flight == 0)

    async def test_an_engine_that_refuses_is_said(self, chat: Chat, engine_script: Script) -> None:
        await ask("one")
        engine_script.enqueue(Reply(status=400, error="prompt_logprobs is off"))
        await handlers.check_run(chat.news("run")[0]["run"])
        await ended(chat)
        assert "prompt_logprobs is off" in chat.problems()[0]


class TestSettings:
    async def test_a_refused_value_is_said_and_the_form_shows_the_good_one(self, chat: Chat) -> None:
        await handlers.change_settings({"seed": "1e3"})
        assert "1e3" in chat.problems()[0]
        shown = {field["id"]: field["initial"] for field in chat.of("chat_settings")[-1]}
        assert shown["seed"] == "42"

    async def test_two_chats_share_nothing(self, backend: Backend, engine_script: Script) -> None:
        """RC-35: sent at the same moment, each with its own settings."""

        async def chat_with(seed: str) -> Chat:
            with chat_session() as chat:
                await handlers.start_chat()
                await handlers.change_settings({"seed": seed, "temperature": "0.9"})
                await ask(f"seed {seed}")
                return chat

        engine_script.enqueue(Reply(tokens_per_second=100), Reply(tokens_per_second=100))
        await asyncio.gather(asyncio.create_task(chat_with("11")), asyncio.create_task(chat_with("22")))
        bodies = {str(roles(body)[0][1]): body["seed"] for body in sent(engine_script)}
        assert bodies == {"seed 11": 11, "seed 22": 22}
        assert len({run.id for run in await backend.store.runs()}) == 2

    async def test_a_change_while_an_answer_streams_applies_to_the_next(
        self, chat: Chat, engine_script: Script, backend: Backend
    ) -> None:
        """RC-35: what runs was sent already."""
        engine_script.enqueue(Reply(tokens_per_second=100))
        task = asyncio.create_task(ask("one"))
        await until(lambda: engine_script.in_flight)
        await handlers.change_settings({"seed": "5"})
        await task
        await ask("two")
        assert [body["seed"] for body in sent(engine_script)] == [42, 5]
        runs = await backend.store.runs()
        assert {run.question: run.seed for run in runs} == {"one": 42, "two": 5}


class TestPanel:
    async def test_is_offered_to_the_page_and_opens_on_its_answer(self, chat: Chat) -> None:
        assert chat.of("window_message") == [{"type": "encore:ready"}]
        assert not chat.of("element")
        await handlers.window_message("something else")
        assert not chat.of("element")
        await handlers.window_message("encore:open")
        (element,) = chat.of("element")
        assert (element["name"], element["display"]) == ("Reproducibility", "side")

    async def test_there_is_only_ever_one(self, chat: Chat) -> None:
        await handlers.window_message("encore:open")
        await ask("x")
        await handlers.show_in_panel(chat.news("run")[0]["run"])
        sides = [element for element in chat.of("element") if element["display"] == "side"]
        assert len({element["id"] for element in sides}) == 1
        assert sides[-1]["props"]["run"] == chat.news("run")[0]["run"]

    async def test_has_its_title_in_the_reader_s_language(self, backend: Backend) -> None:
        with chat_session("zh-CN,zh;q=0.9") as chat:
            await handlers.start_chat()
            await handlers.window_message("encore:open")
            assert chat.of("element")[0]["name"] == "可复现性"


async def test_closing_the_app_stores_what_is_being_generated(
    scripted_url: str, engine_script: Script, tmp_path: Path
) -> None:
    settings = Settings(engine_urls=(scripted_url,), data_dir=tmp_path, run_dir=tmp_path)
    engine_script.enqueue(SLOW)
    with chat_session() as chat:
        async with running_backend(settings):
            await handlers.start_chat()
            task = asyncio.create_task(ask("Count"))
            await until(lambda: any(chat.answers()))
        assert task.done()
        async with running_backend(settings) as again:
            (run,) = await again.store.runs()
            assert run.status == "interrupted", "nobody pressed Stop"
            assert run.completion_tokens

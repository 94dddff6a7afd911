"""Streams as other servers and versions cut and label them: the record, the thinking and the comparison."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_engine import Reply, Script

from llm_backend import render
from llm_backend.compare import Verdict
from llm_backend.diff import diff_window
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EngineRejected
from llm_backend.exported import parse_receipt
from llm_backend.phrases import notes
from llm_backend.receipt import Message, Receipt, Sampling
from llm_backend.record import build_request, record
from llm_backend.replay import replay
from llm_backend.store import Run, Store
from llm_backend.thinking import ThinkSplitter
from llm_backend.token_text import token_texts


async def ask(engine: EngineClient, store: Store, **sampling: Any) -> tuple[Run, Receipt]:
    request = build_request("scripted", [Message(role="user", content="x")], Sampling(**sampling))
    async with record(engine, store, request, chat_id="chat") as recording:
        async for _ in recording:
            pass
    assert recording.run is not None
    assert recording.receipt is not None
    return recording.run, recording.receipt


def entry(text: str, logprob: float | None = -0.25) -> dict[str, Any]:
    return {
        "token": f"token_id:{id_of(text)}",
        "logprob": logprob,
        "bytes": list(text.encode()),
        "top_logprobs": [],
    }


def id_of(text: str) -> int:
    return 1000 + sum(text.encode())


def chunk(
    delta: dict[str, Any], tokens: list[str] | None = None, *, ids: bool = True, **choice: Any
) -> dict[str, Any]:
    """One chunk; with `tokens` it carries their logprobs, and their ids unless told otherwise."""
    part: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, **choice}
    if tokens is not None:
        part["logprobs"] = {"content": [entry(token) for token in tokens]}
        if ids:
            part["token_ids"] = [id_of(token) for token in tokens]
    return {"choices": [part]}


def usage(n: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": n}}


ROLE = chunk({"role": "assistant"}) | {"prompt_token_ids": [1, 2, 3]}
FINISH = chunk({}, finish_reason="stop")


def awkward(*, ids: bool) -> tuple[dict[str, Any], ...]:
    four = chunk({"content": "12 + 7"}, ["12", " +", " ", "7"], ids=ids)
    bare = chunk({"content": " = 19"}, **({"token_ids": [77]} if ids else {}))
    return (ROLE, four, bare, chunk({"content": ""}, ["<|end|>"], ids=ids), FINISH, usage(6))


class TestChunks:
    async def test_tokens_without_a_probability_stay_in_the_record_and_the_diff(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-13: role-only chunk, four tokens in one, text without logprobs, an entry without text,
        a finish chunk, and usage without choices."""
        engine_script.default = Reply(raw=awkward(ids=True))
        run, receipt = await ask(engine, store)
        completion = receipt.completion
        assert (completion.text, len(completion.tokens), completion.reported_tokens) == ("12 + 7 = 19", 6, 6)
        assert [token.logprob for token in completion.tokens] == [-0.25] * 4 + [None, -0.25]
        result = await replay(engine, store, run, chat_id="chat")
        assert result.comparison.verdict is Verdict.IDENTICAL
        assert (result.comparison.compared, result.comparison.unknown_logprobs) == (6, 1)
        shown = diff_window(receipt, receipt, result.comparison)["reference"]["tokens"]
        assert [token["probability"] is None for token in shown] == [False] * 4 + [True, False]

    async def test_tokens_nobody_named_are_counted_and_the_texts_are_compared_instead(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-13: the engine's own count is checked, and a mismatch is said."""
        engine_script.enqueue(Reply(raw=awkward(ids=False)), Reply(raw=awkward(ids=False)))
        run, receipt = await ask(engine, store)
        assert len(receipt.completion.tokens) == 5
        assert "5 recorded, but the engine counted 6" in render.receipt_text(receipt)
        same = (await replay(engine, store, run, chat_id="chat")).comparison
        assert (same.verdict, [reason.kind for reason in same.reasons]) == (
            Verdict.INCOMPARABLE,
            ["tokens_lost"],
        )
        assert "Compared by their text instead: the two texts read the same." in notes(same)
        changed = [*awkward(ids=False)]
        changed[2] = chunk({"content": " = 20"})
        engine_script.enqueue(Reply(raw=tuple(changed)))
        other = await replay(engine, store, run, chat_id="chat")
        assert "the two texts differ from character 9 on" in " ".join(notes(other.comparison))
        candidate = await store.receipt_of(other.run.id)
        fork = diff_window(receipt, candidate, other.comparison)["text_fork"]
        assert (fork["position"], fork["reference"][9:], fork["candidate"][9:]) == (9, "19", "20")

    async def test_without_any_token_the_texts_are_compared_and_that_is_said(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-13: a server that gives neither ids nor probabilities."""
        engine_script.default = Reply(token_ids=False, logprobs="none")
        run, _ = await ask(engine, store)
        comparison = (await replay(engine, store, run, chat_id="chat")).comparison
        assert [reason.kind for reason in comparison.reasons] == ["no_token_ids"]
        assert notes(comparison) == ["Compared by their text instead: the two texts read the same."]


THOUGHT = ["2", "+", "2", " is", " 4"]
PARSED = ["<think>", *THOUGHT, "</think>", "4", "<|end|>"]
"""What a server's reasoning parser takes apart: nine tokens, both tags and the end among them."""


def parsed(logprobs: str) -> tuple[dict[str, Any], ...]:
    """Reasoning "2+2 is 4" and content "4"; probabilities for all tokens or for the answer's only."""
    everything = logprobs == "all"
    thinking = [
        chunk({"reasoning": text or None}, [token] if everything else None)
        for text, token in [("", "<think>"), *((token, token) for token in THOUGHT), ("", "</think>")]
    ]
    answer = [
        chunk({"content": "4"}, ["4"], ids=everything),
        chunk({"content": ""}, ["<|end|>"], ids=everything),
    ]
    return (ROLE, *thinking, *answer, FINISH, usage(9))


class TestReasoningParser:
    async def test_probabilities_of_all_tokens_sit_on_their_own_words(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-17: the text is put together again, and tags are tokens like any other."""
        engine_script.enqueue(Reply(raw=parsed("all")))
        run, receipt = await ask(engine, store)
        assert receipt.completion.text == "<think>2+2 is 4</think>4"
        assert token_texts(receipt.completion.tokens) == PARSED
        other = [*parsed("all")]
        other[6] = chunk({"reasoning": " 5"}, [" 5"])  # within the thinking
        engine_script.enqueue(Reply(raw=tuple(other)))
        fork = (await replay(engine, store, run, chat_id="chat")).comparison.first_divergence
        assert fork is not None
        assert fork.reference is not None
        assert fork.candidate is not None
        assert (fork.position, fork.reference.bytes, fork.candidate.bytes) == (5, b" 4", b" 5")

    async def test_probabilities_of_the_answer_alone_never_pass_for_the_whole(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-17: equal answer tokens after another thought would otherwise be called identical."""
        engine_script.enqueue(Reply(raw=parsed("answer")))
        run, receipt = await ask(engine, store)
        assert receipt.completion.text == "<think>2+2 is 4</think>4"
        other = [*parsed("answer")]
        other[6] = chunk({"reasoning": " 5"})
        engine_script.enqueue(Reply(raw=tuple(other)))
        comparison = (await replay(engine, store, run, chat_id="chat")).comparison
        assert comparison.verdict is Verdict.INCOMPARABLE
        assert "the two texts differ from character 14 on" in " ".join(notes(comparison))

    async def test_one_record_whatever_field_carries_the_thinking(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-24: `reasoning`, `reasoning_content`, one of them null, both alike, or tags in the text."""

        def renamed(document: dict[str, Any], form: str) -> dict[str, Any]:
            (choice,) = document["choices"] or [None]
            if choice is None or "reasoning" not in choice["delta"]:
                return document
            said = choice["delta"]["reasoning"]
            delta = {
                "reasoning": {"reasoning": said},
                "reasoning_content": {"reasoning_content": said},
                "one and a null": {"reasoning": None, "reasoning_content": said},
                "both alike": {"reasoning": said, "reasoning_content": said},
                "tags": {"content": said or "".join(bytes(e["bytes"]).decode() for e in entries(choice))},
            }[form]
            return {**document, "choices": [{**choice, "delta": delta}]}

        def entries(choice: dict[str, Any]) -> list[dict[str, Any]]:
            return list((choice["logprobs"] or {}).get("content", []))

        engine_script.enqueue(Reply(raw=parsed("all")))
        run, first = await ask(engine, store)
        for form in ("reasoning_content", "one and a null", "both alike", "tags"):
            chunks = tuple(renamed(document, form) for document in parsed("all"))
            engine_script.enqueue(Reply(raw=chunks))
            result = await replay(engine, store, run, chat_id="chat")
            again = await store.receipt_of(result.run.id)
            assert again.completion == first.completion, form
            assert result.comparison.verdict is Verdict.IDENTICAL
        splitter = ThinkSplitter()
        splitter.feed(first.completion.text)
        splitter.finish()
        assert (splitter.thinking, splitter.answer) == ("2+2 is 4", "4")


class TestEndsAndCharacters:
    @pytest.mark.parametrize("budget", [1, 60])
    async def test_replaying_a_cut_run_says_that_both_were_cut(
        self, engine: EngineClient, store: Store, engine_script: Script, budget: int
    ) -> None:
        """RC-21: compared over what exists; the finish reason is stored."""
        engine_script.default = Reply(text="<think>" + "on and on " * 100)
        run, receipt = await ask(engine, store, max_tokens=budget)
        assert (run.finish_reason, len(receipt.completion.tokens)) == ("length", budget)
        comparison = (await replay(engine, store, run, chat_id="chat")).comparison
        assert (comparison.verdict, comparison.compared) == (Verdict.IDENTICAL, budget)
        assert notes(comparison) == ["Both were cut off at the token limit; nothing is known beyond it."]

    async def test_characters_split_over_tokens_come_back_whole_everywhere(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-15: answer, token strip, export and import; one token per byte is the worst case."""
        text = "🧮=算盘, 𠮷×2, naïve, 👩‍🔬"
        shown = []
        for character in text:
            raw = character.encode()
            for number, byte in enumerate(raw, start=1):
                one = entry("x") | {"bytes": [byte], "token": f"token_id:{byte}"}
                delta = {"content": character if number == len(raw) else ""}
                shown.append(chunk(delta, logprobs={"content": [one]}, token_ids=[byte]))
        engine_script.default = Reply(raw=(ROLE, *shown, FINISH, usage(len(text.encode()))))
        run, receipt = await ask(engine, store)
        assert receipt.completion.text == text
        assert b"".join(token.bytes or b"" for token in receipt.completion.tokens).decode() == text
        strip = token_texts(receipt.completion.tokens)
        assert "\ufffd" not in "".join(strip)
        assert strip[:5] == ["⟨🧮 1/4⟩", "⟨🧮 2/4⟩", "⟨🧮 3/4⟩", "⟨🧮 4/4⟩", "="]
        assert parse_receipt(receipt.to_json()) == receipt
        assert (await replay(engine, store, run, chat_id="chat")).comparison.verdict is Verdict.IDENTICAL

    @pytest.mark.parametrize("asked", [0, 1, 20])
    async def test_no_alternatives_still_keep_the_chosen_tokens_own_probability(
        self, engine: EngineClient, store: Store, engine_script: Script, asked: int
    ) -> None:
        """RC-14: 0 is a number of alternatives, not a switch."""
        _, receipt = await ask(engine, store, top_logprobs=asked)
        assert all(token.logprob is not None for token in receipt.completion.tokens)
        assert max(len(token.top) for token in receipt.completion.tokens) == min(asked, 2)

    async def test_a_server_with_fewer_alternatives_refuses_in_one_sentence_and_nothing_was_run(
        self, engine: EngineClient, store: Store, engine_script: Script
    ) -> None:
        """RC-14: started with --max-logprobs 5 while 10 are asked for."""
        said = "Requested sample logprobs of 10, which is greater than max allowed: 5"
        engine_script.enqueue(Reply(status=400, error=said))
        with pytest.raises(EngineRejected, match="10 alternatives per token were asked for") as caught:
            await ask(engine, store, top_logprobs=10)
        assert "at most 5" in str(caught.value)
        assert "{" not in str(caught.value)
        assert await store.runs() == []
        await ask(engine, store, top_logprobs=5)

"""A chat opened again shows what its page showed, put together from the runs alone."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chainlit.server import sio
from chainlit.session import WebsocketSession

from llm_backend.errors import ReceiptNotFound
from llm_backend.receipt import EngineFingerprint, Message, Sampling
from llm_backend.record import build_request
from llm_backend.run import Run
from llm_backend.store import Store
from llm_backend.ui.history import open_named_threads
from llm_backend.ui.resuming import Exchange, shown_exchanges

REQUEST = build_request("m", [Message(role="user", content="q")], Sampling())
ENGINE = EngineFingerprint(model="m")


def exchange(
    message: str, past: int, question: str = "", answer: str = "answer", status: str = "complete"
) -> Exchange:
    run = Run(
        id="0" * 32,
        chat_id="c",
        kind="ask",
        question="",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        status=status,  # type: ignore[arg-type]
        model="m",
        seed=None,
        greedy=True,
        message_id=message,
    )
    return Exchange(run, question or message, answer=answer, past=past, request=REQUEST)


class TestShown:
    def test_a_conversation_is_shown_as_it_was_asked(self) -> None:
        asked = [exchange("a", 0), exchange("b", 1), exchange("c", 2)]
        assert shown_exchanges(asked) == asked

    def test_an_edited_question_takes_what_followed_it_away(self) -> None:
        first, edited = exchange("a", 0), exchange("a", 0, question="other")
        assert shown_exchanges([first, exchange("b", 1), edited]) == [edited]
        asked_anew = exchange("a", 0)
        assert shown_exchanges([first, exchange("b", 1), asked_anew]) == [asked_anew]
        last = exchange("b", 1, question="other")
        assert shown_exchanges([first, exchange("b", 1), last]) == [first, last]

    def test_a_retry_follows_what_broke_off(self) -> None:
        broken, again = exchange("a", 0, status="interrupted"), exchange("a", 0)
        assert shown_exchanges([broken, again]) == [broken, again]
        later = exchange("b", 1)
        assert shown_exchanges([broken, again, later]) == [broken, again, later]

    def test_an_edit_of_what_broke_off_replaces_it(self) -> None:
        broken, edited = exchange("a", 0, answer=""), exchange("a", 0, question="other")
        assert shown_exchanges([broken, edited]) == [edited]

    def test_a_run_that_is_going_is_shown(self) -> None:
        going = replace(exchange("b", 1), request=None, answer="")
        assert shown_exchanges([exchange("a", 0), going])[-1] is going


class TestChats:
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = await Store.open(f"sqlite+aiosqlite:///{tmp_path / 'encore.db'}")
        yield store
        await store.close()

    async def asked(self, store: Store, chat_id: str, question: str, message_id: str | None = "m") -> None:
        request = REQUEST.model_copy(update={"messages": (Message(role="user", content=question),)})
        await store.begin(request, ENGINE, chat_id=chat_id, kind="ask", message_id=message_id)

    async def test_are_listed_for_their_user_the_latest_first_page_by_page(self, store: Store) -> None:
        for chat_id, user in (("1", "ada"), ("2", "bob"), ("3", "ada"), ("4", "ada")):
            await store.claim_chat(chat_id, user)
        for chat_id, question in (("1", "one"), ("2", "two"), ("3", "three"), ("1", "100% of one_")):
            await self.asked(store, chat_id, question)
        await self.asked(store, "4", "by a wall alone", message_id=None)
        ada = await store.chats("ada", limit=10)
        assert [(chat.id, chat.name) for chat in ada] == [("1", "one"), ("3", "three")]
        assert [chat.id for chat in await store.chats("ada", limit=1, skip=1)] == ["3"]
        for search, found in (("100%", ["1"]), ("%", ["1"]), ("THREE", ["3"]), ("wall", []), ("two", [])):
            assert [chat.id for chat in await store.chats("ada", limit=9, search=search)] == found

    async def test_keep_the_name_a_user_gives_them(self, store: Store) -> None:
        await store.claim_chat("1", "ada")
        await self.asked(store, "1", "one")
        for given, shown in ((" algebra ", "algebra"), ("  ", "one")):
            await store.rename_chat("1", given)
            (chat,) = await store.chats("ada", limit=9)
            assert chat.name == shown

    async def test_an_id_that_is_in_use_is_nobody_elses(self, store: Store) -> None:
        """The id comes from the browser: naming the terminal's or another user's chat gives nothing."""
        await self.asked(store, "cli", "of the terminal")
        await store.claim_chat("1", "ada")
        await store.claim_chat("1", "ada")
        for taken in ("cli", "1"):
            with pytest.raises(ReceiptNotFound, match="not yours"):
                await store.claim_chat(taken, "bob")
        assert not await store.owns_chat("bob", "cli")

    async def test_a_chat_with_runs_left_keeps_its_owner(self, store: Store) -> None:
        await store.claim_chat("1", "ada")
        await self.asked(store, "1", "still going")
        await store.drop_chat("1")
        assert await store.owns_chat("ada", "1")
        await store.claim_chat("2", "ada")
        await store.drop_chat("2")
        assert not await store.owns_chat("ada", "2")


class TestReconnecting:
    """A page may connect before it knows its chat, and again once it does, under one session id."""

    async def connected_again(self, *, spoken: bool = False, wanted: str = "theirs") -> WebsocketSession:
        open_named_threads()
        connect = sio.handlers["/"]["connect"]
        auth = {"sessionId": str(uuid.uuid4()), "clientType": "webapp", "threadId": ""}
        await connect("first", {}, auth)
        first = WebsocketSession.require("first")
        first.has_first_interaction = spoken
        await connect("second", {}, {**auth, "threadId": wanted or first.thread_id})
        second = WebsocketSession.require("second")
        await second.delete()
        return second

    async def test_the_chat_named_the_second_time_is_opened(self) -> None:
        session = await self.connected_again()
        assert (session.thread_id_to_resume, session.restored) == ("theirs", False)

    async def test_a_chat_that_was_spoken_in_goes_on(self) -> None:
        assert (await self.connected_again(spoken=True)).restored

    async def test_a_page_that_lost_its_connection_goes_on(self) -> None:
        assert (await self.connected_again(wanted="")).restored

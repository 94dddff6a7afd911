"""Whose a chat is, where people log in, and which of its runs are its conversation.

A run belongs to whom its chat belongs to. Chats from before there was a login, and the terminal's,
belong to nobody and are shown to nobody there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from llm_backend.errors import ReceiptNotFound
from llm_backend.run import Run
from llm_backend.store.connected import Connected
from llm_backend.store.models import ChatRow, RunRow, UtcDateTime
from llm_backend.store.runs import AnySelect, select_runs, to_run


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat in a user's history."""

    id: str
    user: str
    name: str
    """As the user renamed it, else its first question (its first `QUESTION_LENGTH` characters)."""
    last_at: datetime
    """When its last question was asked, UTC."""


class Chats(Connected):
    """The part of the store that knows owners."""

    async def claim_chat(self, chat_id: str, user: str) -> None:
        """Record whose a new chat is; before its first run.

        The id comes from a browser: raises `ReceiptNotFound` for one that others have used already.
        """
        async with self._write() as connection:
            if await _owner(connection, chat_id) == user:
                return
            used = or_(exists().where(ChatRow.id == chat_id), exists().where(RunRow.chat_id == chat_id))
            if await connection.scalar(select(used)):
                raise ReceiptNotFound("This chat is not yours.", "Begin a new chat.")
            await connection.execute(insert(ChatRow).values(id=chat_id, user=user))

    async def chat(self, chat_id: str) -> Chat | None:
        """None for a chat that is nobody's, or in which nothing was asked."""
        async with self._read() as connection:
            row = (await connection.execute(_select_chats().where(ChatRow.id == chat_id))).one_or_none()
            return None if row is None else Chat(*row)

    async def chats(self, user: str, *, limit: int, skip: int = 0, search: str = "") -> list[Chat]:
        """A user's chats in which something was asked, the latest first.

        `search`: part of a name or of a question.
        """
        query = _select_chats().where(ChatRow.user == user)
        if search:
            asked = exists().where(
                RunRow.chat_id == ChatRow.id,
                RunRow.message_id.is_not(None),
                RunRow.question.icontains(search, autoescape=True),
            )
            query = query.where(or_(ChatRow.name.icontains(search, autoescape=True), asked))
        query = query.order_by(_LAST.desc(), ChatRow.id).limit(limit).offset(skip)
        async with self._read() as connection:
            return [Chat(*row) for row in await connection.execute(query)]

    async def rename_chat(self, chat_id: str, name: str) -> None:
        """Give a chat a name; "" gives it back its first question's."""
        name = name.strip().replace("\0", "\N{SYMBOL FOR NULL}")
        async with self._write() as connection:
            await connection.execute(update(ChatRow).where(ChatRow.id == chat_id).values(name=name or None))

    async def drop_chat(self, chat_id: str) -> None:
        """Forget whose a chat is, once its runs are deleted; nothing while any is left."""
        async with self._write() as connection:
            left = exists().where(RunRow.chat_id == chat_id)
            await connection.execute(delete(ChatRow).where(ChatRow.id == chat_id, ~left))

    async def conversation(self, chat_id: str) -> list[Run]:
        """The runs that answered questions of this chat, the oldest first; also those edited away since."""
        query = select_runs().where(RunRow.chat_id == chat_id, RunRow.message_id.is_not(None))
        async with self._read() as connection:
            rows = await connection.execute(query.order_by(RunRow.started_at, RunRow.id))
            return [to_run(row) for row in rows]

    async def owns_chat(self, user: str, chat_id: str) -> bool:
        async with self._read() as connection:
            return await _owner(connection, chat_id) == user

    async def owns_run(self, user: str, run_id: str) -> bool:
        """False also for a run that is not stored."""
        query = select(RunRow.id).join(ChatRow, ChatRow.id == RunRow.chat_id)
        async with self._read() as connection:
            found = await connection.scalar(query.where(RunRow.id == run_id, ChatRow.user == user))
            return found is not None

    async def owns_receipt(self, user: str, digest: str) -> bool:
        """Whether any run of theirs came out with this receipt."""
        query = select(RunRow.id).join(ChatRow, ChatRow.id == RunRow.chat_id)
        async with self._read() as connection:
            found = await connection.scalar(
                query.where(RunRow.digest == digest, ChatRow.user == user).limit(1)
            )
            return found is not None


_IN_CHAT = (RunRow.chat_id == ChatRow.id, RunRow.message_id.is_not(None))

_FIRST_QUESTION = (
    select(RunRow.question)
    .where(*_IN_CHAT)
    .order_by(RunRow.started_at, RunRow.id)
    .limit(1)
    .correlate(ChatRow)
    .scalar_subquery()
)
_LAST = (
    select(func.max(RunRow.started_at, type_=UtcDateTime()))
    .where(*_IN_CHAT)
    .correlate(ChatRow)
    .scalar_subquery()
)


def _select_chats() -> AnySelect:
    name = func.coalesce(ChatRow.name, _FIRST_QUESTION)
    return select(ChatRow.id, ChatRow.user, name, _LAST).where(exists().where(*_IN_CHAT))


async def _owner(connection: AsyncConnection, chat_id: str) -> str | None:
    return await connection.scalar(select(ChatRow.user).where(ChatRow.id == chat_id))

"""Whose a chat is, where people log in; a run belongs to whom its chat belongs to.

Chats from before there was a login, and the terminal's, belong to nobody and are shown to nobody there.
"""

from __future__ import annotations

from sqlalchemy import insert, select

from llm_backend.store.connected import Connected
from llm_backend.store.models import ChatRow, RunRow


class Chats(Connected):
    """The part of the store that knows owners."""

    async def claim_chat(self, chat_id: str, user: str) -> None:
        """Record whose a new chat is; before its first run."""
        async with self._write() as connection:
            await connection.execute(insert(ChatRow).values(id=chat_id, user=user))

    async def owns_chat(self, user: str, chat_id: str) -> bool:
        async with self._read() as connection:
            query = select(ChatRow.id).where(ChatRow.id == chat_id, ChatRow.user == user)
            return await connection.scalar(query) is not None

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

"""Chainlit's data layer on Encore's own store: a user's chats are those in which they asked something.

Nothing that Chainlit renders is kept. A chat that is opened again is put together from its receipts
(`resuming.py`), so what Chainlit hands over to be stored is dropped here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chainlit.data.base import BaseDataLayer
from chainlit.session import WebsocketSession
from chainlit.types import (
    Feedback,
    PageInfo,
    PaginatedResponse,
    Pagination,
    ThreadDict,
    ThreadFilter,
)
from chainlit.user import PersistedUser, User

from llm_backend.store import Chat, Selection
from llm_backend.ui.backend import backend


class History(BaseDataLayer):
    """`mark`: of a user's present password (`UserFile.mark`); None for someone who was removed."""

    def __init__(self, mark: Callable[[str], str | None]) -> None:
        self._mark = mark

    async def get_user(self, identifier: str) -> PersistedUser | None:
        """The guard has dropped cookies of ended logins, so the mark of today is the cookie's."""
        mark = self._mark(identifier)
        if mark is None:
            return None
        return PersistedUser(id=identifier, createdAt="", identifier=identifier, metadata={"mark": mark})

    async def create_user(self, user: User) -> PersistedUser | None:
        """Users are created by `encore user add` alone."""
        return await self.get_user(user.identifier)

    async def list_threads(
        self, pagination: Pagination, filters: ThreadFilter
    ) -> PaginatedResponse[ThreadDict]:
        cursor = pagination.cursor or "0"
        skip = int(cursor) if cursor.isdecimal() and len(cursor) < 10 else 0
        first = min(max(pagination.first, 1), 100)
        found = await backend().store.chats(
            filters.userId or "", limit=first + 1, skip=skip, search=filters.search or ""
        )
        shown = found[:first]
        page = PageInfo(len(found) > first, str(skip), str(skip + len(shown)))
        return PaginatedResponse(pageInfo=page, data=[_thread(chat) for chat in shown])

    async def get_thread(self, thread_id: str) -> ThreadDict | None:
        """Without its messages: Chainlit asks several times, and `resuming.py` fills them in once."""
        chat = await backend().store.chat(thread_id)
        return None if chat is None else _thread(chat)

    async def get_thread_author(self, thread_id: str) -> str:
        chat = await backend().store.chat(thread_id)
        return "" if chat is None else chat.user

    async def update_thread(
        self,
        thread_id: str,
        name: str | None = None,
        user_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        tags: list[str] | None = None,
    ) -> None:
        """Only a name that a person typed is kept; the one Chainlit gives comes with the user's id."""
        if name is not None and user_id is None:
            await backend().store.rename_chat(thread_id, name[:200])

    async def delete_thread(self, thread_id: str) -> None:
        """With the runs of the chat; receipts that other runs share stay theirs."""
        await backend().store.delete(Selection(chat_id=thread_id))
        await backend().store.drop_chat(thread_id)

    async def create_step(self, step_dict: Any) -> None:
        return None

    async def update_step(self, step_dict: Any) -> None:
        return None

    async def delete_step(self, step_id: str) -> None:
        return None

    async def create_element(self, element: Any) -> None:
        return None

    async def get_element(self, thread_id: str, element_id: str) -> None:
        return None

    async def delete_element(self, element_id: str, thread_id: str | None = None) -> None:
        return None

    async def upsert_feedback(self, feedback: Feedback) -> str:
        return ""

    async def delete_feedback(self, feedback_id: str) -> bool:
        return False

    async def get_favorite_steps(self, user_id: str) -> list[Any]:
        return []

    async def build_debug_url(self) -> str:
        return ""

    async def close(self) -> None:
        return None


def _thread(chat: Chat) -> ThreadDict:
    return ThreadDict(
        id=chat.id,
        createdAt=chat.last_at.isoformat(),
        name=" ".join(chat.name.split()),
        userId=chat.user,
        userIdentifier=chat.user,
        tags=None,
        metadata=None,
        steps=[],
        elements=[],
    )


def open_named_threads() -> None:
    """Have a page that connects a second time, now naming a chat, shown that chat. After mounting Chainlit.

    A page opened at a chat's address may connect before it has read the address, and again right after
    under the same session id. Chainlit would give it the empty session of the first time and never open
    the chat: the page waited for ever.
    """
    # Chainlit's server reads its root path when it is first imported.
    from chainlit.server import sio
    from chainlit.socket import connect as chainlits

    async def connect(sid: str, environ: dict[str, Any], auth: dict[str, Any]) -> bool:
        wanted, begun = auth.get("threadId"), WebsocketSession.get_by_id(auth["sessionId"])
        if wanted and begun is not None and begun.thread_id != wanted and not begun.has_first_interaction:
            await begun.delete()
        return bool(await chainlits(sid, environ, auth))

    sio.on("connect", connect)

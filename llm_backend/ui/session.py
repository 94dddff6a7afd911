"""The state of one chat in one browser tab; nothing here is shared between chats."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field

import chainlit as cl

from llm_backend.config import Settings
from llm_backend.receipt import EngineFingerprint, Message, Sampling
from llm_backend.strings import Language, pick_language

_KEY = "encore"

ANSWER_SHARE = 4
"""Unless set, an answer may take up to this fraction of the context: a quarter."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer, as later requests send them: without the thinking."""

    message_id: str
    question: str
    answer: str


@dataclass(slots=True)
class ChatSession:
    """Settings of the next run and the conversation so far."""

    lang: Language
    sampling: Sampling
    chat_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    system_prompt: str = ""
    max_tokens_chosen: bool = False
    turns: list[Turn] = field(default_factory=list)
    questions: dict[str, str] = field(default_factory=dict)
    """Text by message id, so that "Retry" can ask again without taking text from the browser."""
    busy: bool = False
    """A run of this chat is being generated."""
    user: str | None = None
    """Whose this chat is; None where there is no login."""
    claimed: bool = False
    """The store knows whose it is."""
    listed: bool = False
    """The page's history shows this chat."""
    repetition: asyncio.Task[None] | None = None
    """A repetition of this chat is under way."""
    panel: cl.CustomElement | None = None

    def messages(self, question: str) -> list[Message]:
        """What a new run sends: exactly this, and the receipt keeps it."""
        system = [Message(role="system", content=self.system_prompt)] if self.system_prompt else []
        past = [
            message
            for turn in self.turns
            for message in (
                Message(role="user", content=turn.question),
                Message(role="assistant", content=turn.answer),
            )
        ]
        return [*system, *past, Message(role="user", content=question)]

    def remember(self, message_id: str, question: str, answer: str) -> None:
        """Make a finished exchange part of the conversation; without an answer there is none."""
        if answer:
            self.turns.append(Turn(message_id, question, answer))

    def rewind_to(self, message_id: str) -> None:
        """Forget the exchange that `message_id` began and everything after it: it is asked anew."""
        for index, turn in enumerate(self.turns):
            if turn.message_id == message_id:
                del self.turns[index:]
                return

    def fit_to(self, engine: EngineFingerprint) -> bool:
        """Choose max tokens by the engine's context unless someone has; True when it changed."""
        if self.max_tokens_chosen or engine.max_model_len is None:
            return False
        fitting = max(1, engine.max_model_len // ANSWER_SHARE)
        changed = fitting != self.sampling.max_tokens
        self.sampling = self.sampling.model_copy(update={"max_tokens": fitting})
        return changed


def start_session(settings: Settings) -> ChatSession:
    """A fresh session for the chat this callback serves."""
    session = ChatSession(
        lang=pick_language(_accepted_languages()),
        sampling=Sampling(seed=settings.seed),
    )
    cl.user_session.set(_KEY, session)
    return session


def current_session() -> ChatSession | None:
    """None in a chat that outlived a restart of the application."""
    session = cl.user_session.get(_KEY)
    return session if isinstance(session, ChatSession) else None


def _accepted_languages() -> str | None:
    """The browser's Accept-Language header, from the request that opened the websocket."""
    environ = getattr(cl.context.session, "environ", {})
    accepted = environ.get("HTTP_ACCEPT_LANGUAGE")
    return str(accepted) if accepted else None

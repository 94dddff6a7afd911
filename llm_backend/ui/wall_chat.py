"""`/wall` and the button under an answer: they make a wall and give its link; the page does the rest."""

from __future__ import annotations

import re

import chainlit as cl

from llm_backend.errors import EncoreError
from llm_backend.receipt import Message
from llm_backend.record import build_request
from llm_backend.strings import text
from llm_backend.ui.backend import backend
from llm_backend.ui.login import own_run
from llm_backend.ui.session import ChatSession
from llm_backend.ui.walls import Wall
from llm_backend.wall import WallKind, WallPreset, read_count

_COMMAND = re.compile(r"\s*/wall(?:\s+(?P<rest>\S.*))?\s*", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(
    r"(?P<count>[+-]?[0-9.]+)\s*(?:(?P<seeds>seeds?|个?种子)|replays?|次?重放)?\s*", re.IGNORECASE
)


def asked_for_wall(content: str) -> str | None:
    """What follows `/wall`, maybe nothing; None when the message is no such command."""
    match = _COMMAND.fullmatch(content)
    return None if match is None else (match["rest"] or "").strip()


async def wall_command(session: ChatSession, rest: str) -> None:
    """`/wall`, `/wall 12`, `/wall 12 seeds` about the latest answer; `/wall QUESTION` about that question.

    Raises `EncoreError` for a number out of range and for a chat without an answer.
    """
    numbers = _NUMBER.fullmatch(rest)
    if rest and numbers is None:
        await wall_of_question(session, rest)
        return
    preset = WallPreset()
    if numbers:
        kind = WallKind.SEEDS if numbers["seeds"] else WallKind.REPLAYS
        preset = WallPreset(kind=kind, count=read_count(numbers["count"], kind, session.lang))
    runs = await backend().store.runs(session.chat_id, limit=1, replays=False)
    if not runs:
        raise EncoreError(text("wall.problem.no_answer", session.lang))
    await wall_of_run(session, runs[0].id, preset)


async def wall_of_run(session: ChatSession, run_id: str, preset: WallPreset | None = None) -> None:
    """A wall about a recorded run; raises `ReceiptNotFound` for what is none."""
    await own_run(session.user, run_id)
    wall = await backend().walls.of_run(backend(), run_id, session.chat_id)
    wall.preset = preset or WallPreset()
    await _send_link(session, wall)


async def wall_of_question(session: ChatSession, question: str) -> None:
    """A wall about a question by itself, with this chat's settings; the conversation plays no part."""
    identity = await backend().engine.identity()
    session.fit_to(identity)
    system = [Message(role="system", content=session.system_prompt)] if session.system_prompt else []
    messages = [*system, Message(role="user", content=question)]
    wall = backend().walls.of_question(
        build_request(identity.model, messages, session.sampling), session.chat_id
    )
    wall.preset = WallPreset(kind=WallKind.SEEDS, count=6)
    await _send_link(session, wall)


async def _send_link(session: ChatSession, wall: Wall) -> None:
    lang = session.lang
    address = f"{backend().settings.root_path}/walls/{wall.id}"
    link = f"[{text('wall.chat.open', lang)}]({address})"
    await cl.Message(content=f"{text('wall.chat.made', lang)}\n\n{link}").send()

"""A chat opened again, put together from its receipts: the questions, the answers, and their run lines.

Nothing that was once rendered is read back. What was edited away since is left out, as on the page.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import chainlit as cl
from chainlit.step import StepDict
from chainlit.types import ThreadDict

from llm_backend.errors import EncoreError
from llm_backend.receipt import GenerationRequest
from llm_backend.run import Run
from llm_backend.store import Store
from llm_backend.strings import Language, text
from llm_backend.thinking import ThinkSplitter
from llm_backend.ui.answer_view import end_note
from llm_backend.ui.math_display import display
from llm_backend.ui.panel import RUN_LINE
from llm_backend.ui.session import ChatSession, Turn

Kind = Literal["user_message", "tool", "assistant_message"]

LOOK_AGAIN_S = 1.0
"""How often an answer that is still being given elsewhere is looked for."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and what came of it."""

    run: Run
    question: str
    thinking: str = ""
    answer: str = ""
    past: int = 0
    """Answered exchanges that were sent before the question."""
    request: GenerationRequest | None = None
    """None while the run is going."""
    splitter: ThinkSplitter | None = None
    unreadable: str = ""
    """Why its receipt cannot be shown."""

    @property
    def message_id(self) -> str:
        return self.run.message_id or self.run.id

    @property
    def answer_id(self) -> str:
        return str(uuid.UUID(self.run.id))

    @property
    def remembered(self) -> bool:
        """Whether later questions are asked with this exchange before them."""
        return bool(self.answer) and self.run.status != "interrupted"

    def note(self, lang: Language) -> str:
        if self.splitter is None or self.request is None:
            return ""
        return end_note(self.splitter, self.run, self.request.sampling.max_tokens, lang)


async def load_exchanges(store: Store, chat_id: str) -> list[Exchange]:
    """What the page of this chat shows, from the store; an altered receipt is shown as its refusal."""
    asked = [await load_exchange(store, run) for run in await store.conversation(chat_id)]
    return shown_exchanges(asked)


async def load_exchange(store: Store, run: Run) -> Exchange:
    """One exchange; without an answer while its run is going."""
    if run.digest is None:
        return Exchange(run, run.question)
    try:
        recorded = json.loads(await store.receipt_json(run.digest))["receipt"]
    except EncoreError as error:
        return Exchange(run, run.question, unreadable=error.diagnostics())
    return await asyncio.to_thread(_read, run, recorded)


def _read(run: Run, recorded: dict[str, Any]) -> Exchange:
    request = GenerationRequest.model_validate(recorded["request"])
    splitter = ThinkSplitter()
    splitter.feed(recorded["completion"]["text"])
    splitter.finish()
    said = [message for message in request.messages if message.role != "system"]
    return Exchange(
        run,
        said[-1].content,
        splitter.thinking.strip(),
        splitter.answer.strip(),
        past=(len(said) - 1) // 2,
        request=request,
        splitter=splitter,
    )


def shown_exchanges(asked: Sequence[Exchange]) -> list[Exchange]:
    """Without what was edited away: an edited question was sent with fewer exchanges before it.

    The same question asked again without taking anything back is a retry, and follows what failed.
    """
    shown: list[Exchange] = []
    for exchange in asked:
        earlier = [index for index, other in enumerate(shown) if other.message_id == exchange.message_id]
        if earlier and exchange.request is not None:
            answered = sum(other.remembered for other in shown)
            if exchange.question != shown[earlier[0]].question or exchange.past < answered:
                del shown[earlier[0] :]
        shown.append(exchange)
    return shown


def restore(session: ChatSession, exchanges: Sequence[Exchange]) -> None:
    """Go on as the chat was left: its conversation, and the settings of its last run."""
    session.turns = [Turn(e.message_id, e.question, e.answer) for e in exchanges if e.remembered]
    session.questions = {e.message_id: e.question for e in exchanges}
    last = next((e.request for e in reversed(exchanges) if e.request is not None), None)
    if last is not None:
        session.sampling = last.sampling
        session.max_tokens_chosen = True
        first = last.messages[0]
        session.system_prompt = first.content if first.role == "system" else ""


def fill_thread(thread: ThreadDict, exchanges: Sequence[Exchange], lang: Language) -> None:
    """Chainlit shows the thread's steps and elements as they are then."""
    user, asked_last = thread["userIdentifier"] or "", ""
    for exchange in exchanges:
        at = exchange.run.started_at.isoformat()
        if exchange.message_id != asked_last:
            asked = _step(exchange.message_id, "user_message", user, exchange.question, at)
            thread["steps"].append(asked)
        asked_last = exchange.message_id
        thread["steps"] += answer_steps(exchange, lang)
        if exchange.run.digest is not None and thread["elements"] is not None:
            thread["elements"].append(
                {
                    "id": str(uuid.uuid5(uuid.UUID(exchange.run.id), "line")),
                    "threadId": thread["id"],
                    "forId": exchange.answer_id,
                    "type": "custom",
                    "name": RUN_LINE,
                    "display": "inline",
                    "props": {"run": exchange.run.id, "note": exchange.note(lang)},
                }
            )


def answer_steps(exchange: Exchange, lang: Language) -> list[StepDict]:
    """The thinking, if there was any, and the answer."""
    run, author = exchange.run, cl.config.config.ui.name
    at = run.started_at.isoformat()
    steps: list[StepDict] = []
    if exchange.thinking:
        thought = display(exchange.thinking)
        note = exchange.note(lang)
        if note and exchange.splitter is not None and exchange.splitter.unclosed:
            thought = f"{thought}\n\n*{note}*"
        step_id = str(uuid.uuid5(uuid.UUID(run.id), "thinking"))
        steps.append(_step(step_id, "tool", text("think.past", lang), thought, at))
    shown = exchange.unreadable or display(exchange.answer)
    if run.digest is None:
        shown = text("resume.going", lang)
    steps.append(_step(exchange.answer_id, "assistant_message", author, shown, at))
    return steps


def _step(step_id: str, kind: Kind, name: str, output: str, at: str) -> StepDict:
    return {
        "id": step_id,
        "type": kind,
        "name": name,
        "output": output,
        "input": "",
        "createdAt": at,
        "start": at,
        "end": at,
        "parentId": None,
        "streaming": False,
        "isError": False,
        "showInput": False,
        "metadata": {"avatarName": cl.config.config.ui.name} if kind == "tool" else {},
    }


async def ended(store: Store, run_id: str) -> Run:
    """The run, once it has ended; another page, or another process, is recording it."""
    # A database has no event to wait for.
    while (run := await store.run(run_id)).digest is None:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_AGAIN_S)
    return run

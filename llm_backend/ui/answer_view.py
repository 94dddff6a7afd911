"""One answer on screen: the thinking in a collapsed step, the answer in a message."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

import chainlit as cl
from chainlit.utils import utc_now

from llm_backend.receipt import Completion
from llm_backend.strings import Language, text
from llm_backend.thinking import ThinkSplitter
from llm_backend.ui.live_text import LiveText, Pacer
from llm_backend.ui.math_display import display


class AnswerView:
    """Feed it raw text inside `async with`, then `finish` it; `message` carries the answer."""

    def __init__(self, lang: Language) -> None:
        self.message = cl.Message(content="")
        self._lang = lang
        self._splitter = ThinkSplitter()
        self._step: cl.Step | None = None
        self._live_step: LiveText | None = None
        self._live_message: LiveText | None = None
        self._thinking_since = self._thinking_until = 0.0
        self._pacer = Pacer(self._flush)

    @property
    def answer(self) -> str:
        """The model's answer without its thinking, as the conversation remembers it."""
        return self._splitter.answer.strip()

    async def __aenter__(self) -> Self:
        await self._pacer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pacer.__aexit__(kind, error, trace)

    def feed(self, piece: str) -> None:
        """Take in raw text as it arrives."""
        now = time.monotonic()
        self._thinking_since = self._thinking_since or now
        if not self._splitter.closed:
            self._thinking_until = now
        self._splitter.feed(piece)
        self._pacer.poke()

    async def finish(self, completion: Completion | None, max_tokens: int) -> str:
        """Show everything; returns what people must know about how it ended, or ""."""
        self._splitter.finish()
        await self._withdraw_misplaced_answer()
        note = end_note(self._splitter, completion, max_tokens, self._lang)
        if self._splitter.thinking.strip():
            step = await self._opened_step()
            thinking = display(self._splitter.thinking.strip())
            step.output = f"{thinking}\n\n*{note}*" if self._splitter.unclosed and note else thinking
            await self._close_step()
        self.message.content = display(self.answer)
        await (self.message.update() if self.message.streaming else self.message.send())
        return note

    async def _flush(self) -> int:
        thinking, answer = self._splitter.thinking.lstrip(), self._splitter.answer.lstrip()
        await self._withdraw_misplaced_answer()
        if thinking and (self._step is None or self._step.end is None):
            await self._opened_step()
            assert self._live_step is not None
            await self._live_step.show(display(thinking, final=self._splitter.closed))
            if self._splitter.closed:
                await self._close_step()
        if shown := display(answer, final=False):
            if self._live_message is None:
                self._live_message = LiveText(self.message)
            await self._live_message.show(shown)
        return len(answer) if self._splitter.closed or not self._splitter.opened else len(thinking) // 4

    async def _withdraw_misplaced_answer(self) -> None:
        """A closing tag without an opening one: what is on screen as the answer was thinking."""
        if self._live_message is not None and self._step is None and self._splitter.thinking:
            await self.message.remove()
            self.message = cl.Message(content="")
            self._live_message = None

    async def _opened_step(self) -> cl.Step:
        if self._step is None:
            parent = cl.context.current_step
            self._step = cl.Step(
                name=text("think.running", self._lang),
                type="tool",
                show_input=False,
                parent_id=parent.id if parent else None,
                metadata={"avatarName": cl.config.config.ui.name},
            )
            self._step.start = utc_now()
            await self._step.send()
            self._live_step = LiveText(self._step)
        return self._step

    async def _close_step(self) -> None:
        assert self._step is not None
        seconds = max(1, round(self._thinking_until - self._thinking_since))
        self._step.name = text("think.done", self._lang, seconds=seconds)
        self._step.end = utc_now()
        await self._step.update()


class Ending(Protocol):
    """How an answer ended: a `Completion`, or its `Run`."""

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def status(self) -> str: ...


def end_note(splitter: ThinkSplitter, completion: Ending | None, max_tokens: int, lang: Language) -> str:
    """One sentence about an ending that people would otherwise misread; "" for an ordinary one."""
    if completion is None:
        return ""
    answered = bool(splitter.answer.strip())
    if completion.finish_reason == "length":
        key = "end_note.cut" if answered else "end_note.cut_without_answer"
        return text(key, lang, n=max_tokens)
    if completion.status == "stopped" and not answered:
        return text("end_note.stopped_without_answer", lang)
    if completion.status == "complete" and not answered:
        return text("end_note.empty", lang)
    return ""

"""Chainlit's entry: which callback does what. Run with `python -m llm_backend.ui` (start.sh does)."""

from __future__ import annotations

from typing import Any

import chainlit as cl
from chainlit.types import ThreadDict

from llm_backend.ui import handlers
from llm_backend.ui.problems import RETRY
from llm_backend.ui.starters import starters


@cl.set_starters
async def set_starters(user: cl.User | None, language: str | None) -> list[cl.Starter]:
    return starters(language)


@cl.on_chat_start
async def on_chat_start() -> None:
    await handlers.start_chat()


@cl.on_chat_resume
async def on_chat_resume(thread: ThreadDict) -> None:
    await handlers.resume_chat(thread)


@cl.on_message
async def on_message(message: cl.Message) -> None:
    await handlers.ask_message(message)


@cl.on_stop
async def on_stop() -> None:
    await handlers.stop()


@cl.on_chat_end
async def on_chat_end() -> None:
    await handlers.leave()


@cl.on_settings_update
async def on_settings_update(settings: dict[str, Any]) -> None:
    await handlers.change_settings(settings)


@cl.on_window_message
async def on_window_message(data: object) -> None:
    await handlers.window_message(data)


@cl.action_callback(handlers.REPLAY)
async def on_replay(action: cl.Action) -> None:
    await handlers.replay_run(str(action.payload.get("run")), action.payload.get("engine"))


@cl.action_callback(handlers.CHECK)
async def on_check(action: cl.Action) -> None:
    await handlers.check_run(str(action.payload.get("run")))


@cl.action_callback(handlers.FORK)
async def on_fork(action: cl.Action) -> None:
    await handlers.fork_run(action.payload)


@cl.action_callback(handlers.REPEAT)
async def on_repeat(action: cl.Action) -> None:
    await handlers.repeat_run(action.payload)


@cl.action_callback(handlers.WALL)
async def on_wall(action: cl.Action) -> None:
    await handlers.show_wall(str(action.payload.get("run")))


@cl.action_callback(handlers.SHOW)
async def on_show(action: cl.Action) -> None:
    await handlers.show_in_panel(str(action.payload.get("run")))


@cl.action_callback(handlers.EXPECT)
async def on_expect(action: cl.Action) -> str:
    return await handlers.expect_answer(action.payload)


@cl.action_callback(RETRY)
async def on_retry(action: cl.Action) -> None:
    await handlers.retry(str(action.payload.get("message")))

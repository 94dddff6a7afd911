"""What the chat does: starting, asking, replaying, stopping, changing settings.

`app.py` connects these to Chainlit's callbacks. Every error ends in a message (`reporting`). A stopped
or failed exchange leaves no trace in the conversation that later questions send, except an answer that
was stopped half-way: people saw it, so the model is told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import chainlit as cl
from chainlit.session import WebsocketSession
from chainlit.types import ThreadDict

from llm_backend.errors import EncoreError
from llm_backend.record import Recording, build_request, record
from llm_backend.run import Run
from llm_backend.strings import Language, text
from llm_backend.ui import metrics, panel
from llm_backend.ui.answer_view import AnswerView
from llm_backend.ui.answering import expect_in_chat
from llm_backend.ui.backend import backend
from llm_backend.ui.engine_watch import status_sentence
from llm_backend.ui.forking import fork_in_chat
from llm_backend.ui.login import NotLoggedIn, chat_user, login_needed
from llm_backend.ui.problems import reporting, sentence, show_problem
from llm_backend.ui.prose import readable_prose
from llm_backend.ui.queueing import place_shown
from llm_backend.ui.replaying import check_in_chat, read_plan, repeat_in_chat, replay_in_chat
from llm_backend.ui.resuming import (
    Exchange,
    answer_steps,
    ended,
    fill_thread,
    load_exchange,
    load_exchanges,
    restore,
)
from llm_backend.ui.session import ChatSession, current_session, start_session
from llm_backend.ui.settings_form import read_form, widgets
from llm_backend.ui.verifying import asked_to_verify, verify_in_chat
from llm_backend.ui.wall_chat import asked_for_wall, wall_command, wall_of_run

REPLAY, CHECK, REPEAT, WALL, SHOW = "replay", "check", "repeat", "wall", "show_in_panel"
EXPECT = "expect"
"""The panel's form alone sends it."""

_BUTTONS = (
    (REPLAY, "repeat"),
    (CHECK, "list-checks"),
    (REPEAT, "layers"),
    (WALL, "layout-grid"),
    (SHOW, "panel-right-open"),
)
"""Under each answer, with their icons."""

FORK = "fork"
"""What the panel asks for at a token."""

AWAY_S = 30.0
"""How long a page may be gone before its repetition ends."""

CHAINLITS_STOP_MESSAGE = "Task manually stopped."
"""Chainlit adds this, in English only, whenever someone stops a run."""


async def start_chat() -> None:
    """A new chat, or a reloaded page where there is no login."""
    session = _begun_session()
    async with reporting(session.lang):
        if (await backend().watch.status()).ready:
            session.fit_to(await backend().engine.identity())
        await _send_settings(session)
        await panel.announce_ready()


async def resume_chat(thread: ThreadDict) -> None:
    """A chat of the history, opened again; Chainlit has checked whose it is."""
    session = _begun_session()
    async with reporting(session.lang):
        await _claim(session)
        exchanges = await load_exchanges(backend().store, session.chat_id)
        restore(session, exchanges)
        session.listed = True
        fill_thread(thread, exchanges, session.lang)
        for exchange in exchanges:
            if exchange.run.digest is not None:
                await _send_buttons(exchange.answer_id, exchange.run.id, session.lang)
        await _send_settings(session)
        if exchanges and exchanges[-1].run.digest is None:
            session.busy = True
            backend().start(_show_when_ended(session, exchanges[-1]))
        await panel.announce_ready()


async def _show_when_ended(session: ChatSession, going: Exchange) -> None:
    """The answer that another page of this chat asked for, once it is there."""
    try:
        run = await ended(backend().store, going.run.id)
    finally:
        session.busy = False
    exchange = await load_exchange(backend().store, run)
    if exchange.remembered:
        session.remember(exchange.message_id, exchange.question, exchange.answer)
    # Taken away first: the thinking, if there is any, belongs above the answer.
    placeholder, *_ = answer_steps(going, session.lang)
    await cl.context.emitter.delete_step(placeholder)
    for step in answer_steps(exchange, session.lang):
        await cl.context.emitter.send_step(step)
    message = cl.Message(content="", id=exchange.answer_id)
    await panel.add_run_line(message, run.id, exchange.note(session.lang))
    await _send_buttons(exchange.answer_id, run.id, session.lang)
    await panel.tell("run", run=run.id)


async def ask_message(message: cl.Message) -> None:
    """A question typed, picked or edited (which takes back what followed it), `/verify` or `/wall`."""
    session = _session()
    session.rewind_to(message.id)
    if (full := asked_to_verify(message.content)) is not None:
        await _one_at_a_time(session, partial(verify_in_chat, backend(), session.lang, full=full))
        return
    if (about := asked_for_wall(message.content)) is not None:
        async with reporting(session.lang):
            await _claim(session)
            await wall_command(session, about)
        return
    session.questions[message.id] = message.content
    await _ask(session, message.id)


async def retry(message_id: str) -> None:
    """Ask a question again that got no complete answer."""
    session = _session()
    if message_id in session.questions:
        _start_task(_ask(session, message_id))


async def replay_run(run_id: str, engine: object = None) -> None:
    """Replay a recorded run, beside the request that asked for it: it may take longer than HTTP allows.

    `engine`: the number of the engine to replay on, where someone chose one.
    """
    session = _session()
    _start_task(_one_at_a_time(session, partial(replay_in_chat, session, run_id, engine)))


async def check_run(run_id: str) -> None:
    """Have the engine score a recorded run."""
    session = _session()
    _start_task(_one_at_a_time(session, partial(check_in_chat, session, run_id)))


async def fork_run(payload: Mapping[str, Any]) -> None:
    """Take another token of a recorded answer and have the model go on from there."""
    session = _session()
    _start_task(_one_at_a_time(session, partial(fork_in_chat, session, dict(payload))))


async def repeat_run(payload: Mapping[str, Any]) -> None:
    """Replay a run many times: ten times alone, or as the panel's form says."""
    session = _session()
    async with reporting(session.lang):
        plan = read_plan(payload, session.lang)
        session.repetition = _start_task(_one_at_a_time(session, partial(repeat_in_chat, session, plan)))


async def show_wall(run_id: str) -> None:
    """Make a replay wall about a recorded run and give its link."""
    session = _session()
    async with reporting(session.lang):
        await _claim(session)
        await wall_of_run(session, run_id)


async def expect_answer(payload: Mapping[str, Any]) -> str:
    """Keep the answer that someone typed as the right one; returns what is wrong with it, or ""."""
    session = _session()
    try:
        await _claim(session)
        await expect_in_chat(session, payload)
    except EncoreError as error:
        return sentence(error, session.lang)
    return ""


async def stop() -> None:
    """Someone pressed Stop; the task is cancelled already. Take Chainlit's own remark back."""
    messages = cl.chat_context.get()
    if messages and messages[-1].content == CHAINLITS_STOP_MESSAGE:
        await messages[-1].remove()


async def leave() -> None:
    """The page is gone, for a moment or for good.

    Nobody can stop its repetition any more, and that is load on everybody's engine: unless the page is
    back soon, it ends. What was measured is kept.
    """
    session, page = current_session(), cl.context.session
    work = session.repetition if session else None
    if work and not work.done() and isinstance(page, WebsocketSession):
        backend().start(_stop_unless_back(work, page, page.socket_id))


async def _stop_unless_back(work: asyncio.Task[None], page: WebsocketSession, socket: str) -> None:
    await asyncio.sleep(AWAY_S)
    if page.socket_id == socket:  # a page that comes back brings a new one
        work.cancel()


async def change_settings(values: Mapping[str, Any]) -> None:
    """From the next run on; what runs now was sent already."""
    session = _session()
    async with reporting(session.lang):
        reading = read_form(values, session.sampling, session.lang)
        if reading.sampling.max_tokens != session.sampling.max_tokens:
            session.max_tokens_chosen = True
        session.sampling, session.system_prompt = reading.sampling, reading.system_prompt
        for refusal in reading.refusals:
            await show_problem(refusal, session.lang)
        if reading.refusals:
            await _send_settings(session)
        else:
            await cl.context.emitter.send_toast(text("settings.saved", session.lang), "success")


async def window_message(data: object) -> None:
    """The page asks for the panel: it is wide enough, or someone pressed its button."""
    if data == "encore:open":
        await panel.open_panel(_session())


async def show_in_panel(run_id: str) -> None:
    await panel.open_panel(_session(), run_id)


def _session() -> ChatSession:
    return current_session() or _begun_session()


def _begun_session() -> ChatSession:
    """Where people log in, a chat is found again by the id that Chainlit knows it by."""
    session = start_session(backend().settings)
    if login_needed():
        session.chat_id = cl.context.session.thread_id
    return session


async def _claim(session: ChatSession) -> None:
    """Before anything is recorded: whose this chat is, and whether they are still logged in."""
    try:
        session.user = chat_user()
    except NotLoggedIn:
        raise EncoreError(text("problem.login", session.lang)) from None
    if session.user is not None and not session.claimed:
        await backend().store.claim_chat(session.chat_id, session.user)
        session.claimed = True


async def _send_settings(session: ChatSession) -> None:
    await cl.ChatSettings(widgets(session.sampling, session.system_prompt, session.lang)).send()


def _start_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run an action's work as Chainlit runs a message's: the composer waits and shows Stop."""

    async def as_task() -> None:
        emitter = cl.context.emitter
        await emitter.task_start()
        try:
            with suppress(asyncio.CancelledError):
                await work
        finally:
            await emitter.task_end()

    return backend().start(as_task())


async def _ask(session: ChatSession, message_id: str) -> None:
    async def work() -> None:
        await _wait_for_engine(session, message_id)
        await _ask_engine(session, message_id)

    await _one_at_a_time(session, work, retry=message_id)


async def _one_at_a_time(
    session: ChatSession, work: Callable[[], Awaitable[None]], *, retry: str | None = None
) -> None:
    """One run per chat; it can be stopped, it is stored when the app closes, its errors are shown."""
    async with reporting(session.lang, retry=retry):
        if session.busy:
            raise EncoreError(text("problem.busy", session.lang))
        await _claim(session)
        if backend().draining:
            raise EncoreError(text("health.stopping", session.lang))
        task = asyncio.current_task()
        assert task is not None
        # Chainlit forgets this for edited messages and for actions, and Stop would do nothing.
        cl.context.session.current_task = task
        backend().track(task)
        session.busy = True
        try:
            await work()
        finally:
            session.busy = False


async def _wait_for_engine(session: ChatSession, message_id: str) -> None:
    """Keep the question until the engine is ready, and say what it is doing meanwhile."""
    waiting: cl.Message | None = None
    try:
        async for status in backend().watch.until_ready():
            said = readable_prose(status_sentence(status, session.lang))
            content = f"{said}\n\n{text('waiting.kept', session.lang)}"
            if waiting is None:
                waiting = cl.Message(content=content)
                await waiting.send()
            elif content != waiting.content:
                waiting.content = content
                await waiting.update()
    except asyncio.CancelledError:
        await show_problem(text("waiting.stopped", session.lang), session.lang, retry=message_id)
        raise
    finally:
        if waiting is not None:
            await waiting.remove()


async def _ask_engine(session: ChatSession, message_id: str) -> None:
    engines, store, question = backend().engines, backend().store, session.questions[message_id]
    await engines.look()
    engine = engines.choose()
    identity = await engine.identity()
    if session.fit_to(identity):
        await _send_settings(session)
    sampling = session.sampling  # what is changed from here on applies to the next run
    request = build_request(identity.model, session.messages(question), sampling)
    recording = record(engine, store, request, chat_id=session.chat_id, message_id=message_id)
    view = AnswerView(session.lang)
    try:
        with engines.using(engine):
            async with (
                view,
                backend().line(engine).place(identity.max_num_seqs) as place,
                place_shown(place, session.lang) as begun,
                recording,
            ):
                async for delta in recording:
                    begun()
                    view.feed(delta.text)
                    await _list_chat(session, recording.run)
    except asyncio.CancelledError:
        if recording.run is None:  # the engine had not even begun: no run line will say so
            said = text("end_note.stopped_without_answer", session.lang)
            await asyncio.shield(backend().start(show_problem(said, session.lang, retry=message_id)))
        raise
    finally:
        shown = _show_result(session, message_id, view, recording, sampling.max_tokens)
        # Stop pressed in the very last moment must not take the run line away.
        await asyncio.shield(backend().start(shown))


async def _list_chat(session: ChatSession, run: Run | None) -> None:
    """A chat is in the history from its first run on; the page has to be told."""
    if run is not None and session.user is not None and not session.listed:
        session.listed = True
        await panel.list_chat(run.id)


async def _show_result(
    session: ChatSession, message_id: str, view: AnswerView, recording: Recording, max_tokens: int
) -> None:
    """The last of the answer and its run line, whether it ended, was stopped or broke off."""
    run, receipt = recording.run, recording.receipt
    if run is None or receipt is None:  # refused before anything was generated
        return
    note = await view.finish(receipt.completion, max_tokens)
    if run.status != "interrupted":
        session.remember(message_id, session.questions[message_id], view.answer)
    metrics.count_run(run)
    await _list_chat(session, run)  # an answer in one piece ends before its run is there
    await panel.add_run_line(view.message, run.id, note)
    await _send_buttons(view.message.id, run.id, session.lang)
    await panel.tell("run", run=run.id)


async def _send_buttons(answer_id: str, run_id: str, lang: Language) -> None:
    """The actions under an answer; Chainlit keeps none of them for later."""
    for name, icon in _BUTTONS:
        action = cl.Action(
            name=name,
            payload={"run": run_id},
            label=text(f"action.{name}", lang),
            tooltip=text(f"action.{name}.tooltip", lang),
            icon=icon,
        )
        await action.send(for_id=answer_id)

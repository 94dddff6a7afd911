"""What went wrong, in one message with what to do; nothing fails silently and no traceback is shown.

The advice in `errors` is English. Other languages have sentences of their own; where the English one
has figures or the engine's own words, it follows.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import chainlit as cl

from llm_backend import errors
from llm_backend.strings import Language, text
from llm_backend.ui.prose import readable_prose

log = logging.getLogger(__name__)

RETRY = "retry"

_HEADLINES: tuple[tuple[type[errors.EncoreError], str], ...] = (
    (errors.ModelNotServed, "problem.model_not_served"),
    (errors.PromptTooLong, "problem.prompt_too_long"),
    (errors.EngineRejected, "problem.rejected"),
    (errors.EngineNotReady, "problem.not_ready"),
    (errors.StoreError, "problem.store"),
)
"""Most specific first."""


def sentence(error: Exception, lang: Language) -> str:
    """For people: problem and advice, or that it is Encore's own fault."""
    if not isinstance(error, errors.EncoreError):
        return text("problem.bug", lang, kind=type(error).__name__)
    if lang == "en":
        return error.diagnostics()
    if isinstance(error, errors.EngineUnreachable):
        return text("problem.unreachable", lang)
    if isinstance(error, errors.EngineInterrupted):
        return text("problem.interrupted", lang, n=error.tokens)
    headline = next((key for kind, key in _HEADLINES if isinstance(error, kind)), None)
    return f"{text(headline, lang)} {error.diagnostics()}" if headline else error.diagnostics()


async def show_problem(problem: str, lang: Language, *, retry: str | None = None) -> None:
    """A red message; with `retry`, the id of a question, a button that asks it again."""
    message = cl.ErrorMessage(content=readable_prose(problem))
    await message.send()
    if retry is not None:
        action = cl.Action(
            name=RETRY, payload={"message": retry}, label=text("action.retry", lang), icon="rotate-cw"
        )
        await action.send(for_id=message.id)


@asynccontextmanager
async def reporting(lang: Language, *, retry: str | None = None) -> AsyncIterator[None]:
    """Everything that goes wrong inside becomes a message. Cancelling passes through."""
    try:
        yield
    except errors.EncoreError as error:
        await show_problem(sentence(error, lang), lang, retry=retry)
    except Exception as error:
        log.exception("unexpected error in a chat callback")
        await show_problem(sentence(error, lang), lang, retry=retry)

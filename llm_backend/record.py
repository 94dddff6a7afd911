"""Recording a run: stream an answer and keep a receipt of it, however it ends.

The store holds the run from its first token. A run that completes, is stopped (the task is
cancelled) or is interrupted (the engine broke off) leaves a receipt with that status; a request the
engine refused before the first token leaves nothing, because nothing was generated.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Literal, Self

from llm_backend.altered import prompt_ids
from llm_backend.engine.client import EngineClient, EngineStream
from llm_backend.engine.fold import Delta
from llm_backend.errors import EngineInterrupted, PromptTooLong
from llm_backend.receipt import (
    Completion,
    GenerationRequest,
    Message,
    Receipt,
    Sampling,
    Status,
    TokenRecord,
)
from llm_backend.store import Run, Store

FLUSH_TOKENS = 64
FLUSH_SECONDS = 1.0
"""How much of a running answer a crash can cost: whichever is reached first."""

APP_STOPPED = "Encore was stopped"
"""Cancel a task with this message when nobody pressed Stop: its run is then an interrupted one."""

WATCH_SECONDS = 1.0
"""How often the engine is asked who else it is serving."""


def build_request(model: str, messages: Sequence[Message], sampling: Sampling) -> GenerationRequest:
    """The request for a new run, every sampling field explicit so that no server default applies."""
    body = {
        "model": model,
        "messages": [message.model_dump() for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampling.model_dump(exclude={"top_logprobs"}, exclude_none=True),
        "logprobs": True,
        "top_logprobs": sampling.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return GenerationRequest(
        body=json.dumps(body, ensure_ascii=False),
        model=model,
        messages=tuple(messages),
        sampling=sampling,
        effective=sampling.effective(),
    )


class Recording:
    """One run being recorded. Afterwards `run` and `receipt` tell what was kept.

        async with record(engine, store, request, chat_id=chat) as recording:
            async for delta in recording:
                show(delta.text)
        recording.run, recording.receipt

    Entering raises `PromptTooLong`, `EngineRejected`, `EngineUnreachable` or `EngineNotReady`, with
    nothing stored. Iterating raises `EngineInterrupted`; the run is stored before it propagates.
    """

    def __init__(
        self,
        engine: EngineClient,
        store: Store,
        request: GenerationRequest,
        *,
        chat_id: str,
        message_id: str | None = None,
        kind: Literal["ask", "replay", "fork"] = "ask",
        reference_run_id: str | None = None,
    ) -> None:
        self.tokens: list[TokenRecord] = []
        self.run: Run | None = None
        self.receipt: Receipt | None = None
        self._engine = engine
        self._store = store
        self._request = request
        self._chat_id = chat_id
        self._message_id = message_id
        self._kind: Literal["ask", "replay", "fork"] = kind
        self._reference_run_id = reference_run_id
        self._texts: list[str] = []
        self._flushed_tokens = 0
        self._flushed_texts = 0
        self._flushed_at = 0.0

    async def __aenter__(self) -> Self:
        request = self._request
        self._fingerprint, self._neighbours, self._served_before, prompt_tokens = await asyncio.gather(
            self._engine.identity(),
            self._engine.running(),
            self._engine.served(),
            self._prompt_tokens(),
        )
        self._engine_start = self._engine.start_id()
        # Refused before sending, with the real numbers: the engine's own message may quote others.
        budget, context = request.sampling.max_tokens, self._fingerprint.max_model_len
        if prompt_tokens is not None and context is not None and prompt_tokens + budget > context:
            raise PromptTooLong(prompt_tokens, budget, context)
        self._started = time.monotonic()
        self._ttft_s: float | None = None
        # An answer in one piece has come whole when the stream is entered: watch before.
        self._watch = asyncio.create_task(self._watch_neighbours())
        try:
            self._stream: EngineStream = await self._engine.stream(request).__aenter__()
        except BaseException:
            self._watch.cancel()
            raise
        return self

    async def _prompt_tokens(self) -> int | None:
        """Where ids are sent, their number: rendering the messages would be another prompt."""
        if sent := prompt_ids(self._request):
            return len(sent)
        return await self._engine.prompt_tokens(self._request.model, self._request.messages)

    async def _watch_neighbours(self) -> None:
        """Load may arrive after the start; the busiest moment seen is what the run is judged by."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            running = await self._engine.running()
            if running is not None:
                self._neighbours = max(self._neighbours or 0, running - 1)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in self._stream:
            if self._ttft_s is None:
                self._ttft_s = time.monotonic() - self._started
            self.tokens.extend(delta.tokens)
            self._texts.append(delta.text)
            yield delta  # before any writing: nobody should wait for the database to see the first token
            if self.run is None:
                await self._begin()
            if self._flush_due():
                await self._flush()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        await self._stream.__aexit__(kind, error, trace)
        if error is None:
            status, detail = Status.COMPLETE, ""
        elif isinstance(error, EngineInterrupted):
            status, detail = Status.INTERRUPTED, error.reason
        elif isinstance(error, asyncio.CancelledError) and error.args == (APP_STOPPED,):
            status, detail = Status.INTERRUPTED, APP_STOPPED
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            status, detail = Status.STOPPED, ""
        else:
            status, detail = Status.INTERRUPTED, f"{type(error).__name__} in Encore itself"
        # The task may already be cancelled: what was generated is kept all the same.
        await asyncio.shield(asyncio.ensure_future(self._finish(status, detail)))

    async def _begin(self) -> None:
        fold = self._stream.fold
        prompt = fold.prompt_token_ids or prompt_ids(self._request)
        self._request = self._request.model_copy(update={"prompt_token_ids": prompt})
        self.run = await self._store.begin(
            self._request,
            self._fingerprint,
            chat_id=self._chat_id,
            message_id=self._message_id,
            kind=self._kind,
            reference_run_id=self._reference_run_id,
            neighbours=self._neighbours,
            served_before=self._served_before,
            engine_url=self._engine.url,
            engine_start=self._engine_start,
        )
        self._flushed_at = time.monotonic()

    def _flush_due(self) -> bool:
        waiting = len(self.tokens) - self._flushed_tokens
        return waiting >= FLUSH_TOKENS or time.monotonic() - self._flushed_at >= FLUSH_SECONDS

    async def _flush(self) -> None:
        assert self.run is not None
        start = self._flushed_tokens
        text = "".join(self._texts[self._flushed_texts :])
        await self._store.append(self.run.id, start, self.tokens[start:], text)
        self._flushed_tokens, self._flushed_texts = len(self.tokens), len(self._texts)
        self._flushed_at = time.monotonic()

    async def _finish(self, status: Status, detail: str) -> None:
        duration_s = time.monotonic() - self._started
        if self.run is None:
            await self._begin()
        assert self.run is not None
        fold = self._stream.fold
        self.receipt = Receipt(
            request=self._request,
            completion=Completion(
                tokens=tuple(self.tokens),
                text="".join(self._texts),
                status=status,
                finish_reason=fold.finish_reason if status is Status.COMPLETE else None,
                detail=detail,
                reported_tokens=fold.reported_tokens,
                cached_prompt_tokens=fold.cached_prompt_tokens,
            ),
            engine=self._fingerprint.model_copy(update={"system_fingerprint": fold.system_fingerprint}),
        )
        self.run = await self._store.finish(
            self.run.id,
            self.receipt,
            ttft_s=self._ttft_s,
            duration_s=duration_s,
            neighbours=self._neighbours,
        )


record = Recording
"""A verb where it is used: `async with record(…) as recording`."""

"""Neighbours for the real engine: other requests in flight, proven by their first tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llm_backend.engine.client import EngineClient
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request

PROMPTS = (
    "Count from 1 to 300, one number per line.",
    "Write a long story about a river, a bridge and a lantern.",
    "List fifty animals and say one sentence about each.",
)


@asynccontextmanager
async def neighbours(
    engine: EngineClient, model: str, count: int, *, max_tokens: int, together: bool
) -> AsyncIterator[None]:
    """Run `count` requests beside the body.

    `together`: enter once every one has produced a token, so that all are decoding. Otherwise (an
    engine that takes one sequence at a time) enter once the first has, with the rest queued.
    """
    started = [asyncio.Event() for _ in range(count)]

    async def one(index: int) -> None:
        messages = [Message(role="user", content=PROMPTS[index % len(PROMPTS)] + " " * index)]
        sampling = Sampling(seed=index, max_tokens=max_tokens, top_logprobs=0)
        async with engine.stream(build_request(model, messages, sampling)) as stream:
            async for _ in stream:
                started[index].set()

    tasks = [asyncio.create_task(one(index)) for index in range(count)]
    try:
        async with asyncio.timeout(120):
            for event in started if together else started[:1]:
                await event.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

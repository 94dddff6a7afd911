"""Neighbours: other requests kept in flight while a replay is measured.

Load is never assumed. A neighbour counts from the first token of an answer to its end, and `LoadWatch`
counts them at every token of the measured replay; what it saw is what gets reported.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llm_backend.engine.client import EngineClient
from llm_backend.errors import SettingsError
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Message
from llm_backend.record import build_request
from llm_backend.tally import LoadSeen, Shape

MOST_NEIGHBOURS = 256

LONG_ANSWER, SHORT_ANSWER = 512, 24
"""Tokens. Long ones keep the batch filled; short ones make its size change."""

START_SECONDS = 120.0
"""How long to wait for the neighbours' first tokens before measuring with those that came."""

TASKS = (
    "Count from 1 to 300, one number per line.",
    "Write a long story about a river, a bridge and a lantern.",
    "List fifty animals and say one sentence about each.",
)

FILLER = "The lamplighter crosses the bridge at dusk and counts the boats on the river. "
"""About 17 tokens; `FILLER_TIMES` of it make a prompt that spans several attention blocks."""

FILLER_TIMES, FILLER_PROMPT, PROMPT_MARGIN = 12, 512, 32
"""How often the filler stands in a long prompt, how many tokens that is at most with its chat template,
and what the end of a shared prefix may add."""


def parse_neighbours(text: str) -> tuple[int, ...]:
    """`"0,4,16"` as numbers of neighbours to measure with, in that order. Raises `SettingsError`."""
    counts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) <= MOST_NEIGHBOURS for part in counts):
        raise SettingsError(
            f"--neighbours {text!r} is not a list of whole numbers from 0 to {MOST_NEIGHBOURS}.",
            "Write for example --neighbours 8, or --neighbours 0,4,16 for a sweep.",
        )
    return tuple(int(part) for part in counts)


def neighbour_request(
    recorded: GenerationRequest, shape: Shape, index: int, *, answer_tokens: int
) -> GenerationRequest:
    """What neighbour `index` asks, again and again.

    It generates until its limit (`ignore_eos`), so that the load does not fade with a short answer.
    """
    messages, limit = recorded.messages, answer_tokens
    if shape is Shape.MIXED:
        task = TASKS[index % len(TASKS)]
        # Long and short prompts, long and short answers: all four combinations within four neighbours.
        prompt = FILLER * FILLER_TIMES + task if index % 4 in (1, 2) else task
        messages = (Message(role="user", content=f"{prompt} ({index})"),)
        limit = min(limit, SHORT_ANSWER) if index % 2 else limit
    elif shape is Shape.PREFIX:
        last = messages[-1]
        messages = (*messages[:-1], last.model_copy(update={"content": f"{last.content} ({index})"}))
    sampling = recorded.sampling.model_copy(update={"max_tokens": limit})
    request = build_request(recorded.model, messages, sampling)
    body = json.loads(request.body) | {"ignore_eos": True}
    return request.model_copy(update={"body": json.dumps(body, ensure_ascii=False)})


def _answer_limit(identity: EngineFingerprint, recorded: GenerationRequest) -> int:
    """Tokens a neighbour may generate: many, but with its prompt no more than the context holds."""
    if identity.max_num_seqs == 1:
        return SHORT_ANSWER  # the measured replay waits for everybody's whole answer
    if identity.max_model_len is None:
        return min(LONG_ANSWER, recorded.sampling.max_tokens)
    longest_prompt = max(len(recorded.prompt_token_ids), FILLER_PROMPT) + PROMPT_MARGIN
    return min(LONG_ANSWER, identity.max_model_len - longest_prompt)


class Load:
    """The neighbours in flight."""

    def __init__(self, engine: EngineClient) -> None:
        self.decoding = 0
        """Neighbours between the first and the last token of an answer, now."""
        self.tokens = 0
        """Tokens that neighbours have produced."""
        self._engine = engine
        self._begun = asyncio.Semaphore(0)
        self._tasks: list[asyncio.Task[None]] = []

    def check(self) -> None:
        """Raise the `EngineError` of a neighbour that failed: the load is no longer what was asked."""
        for task in self._tasks:
            if task.done():
                task.result()

    def _start(self, request: GenerationRequest) -> None:
        self._tasks.append(asyncio.create_task(self._keep_asking(request)))

    async def _keep_asking(self, request: GenerationRequest) -> None:
        first = True
        while True:
            async with self._engine.stream(request) as stream:
                decoding = False
                try:
                    async for delta in stream:
                        self.tokens += len(delta.tokens)
                        if not decoding:
                            decoding = True
                            self.decoding += 1
                        if first:
                            first = False
                            self._begun.release()
                finally:
                    self.decoding -= decoding

    async def _under_way(self, count: int) -> None:
        """Until `count` neighbours have produced a token, one fails, or `START_SECONDS` are over."""

        async def begun() -> None:
            for _ in range(count):
                await self._begun.acquire()

        waiting = asyncio.create_task(begun())
        try:
            await asyncio.wait(
                {waiting, *self._tasks}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        self.check()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def neighbours(
    engine: EngineClient,
    identity: EngineFingerprint,
    recorded: GenerationRequest,
    *,
    count: int,
    shape: Shape,
) -> AsyncIterator[Load]:
    """Keep `count` requests of this shape in flight while the body runs.

    Enters once they have produced their first tokens: all of them, or as many as the engine says it
    takes at a time. Raises the `EngineError` of a neighbour that is refused.
    """
    together = min(count, identity.max_num_seqs or count)
    limit = _answer_limit(identity, recorded)
    load = Load(engine)
    try:
        for index in range(count):
            # Each a little shorter than the one before: they must not all end and start together.
            answer_tokens = max(1, limit - limit * index // (2 * count))
            load._start(neighbour_request(recorded, shape, index, answer_tokens=answer_tokens))
        await load._under_way(together)
        yield load
    finally:
        await load._end()


class LoadWatch:
    """Counts the neighbours at every token of the measured replays."""

    def __init__(self) -> None:
        self._samples: Counter[int] = Counter()
        self._running: list[int] = []

    def sample(self, load: Load) -> None:
        self._samples[load.decoding] += 1

    def note_running(self, running: int | None) -> None:
        """What the engine's metric said about the busiest moment of one replay; None when unknown."""
        if running is not None:
            self._running.append(running)

    def seen(self, *, asked: int, shape: Shape, one_at_a_time: bool) -> LoadSeen:
        counts = self._samples
        return LoadSeen(
            asked=asked,
            shape=shape if asked else None,
            least=min(counts, default=0),
            most=max(counts, default=0),
            mean=sum(n * times for n, times in counts.items()) / max(1, counts.total()),
            running=max(self._running, default=None),
            one_at_a_time=one_at_a_time,
        )

"""The one process that compares answers, for everything in this application, and what it said before.

Comparing may take seconds, and a class asks about the same run at once: a comparison is made once, shared by
who asks meanwhile, and remembered. What has been found in a recorded text is remembered too; records never
change under their digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from llm_backend.answer_judge import AnswerJudge
from llm_backend.answers import Opinion, boxed_answer
from llm_backend.receipt import GenerationRequest
from llm_backend.store import Store

KEPT_OPINIONS = 256
KEPT_ANSWERS = 256


@dataclass(frozen=True, slots=True)
class Said:
    """What the answer line needs of a receipt, which may be megabytes."""

    answer: str | None
    """The last complete box of the answer part, verbatim."""
    question: str
    """The last thing a person said."""
    words: str
    """A hash of the raw text: equal for equal words."""


class Judging:
    """An `AnswerJudge` that remembers; both memories are bounded. `close` it."""

    def __init__(self) -> None:
        self.judge = AnswerJudge()
        self._opinions: dict[tuple[str, str, str], asyncio.Task[Opinion]] = {}
        self._said: dict[str, Said] = {}

    async def compare(self, expected: str, answer: str) -> Opinion:
        """As `AnswerJudge.compare`."""
        return await self._once(("compare", expected, answer), lambda: self.judge.compare(expected, answer))

    async def compute(self, expression: str, answer: str) -> Opinion:
        """As `AnswerJudge.compute`."""
        key = "compute", expression, answer
        return await self._once(key, lambda: self.judge.compute(expression, answer))

    async def said(self, store: Store, digest: str) -> Said:
        """What is in the receipt with this full digest."""
        if digest not in self._said:
            said = await asyncio.to_thread(_read, await store.receipt_json(digest))
            _make_room(self._said, KEPT_ANSWERS)
            self._said[digest] = said
        return self._said[digest]

    async def close(self) -> None:
        """End the process and whoever still waits for it."""
        waiting = [task for task in self._opinions.values() if not task.done()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self.judge.close()

    async def _once(
        self, key: tuple[str, str, str], judged: Callable[[], Coroutine[Any, Any, Opinion]]
    ) -> Opinion:
        task = self._opinions.get(key)
        if task is None:
            _make_room(self._opinions, KEPT_OPINIONS)
            task = self._opinions[key] = asyncio.create_task(judged())
        try:
            # Whoever goes away while they wait takes nothing from the others.
            return await asyncio.shield(task)
        finally:
            if task.done() and (task.cancelled() or task.exception()):
                self._opinions.pop(key, None)


def _make_room(kept: dict[Any, Any], most: int) -> None:
    while len(kept) >= most:
        del kept[next(iter(kept))]


def _read(document: str) -> Said:
    receipt = json.loads(document)["receipt"]
    asked = GenerationRequest.model_validate(receipt["request"])
    text = asked.given + receipt["completion"]["text"]
    return Said(
        answer=boxed_answer(text),
        question=asked.question,
        words=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
    )

"""Has answers compared by `answer_worker`, a process that is started when first needed and killed when late.

Whatever the worker does, the caller gets an `Opinion`: an expression that takes too long or too much memory
makes it UNKNOWN, and the next question finds a fresh worker.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from llm_backend.answers import (
    LONGEST,
    AnswerCheck,
    AnswerPair,
    Opinion,
    Reason,
    Sameness,
    Source,
    boxed_answer,
    typed_answer,
)
from llm_backend.arithmetic import arithmetic
from llm_backend.compare import Comparison
from llm_backend.receipt import Receipt

LIMIT_S = 10.0
"""Seconds of waiting for one comparison, starting the worker not included."""

START_LIMIT_S = 60.0
"""Seconds until the worker has loaded SymPy; about two on an idle machine."""


class AnswerJudge:
    """Compares one pair at a time; `close` it, or use it in `async with`."""

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._worker: Process | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def compare(self, expected: str, answer: str) -> Opinion:
        """Whether two answers, verbatim, have the same value."""
        if " ".join(expected.split()) == " ".join(answer.split()):
            return Opinion(sameness=Sameness.SAME)
        if max(len(expected), len(answer)) > LONGEST:
            return _unknown("too_long")
        return await self._ask({"expected": expected, "answer": answer})

    async def compute(self, expression: str, answer: str) -> Opinion:
        """Whether `answer` is what `expression`, from `arithmetic`, comes to."""
        if len(answer) > LONGEST:
            return _unknown("too_long")
        return await self._ask({"expression": expression, "answer": answer})

    async def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        with suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()

    async def _ask(self, job: dict[str, str]) -> Opinion:
        async with self._turn:
            answered = False
            try:
                worker = await self._running()
                async with asyncio.timeout(self._limit_s):
                    reply = await _exchange(worker, json.dumps(job))
                answered = bool(reply)
                # The kernel ends a worker that reaches a limit of its own without a word.
                return Opinion.model_validate_json(reply) if reply else _unknown("memory")
            except TimeoutError:
                return _unknown("timeout")
            except (BrokenPipeError, ConnectionResetError):
                return _unknown("memory")
            finally:
                if not answered:  # late, dead, or nobody waits any more: its next line would be this job's
                    await self.close()

    async def _running(self) -> Process:
        if self._worker is None or self._worker.returncode is not None:
            self._worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "llm_backend.answer_worker",
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
            )
            async with asyncio.timeout(START_LIMIT_S):
                assert self._worker.stdout is not None
                await self._worker.stdout.readline()
        return self._worker


async def _exchange(worker: Process, line: str) -> bytes:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(line.encode() + b"\n")
    await worker.stdin.drain()
    return await worker.stdout.readline()


def _unknown(reason: Reason) -> Opinion:
    return Opinion(sameness=Sameness.UNKNOWN, reason=reason)


class Judge(Protocol):
    """Who compares: an `AnswerJudge`, or one that remembers what it said."""

    async def compare(self, expected: str, answer: str) -> Opinion: ...

    async def compute(self, expression: str, answer: str) -> Opinion: ...


async def check_answer(
    judge: Judge, text: str, question: str, *, typed: str | None = None, starter: str | None = None
) -> AnswerCheck:
    """The answer in a model's raw `text` beside what was to be expected.

    What a person typed counts before the starter's answer, and that before what SymPy computes.
    """
    return await check_box(judge, boxed_answer(text), question, typed=typed, starter=starter)


async def check_box(
    judge: Judge, answer: str | None, question: str, *, typed: str | None = None, starter: str | None = None
) -> AnswerCheck:
    """As `check_answer`, where the answer has been found already."""
    expected = typed_answer(typed or starter or "")
    expression = None if expected else arithmetic(question)
    if expected:
        source: Source = "typed" if typed else "starter"
        opinion = None if answer is None else await judge.compare(expected, answer)
        return AnswerCheck(answer=answer, source=source, expected=expected, opinion=opinion)
    if expression is None or answer is None:
        return AnswerCheck(answer=answer)
    opinion = await judge.compute(expression, answer)
    return AnswerCheck(
        answer=answer, source="arithmetic", expected=opinion.value, expression=expression, opinion=opinion
    )


async def check_receipt_answer(
    judge: Judge, receipt: Receipt, *, typed: str | None = None, starter: str | None = None
) -> AnswerCheck:
    """The answer line of a recorded run."""
    question = receipt.request.question
    return await check_answer(judge, receipt.answer, question, typed=typed, starter=starter)


async def answers_after_fork(
    judge: Judge, comparison: Comparison, reference: Receipt, candidate: Receipt
) -> AnswerPair | None:
    """The answers of two runs whose words differ; None where they do not, for then nothing is left to say."""
    if comparison.reproduced or reference.completion.text == candidate.completion.text:
        return None
    return await compare_answers(judge, reference.answer, candidate.answer)


async def compare_answers(judge: Judge, reference: str, candidate: str) -> AnswerPair:
    """The answers in two raw texts, and whether they have the same value."""
    return await compare_boxes(judge, boxed_answer(reference), boxed_answer(candidate))


async def compare_boxes(judge: Judge, reference: str | None, candidate: str | None) -> AnswerPair:
    """As `compare_answers`, where the answers have been found already."""
    if reference is None or candidate is None:
        return AnswerPair(reference=reference, candidate=candidate)
    opinion = await judge.compare(reference, candidate)
    return AnswerPair(reference=reference, candidate=candidate, opinion=opinion)

"""A running server, asked as the app asks it: do answers depend on who else is asking?

    ./start.sh engine --detach
    python tests/gpu/server_cells.py --manifest .run/manifest.json --out strict.json

Every answer to one of four target questions, in whatever company, is compared with the first answer alone:
token by token and log-probability by log-probability, bit for bit. The OpenAI chat API is used, over real
connections; strangers ask other questions at the same time. With `--long`, prompts of many thousand tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx

TOKENS = 256
"""Length of every compared answer."""
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "seed": 42},
    "seeded": {"temperature": 0.8, "seed": 42},
    "seeded top-p": {"temperature": 0.8, "top_p": 0.95, "seed": 42},
}
TARGET_WORDS = (40, 200, 700, 1500)
STRANGER_WORDS = (8, 17, 33, 64, 100, 129, 256, 400, 513, 1000)
VOCABULARY = (
    "the a one river stone number sum of is more than less train leaves station at hour speed water light "
    "why does it how many apples are left when each child takes three and price rises by ten percent explain "
    "step proof integer square root circle area line point before after between red green heavy cold bread"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request returned."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    """Nats between the two best tokens at each position."""


@dataclass(slots=True)
class Cell:
    """All answers to the targets in one kind of company."""

    sampling: str
    company: str
    runs: int = 0
    same_tokens: int = 0
    same_bits: int = 0
    """Tokens and log-probabilities equal to the reference in every bit."""
    distinct: list[int] = field(default_factory=list)
    """Distinct token sequences seen of each target, the reference included."""
    forks: list[tuple[int, int, float]] = field(default_factory=list)
    """(target, position, margin of the reference there) of each different answer."""
    seconds: float = 0.0


class Questions:
    """Prompts from a seeded generator: known words, or `t<id>` words of a one-word-per-token tokenizer."""

    def __init__(self, token_words: int) -> None:
        self._token_words, self._words = token_words, VOCABULARY.split()
        self.random = Random(1234)
        fixed = Random(7)
        self.targets = [self.text(count, fixed) for count in TARGET_WORDS]

    def text(self, words: int, random: Random | None = None) -> str:
        random = random or self.random
        if self._token_words:
            return " ".join(f"t{random.randrange(10, self._token_words)}" for _ in range(words))
        return "Continue at length: " + " ".join(random.choice(self._words) for _ in range(words))

    def places(self, size: int) -> list[int | None]:
        """`size` places, half of them targets (by number), in random order."""
        places: list[int | None] = [index % len(self.targets) for index in range(max(1, size // 2))]
        places += [None] * (size - len(places))
        self.random.shuffle(places)
        return places


class Server:
    """The few calls the cells need."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self.http, self.model = http, model

    async def answer(self, question: str, tokens: int, logprobs: bool = True, **sampling: Any) -> Answer:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            **({"logprobs": True, "top_logprobs": 2} if logprobs else {}),
            **sampling,
        }
        reply = await self.post("/v1/chat/completions", body)
        choice = reply["choices"][0]
        entries = choice["logprobs"]["content"] if logprobs else []
        return Answer(
            prompt=tuple(reply["prompt_token_ids"]),
            tokens=tuple(choice["token_ids"]),
            logprobs=tuple(entry["logprob"] for entry in entries),
            margins=tuple(
                entry["top_logprobs"][0]["logprob"] - entry["top_logprobs"][1]["logprob"] for entry in entries
            ),
        )

    async def prefill_logprobs(self, answer: Answer) -> list[float]:
        """The answer's log-probabilities from one prefill of prompt and answer."""
        prompt = [*answer.prompt, *answer.tokens]
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 1,
        }
        reply = await self.post("/v1/completions", body)
        rows = reply["choices"][0]["prompt_logprobs"][len(answer.prompt) :]
        return [row[str(token)]["logprob"] for row, token in zip(rows, answer.tokens, strict=True)]

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.http.post(path, json=body)
        if response.is_error:
            raise SystemExit(f"{path}: {response.status_code} {response.text[:400]}")
        reply: dict[str, Any] = response.json()
        return reply


class Cells:
    """Fills the table, comparing each answer with the target's first answer alone."""

    def __init__(self, server: Server, questions: Questions) -> None:
        self.server, self.questions = server, questions
        self.references: dict[tuple[str, int], Answer] = {}
        self.table: list[Cell] = []

    async def run(self, sampling: str, company: str, repeats: int) -> None:
        """`company`: "alone", "prefill joins", or "<neighbours> burst" / "<neighbours> staggered"."""
        cell, started = Cell(sampling, company), time.monotonic()
        seen: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        for _ in range(repeats):
            for target, answer in await self._generate(sampling, company):
                reference = self.references.setdefault((sampling, target), answer)
                seen[target] |= {reference.tokens, answer.tokens}
                cell.runs += 1
                cell.same_tokens += answer.tokens == reference.tokens
                cell.same_bits += (answer.tokens, answer.logprobs) == (reference.tokens, reference.logprobs)
                if answer.tokens != reference.tokens:
                    pairs = enumerate(zip(answer.tokens, reference.tokens, strict=True))
                    position = next(index for index, (a, b) in pairs if a != b)
                    cell.forks.append((target, position, round(reference.margins[position], 4)))
        cell.distinct = [len(seen[target]) for target in sorted(seen)]
        cell.seconds = round(time.monotonic() - started, 1)
        self.table.append(cell)
        fork = f" first fork {min(p for _, p, _ in cell.forks)}" if cell.forks else ""
        print(
            f"CELL {sampling:12} {company:14} runs {cell.runs:4} tokens {cell.same_tokens:4} "
            f"bits {cell.same_bits:4} distinct {cell.distinct} {cell.seconds}s{fork}",
            flush=True,
        )

    async def _generate(self, sampling: str, company: str) -> list[tuple[int, Answer]]:
        if company == "alone":
            return [(number, await self._target(number, sampling)) for number in range(len(TARGET_WORDS))]
        if company == "prefill joins":
            targets = [number % len(TARGET_WORDS) for number in range(16)]
            joining = [
                self._later(0.05 * number, self._ask(self.questions.text(200 + 97 * number), 4, 0.8))
                for number in range(1, 21)
            ]
            strangers = asyncio.gather(*joining)
            answers = await asyncio.gather(*(self._target(number, sampling) for number in targets))
            await strangers
            return list(zip(targets, answers, strict=True))
        neighbours, shape = company.split()
        places = self.questions.places(int(neighbours) + 1)
        spread = 1.0 if shape == "staggered" else 0.0
        waits = [self.questions.random.random() * spread for _ in places]
        asked = [
            self._later(wait, self._stranger() if place is None else self._target(place, sampling))
            for wait, place in zip(waits, places, strict=True)
        ]
        answers = await asyncio.gather(*asked)
        return [(place, answer) for place, answer in zip(places, answers, strict=True) if place is not None]

    def _target(self, number: int, sampling: str) -> Awaitable[Answer]:
        return self.server.answer(self.questions.targets[number], TOKENS, **SAMPLING[sampling])

    def _stranger(self) -> Awaitable[Answer]:
        random = self.questions.random
        words, tokens = random.choice(STRANGER_WORDS), random.randint(16, TOKENS)
        return self._ask(self.questions.text(words), tokens, random.choice((0.0, 0.8)))

    def _ask(self, text: str, tokens: int, temperature: float) -> Awaitable[Answer]:
        return self.server.answer(text, tokens, logprobs=False, temperature=temperature)

    @staticmethod
    async def _later(seconds: float, answer: Awaitable[Answer]) -> Answer:
        await asyncio.sleep(seconds)
        return await answer


async def check(server: Server, question: str, tokens: int) -> dict[str, Any]:
    """A long greedy answer as it was decoded, against one prefill of prompt and answer."""
    started = time.monotonic()
    answer = await server.answer(question, tokens, **SAMPLING["greedy"])
    decode_seconds, started = time.monotonic() - started, time.monotonic()
    again = await server.prefill_logprobs(answer)
    return {
        "prompt_tokens": len(answer.prompt),
        "tokens": len(answer.tokens),
        "equal_bits": sum(a == b for a, b in zip(answer.logprobs, again, strict=True)),
        "distinct_tokens": len(set(answer.tokens)),
        "decode_seconds": round(decode_seconds, 2),
        "prefill_seconds": round(time.monotonic() - started, 3),
    }


async def long_context(server: Server, questions: Questions, words: int) -> dict[str, Any]:
    """One long prompt: identity alone and in company, prefill against decode, time to first and per token."""
    target = questions.text(words, Random(words))
    greedy = SAMPLING["greedy"]

    async def seconds(tokens: int) -> float:
        started = time.monotonic()
        await server.answer(questions.text(words), tokens, logprobs=False, **greedy)
        return time.monotonic() - started

    reference = await server.answer(target, 128, **greedy)
    same = {"alone": [0, 0], "in company": [0, 0]}
    for company, copies in (("alone", 1), ("alone", 1), ("in company", 4), ("in company", 4)):
        others = [] if company == "alone" else [words // 2, 4000, 1000, *[100] * 9]
        strangers = asyncio.gather(
            *(
                server.answer(questions.text(count), 96, logprobs=False, temperature=0.8, seed=number)
                for number, count in enumerate(others)
            )
        )
        for answer in await asyncio.gather(*(server.answer(target, 128, **greedy) for _ in range(copies))):
            same[company][0] += (answer.tokens, answer.logprobs) == (reference.tokens, reference.logprobs)
            same[company][1] += 1
        await strangers
    again = await server.prefill_logprobs(reference)
    first = [await seconds(1) for _ in range(3)]
    per_token = ((await seconds(136)) - (await seconds(8))) / 128
    return {
        "prompt_tokens": len(reference.prompt),
        "same_bits_of_runs": same,
        "prefill_equals_decode_bits": sum(a == b for a, b in zip(reference.logprobs, again, strict=True)),
        "of_tokens": len(reference.tokens),
        "first_token_ms": [round(1000 * value, 1) for value in first],
        "ms_per_token": round(1000 * per_token, 3),
    }


async def cost(server: Server, questions: Questions) -> dict[str, Any]:
    """Speed over HTTP: greedy, prompts of 128 words, 256 new tokens; each list holds repeated readings."""

    async def rate(requests: int) -> float:
        texts = [questions.text(128) for _ in range(requests)]
        started = time.monotonic()
        await asyncio.gather(*(server.answer(t, TOKENS, logprobs=False, temperature=0.0) for t in texts))
        return round(requests * TOKENS / (time.monotonic() - started), 1)

    async def first(words: int) -> float:
        started = time.monotonic()
        await server.answer(questions.text(words), 1, logprobs=False, temperature=0.0)
        return round(1000 * (time.monotonic() - started), 2)

    await rate(1)
    speeds = {str(requests): [await rate(requests) for _ in range(3)] for requests in (1, 32, 128)}
    return {
        "tokens_per_second": speeds,
        "median": {requests: statistics.median(values) for requests, values in speeds.items()},
        "first_token_ms_of_1024_words": [await first(1024) for _ in range(9)],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8100")
    parser.add_argument("--manifest", type=Path, help="the launch manifest, kept with the result")
    parser.add_argument(
        "--label", default="", help="how results name the model, for example 'random weights'"
    )
    parser.add_argument(
        "--token-words", type=int, default=0, help="ids below this are words t<id> of a test tokenizer"
    )
    parser.add_argument("--sampling", default="greedy,seeded,seeded top-p")
    parser.add_argument(
        "--plan",
        default="alone:2,1 staggered:4,7 staggered:4,31 burst:2,31 staggered:7,63 staggered:2,"
        "127 burst:1,127 staggered:2,prefill joins:2",
    )
    parser.add_argument("--check-tokens", type=int, default=0)
    parser.add_argument("--long", default="", help="prompt lengths in words, for example 3500,6000,12000")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


async def measure(options: argparse.Namespace, result: dict[str, Any]) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=options.url, timeout=300.0, limits=limits, trust_env=False) as http:
        model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        server, questions = Server(http, model), Questions(options.token_words)
        cells = Cells(server, questions)

        def save() -> None:
            result["cells"] = [asdict(cell) for cell in cells.table]
            result["references"] = {
                f"{sampling}/{target}": hashlib.sha256(repr((a.tokens, a.logprobs)).encode()).hexdigest()[:16]
                for (sampling, target), a in cells.references.items()
            }
            options.out.write_text(json.dumps(result, indent=1) + "\n")

        if options.cost:
            result["cost"] = await cost(server, questions)
            print("COST", result["cost"], flush=True)
            save()
        if options.plan:
            for sampling in options.sampling.split(","):
                for company, repeats in (part.split(":") for part in options.plan.split(",")):
                    await cells.run(sampling, company, int(repeats))
                    save()
        if options.check_tokens:
            result["check"] = await check(server, questions.targets[0], options.check_tokens)
            print("CHECK", result["check"], flush=True)
        for words in filter(None, options.long.split(",")):
            found = await long_context(server, questions, int(words))
            result.setdefault("long_context", []).append(found)
            print("LONG", found, flush=True)
            save()
        save()


def main() -> None:
    options = parse()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": options.label,
        "over": "HTTP, OpenAI chat API",
    }
    if options.manifest:
        facts = json.loads(options.manifest.read_text())["fingerprint"]
        result["engine"] = {name: value for name, value in facts.items() if name != "cpu_flags"}
    asyncio.run(measure(options, result))


if __name__ == "__main__":
    main()

"""A million runs: how long lists, searches, opening and comparing take, and what the storage costs.

    .venv/bin/python benchmarks/million_runs.py                       # SQLite
    .venv/bin/python benchmarks/million_runs.py --url postgresql://…  # an empty database

Bulk-inserts generated runs (`--runs`, `--answer` tokens each, one in ten a replay with a verdict), then
times each query through `Store` as the app does, `--times` times with changing values; prints JSON with
the median, the 95th percentile and the largest time in milliseconds. Every hundredth receipt is real and
can be opened; the others hold as many random bytes under a digest of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from llm_backend.compare import compare
from llm_backend.receipt import (
    Alternative,
    Completion,
    EngineFingerprint,
    Message,
    Receipt,
    Sampling,
    Status,
    TokenRecord,
)
from llm_backend.record import build_request
from llm_backend.store import Store
from llm_backend.store.models import ReceiptBodyRow, ReceiptRow, RunRow
from llm_backend.store.receipts import encode_receipt
from llm_backend.store.search import RUN_SEARCH, instant, terms_of

Rows = list[dict[str, Any]]

CHUNK = 20_000
REAL = 100
"""One receipt in this many can be opened."""

WORDS = [
    *("equation", "root", "integral", "prime", "factor", "triangle", "vector", "matrix", "limit", "series"),
    *("方程", "求解", "三角形", "概率", "导数"),
]
MODELS = ("microsoft/Phi-4-mini-reasoning", "HuggingFaceTB/SmolLM2-135M-Instruct")
VERDICTS = ("IDENTICAL", "IDENTICAL", "IDENTICAL", "DRIFTED", "DIVERGED")
ENGINE = EngineFingerprint(
    model=MODELS[0], vllm_version="0.26.0", device="cuda", device_names=("NVIDIA H200",)
)


def question(chance: random.Random) -> str:
    return f"{' '.join(chance.sample(WORDS, 4))} {chance.randrange(10**6)}"


def real_receipt(number: int, tokens: int) -> Receipt:
    """Token ids and logprobs as random as a model's, with 5 alternatives each, as the app records them."""
    chance = random.Random(number)
    asked = build_request(MODELS[0], [Message(role="user", content=question(chance))], Sampling(seed=number))
    records = []
    for _ in range(tokens):
        top = [Alternative(chance.randrange(200_000), -chance.random() * 9) for _ in range(5)]
        records.append(TokenRecord(top[0].id, top[0].logprob, b" word", tuple(top)))
    answer = Completion(tokens=tuple(records), text=" word" * tokens, status=Status.COMPLETE)
    return Receipt(request=asked, completion=answer, engine=ENGINE)


async def fill(store: Store, runs: int, tokens: int, opened: list[tuple[str, str]]) -> dict[str, float]:
    """Insert everything; fills `opened` with (run id, digest) of real receipts."""
    chance = random.Random(42)
    postgresql = store._engine.dialect.name == "postgresql"
    template = encode_receipt(real_receipt(0, tokens))
    size = len(template["body"])
    start = datetime.now(UTC) - timedelta(days=365)
    last = ""
    for first in range(0, runs, CHUNK):
        receipts, bodies, rows, searches = [], [], [], []
        for number in range(first, min(runs, first + CHUNK)):
            real = number % REAL == 0 and number < 200 * REAL
            row = (
                encode_receipt(real_receipt(number + 1, tokens))
                if real
                else template
                | {"digest": f"sha256:{chance.randbytes(32).hex()}", "body": chance.randbytes(size)}
            )
            bodies.append({"digest": row["digest"], "body": row.pop("body")})
            receipts.append(row)
            asked, at = question(chance), start + timedelta(seconds=number * 31)
            replay = number % 10 == 9
            run_id = uuid.UUID(int=chance.getrandbits(128)).hex
            rows.append(
                {
                    "id": run_id,
                    "digest": row["digest"],
                    "chat_id": f"chat-{number // 20}",
                    "kind": "replay" if replay else "ask",
                    "reference_run_id": last if replay else None,
                    "question": asked,
                    "started_at": at,
                    "touched_at": at,
                    "status": "complete",
                    "model": MODELS[number % 50 == 0],
                    "seed": "42",
                    "greedy": False,
                    "ttft_s": 0.1,
                    "duration_s": 4.0,
                    "engine_url": "http://127.0.0.1:8100",
                    "owner": "bench",
                    "verdict": chance.choice(VERDICTS) if replay else None,
                }
            )
            searches.append({"rowid": instant(at), "run_id": run_id, "terms": " ".join(terms_of(asked))})
            last = last if replay else run_id
            if real:
                opened.append((run_id, row["digest"]))
        async with store._write() as connection:
            if postgresql:
                await _copy(connection, receipts, bodies, rows, searches)
            else:
                await connection.execute(insert(ReceiptRow), receipts)
                await connection.execute(insert(ReceiptBodyRow), bodies)
                await connection.execute(insert(RunRow), rows)
                await connection.execute(insert(RUN_SEARCH), searches)
        print(f"{first + CHUNK:,} runs", file=sys.stderr, end="\r")
    async with store._engine.connect() as connection:
        options = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await options.execute(text("ANALYZE"))
    return {"packed_bytes_per_1000_tokens": size * 1000 / tokens}


async def _copy(connection: AsyncConnection, receipts: Rows, bodies: Rows, runs: Rows, terms: Rows) -> None:
    """PostgreSQL's COPY; the runs by way of a table without indexes, where their terms are packed."""
    raw = (await connection.get_raw_connection()).driver_connection
    assert raw is not None
    await raw.execute("CREATE UNLOGGED TABLE IF NOT EXISTS made (LIKE runs); TRUNCATE made")
    await raw.execute("ALTER TABLE made ALTER COLUMN terms TYPE text")
    searched = [run | {"terms": search["terms"]} for run, search in zip(runs, terms, strict=True)]
    for table, rows in (("receipts", receipts), ("receipt_bodies", bodies), ("made", searched)):
        records = [tuple(row.values()) for row in rows]
        await raw.copy_records_to_table(table, records=records, columns=list(rows[0]))
    columns = ", ".join(runs[0])
    await raw.execute(
        f"INSERT INTO runs ({columns}, terms) "
        f"SELECT {columns}, array_to_tsvector(string_to_array(terms, ' ')) FROM made"
    )


async def measure(work: Callable[[int], Awaitable[Any]], times: int) -> dict[str, float]:
    """Milliseconds: median, 95th percentile, largest."""
    took = []
    for number in range(times):
        began = time.perf_counter()
        await work(number)
        took.append((time.perf_counter() - began) * 1000)
    ranked = sorted(took)
    return {
        "median": round(statistics.median(ranked), 1),
        "p95": round(ranked[min(len(ranked) - 1, round(0.95 * len(ranked)))], 1),
        "max": round(ranked[-1], 1),
    }


async def run(url: str, runs: int, tokens: int, times: int) -> dict[str, Any]:
    store = await Store.open(url)
    opened: list[tuple[str, str]] = []
    began = time.monotonic()
    sizes = await fill(store, runs, tokens, opened)
    filled_s = time.monotonic() - began
    chance = random.Random(7)
    everything = await store.runs(limit=1000)
    deep = everything[-1].id

    async def compare_two(number: int) -> None:
        one, other = opened[number % len(opened)], opened[(number + 1) % len(opened)]
        receipts = await asyncio.gather(store.receipt(one[1]), store.receipt(other[1]))
        await asyncio.to_thread(compare, *receipts)

    def day() -> Any:
        return (datetime.now(UTC) - timedelta(days=chance.randrange(30, 300))).date()

    queries: dict[str, Callable[[int], Awaitable[Any]]] = {
        "list, newest 50": lambda _: store.runs(limit=50),
        "list, a page further down": lambda _: store.runs(limit=50, before=deep),
        "list of one chat": lambda n: store.runs(f"chat-{chance.randrange(runs // 20)}"),
        "filter by verdict": lambda n: store.runs(verdict=VERDICTS[2 + n % 3]),
        "filter by model": lambda n: store.runs(model=MODELS[n % 2]),
        "filter by day": lambda _: store.runs(day=day()),
        "filter by verdict and day": lambda n: store.runs(verdict="DIVERGED", day=day()),
        "search, a common word": lambda n: store.runs(search=WORDS[n % len(WORDS)]),
        "search, two words": lambda n: store.runs(search=" ".join(chance.sample(WORDS, 2))),
        "search, a rare number": lambda n: store.runs(search=str(chance.randrange(10**6))),
        "search, nothing found": lambda n: store.runs(search=f"nothing{n}zzz"),
        "find by digest prefix": lambda n: store.run_by_digest_prefix(opened[n % len(opened)][1][7:23]),
        "open a receipt": lambda n: store.receipt_of(opened[n % len(opened)][0]),
        "compare two receipts": compare_two,
    }
    milliseconds = {name: await measure(work, times) for name, work in queries.items()}
    async with store._engine.connect() as connection:
        if store._engine.dialect.name == "postgresql":
            size = await connection.scalar(text("SELECT pg_database_size(current_database())"))
            server = str(await connection.scalar(text("SHOW server_version")))
        else:
            pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            size = await connection.scalar(text(pages))
            server = f"SQLite {await connection.scalar(text('SELECT sqlite_version()'))}"
    await store.close()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cpu": platform.processor() or platform.machine(), "system": platform.platform()},
        "database": server,
        "runs": runs,
        "answer_tokens": tokens,
        "filled_s": round(filled_s),
        "bytes": size,
        "bytes_per_run": round((size or 0) / runs),
        **{name: round(value) for name, value in sizes.items()},
        "milliseconds": milliseconds,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--url")
    options.add_argument("--runs", type=int, default=1_000_000)
    options.add_argument("--answer", type=int, default=32, help="tokens per answer")
    options.add_argument("--times", type=int, default=100)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite+aiosqlite:///{Path(folder) / 'million.db'}"
        print(json.dumps(asyncio.run(run(url, given.runs, given.answer, given.times)), indent=2))


if __name__ == "__main__":
    main()

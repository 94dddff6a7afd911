"""Memory and time to import a file of 200 MB, against the budget of 200 MB of memory.

    python benchmarks/import_receipts.py [--megabytes N] [--tokens N]

The file holds different receipts of one length with five alternatives per token. Memory is the whole
process's largest resident size, interpreter and libraries included. Exits 1 when it misses the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from compare_receipts import generated, machine, receipt

from llm_backend.exchange import Imported, import_receipts
from llm_backend.store import Store

BUDGET_MB = 200.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "receipts.jsonl"
        lines = write(file, options.megabytes * 10**6, options.tokens)
        before = largest_mb()
        started = time.perf_counter()
        result = asyncio.run(load(file, Path(folder) / "encore.db"))
        took = time.perf_counter() - started
    print(machine())
    print(f"{options.megabytes} MB, {lines:,} receipts of {options.tokens:,} tokens")
    print(f"imported {result.imported:,}, refused {result.refused:,}, in {took:.0f} s")
    print(
        f"largest resident size {before:.0f} MB before, {largest_mb():.0f} MB after, budget {BUDGET_MB:.0f}"
    )
    return int(largest_mb() > BUDGET_MB or result.imported != lines)


def write(file: Path, size: int, tokens: int) -> int:
    """Write different receipts until the file has `size` bytes; returns how many."""
    count = written = 0
    base = generated(tokens)
    with file.open("w", encoding="utf-8") as out:
        while written < size:
            one = receipt((*base[1:], *generated(1, seed=count)))
            written += out.write(one.to_json() + "\n")
            count += 1
    return count


async def load(file: Path, database: Path) -> Imported:
    store = await Store.open(f"sqlite+aiosqlite:///{database}")
    try:
        return await import_receipts(store, [file])
    finally:
        await store.close()


def largest_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 10**6


if __name__ == "__main__":
    sys.exit(main())

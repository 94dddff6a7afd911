"""How long it takes to compare two receipts of 32,768 tokens, against the budget of 100 ms.

    python benchmarks/compare_receipts.py [--tokens N] [--runs N]

Each case compares two receipts with five alternatives per token and, where they fork, aligns the tail
for reading. Exits 1 when a median misses the budget.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from llm_backend.compare import compare
from llm_backend.diff import align_tail
from llm_backend.receipt import (
    Alternative,
    Completion,
    EngineFingerprint,
    GenerationRequest,
    Receipt,
    Sampling,
    Status,
    TokenRecord,
)

BUDGET_MS = 100.0
VOCABULARY = 200_064
ALTERNATIVES = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()

    table = Table(title=f"Comparing two receipts of {options.tokens:,} tokens\n{machine()}")
    for column in ("case", "verdict", "n", "median ms", "slowest ms", f"budget {BUDGET_MS:.0f} ms"):
        table.add_column(column, justify="left" if column in ("case", "verdict") else "right")
    missed = False
    for case, reference, candidate in cases(options.tokens):
        verdict, times = measure(reference, candidate, options.runs)
        median = statistics.median(times)
        missed |= median > BUDGET_MS
        held = "missed" if median > BUDGET_MS else "held"
        table.add_row(case, verdict, str(len(times)), f"{median:.1f}", f"{max(times):.1f}", held)
    Console().print(table)
    return int(missed)


def cases(count: int) -> list[tuple[str, Receipt, Receipt]]:
    """What costs most: nothing different (everything is looked at), all drifted, early and late forks."""
    recorded = generated(count)
    drifted = tuple(replace(token, logprob=token.logprob - 1e-4) for token in recorded if token.logprob)
    early, late = 31, count - 31
    other = generated(count, seed=2)
    return [
        ("identical", receipt(recorded), receipt(generated(count))),
        ("all drifted", receipt(recorded), receipt(drifted)),
        (f"fork at {early}", receipt(recorded), receipt((*recorded[:early], *other[early:]))),
        (f"fork at {late:,}", receipt(recorded), receipt((*recorded[:late], *other[late:]))),
        (
            "one token inserted at 31",
            receipt(recorded),
            receipt((*recorded[:31], other[0], *recorded[31:-1])),
        ),
    ]


def measure(reference: Receipt, candidate: Receipt, runs: int) -> tuple[str, list[float]]:
    """The verdict and each run's time in milliseconds."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        comparison = compare(reference, candidate)
        fork = comparison.first_divergence
        if fork:
            align_tail(reference.completion.token_ids, candidate.completion.token_ids, fork.position)
        times.append((time.perf_counter() - started) * 1000)
    return comparison.verdict.value, times


def generated(count: int, seed: int = 1) -> tuple[TokenRecord, ...]:
    """Made-up tokens, the same ones for the same seed but no shared objects."""
    chance = random.Random(seed)
    return tuple(made_up(chance) for _ in range(count))


def made_up(chance: random.Random) -> TokenRecord:
    chosen, logprob = chance.randrange(VOCABULARY), -chance.expovariate(2.0)
    top = tuple(Alternative(chosen + rank, logprob - rank / 3) for rank in range(ALTERNATIVES))
    return TokenRecord(chosen, logprob, b"word", top)


def receipt(tokens: tuple[TokenRecord, ...]) -> Receipt:
    sampling = Sampling(seed=42, max_tokens=len(tokens))
    return Receipt(
        request=GenerationRequest(
            body="{}", model="made-up", messages=(), sampling=sampling, effective=sampling.effective()
        ),
        completion=Completion(tokens=tokens, text="", status=Status.COMPLETE, finish_reason="stop"),
        engine=EngineFingerprint(model="made-up"),
    )


def machine() -> str:
    return f"{platform.machine()}, {cpu_name()}, Python {platform.python_version()}"


def cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, platform.processor())
    except OSError:
        return platform.processor() or "unknown CPU"


if __name__ == "__main__":
    sys.exit(main())

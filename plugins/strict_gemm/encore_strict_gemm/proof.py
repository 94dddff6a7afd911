"""What is checked, apart from how a product is computed: row counts, lone rows, windows, first difference.

Nothing here imports torch, so the logic that decides whether cuBLAS may be trusted runs in any test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

Rows = TypeVar("Rows", bound=Any)
"""A batch of result rows that can be sliced by row: a tensor, or a list in tests."""

DENSE = 512
"""Every row count up to here is checked: decoding and CUDA-graph sizes live in this range."""

EDGE = 256
"""Above `DENSE`, the counts around each multiple of this; GEMM tiles are 8 to 256 rows high."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A linear layer's weight: `outputs` x `inputs`, with its element type."""

    outputs: int
    inputs: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.outputs}x{self.inputs} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Fork:
    """One row that changed with the batch it was computed in."""

    row: int
    """Index into the largest batch."""
    first: int
    count: int
    """The row differed when computed with rows `first` to `first + count - 1` only."""

    def __str__(self) -> str:
        company = "alone" if self.count == 1 else f"among {self.count} rows"
        return f"row {self.row} computed {company} differs from itself in the largest batch"


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome for one shape."""

    limit: int
    """Rows in the largest batch."""
    batches: int
    """Products compared with the largest one."""
    fork: Fork | None

    @property
    def holds(self) -> bool:
        return self.fork is None


def row_counts(limit: int, dense: int = DENSE) -> Iterator[int]:
    """Row counts to check, ascending, up to and including `limit`."""
    yield from range(1, min(dense, limit) + 1)
    near_edges = {edge + step for edge in range(EDGE, limit + 1, EDGE) for step in (-1, 0, 1)}
    yield from sorted(count for count in near_edges | {limit} if dense < count <= limit)


def lone_rows(limit: int) -> Iterator[int]:
    """Rows to compute alone: both sides of every possible tile edge."""
    near_edges = {edge + step for edge in range(0, limit + 1, 64) for step in (-1, 0, 1)}
    yield from sorted(row for row in near_edges if 0 <= row < limit)


def windows(limit: int) -> Iterator[tuple[int, int]]:
    """(first row, row count) of batches that move rows to another place: prime offsets align with no tile."""
    for first in (1, 7, 61, 251, 509):
        for count in (2, 8, 31, 64, 127, 256, 1021):
            if first + count <= limit:
                yield first, count


def batches(limit: int) -> Iterator[tuple[int, int]]:
    """Every (first row, row count) the self-check compares with the largest batch."""
    yield from ((0, count) for count in row_counts(limit))
    yield from ((row, 1) for row in lone_rows(limit))
    yield from windows(limit)


def prove(
    run: Callable[[int, int], Rows],
    first_difference: Callable[[Rows, Rows], int | None],
    limit: int,
) -> Proof:
    """Check that no row's bits depend on the batch it is computed in; stops at the first that does.

    `run(first, count)` computes rows `first` to `first + count - 1` in one call. Every batch is compared with
    the largest one, so two batches that both equal it equal each other.
    """
    largest = run(0, limit)
    compared = 0
    for first, count in batches(limit):
        compared += 1
        row = first_difference(run(first, count), largest[first : first + count])
        if row is not None:
            return Proof(limit, compared, Fork(first + row, first, count))
    return Proof(limit, compared, None)

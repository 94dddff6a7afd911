"""Deleting runs: a person's, or old ones. With a run go its replays (they hold its question), what was
found out about them, and every receipt that no remaining run shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from llm_backend.store.connected import Connected
from llm_backend.store.models import (
    ComparisonRow,
    FindingRow,
    ReceiptBodyRow,
    ReceiptRow,
    RunRow,
    RunTokensRow,
    ShareRow,
)
from llm_backend.store.search import forget_run

BATCH = 500
"""Runs deleted per transaction, so that chats never wait long for the write lock."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs go: all that match what is given. Running ones never do."""

    chat_id: str | None = None
    before: datetime | None = None

    def condition(self) -> ColumnElement[bool]:
        chosen: ColumnElement[bool] = RunRow.status != "running"
        if self.chat_id is not None:
            chosen &= RunRow.chat_id == self.chat_id
        if self.before is not None:
            chosen &= RunRow.started_at < self.before
        return chosen


@dataclass(slots=True)
class Deleted:
    """What was deleted, or would be."""

    runs: int = 0
    receipts: int = 0
    kept_receipts: int = 0
    """Receipts that other runs came out with too: they stay theirs."""
    comparisons: int = 0
    findings: int = 0


class Retention(Connected):
    """The part of the store that deletes."""

    async def count(self, selection: Selection) -> int:
        """How many runs `delete` would choose; their replays come on top."""
        async with self._read() as connection:
            return int(await connection.scalar(select(func.count()).where(selection.condition())) or 0)

    async def delete(
        self, selection: Selection, on_progress: Callable[[Deleted], None] = lambda _: None
    ) -> Deleted:
        """Delete runs, their replays and what nobody else shares; in batches, so chats go on meanwhile.

        What was deleted when this is cancelled stays deleted, and is whole: no run is half there.
        """
        deleted = Deleted()
        left = True
        while left:
            async with self._write() as connection:
                left = await delete_batch(connection, selection, deleted)
            on_progress(deleted)
        return deleted


async def delete_batch(connection: AsyncConnection, selection: Selection, deleted: Deleted) -> bool:
    """Delete one batch in the caller's transaction; False when nothing is left to delete."""
    found = await connection.scalars(select(RunRow.id).where(selection.condition()).limit(BATCH))
    ids = list(found)
    if not ids:
        return False
    for start in range(0, len(all_ids := await _with_replays(connection, ids)), BATCH):
        await _delete(connection, all_ids[start : start + BATCH], deleted)
    return True


async def _with_replays(connection: AsyncConnection, ids: Sequence[str]) -> list[str]:
    """The runs and their replays, and the replays of those; each after what replays it."""
    levels = [list(ids)]
    seen = set(ids)
    while levels[-1]:
        below: list[str] = []
        for start in range(0, len(levels[-1]), BATCH):
            asked = levels[-1][start : start + BATCH]
            rows = await connection.scalars(
                select(RunRow.id).where(RunRow.reference_run_id.in_(asked), RunRow.status != "running")
            )
            below += [row for row in rows if row not in seen]
        seen.update(below)
        levels.append(below)
    return [run_id for level in reversed(levels) for run_id in level]


async def _delete(connection: AsyncConnection, ids: Sequence[str], deleted: Deleted) -> None:
    chosen = select(RunRow.id, RunRow.digest, RunRow.started_at).where(RunRow.id.in_(ids))
    rows = (await connection.execute(chosen)).all()
    either = or_(ComparisonRow.reference_run_id.in_(ids), ComparisonRow.candidate_run_id.in_(ids))
    deleted.comparisons += (await connection.execute(delete(ComparisonRow).where(either))).rowcount
    deleted.findings += (
        await connection.execute(delete(FindingRow).where(FindingRow.run_id.in_(ids)))
    ).rowcount
    await connection.execute(delete(RunTokensRow).where(RunTokensRow.run_id.in_(ids)))
    await connection.execute(delete(ShareRow).where(ShareRow.run_id.in_(ids)))
    # A replay that is being recorded right now loses its reference, not its record.
    await connection.execute(
        update(RunRow).where(RunRow.reference_run_id.in_(ids)).values(reference_run_id=None)
    )
    for row in rows:
        await forget_run(connection, row.id, row.started_at)
    deleted.runs += (await connection.execute(delete(RunRow).where(RunRow.id.in_(ids)))).rowcount
    digests = {row.digest for row in rows if row.digest}
    shared = set(await connection.scalars(select(RunRow.digest).where(RunRow.digest.in_(digests)).distinct()))
    unshared = digests - shared
    deleted.kept_receipts += len(shared)
    await connection.execute(delete(ReceiptBodyRow).where(ReceiptBodyRow.digest.in_(unshared)))
    receipts = delete(ReceiptRow).where(ReceiptRow.digest.in_(unshared))
    deleted.receipts += (await connection.execute(receipts)).rowcount

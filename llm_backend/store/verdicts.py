"""What was found out about stored runs: comparisons, what they prove together, repetitions and checks."""

from __future__ import annotations

import asyncio
from typing import Literal

from sqlalchemy import insert, or_, select, update

from llm_backend.compare import Comparison
from llm_backend.diagnose import Diagnosis
from llm_backend.errors import ReceiptNotFound
from llm_backend.proof import Seen
from llm_backend.receipt import EngineFingerprint
from llm_backend.run import Run
from llm_backend.scoring import Check
from llm_backend.store.comparisons import StoredComparison, comparison_values, to_comparison
from llm_backend.store.connected import Connected
from llm_backend.store.findings import StoredFinding, finding_values, to_finding
from llm_backend.store.models import ComparisonRow, FindingRow, ReceiptRow, RunRow
from llm_backend.store.proofs import select_seen, to_seen
from llm_backend.store.receipts import decode_engine
from llm_backend.tally import RepeatReport


class Verdicts(Connected):
    """The part of the store that keeps what was found out about runs."""

    # -- comparisons -------------------------------------------------------------------------------

    async def add_comparison(
        self, reference_run_id: str, candidate_run_id: str, comparison: Comparison, diagnosis: Diagnosis
    ) -> str:
        """Keep a comparison of two stored runs; returns its id."""
        values = comparison_values(reference_run_id, candidate_run_id, comparison, diagnosis)
        async with self._write() as connection:
            await connection.execute(insert(ComparisonRow).values(values))
            latest = update(RunRow).where(RunRow.id == candidate_run_id)
            await connection.execute(latest.values(verdict=values["verdict"]))
        return str(values["id"])

    async def comparisons(self, run_id: str) -> list[StoredComparison]:
        """Those in which the run is the reference or the candidate, newest first."""
        query = (
            select(ComparisonRow)
            .where(or_(ComparisonRow.reference_run_id == run_id, ComparisonRow.candidate_run_id == run_id))
            .order_by(ComparisonRow.created_at.desc(), ComparisonRow.id)
        )
        async with self._read() as connection:
            return [to_comparison(row) for row in await connection.execute(query)]

    async def comparison(self, comparison_id: str) -> StoredComparison:
        async with self._read() as connection:
            found = await connection.execute(select(ComparisonRow).where(ComparisonRow.id == comparison_id))
            row = found.one_or_none()
        if row is None:
            raise ReceiptNotFound(f"No comparison {comparison_id} is stored.")
        return to_comparison(row)

    # -- proof -------------------------------------------------------------------------------------

    async def seen(self, run: Run) -> list[Seen]:
        """All comparisons of the run's engine and class of settings, counted; for `proof.tally_proof`."""
        if run.fingerprint_digest is None or run.sampling_class is None:
            return []
        async with self._read() as connection:
            rows = await connection.execute(select_seen(run.fingerprint_digest, run.sampling_class))
            return [to_seen(row) for row in rows]

    async def engine(self, fingerprint_digest: str) -> EngineFingerprint:
        """The engine with this digest, from the shortest receipt that has it."""
        query = (
            select(ReceiptRow.digest)
            .where(ReceiptRow.fingerprint_digest == fingerprint_digest)
            .order_by(ReceiptRow.completion_tokens)
            .limit(1)
        )
        async with self._read() as connection:
            digest = await connection.scalar(query)
        if digest is None:
            raise ReceiptNotFound(f"No receipt of the engine {fingerprint_digest[:19]} is stored.")
        return await asyncio.to_thread(decode_engine, digest, await self._body(digest))

    # -- findings ----------------------------------------------------------------------------------

    async def add_finding(self, run_id: str, found: RepeatReport | Check) -> str:
        """Keep what a repetition or a check of a stored run came to; returns its id."""
        values = await asyncio.to_thread(finding_values, run_id, found)
        async with self._write() as connection:
            await connection.execute(insert(FindingRow).values(values))
        return str(values["id"])

    async def findings(
        self, run_id: str, *, kind: Literal["repeat", "check"] | None = None, limit: int = 20
    ) -> list[StoredFinding]:
        """Of one run, of one kind or of all, newest first."""
        query = (
            select(FindingRow)
            .where(FindingRow.run_id == run_id)
            .order_by(FindingRow.created_at.desc(), FindingRow.id)
            .limit(limit)
        )
        if kind is not None:
            query = query.where(FindingRow.kind == kind)
        async with self._read() as connection:
            rows = (await connection.execute(query)).all()
        return await asyncio.to_thread(lambda: [to_finding(row) for row in rows])

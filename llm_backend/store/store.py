"""The store: every run from its first token, every finished run's receipt, every comparison.

A receipt is kept under its digest and hashed again whenever it is read, so a row that was altered is
refused. Every method is one transaction. Work that grows with the answer (hashing, parsing: a second
for 32,768 tokens) happens in a thread, so the event loop goes on serving other chats. What the
database refuses is raised as `StoreError`: a run that could not be kept must never look kept.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, Unpack

from sqlalchemy import ColumnElement, and_, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from llm_backend.errors import ReceiptNotFound, StoreError
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Receipt, TokenRecord
from llm_backend.run import Run
from llm_backend.store.bodies import unpack
from llm_backend.store.chats import Chats
from llm_backend.store.listing import Filters, RunFilter, select_page
from llm_backend.store.models import ReceiptRow, RunRow, RunTokensRow
from llm_backend.store.owner import is_gone, this_process
from llm_backend.store.receipts import (
    decode_receipt,
    encode_receipt,
    exported_json,
    fetch_body,
    insert_receipt,
    token_dicts,
)
from llm_backend.store.retention import Retention
from llm_backend.store.runs import (
    dump_chunk,
    recovered_receipt,
    run_facts,
    run_values,
    select_digests,
    select_runs,
    to_run,
)
from llm_backend.store.search import index_run
from llm_backend.store.shares import Shares
from llm_backend.store.verdicts import Verdicts

SILENCE = timedelta(hours=1)
"""A run recorded by a process that cannot be seen from here counts as lost after this long without a
token; well above `Settings.stall_timeout`, after which a living process would have ended it."""

_PREFIX = re.compile(r"[0-9a-f]{4,64}")


class Store(Retention, Verdicts, Chats, Shares):
    """Open with `await Store.open(url)`; one per process, shared by everything in it."""

    # -- recording ---------------------------------------------------------------------------------

    async def begin(
        self,
        request: GenerationRequest,
        engine: EngineFingerprint,
        *,
        chat_id: str,
        kind: Literal["ask", "replay", "fork"],
        message_id: str | None = None,
        reference_run_id: str | None = None,
        neighbours: int | None = None,
        served_before: int | None = None,
        engine_url: str = "",
        engine_start: str | None = None,
    ) -> Run:
        """Record that a run has started."""
        values = run_values(
            request,
            chat_id=chat_id,
            kind=kind,
            message_id=message_id,
            status="running",
            reference_run_id=reference_run_id,
            neighbours=neighbours,
            served_before=served_before,
            engine_url=engine_url,
            engine_start=engine_start,
            request=request.model_dump_json(),
            engine=engine.model_dump_json(),
        )
        async with self._write() as connection:
            await _insert_run(connection, values)
            return await _run(connection, values["id"])

    async def append(self, run_id: str, start: int, tokens: Sequence[TokenRecord], text: str) -> None:
        """Keep tokens [start, start + len(tokens)) of a running run, and the text that came with them."""
        chunk = await asyncio.to_thread(dump_chunk, tokens, text)
        async with self._write() as connection:
            touched = await connection.execute(
                update(RunRow)
                .where(RunRow.id == run_id, RunRow.status == "running")
                .values(touched_at=datetime.now(UTC))
            )
            if touched.rowcount == 0:
                raise StoreError(f"Run {run_id} is not running; nothing can be added to it.")
            await connection.execute(insert(RunTokensRow).values(run_id=run_id, start=start, **chunk))

    async def finish(
        self,
        run_id: str,
        receipt: Receipt,
        *,
        ttft_s: float | None,
        duration_s: float | None,
        neighbours: int | None = None,
    ) -> Run:
        """Store the receipt of a run and mark it as ended; times in seconds.

        `neighbours`: the most other requests seen in flight, where more is known than at the start.
        """
        # `recover` elsewhere may have taken this process for lost; the one that was there knows better.
        mine = and_(RunRow.owner == this_process(), RunRow.status == "interrupted")
        run = await self._end(
            run_id,
            receipt,
            or_(RunRow.status == "running", mine),
            ttft_s=ttft_s,
            duration_s=duration_s,
            neighbours=neighbours,
        )
        if run is None:
            raise StoreError(f"Run {run_id} is not running; its receipt was not stored.")
        return run

    async def expect(self, run_id: str, answer: str | None) -> None:
        """Keep beside a run what a person says the answer is; None forgets it."""
        answer = answer and answer.replace("\0", "\N{SYMBOL FOR NULL}")
        async with self._write() as connection:
            await _run(connection, run_id)
            await connection.execute(update(RunRow).where(RunRow.id == run_id).values(expected_answer=answer))

    async def recover(self) -> list[Run]:
        """Turn runs whose process is gone into interrupted ones with a receipt of what had arrived.

        Runs of any process that is alive, this one included, are left alone.
        """
        async with self._read() as connection:
            running = await connection.execute(
                select(RunRow.id, RunRow.owner, RunRow.touched_at).where(RunRow.status == "running")
            )
            lost = [row.id for row in running if _is_lost(row.owner, row.touched_at)]
        recovered = [await self._recover_one(run_id) for run_id in lost]
        return [run for run in recovered if run]

    async def add_receipt(self, receipt: Receipt, *, chat_id: str = "") -> Run:
        """Import a receipt recorded elsewhere; the first run that has it already is returned as it is."""
        row = await asyncio.to_thread(encode_receipt, receipt)
        async with self._write() as connection:
            # First the row: whoever imports the same receipt at this moment waits here and finds the run.
            await insert_receipt(connection, row)
            known = await _first_run_with(connection, row["digest"])
            if known:
                return known
            values = run_values(
                receipt.request,
                chat_id=chat_id,
                kind="import",
                status=receipt.completion.status.value,
                digest=row["digest"],
            )
            await _insert_run(connection, values)
            return await _run(connection, values["id"])

    # -- reading -----------------------------------------------------------------------------------

    async def run(self, run_id: str) -> Run:
        async with self._read() as connection:
            return await _run(connection, run_id)

    async def runs(
        self,
        chat_id: str | None = None,
        *,
        limit: int = 50,
        before: str | None = None,
        replays: bool = True,
        **more: Unpack[Filters],
    ) -> list[Run]:
        """Newest first, of one chat or of all; `before` is the id of the last run of the page above.

        `more`: what else they have in common; see `listing.RunFilter`.
        """
        wanted = RunFilter(chat_id=chat_id, replays=replays, **more)
        dialect = self._engine.dialect.name
        async with self._read() as connection:
            last = None if before is None else await _run(connection, before)
            query = select_page(wanted, limit=limit, before=last, dialect=dialect)
            return [to_run(row) for row in await connection.execute(query)]

    async def run_by_digest_prefix(self, prefix: str) -> Run:
        """The first run with the only digest that starts with `prefix` ("sha256:" may be left out)."""
        hexadecimal = prefix.strip().lower().removeprefix("sha256:")
        if not _PREFIX.fullmatch(hexadecimal):
            raise ReceiptNotFound(
                f"{prefix!r} is neither a file nor a digest.",
                "A digest is 4 to 64 of the characters 0-9 and a-f, as encore list shows them.",
            )
        async with self._read() as connection:
            found = await connection.scalars(
                select(ReceiptRow.digest)
                # Not LIKE: neither database serves it from the index. "g" comes after every digit.
                .where(ReceiptRow.digest >= f"sha256:{hexadecimal}")
                .where(ReceiptRow.digest < f"sha256:{hexadecimal}g")
                .order_by(ReceiptRow.digest)
                .limit(2)
            )
            digests = found.all()
            if len(digests) > 1:
                raise ReceiptNotFound(
                    f"More than one receipt starts with {hexadecimal}.", "Give more of its digits."
                )
            run = await _first_run_with(connection, digests[0]) if digests else None
        if run is None:
            raise ReceiptNotFound(
                f"No receipt starts with {hexadecimal}.", "encore list shows those that are stored."
            )
        return run

    async def receipt(self, digest: str) -> Receipt:
        """The receipt under a full digest; `ReceiptInvalid` when the stored row was altered."""
        return await asyncio.to_thread(decode_receipt, digest, await self._body(digest))

    async def receipt_of(self, run_id: str) -> Receipt:
        """The receipt of a finished run."""
        run = await self.run(run_id)
        if run.digest is None:
            raise ReceiptNotFound(
                f"Run {run_id} is still going, so it has no receipt yet.", "Wait for it to end, or stop it."
            )
        return await self.receipt(run.digest)

    async def receipt_json(self, digest: str) -> str:
        """The export document of a receipt (`Receipt.to_json`), from the stored text as it is."""
        return await asyncio.to_thread(exported_json, digest, await self._body(digest))

    async def export_line(self, digest: str) -> str:
        """`receipt_json` with the receipt's runs beside it, oldest first."""
        query = select_runs().where(RunRow.digest == digest).order_by(RunRow.started_at, RunRow.id)
        async with self._read() as connection:
            packed = await fetch_body(connection, digest)
            runs = tuple(run_facts(to_run(row)) for row in await connection.execute(query))
        body = await asyncio.to_thread(unpack, digest, packed)
        return await asyncio.to_thread(exported_json, digest, body, runs)

    async def digests(self, *, chat_id: str | None = None, day: date | None = None) -> list[str]:
        """Of every receipt, of one chat's, or of runs begun on one day (UTC); by their oldest run."""
        async with self._read() as connection:
            return list(await connection.scalars(select_digests(chat_id, day)))

    async def has_receipt(self, digest: str) -> bool:
        """Whether the receipt under a full digest is stored."""
        async with self._read() as connection:
            return await _first_run_with(connection, digest) is not None

    async def tokens(self, digest: str, start: int, stop: int) -> list[dict[str, Any]]:
        """Tokens [start, stop) of a receipt as plain JSON values, without building the receipt."""
        return await asyncio.to_thread(token_dicts, digest, await self._body(digest), start, stop)

    # -- inside ------------------------------------------------------------------------------------

    async def _recover_one(self, run_id: str) -> Run | None:
        async with self._read() as connection:
            found = await connection.execute(select(RunRow.request, RunRow.engine).where(RunRow.id == run_id))
            run = found.one()
            chunks = await connection.execute(
                select(RunTokensRow.start, RunTokensRow.tokens, RunTokensRow.text)
                .where(RunTokensRow.run_id == run_id)
                .order_by(RunTokensRow.id)
            )
        if run.request is None:
            return None  # another process has just recovered it
        receipt = await asyncio.to_thread(recovered_receipt, run.request, run.engine, chunks.all())
        return await self._end(run_id, receipt, RunRow.status == "running")

    async def _end(
        self,
        run_id: str,
        receipt: Receipt,
        allowed: ColumnElement[bool],
        *,
        ttft_s: float | None = None,
        duration_s: float | None = None,
        neighbours: int | None = None,
    ) -> Run | None:
        """Replace the tokens of a running run by its receipt; None, and nothing done, unless `allowed`."""
        row = await asyncio.to_thread(encode_receipt, receipt)
        ended = {
            "digest": row["digest"],
            "status": receipt.completion.status.value,
            "ttft_s": ttft_s,
            "duration_s": duration_s,
            "request": None,
            "engine": None,
        }
        if neighbours is not None:
            ended["neighbours"] = neighbours
        async with self._write() as connection:
            # The lock on the row makes another process that ends the same run wait, and then find it ended.
            ending = select(RunRow.id).where(RunRow.id == run_id, allowed).with_for_update()
            if not await connection.scalar(ending):
                return None
            await insert_receipt(connection, row)
            await connection.execute(update(RunRow).where(RunRow.id == run_id).values(ended))
            await connection.execute(delete(RunTokensRow).where(RunTokensRow.run_id == run_id))
            return await _run(connection, run_id)


def _is_lost(owner: str, touched_at: datetime) -> bool:
    gone = is_gone(owner)
    return datetime.now(UTC) - touched_at > SILENCE if gone is None else gone


async def _insert_run(connection: AsyncConnection, values: dict[str, Any]) -> None:
    await connection.execute(insert(RunRow).values(values))
    await index_run(connection, values["id"], values["question"], values["started_at"])


async def _run(connection: AsyncConnection, run_id: str) -> Run:
    found = await connection.execute(select_runs().where(RunRow.id == run_id))
    row = found.one_or_none()
    if row is None:
        raise ReceiptNotFound(f"No run {run_id} is stored.", "encore list shows those that are.")
    return to_run(row)


async def _first_run_with(connection: AsyncConnection, digest: str) -> Run | None:
    found = await connection.execute(
        select_runs().where(RunRow.digest == digest).order_by(RunRow.started_at, RunRow.id).limit(1)
    )
    row = found.one_or_none()
    return to_run(row) if row else None

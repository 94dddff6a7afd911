"""Links to runs for people without a login. Kept as hashes: who reads the database cannot open them."""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, delete, func, insert, select

from llm_backend.store.connected import Connected
from llm_backend.store.models import RunRow, ShareRow

_TOKEN_BYTES = 24
_LONGEST_TOKEN = 64


class Shares(Connected):
    """The part of the store that knows share links."""

    async def share(self, run_id: str) -> str:
        """A new link's token, 192 random bits; it is not kept and cannot be told again."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        values = {"token_hash": _hashed(token), "run_id": run_id, "created_at": datetime.now(UTC)}
        async with self._write() as connection:
            await connection.execute(insert(ShareRow).values(values))
        return token

    async def shared_run(self, token: str) -> str | None:
        """The id of the run that a token opens; None for one that never was or was revoked.

        Looked up by its hash: how long that takes tells nothing about any token.
        """
        if len(token) > _LONGEST_TOKEN:
            return None
        async with self._read() as connection:
            return await connection.scalar(
                select(ShareRow.run_id).where(ShareRow.token_hash == _hashed(token))
            )

    async def share_count(self, run_id: str) -> int:
        """How many links open a run."""
        async with self._read() as connection:
            query = select(func.count()).where(ShareRow.run_id == run_id)
            return int(await connection.scalar(query) or 0)

    async def revoke_run(self, run_id: str) -> int:
        """Make every link to a run open nothing; how many there were."""
        return await self._revoke(ShareRow.run_id == run_id)

    async def revoke_receipt(self, digest: str) -> int:
        """The same for every run that came out with one receipt."""
        return await self._revoke(ShareRow.run_id.in_(select(RunRow.id).where(RunRow.digest == digest)))

    async def _revoke(self, chosen: ColumnElement[bool]) -> int:
        async with self._write() as connection:
            return (await connection.execute(delete(ShareRow).where(chosen))).rowcount


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()

"""Receipts as rows: content-addressed, and never believed without hashing them again."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from llm_backend.errors import ReceiptInvalid, ReceiptNotFound
from llm_backend.proof import sampling_class
from llm_backend.receipt import EngineFingerprint, Receipt
from llm_backend.store.bodies import pack
from llm_backend.store.models import ReceiptBodyRow, ReceiptRow


def encode_receipt(receipt: Receipt) -> dict[str, Any]:
    """The row of a receipt. Slow for long answers (seconds at 32k tokens): keep off the event loop."""
    body = rfc8785.dumps(receipt.model_dump(mode="json"))
    return {
        "digest": _digest(body),
        "format": receipt.format,
        "body": pack(body.decode()),
        "prompt_tokens": len(receipt.request.prompt_token_ids),
        "completion_tokens": len(receipt.completion.tokens),
        "finish_reason": receipt.completion.finish_reason,
        "fingerprint_digest": receipt.engine.digest,
        "sampling_class": sampling_class(receipt.request.sampling),
        "invalid_positions": receipt.completion.invalid_positions,
    }


def decode_receipt(digest: str, body: str) -> Receipt:
    """The receipt under `digest`; raises `ReceiptInvalid` when the row was altered. Slow like encoding."""
    check_body(digest, body)
    return Receipt.model_validate_json(body)


def decode_engine(digest: str, body: str) -> EngineFingerprint:
    """The engine of a receipt, without building its tokens."""
    check_body(digest, body)
    return EngineFingerprint.model_validate_json(json.dumps(json.loads(body)["engine"]))


def export_document(digest: str, body: str) -> str:
    """What `Receipt.to_json` writes, without building the receipt."""
    check_body(digest, body)
    return f'{{"digest":"{digest}","receipt":{body}}}'


def token_dicts(digest: str, body: str, start: int, stop: int) -> list[dict[str, Any]]:
    """Tokens [start, stop) as they stand in the receipt's JSON."""
    check_body(digest, body)
    tokens: list[dict[str, Any]] = json.loads(body)["completion"]["tokens"]
    return tokens[start:stop]


def check_body(digest: str, body: str) -> None:
    """Raise `ReceiptInvalid` unless the stored text hashes to its key."""
    actual = _digest(body.encode())
    if actual != digest:
        raise ReceiptInvalid(
            f"The stored receipt {digest[:19]} was altered: its content hashes to {actual[:19]}.",
            "Restore the database from a copy, or import the receipt's exported file.",
        )


async def insert_receipt(connection: AsyncConnection, row: dict[str, Any]) -> None:
    """Insert unless a receipt with this digest is there, whoever else is inserting it right now."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    columns = {name: value for name, value in row.items() if name != "body"}
    await connection.execute(insert(ReceiptRow).values(columns).on_conflict_do_nothing())
    body = {"digest": row["digest"], "body": row["body"]}
    await connection.execute(insert(ReceiptBodyRow).values(body).on_conflict_do_nothing())


async def fetch_body(connection: AsyncConnection, digest: str) -> bytes:
    """The packed body; see `bodies.unpack`."""
    body = await connection.scalar(select(ReceiptBodyRow.body).where(ReceiptBodyRow.digest == digest))
    if body is None:
        raise ReceiptNotFound(f"No receipt {digest[:19]} is stored.", "encore list shows those that are.")
    return body


def _digest(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()

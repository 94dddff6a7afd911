"""Runs as rows, and receipts put together from runs whose process died."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, Select, select

from llm_backend.receipt import (
    Completion,
    EngineFingerprint,
    GenerationRequest,
    Receipt,
    Status,
    TokenRecord,
)
from llm_backend.run import Run
from llm_backend.store.models import ReceiptRow, RunRow
from llm_backend.store.owner import this_process

QUESTION_LENGTH = 200

LOST_PROCESS = "Encore itself stopped while this answer was arriving"
"""The `detail` of a recovered run."""

AnyRow = Row[*tuple[Any, ...]]
AnySelect = Select[*tuple[Any, ...]]

_TOKENS = TypeAdapter(tuple[TokenRecord, ...])


def run_values(asked: GenerationRequest, /, **known: Any) -> dict[str, Any]:
    """The columns of a new run; `known` completes what the request asked for."""
    now = datetime.now(UTC)
    seed = asked.sampling.seed
    return {
        "id": uuid.uuid4().hex,
        "question": _question(asked),
        "started_at": now,
        "touched_at": now,
        "model": asked.model,
        "seed": None if seed is None else str(seed),
        "greedy": asked.sampling.greedy,
        "owner": this_process(),
        "engine_url": "",
        **known,
    }


def dump_chunk(tokens: Sequence[TokenRecord], text: str) -> dict[str, str]:
    """Columns of a chunk; the text is escaped too, since PostgreSQL keeps no NUL characters."""
    return {"tokens": _TOKENS.dump_json(tuple(tokens)).decode(), "text": json.dumps(text)}


def select_runs() -> AnySelect:
    """Every column of `Run`, for `to_run`."""
    return select(
        RunRow.id,
        RunRow.chat_id,
        RunRow.kind,
        RunRow.question,
        RunRow.started_at,
        RunRow.status,
        RunRow.model,
        RunRow.seed,
        RunRow.greedy,
        RunRow.digest,
        RunRow.reference_run_id,
        RunRow.ttft_s,
        RunRow.duration_s,
        RunRow.neighbours,
        RunRow.served_before,
        RunRow.expected_answer,
        RunRow.engine_url,
        RunRow.engine_start,
        ReceiptRow.prompt_tokens,
        ReceiptRow.completion_tokens,
        ReceiptRow.finish_reason,
        ReceiptRow.fingerprint_digest,
        ReceiptRow.sampling_class,
        ReceiptRow.invalid_positions,
        RunRow.verdict,
    ).outerjoin(ReceiptRow, ReceiptRow.digest == RunRow.digest)


def to_run(row: AnyRow) -> Run:
    values = dict(row._mapping)
    seed = values.pop("seed")
    return Run(seed=None if seed is None else int(seed), **values)


def recovered_receipt(request: str, engine: str, chunks: Sequence[AnyRow]) -> Receipt:
    """An interrupted receipt of what had been appended; `chunks` in the order of appending.

    Stops at a hole: tokens after a lost chunk would stand at false positions.
    """
    tokens: list[TokenRecord] = []
    text = ""
    for chunk in chunks:
        if chunk.start != len(tokens):
            break
        tokens += _TOKENS.validate_json(chunk.tokens)
        text += json.loads(chunk.text)
    return Receipt(
        request=GenerationRequest.model_validate_json(request),
        completion=Completion(
            tokens=tuple(tokens), text=text, status=Status.INTERRUPTED, detail=LOST_PROCESS
        ),
        engine=EngineFingerprint.model_validate_json(engine),
    )


def _question(request: GenerationRequest) -> str:
    asked = (message.content for message in reversed(request.messages) if message.role == "user")
    return next(asked, "")[:QUESTION_LENGTH].replace("\0", "\N{SYMBOL FOR NULL}")

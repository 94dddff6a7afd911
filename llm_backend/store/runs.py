"""Runs as rows, and receipts put together from runs whose process died."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, Select, func, select

from llm_backend.exported import RunFacts
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
        "question": asked.question[:QUESTION_LENGTH].replace("\0", "\N{SYMBOL FOR NULL}"),
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
        RunRow.message_id,
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


def run_facts(run: Run) -> RunFacts:
    """What an export tells of a run: nothing that names a chat, an address or a person."""
    return RunFacts(
        kind=run.kind,
        started_at=run.started_at,
        ttft_s=run.ttft_s,
        duration_s=run.duration_s,
        neighbours=run.neighbours,
    )


def select_digests(chat_id: str | None, day: date | None) -> AnySelect:
    """Digests of one chat, of the runs begun on one day (UTC), or of both, or all; oldest run first."""
    query = (
        select(RunRow.digest)
        .where(RunRow.digest.is_not(None))
        .group_by(RunRow.digest)
        .order_by(func.min(RunRow.started_at), RunRow.digest)
    )
    if chat_id is not None:
        query = query.where(RunRow.chat_id == chat_id)
    if day is not None:
        begin = datetime.combine(day, time.min, UTC)
        query = query.where(RunRow.started_at >= begin, RunRow.started_at < begin + timedelta(days=1))
    return query


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

"""What the stored comparisons say about one engine with one class of settings, as a few counts.

Receipts can have megabytes, and a row's columns lie behind its body: only the index `ix_receipts_proof`
is read of them, once.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, Select, and_, case, func, or_, select
from sqlalchemy.orm import aliased

from llm_backend.compare import Verdict
from llm_backend.proof import Seen
from llm_backend.store.models import ComparisonRow, ReceiptRow, RunRow


def select_seen(fingerprint_digest: str, sampling_class: str) -> Select[*tuple[Any, ...]]:
    """One row per load and verdict, for `to_seen`; both runs of a comparison match and are complete."""
    matching = (
        select(ReceiptRow.digest, ReceiptRow.prompt_tokens, ReceiptRow.completion_tokens)
        .where(
            ReceiptRow.fingerprint_digest == fingerprint_digest, ReceiptRow.sampling_class == sampling_class
        )
        .cte("matching")
        .prefix_with("MATERIALIZED")
    )
    reference, candidate = aliased(RunRow), aliased(RunRow)
    before, after = aliased(matching), aliased(matching)
    # The larger of the two loads that are known.
    busier = case(
        (
            or_(reference.neighbours.is_(None), candidate.neighbours > reference.neighbours),
            candidate.neighbours,
        ),
        else_=reference.neighbours,
    )
    return (
        select(
            busier.label("neighbours"),
            ComparisonRow.verdict,
            func.count().label("comparisons"),
            func.max(before.c.prompt_tokens).label("prompt_tokens"),
            func.max(after.c.completion_tokens).label("answer_tokens"),
        )
        .select_from(before)
        .join(reference, and_(reference.digest == before.c.digest, reference.status == "complete"))
        .join(ComparisonRow, ComparisonRow.reference_run_id == reference.id)
        .join(candidate, and_(candidate.id == ComparisonRow.candidate_run_id, candidate.status == "complete"))
        .join(after, after.c.digest == candidate.digest)
        .where(ComparisonRow.verdict != Verdict.INCOMPARABLE.value)
        .group_by(busier, ComparisonRow.verdict)
    )


def to_seen(row: Row[*tuple[Any, ...]]) -> Seen:
    return Seen.model_validate(dict(row._mapping))

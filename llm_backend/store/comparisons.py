"""Comparisons as rows: the verdict in a column, everything measured as JSON."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row

from llm_backend.compare import Comparison
from llm_backend.diagnose import Diagnosis
from llm_backend.receipt import Frozen


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """A comparison of two stored runs."""

    id: str
    reference_run_id: str
    candidate_run_id: str
    created_at: datetime
    comparison: Comparison
    diagnosis: Diagnosis

    @property
    def verdict(self) -> str:
        return self.comparison.verdict.value


class _Body(Frozen):
    comparison: Comparison
    diagnosis: Diagnosis


def comparison_values(
    reference_run_id: str, candidate_run_id: str, comparison: Comparison, diagnosis: Diagnosis
) -> dict[str, Any]:
    return {
        "id": uuid.uuid4().hex,
        "reference_run_id": reference_run_id,
        "candidate_run_id": candidate_run_id,
        "verdict": comparison.verdict.value,
        "created_at": datetime.now(UTC),
        "body": _Body(comparison=comparison, diagnosis=diagnosis).model_dump_json(),
    }


def to_comparison(row: Row[*tuple[Any, ...]]) -> StoredComparison:
    body = _Body.model_validate_json(row.body)
    return StoredComparison(
        id=row.id,
        reference_run_id=row.reference_run_id,
        candidate_run_id=row.candidate_run_id,
        created_at=row.created_at,
        comparison=body.comparison,
        diagnosis=body.diagnosis,
    )

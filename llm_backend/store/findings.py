"""Findings as rows: what a repetition or a check of a stored run came to.

The body is the model's JSON, but for the fork trees of a repetition: seventy answers that leave the
recorded one at seventy places nest deeper than JSON parsers allow, so a tree is kept as a list of forks.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row

from llm_backend.receipt import Frozen, TokenRecord
from llm_backend.scoring import Check
from llm_backend.tally import Branch, ForkPoint, RepeatReport


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """What was found out about a run, without changing it."""

    id: str
    run_id: str
    created_at: datetime
    found: RepeatReport | Check


class _Branch(Frozen):
    token: TokenRecord | None
    runs: int
    recorded: bool
    fork: int | None
    """Index of the fork these runs come to; later in the list than their own."""


class _Fork(Frozen):
    position: int
    branches: tuple[_Branch, ...]


class _Repetition(Frozen):
    report: RepeatReport
    """Its steps without their fork trees."""
    forks: tuple[tuple[_Fork, ...], ...]
    """One list per step, the root first."""


def finding_values(run_id: str, found: RepeatReport | Check) -> dict[str, Any]:
    """The columns of a new row. Slow for long answers: keep off the event loop."""
    kept = _without_trees(found) if isinstance(found, RepeatReport) else found
    return {
        "id": uuid.uuid4().hex,
        "run_id": run_id,
        "kind": "check" if isinstance(kept, Check) else "repeat",
        "created_at": datetime.now(UTC),
        "body": kept.model_dump_json(),
    }


def to_finding(row: Row[*tuple[Any, ...]]) -> StoredFinding:
    """Slow for long answers like its opposite."""
    found: RepeatReport | Check
    if row.kind == "repeat":
        found = _with_trees(_Repetition.model_validate_json(row.body))
    else:
        found = Check.model_validate_json(row.body)
    return StoredFinding(id=row.id, run_id=row.run_id, created_at=row.created_at, found=found)


def _without_trees(report: RepeatReport) -> _Repetition:
    steps = tuple(step.model_copy(update={"fork": None}) for step in report.steps)
    return _Repetition(
        report=report.model_copy(update={"steps": steps}),
        forks=tuple(tuple(_flat(step.fork)) for step in report.steps),
    )


def _with_trees(kept: _Repetition) -> RepeatReport:
    steps = tuple(
        step.model_copy(update={"fork": _tree(forks)})
        for step, forks in zip(kept.report.steps, kept.forks, strict=True)
    )
    return kept.report.model_copy(update={"steps": steps})


def _flat(root: ForkPoint | None) -> list[_Fork]:
    found = [root] if root else []
    flat = []
    for fork in found:  # grows while it is walked: what a branch comes to stands further down
        branches = []
        for branch in fork.branches:
            branches.append(
                _Branch(
                    token=branch.token,
                    runs=branch.runs,
                    recorded=branch.recorded,
                    fork=len(found) if branch.fork else None,
                )
            )
            if branch.fork:
                found.append(branch.fork)
        flat.append(_Fork(position=fork.position, branches=tuple(branches)))
    return flat


def _tree(flat: Sequence[_Fork]) -> ForkPoint | None:
    built: dict[int, ForkPoint] = {}
    for index in reversed(range(len(flat))):
        branches = tuple(
            Branch(
                token=branch.token,
                runs=branch.runs,
                recorded=branch.recorded,
                fork=None if branch.fork is None else built[branch.fork],
            )
            for branch in flat[index].branches
        )
        built[index] = ForkPoint(position=flat[index].position, branches=branches)
    return built.get(0)

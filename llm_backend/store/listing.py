"""Which runs a list shows, and its pages. Every list is read along an index, newest first, page by page:
a page costs the same among a thousand runs and among a million."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypedDict

from sqlalchemy import Select, and_, or_, select, text

from llm_backend.run import Run
from llm_backend.store.models import ChatRow, RunRow
from llm_backend.store.runs import select_runs
from llm_backend.store.search import (
    RUN_SEARCH,
    SAME_INSTANT,
    instant,
    match_expression,
    matches_postgresql,
)


class Filters(TypedDict, total=False):
    """The fields of `RunFilter` that callers may name."""

    verdict: str | None
    model: str | None
    day: date | None
    search: str
    user: str | None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What all listed runs have in common; None and "" leave it open."""

    chat_id: str | None = None
    replays: bool = True
    verdict: str | None = None
    """Of the latest comparison in which the run was the candidate, such as "DIVERGED"."""
    model: str | None = None
    day: date | None = None
    """UTC."""
    search: str = ""
    """Words of the question's first `QUESTION_LENGTH` characters."""
    user: str | None = None
    """In whose chats."""


def select_page(
    wanted: RunFilter, *, limit: int, before: Run | None, dialect: str
) -> Select[*tuple[Any, ...]]:
    """Rows for `to_run`, newest first, from below the run `before`."""
    query = select_runs().limit(limit)
    if wanted.chat_id is not None:
        query = query.where(RunRow.chat_id == wanted.chat_id)
    if not wanted.replays:
        query = query.where(RunRow.kind != "replay")
    if wanted.verdict is not None:
        query = query.where(RunRow.verdict == wanted.verdict)
    if wanted.model is not None:
        query = query.where(RunRow.model == wanted.model)
    if wanted.day is not None:
        midnight = datetime.combine(wanted.day, time(), UTC)
        query = query.where(RunRow.started_at >= midnight, RunRow.started_at < midnight + timedelta(days=1))
    if wanted.user is not None:
        query = query.where(RunRow.chat_id.in_(select(ChatRow.id).where(ChatRow.user == wanted.user)))
    if before is not None:
        query = query.where(
            # Said twice: databases seek with the first and settle equal instants with the second.
            RunRow.started_at <= before.started_at,
            or_(
                RunRow.started_at < before.started_at,
                and_(RunRow.started_at == before.started_at, RunRow.id < before.id),
            ),
        )
    if wanted.search and dialect == "sqlite":
        # Along the search index, not along the runs: its row ids are their starts.
        query = query.join(RUN_SEARCH, RUN_SEARCH.c.run_id == RunRow.id).where(
            text("run_search MATCH :words").bindparams(words=match_expression(wanted.search, "sqlite"))
        )
        if before is not None:
            query = query.where(RUN_SEARCH.c.rowid <= instant(before.started_at) + SAME_INSTANT)
        return query.order_by(RUN_SEARCH.c.rowid.desc())
    if wanted.search:
        query = query.where(matches_postgresql(wanted.search))
    return query.order_by(RunRow.started_at.desc(), RunRow.id.desc())

"""Search in questions: words, and pairs of neighbouring characters where a language writes no spaces.

Both databases index the same terms, so both find the same runs: SQLite in the FTS5 table `run_search`,
whose row ids are the runs' start in microseconds (a page of the newest matches is then read in order,
however many there are), PostgreSQL in the column `runs.terms` under a GIN index.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    select,
    table,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY
from sqlalchemy.ext.asyncio import AsyncConnection

from llm_backend.errors import EncoreError
from llm_backend.store.models import RunRow

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECES = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")

RUN_SEARCH = table("run_search", column("rowid"), column("run_id"), column("terms"))

SAME_INSTANT = 1000
"""Row ids kept for runs that began within one microsecond; more begin in no test."""


def terms_of(question: str) -> list[str]:
    """The indexed terms, without repetitions: "求解 x²" → 求, 解, 求解, x2."""
    return list(dict.fromkeys(_terms(question, single=True)))


def _terms(text: str, *, single: bool) -> Iterable[str]:
    for piece in _PIECES.findall(unicodedata.normalize("NFKC", text).lower()):
        if not re.match(f"[{_CJK}]", piece):
            yield piece
            continue
        if single or len(piece) == 1:
            yield from piece
        yield from (piece[index : index + 2] for index in range(len(piece) - 1))


def match_expression(words: str, dialect: str) -> str:
    """The query in the database's own language: every term, the last word as a beginning.

    Terms hold only letters and digits, so quoting them is safe. Raises `EncoreError` without any.
    """
    terms = list(dict.fromkeys(_terms(words, single=False)))
    if not terms:
        raise EncoreError(
            f"{words!r} has no word to search for.", "Search for letters, digits or characters."
        )
    last = terms[-1]
    prefix = len(last) > 1 and last.isascii()
    if dialect == "sqlite":
        return " AND ".join(f'"{term}"' for term in terms) + (" *" if prefix else "")
    return " & ".join(f"'{term}'" for term in terms) + (":*" if prefix else "")


def matches_postgresql(words: str) -> ColumnElement[bool]:
    """The condition on `runs` that every term occurs."""
    query = cast(literal(match_expression(words, "postgresql")), TSQUERY)
    return RunRow.terms.op("@@")(query)


async def index_run(connection: AsyncConnection, run_id: str, question: str, started_at: datetime) -> None:
    """Make a new run findable; in the transaction that inserts it."""
    terms = terms_of(question)
    if connection.dialect.name == "postgresql":
        packed = func.array_to_tsvector(cast(bindparam("terms", terms), ARRAY(Text)))
        await connection.execute(update(RunRow).where(RunRow.id == run_id).values(terms=packed))
        return
    first = instant(started_at)
    taken = select(func.max(RUN_SEARCH.c.rowid)).where(
        RUN_SEARCH.c.rowid >= first, RUN_SEARCH.c.rowid < first + SAME_INSTANT
    )
    last = await connection.scalar(taken)
    values: dict[str, Any] = {
        "rowid": first if last is None else last + 1,
        "run_id": run_id,
        "terms": " ".join(terms),
    }
    await connection.execute(insert(RUN_SEARCH).values(values))


async def forget_run(connection: AsyncConnection, run_id: str, started_at: datetime) -> None:
    """Take a run out of SQLite's index; PostgreSQL's goes with the row."""
    if connection.dialect.name == "sqlite":
        first = instant(started_at)
        await connection.execute(
            delete(RUN_SEARCH).where(
                RUN_SEARCH.c.rowid >= first,
                RUN_SEARCH.c.rowid < first + SAME_INSTANT,
                RUN_SEARCH.c.run_id == run_id,
            )
        )


def instant(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

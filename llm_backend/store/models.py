"""The tables. Any change here needs a migration; a test compares the two."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Text,
    TypeDecorator,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC in Python whatever the database keeps (SQLite drops the zone)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


class Base(DeclarativeBase):
    # Named constraints: migrations can alter them on every database.
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, str: Text}  # noqa: RUF012 (SQLAlchemy's own attribute)


class ReceiptRow(Base):
    """A receipt under its digest; never updated, never stored twice."""

    __tablename__ = "receipts"
    __table_args__ = (
        Index(
            "ix_receipts_proof",
            "fingerprint_digest",
            "sampling_class",
            "digest",
            "prompt_tokens",
            "completion_tokens",
        ),
    )

    digest: Mapped[str] = mapped_column(primary_key=True)
    format: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    finish_reason: Mapped[str | None]
    fingerprint_digest: Mapped[str]
    sampling_class: Mapped[str]
    """`proof.sampling_class` of what was asked."""
    invalid_positions: Mapped[int]
    """`Completion.invalid_positions`."""


class ReceiptBodyRow(Base):
    """What a receipt says; apart from `receipts`, so that lists never read past it."""

    __tablename__ = "receipt_bodies"

    digest: Mapped[str] = mapped_column(ForeignKey("receipts.digest"), primary_key=True)
    body: Mapped[bytes]
    """The canonical JSON that hashes to `digest`, compressed; see `bodies.py`."""


class RunRow(Base):
    __tablename__ = "runs"
    __table_args__ = (
        Index(None, "chat_id", "started_at"),
        Index(None, "status"),
        # One for each way to list runs, newest first.
        Index(None, "started_at", "id"),
        Index(None, "verdict", "started_at", "id"),
        Index(None, "model", "started_at", "id"),
        Index("ix_runs_terms", "terms", postgresql_using="gin").ddl_if("postgresql"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str | None] = mapped_column(ForeignKey("receipts.digest"), index=True)
    chat_id: Mapped[str]
    kind: Mapped[str]
    reference_run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), index=True)
    question: Mapped[str]
    started_at: Mapped[datetime]
    status: Mapped[str]
    model: Mapped[str]
    seed: Mapped[str | None]
    """As text: JSON and some databases lose digits of 64-bit integers."""
    greedy: Mapped[bool]
    ttft_s: Mapped[float | None]
    duration_s: Mapped[float | None]
    neighbours: Mapped[int | None]
    served_before: Mapped[int | None]
    expected_answer: Mapped[str | None]
    """As a person typed it, after the run; no part of the receipt."""
    message_id: Mapped[str | None]
    """Of the chat's message that asked; what has none is no part of the conversation."""
    engine_url: Mapped[str]
    engine_start: Mapped[str | None]
    owner: Mapped[str]
    """The process recording this run; see `owner.py`."""
    touched_at: Mapped[datetime]
    """Last sign of life: when the run began or tokens were last appended."""
    request: Mapped[str | None]
    """JSON, while running: what is needed to build a receipt if the process dies."""
    engine: Mapped[str | None]
    verdict: Mapped[str | None]
    """Of the latest comparison in which this run was the candidate."""
    terms: Mapped[Any] = mapped_column(Text().with_variant(TSVECTOR(), "postgresql"), nullable=True)
    """PostgreSQL's search index of the question; SQLite's is the table `run_search`. See `search.py`."""


class ChatRow(Base):
    """Whose a chat is; only chats of people who logged in have a row."""

    __tablename__ = "chats"

    id: Mapped[str] = mapped_column(primary_key=True)
    user: Mapped[str] = mapped_column(index=True)
    """Name in the users file."""
    name: Mapped[str | None]
    """As its user renamed it; else its first question is its name."""


class ShareRow(Base):
    """A link to a run for people without a login."""

    __tablename__ = "shares"

    token_hash: Mapped[str] = mapped_column(primary_key=True)
    """SHA-256 of the link's token, in hex."""
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    created_at: Mapped[datetime]


class RunTokensRow(Base):
    """Tokens of a running run as they arrive; gone once the receipt is stored."""

    __tablename__ = "run_tokens"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    start: Mapped[int]
    tokens: Mapped[str]
    """JSON."""
    text: Mapped[str]
    """A JSON string."""


class ComparisonRow(Base):
    __tablename__ = "comparisons"

    id: Mapped[str] = mapped_column(primary_key=True)
    reference_run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    candidate_run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    verdict: Mapped[str]
    created_at: Mapped[datetime]
    body: Mapped[str]
    """JSON of the comparison and its diagnosis."""


class FindingRow(Base):
    """What a repetition or a check of a run came to."""

    __tablename__ = "findings"

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    kind: Mapped[str]
    created_at: Mapped[datetime]
    body: Mapped[str]
    """JSON; see `findings.py`."""

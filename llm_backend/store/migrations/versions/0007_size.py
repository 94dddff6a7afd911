"""For a million runs: bodies compressed and apart, the verdict beside the run, an index for every list,
and search. Reads every body once: about a minute per gigabyte."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

from llm_backend.store.bodies import pack, unpack
from llm_backend.store.models import UtcDateTime
from llm_backend.store.search import SAME_INSTANT, instant, terms_of

revision = "0007"
down_revision = "0006"

LISTS = {
    "ix_runs_started_at_id": ["started_at", "id"],
    "ix_runs_verdict_started_at_id": ["verdict", "started_at", "id"],
    "ix_runs_model_started_at_id": ["model", "started_at", "id"],
    "ix_runs_reference_run_id": ["reference_run_id"],
}


def upgrade() -> None:
    connection = op.get_bind()
    postgresql = connection.dialect.name == "postgresql"
    bodies = op.create_table(
        "receipt_bodies",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_receipt_bodies"),
        sa.ForeignKeyConstraint(["digest"], ["receipts.digest"], name="fk_receipt_bodies_digest"),
    )
    for digest in connection.scalars(
        sa.text("SELECT digest FROM receipts")
    ).all():  # a body can have megabytes
        body = connection.scalar(sa.text("SELECT body FROM receipts WHERE digest = :d"), {"d": digest})
        connection.execute(bodies.insert(), {"digest": digest, "body": pack(body)})
    op.drop_column("receipts", "body")
    op.add_column("runs", sa.Column("verdict", sa.Text, nullable=True))
    op.add_column("runs", sa.Column("terms", TSVECTOR if postgresql else sa.Text, nullable=True))
    connection.execute(
        sa.text(
            "UPDATE runs SET verdict = (SELECT verdict FROM comparisons WHERE candidate_run_id = runs.id "
            "ORDER BY created_at DESC LIMIT 1)"
        )
    )
    for name, columns in LISTS.items():
        op.create_index(name, "runs", columns)
    if postgresql:
        # The numbers of chunks never start again; two thousand million are used up one day.
        op.execute("ALTER TABLE run_tokens ALTER COLUMN id TYPE bigint")
        op.execute("ALTER SEQUENCE run_tokens_id_seq AS bigint")
        op.execute("ALTER TABLE receipt_bodies ALTER COLUMN body SET STORAGE EXTERNAL")  # packed already
    else:
        op.execute(
            "CREATE VIRTUAL TABLE run_search USING fts5(run_id UNINDEXED, terms, detail=none, columnsize=0)"
        )
    _index_questions(connection, postgresql)
    if postgresql:
        op.create_index("ix_runs_terms", "runs", ["terms"], postgresql_using="gin")


def _index_questions(connection: sa.Connection, postgresql: bool) -> None:
    taken: dict[int, int] = {}
    listed: sa.Select[*tuple[Any, ...]] = sa.select(
        sa.column("id"), sa.column("question"), sa.column("started_at", UtcDateTime())
    ).select_from(sa.table("runs"))
    for run in connection.execute(listed).all():
        values: dict[str, Any] = {"run_id": run.id, "terms": terms_of(run.question)}
        if postgresql:
            statement = "UPDATE runs SET terms = array_to_tsvector(CAST(:terms AS text[])) WHERE id = :run_id"
        else:
            first = instant(run.started_at)
            taken[first] = taken.get(first, -1) + 1
            assert taken[first] < SAME_INSTANT
            values |= {"terms": " ".join(values["terms"]), "row": first + taken[first]}
            statement = "INSERT INTO run_search (rowid, run_id, terms) VALUES (:row, :run_id, :terms)"
        connection.execute(sa.text(statement), values)


def downgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.drop_index("ix_runs_terms", "runs")
        op.execute("ALTER TABLE run_tokens ALTER COLUMN id TYPE integer")
    else:
        op.execute("DROP TABLE run_search")
    for name in LISTS:
        op.drop_index(name, "runs")
    op.drop_column("runs", "terms")
    op.drop_column("runs", "verdict")
    op.add_column("receipts", sa.Column("body", sa.Text, nullable=False, server_default=""))
    for digest in connection.scalars(sa.text("SELECT digest FROM receipt_bodies")).all():
        packed = connection.scalar(
            sa.text("SELECT body FROM receipt_bodies WHERE digest = :d"), {"d": digest}
        )
        connection.execute(
            sa.text("UPDATE receipts SET body = :body WHERE digest = :d"),
            {"d": digest, "body": unpack(digest, packed)},
        )
    op.drop_table("receipt_bodies")

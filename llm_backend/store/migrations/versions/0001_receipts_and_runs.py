"""Receipts, runs, tokens of running runs, comparisons."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "receipts",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("finish_reason", sa.Text),
        sa.Column("fingerprint_digest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_receipts"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text),
        sa.Column("chat_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("reference_run_id", sa.Text),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("seed", sa.Text),
        sa.Column("greedy", sa.Boolean, nullable=False),
        sa.Column("ttft_s", sa.Double),
        sa.Column("duration_s", sa.Double),
        sa.Column("neighbours", sa.Integer),
        sa.Column("engine_url", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("request", sa.Text),
        sa.Column("engine", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(["digest"], ["receipts.digest"], name="fk_runs_digest"),
        sa.ForeignKeyConstraint(["reference_run_id"], ["runs.id"], name="fk_runs_reference_run_id"),
    )
    op.create_index("ix_runs_chat_id_started_at", "runs", ["chat_id", "started_at"])
    op.create_index("ix_runs_digest", "runs", ["digest"])
    op.create_index("ix_runs_status", "runs", ["status"])
    op.create_table(
        "run_tokens",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("start", sa.Integer, nullable=False),
        sa.Column("tokens", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run_tokens"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_tokens_run_id"),
    )
    op.create_index("ix_run_tokens_run_id", "run_tokens", ["run_id"])
    op.create_table(
        "comparisons",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("reference_run_id", sa.Text, nullable=False),
        sa.Column("candidate_run_id", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_comparisons"),
        sa.ForeignKeyConstraint(["reference_run_id"], ["runs.id"], name="fk_comparisons_reference_run_id"),
        sa.ForeignKeyConstraint(["candidate_run_id"], ["runs.id"], name="fk_comparisons_candidate_run_id"),
    )
    op.create_index("ix_comparisons_reference_run_id", "comparisons", ["reference_run_id"])
    op.create_index("ix_comparisons_candidate_run_id", "comparisons", ["candidate_run_id"])


def downgrade() -> None:
    for table in ("comparisons", "run_tokens", "runs", "receipts"):
        op.drop_table(table)

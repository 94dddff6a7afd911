"""Links to runs for people without a login, as hashes."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "shares",
        sa.Column("token_hash", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name="pk_shares"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_shares_run_id"),
    )
    op.create_index("ix_shares_run_id", "shares", ["run_id"])


def downgrade() -> None:
    op.drop_table("shares")

"""How much an engine had served before a run: the first after a start may differ from a warm one."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("runs", sa.Column("served_before", sa.Integer, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "served_before")

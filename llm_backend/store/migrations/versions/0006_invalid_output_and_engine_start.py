"""How many of a receipt's positions had no valid distribution, so that lists can warn of it, and which
start of the engine a run was served by, so that a replay can say that it was restarted since.

Receipts that are older say nothing about the first, and count none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("receipts", sa.Column("invalid_positions", sa.Integer, nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("engine_start", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "engine_start")
    op.drop_column("receipts", "invalid_positions")

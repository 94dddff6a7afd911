"""How many of a receipt's positions had no valid distribution, so that lists can warn of it.

Receipts that are older say nothing about it, and count none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("receipts", sa.Column("invalid_positions", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("receipts", "invalid_positions")

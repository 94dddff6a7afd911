"""What a person says the answer to a run's question is: beside the receipt, never inside it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("runs", sa.Column("expected_answer", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "expected_answer")

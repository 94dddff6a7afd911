"""Chats that can be taken up again: which runs are the conversation, and what a user calls a chat."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("chats", sa.Column("name", sa.Text, nullable=True))
    op.add_column("runs", sa.Column("message_id", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "message_id")
    op.drop_column("chats", "name")

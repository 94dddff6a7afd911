"""The class of settings beside each receipt, and an index that answers what has been proven without
reading a receipt's body."""

import json

import sqlalchemy as sa
from alembic import op

from llm_backend.proof import sampling_class
from llm_backend.receipt import Sampling

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("receipts", sa.Column("sampling_class", sa.Text, nullable=False, server_default=""))
    connection = op.get_bind()
    digests = connection.scalars(sa.text("SELECT digest FROM receipts")).all()
    for digest in digests:  # one at a time: a body can have megabytes
        asked = {"digest": digest}
        body = connection.scalar(sa.text("SELECT body FROM receipts WHERE digest = :digest"), asked)
        sampling = Sampling.model_validate(json.loads(body)["request"]["sampling"])
        connection.execute(
            sa.text("UPDATE receipts SET sampling_class = :class WHERE digest = :digest"),
            asked | {"class": sampling_class(sampling)},
        )
    op.create_index(
        "ix_receipts_proof",
        "receipts",
        ["fingerprint_digest", "sampling_class", "digest", "prompt_tokens", "completion_tokens"],
    )


def downgrade() -> None:
    op.drop_index("ix_receipts_proof", "receipts")
    op.drop_column("receipts", "sampling_class")

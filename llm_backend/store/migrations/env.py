"""Alembic's entry: migrate on the connection that `store.database` (or a test) hands over."""

from alembic import context

from llm_backend.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot alter tables in place; Alembic copies them.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()

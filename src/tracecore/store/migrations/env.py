"""Run migrations in the connection that `store.schema` hands over."""

from __future__ import annotations

from alembic import context

from tracecore.store.schema import VERSION_TABLE
from tracecore.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()

"""Run by Alembic for every schema: applies its migrations to a connection."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

# Any number, the same in every process that migrates.
LOCK = 7_364_651_021

connection, schema = (context.config.attributes[name] for name in ("connection", "schema"))
if connection.dialect.name == "postgresql":
    # Held until the transaction ends, so that two processes do not migrate one server at once.
    connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
context.configure(connection=connection, target_metadata=schema.metadata, version_table=schema.version_table)
with context.begin_transaction():
    context.run_migrations()

"""Apply the migrations of a schema to a connection. Alembic runs this file."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

# An arbitrary number, equal in every process that migrates.
LOCK = 7_364_651_021

connection, schema = (context.config.attributes[name] for name in ("connection", "schema"))
if connection.dialect.name == "postgresql":
    # The lock lasts until the transaction ends. Only one process at a time migrates a server.
    connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
context.configure(connection=connection, target_metadata=schema.metadata, version_table=schema.version_table)
with context.begin_transaction():
    context.run_migrations()

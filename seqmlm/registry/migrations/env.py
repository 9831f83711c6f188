"""Run by Alembic: applies the migrations in `versions/` to the connection it is handed."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from seqmlm.registry.tables import VERSION_TABLE, Base

# Any number, the same in every process that migrates.
LOCK = 7_364_651_021

connection = context.config.attributes["connection"]
if connection.dialect.name == "postgresql":
    # Held until the transaction ends, so that two processes do not migrate one server at once.
    connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
# The tables' metadata names constraints by its rule.
context.configure(connection=connection, target_metadata=Base.metadata, version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()

"""Schemas, i.e. groups of tables with their own migrations and version, and rules for all tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, MetaData, TypeDecorator

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of constraints. A migration can change only a constraint with a name."""


class Utc(TypeDecorator[datetime]):
    """A time in UTC, even from SQLite, which does not store the time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


COLUMN_TYPES: Mapping[Any, Any] = {dict[str, Any]: JSON, list[str]: JSON, datetime: Utc}
"""The column type of each Python type."""


def utc_now() -> datetime:
    """The current time in UTC, for new rows."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Tables that are created and migrated together.

    Attributes:
        version_table: the table that stores the revision of a database.
        revisions: all revisions, oldest first. They are listed here so that Alembic need not be started.
        migrations: the folder of the migrations.
        metadata: the declared tables.
    """

    version_table: str
    revisions: tuple[str, ...]
    migrations: Path
    metadata: MetaData

    @property
    def head(self) -> str:
        """The revision that this version of seqmlm needs."""
        return self.revisions[-1]

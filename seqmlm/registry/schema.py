"""Schemas: tables with migrations and a version of their own, and the rules that all our tables keep."""

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
"""Names of constraints: a migration can only change a constraint that has a name."""


class Utc(TypeDecorator[datetime]):
    """A time in UTC, also from SQLite, which forgets the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


COLUMN_TYPES: Mapping[Any, Any] = {dict[str, Any]: JSON, list[str]: JSON, datetime: Utc}
"""The column of each type of Python."""


def utc_now() -> datetime:
    """The time that a new row was made."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Tables that are made and changed together."""

    version_table: str  # holds the revision that a database is at
    revisions: tuple[str, ...]  # oldest first; to know them thus costs no start of Alembic
    migrations: Path  # their folder
    metadata: MetaData  # declares the tables

    @property
    def head(self) -> str:
        """The revision that this version of seqmlm needs."""
        return self.revisions[-1]

"""The tables of streams. Names begin with `seqmlm_`, so that MLflow can share the database."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from seqmlm.registry.schema import COLUMN_TYPES, NAMING, Schema, utc_now


class Base(DeclarativeBase):
    """Base class of the tables of streams."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = COLUMN_TYPES


class Stream(Base):
    """A stream of `seqmlm watch`, with its request and the end of its output."""

    __tablename__ = "seqmlm_streams"

    id: Mapped[int] = mapped_column(primary_key=True)
    output: Mapped[str] = mapped_column(String(4096), unique=True)
    """The absolute path of the file of its rows."""
    request: Mapped[dict[str, Any]]
    counts: Mapped[dict[str, Any]]
    mark: Mapped[dict[str, Any]]
    """The position in the output after the row `written`. A later process cuts the output there."""
    written: Mapped[int] = mapped_column(Integer)
    alive: Mapped[datetime] = mapped_column(default=utc_now)
    """The time of its last commit. A running stream commits at least every minute."""
    pruned: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The numbers of deleted `rows` and `incidents`, and the number of the last deleted row, `through`."""
    created: Mapped[datetime] = mapped_column(default=utc_now)


class StreamFile(Base):
    """The read position in one generation of a followed file; see `watch.generations.FileState`."""

    __tablename__ = "seqmlm_stream_files"

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("seqmlm_streams.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    done: Mapped[bool] = mapped_column(Boolean)
    state: Mapped[dict[str, Any]]


class StreamRow(Base):
    """A row of results, as written to the output."""

    __tablename__ = "seqmlm_stream_rows"
    __table_args__ = (
        Index(
            "ix_seqmlm_stream_rows_stream_id_incident",
            "stream_id",
            "incident",
            sqlite_where=text("incident IS NOT NULL"),
            postgresql_where=text("incident IS NOT NULL"),
        ),
    )

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("seqmlm_streams.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Number of the row, from 1, in the order of the output."""
    alarm: Mapped[bool] = mapped_column(Boolean)
    line: Mapped[str] = mapped_column(Text)
    incident: Mapped[int | None] = mapped_column(Integer)
    """Number of the row that opened the incident to which this row belongs, or by which it is silenced."""
    created: Mapped[datetime] = mapped_column(default=utc_now, index=True)


class Incident(Base):
    """A group of related alarms of a stream; see `watch.store.Incident`."""

    __tablename__ = "seqmlm_incidents"
    __table_args__ = (UniqueConstraint("stream_id", "row"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_streams.id", ondelete="CASCADE"))
    row: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(20), index=True)
    muted: Mapped[bool] = mapped_column(Boolean)
    verdict: Mapped[str | None] = mapped_column(String(20))
    """The verdict of a person, "fault" or "normal". It is kept when the incident is over."""
    note: Mapped[str] = mapped_column(Text)
    facts: Mapped[dict[str, Any]]
    """Facts from its rows, by the field names of `watch.store.Incident`."""
    opened: Mapped[datetime]
    updated: Mapped[datetime] = mapped_column(index=True)
    resolved: Mapped[datetime | None]


class Notice(Base):
    """A notice about an incident for a webhook. It is kept after it was delivered or given up."""

    __tablename__ = "seqmlm_notices"
    __table_args__ = (Index("ix_seqmlm_notices_stream_id", "stream_id", "sink", "done", "incident"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_streams.id", ondelete="CASCADE"))
    sink: Mapped[str] = mapped_column(String(400))
    """The name of the webhook, which contains no secret."""
    key: Mapped[str] = mapped_column(String(64), unique=True)
    """The idempotency key of this notice, equal for all attempts to send it."""
    incident: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(20))
    body: Mapped[Any] = mapped_column(JSON)
    attempts: Mapped[int] = mapped_column(Integer)
    due: Mapped[datetime]
    created: Mapped[datetime]
    done: Mapped[datetime | None]
    """The time of delivery, or when it was given up; None while it waits."""
    error: Mapped[str | None] = mapped_column(Text)
    """The error of the last attempt. If `done` is set, too, the notice was given up."""


STREAMS = Schema(
    version_table="seqmlm_watch_alembic_version",
    revisions=("0001_streams",),
    migrations=Path(__file__).parent / "migrations",
    metadata=Base.metadata,
)

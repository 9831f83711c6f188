"""The tables. Names begin with `seqmlm_`, so that MLflow may share the database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

VERSION_TABLE = "seqmlm_alembic_version"
REVISIONS = ("0001_one_store",)
"""Of the schema, oldest first: the migrations there are. To know them thus costs no start of Alembic."""


def _now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Base of our tables; constraints are named by rule: a migration can only change what has a name."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        dict[str, Any]: JSON,
        list[str]: JSON,
        datetime: DateTime(timezone=True),
    }


class Dataset(Base):
    """Data as it was read: the same files, tokenizer and options give the same fingerprint."""

    __tablename__ = "seqmlm_datasets"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(128), unique=True)
    domain: Mapped[str] = mapped_column(String(100))
    sources: Mapped[list[str]]
    counts: Mapped[dict[str, Any]]
    created: Mapped[datetime] = mapped_column(default=_now)


class Tokenizer(Base):
    """A tokenizer by the hash of what it does."""

    __tablename__ = "seqmlm_tokenizers"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(String(128), unique=True)
    name: Mapped[str] = mapped_column(String(100))
    options: Mapped[dict[str, Any]]
    vocabulary_size: Mapped[int] = mapped_column(Integer)
    created: Mapped[datetime] = mapped_column(default=_now)


class Model(Base):
    """One version of a named model: where its folder is and what it came from."""

    __tablename__ = "seqmlm_models"
    __table_args__ = (UniqueConstraint("name", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    version: Mapped[int] = mapped_column(Integer)
    path: Mapped[str] = mapped_column(String(4096))
    """Relative to the workspace where it lies inside, so that a workspace can be moved."""
    domain: Mapped[str] = mapped_column(String(100))
    masking: Mapped[dict[str, Any]]
    init: Mapped[str | None] = mapped_column(String(4096))
    """What training started from, as the user named it; None: from scratch."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("seqmlm_models.id"), index=True)
    """The row of `init`, where that is one of ours."""
    dataset_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_datasets.id"), index=True)
    tokenizer_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_tokenizers.id"), index=True)
    mlflow_run_id: Mapped[str | None] = mapped_column(String(64), index=True)
    created: Mapped[datetime] = mapped_column(default=_now)

    parent: Mapped[Model | None] = relationship(remote_side=[id])
    dataset: Mapped[Dataset] = relationship()
    tokenizer: Mapped[Tokenizer] = relationship()
    aliases: Mapped[list[Alias]] = relationship(order_by="Alias.alias", passive_deletes=True)


class Alias(Base):
    """A name for one version of a model, such as champion; it can be moved to another."""

    __tablename__ = "seqmlm_aliases"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    alias: Mapped[str] = mapped_column(String(100), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_models.id", ondelete="CASCADE"), index=True)


class Calibration(Base):
    """What a model version's p-values at one level and in one mode come from."""

    __tablename__ = "seqmlm_calibrations"
    __table_args__ = (UniqueConstraint("model_id", "level", "mode"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_models.id", ondelete="CASCADE"))
    level: Mapped[str] = mapped_column(String(100))
    mode: Mapped[str] = mapped_column(String(100))
    rows: Mapped[int] = mapped_column(Integer)
    """Normal rows; of sensitive data none is kept for fewer than eleven."""
    source: Mapped[str] = mapped_column(String(128))
    """Fingerprint of the normal data."""
    created: Mapped[datetime] = mapped_column(default=_now)


class Stream(Base):
    """A scoring that follows files: what it was asked, and how far its output is."""

    __tablename__ = "seqmlm_streams"

    id: Mapped[int] = mapped_column(primary_key=True)
    output: Mapped[str] = mapped_column(String(4096), unique=True)
    """The file its rows go to, from the root on."""
    request: Mapped[dict[str, Any]]
    counts: Mapped[dict[str, Any]]
    mark: Mapped[dict[str, Any]]
    """Where the output ends with the row `written`: it is cut back to that, and filled again."""
    written: Mapped[int] = mapped_column(Integer)
    alive: Mapped[datetime] = mapped_column(default=_now)
    """Its last commit, which comes at least every minute."""
    pruned: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """What was deleted of it: `rows`, `through` the row of this number, and `incidents`."""
    rolling: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Which of its own rows its rolling calibration rests on; see `watch.rolling`."""
    created: Mapped[datetime] = mapped_column(default=_now)


class StreamFile(Base):
    """How far one generation of a followed file is; see `watch.generations.FileState`."""

    __tablename__ = "seqmlm_stream_files"

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("seqmlm_streams.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    done: Mapped[bool] = mapped_column(Boolean)
    state: Mapped[dict[str, Any]]


class StreamRow(Base):
    """A row of results, as it stands in the output."""

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
    """From 1, in the order of the output."""
    alarm: Mapped[bool] = mapped_column(Boolean)
    line: Mapped[str] = mapped_column(Text)
    incident: Mapped[int | None] = mapped_column(Integer)
    """The row that opened the incident it belongs to, or is silenced by."""
    created: Mapped[datetime] = mapped_column(default=_now, index=True)


class StreamStatistics(Base):
    """Statistics of one of a stream's newest rows, as its calibration takes them."""

    __tablename__ = "seqmlm_stream_statistics"

    stream_id: Mapped[int] = mapped_column(
        ForeignKey("seqmlm_streams.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """From 1, of the rows that have a score."""
    row: Mapped[int | None] = mapped_column(Integer)
    """Of an alarm, the number of its row of results."""
    figures: Mapped[bytes] = mapped_column(LargeBinary)
    """64-bit floating-point numbers, little-endian."""
    created: Mapped[datetime] = mapped_column(default=_now)


class Incident(Base):
    """Alarms of a stream that belong together; see `watch.store.Incident`."""

    __tablename__ = "seqmlm_incidents"
    __table_args__ = (UniqueConstraint("stream_id", "row"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_streams.id", ondelete="CASCADE"))
    row: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(20), index=True)
    muted: Mapped[bool] = mapped_column(Boolean)
    verdict: Mapped[str | None] = mapped_column(String(20))
    """What a person took it for, "fault" or "normal"; it stays so when the incident is over."""
    note: Mapped[str] = mapped_column(Text)
    facts: Mapped[dict[str, Any]]
    """What its rows come to, by the names of `watch.store.Incident`."""
    opened: Mapped[datetime]
    updated: Mapped[datetime] = mapped_column(index=True)
    resolved: Mapped[datetime | None]


class Notice(Base):
    """What a webhook is to be told of an incident; kept when it was, or when that was given up."""

    __tablename__ = "seqmlm_notices"
    __table_args__ = (Index("ix_seqmlm_notices_stream_id", "stream_id", "sink", "done", "incident"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_streams.id", ondelete="CASCADE"))
    sink: Mapped[str] = mapped_column(String(400))
    """Name of the webhook, which holds no secret."""
    key: Mapped[str] = mapped_column(String(64), unique=True)
    """Of this notice, the same however often it is sent."""
    incident: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(20))
    body: Mapped[Any] = mapped_column(JSON)
    attempts: Mapped[int] = mapped_column(Integer)
    due: Mapped[datetime]
    created: Mapped[datetime]
    done: Mapped[datetime | None]
    """None: it waits."""
    error: Mapped[str | None] = mapped_column(Text)
    """Of the last attempt; with `done`: it was given up."""

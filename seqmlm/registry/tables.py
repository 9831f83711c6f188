"""The tables of the registry. Names begin with `seqmlm_`, so that MLflow can share the database."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ForeignKey, Integer, MetaData, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from seqmlm.registry.schema import COLUMN_TYPES, NAMING, Schema, utc_now


class Base(DeclarativeBase):
    """Base class of the tables of the registry."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = COLUMN_TYPES


class Dataset(Base):
    """A data set as it was read. The same files, tokenizer and options have the same fingerprint."""

    __tablename__ = "seqmlm_datasets"

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(128), unique=True)
    domain: Mapped[str] = mapped_column(String(100))
    sources: Mapped[list[str]]
    counts: Mapped[dict[str, Any]]
    created: Mapped[datetime] = mapped_column(default=utc_now)


class Tokenizer(Base):
    """A tokenizer, identified by a hash of everything that determines its ids."""

    __tablename__ = "seqmlm_tokenizers"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(String(128), unique=True)
    name: Mapped[str] = mapped_column(String(100))
    options: Mapped[dict[str, Any]]
    vocabulary_size: Mapped[int] = mapped_column(Integer)
    created: Mapped[datetime] = mapped_column(default=utc_now)


class Model(Base):
    """One version of a named model, with its folder and origin."""

    __tablename__ = "seqmlm_models"
    __table_args__ = (UniqueConstraint("name", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    version: Mapped[int] = mapped_column(Integer)
    path: Mapped[str] = mapped_column(String(4096))
    """Relative to the workspace if the folder is inside it, so that a workspace can be moved."""
    domain: Mapped[str] = mapped_column(String(100))
    masking: Mapped[dict[str, Any]]
    init: Mapped[str | None] = mapped_column(String(4096))
    """The model that training started from, as the user named it; None for a new model."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("seqmlm_models.id"), index=True)
    """The row of `init`, if it is a registered model."""
    dataset_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_datasets.id"), index=True)
    tokenizer_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_tokenizers.id"), index=True)
    mlflow_run_id: Mapped[str | None] = mapped_column(String(64), index=True)
    created: Mapped[datetime] = mapped_column(default=utc_now)

    parent: Mapped[Model | None] = relationship(remote_side=[id])
    dataset: Mapped[Dataset] = relationship()
    tokenizer: Mapped[Tokenizer] = relationship()
    aliases: Mapped[list[Alias]] = relationship(order_by="Alias.alias", passive_deletes=True)


class Alias(Base):
    """A name for one version of a model, such as champion. It can be moved to another version."""

    __tablename__ = "seqmlm_aliases"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    alias: Mapped[str] = mapped_column(String(100), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_models.id", ondelete="CASCADE"), index=True)


class Calibration(Base):
    """The calibration of a model version at one level and in one mode."""

    __tablename__ = "seqmlm_calibrations"
    __table_args__ = (UniqueConstraint("model_id", "level", "mode"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("seqmlm_models.id", ondelete="CASCADE"))
    level: Mapped[str] = mapped_column(String(100))
    mode: Mapped[str] = mapped_column(String(100))
    rows: Mapped[int] = mapped_column(Integer)
    """Number of normal rows. It is not stored if it counts fewer than eleven people."""
    source: Mapped[str] = mapped_column(String(128))
    """Fingerprint of the normal data."""
    created: Mapped[datetime] = mapped_column(default=utc_now)


REGISTRY = Schema(
    version_table="seqmlm_alembic_version",
    revisions=("0001_one_store",),
    migrations=Path(__file__).parent / "migrations" / "versions",
    metadata=Base.metadata,
)

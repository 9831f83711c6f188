"""All tables. Constraints and indexes are named by the rule of `tables.Base`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_one_store"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _models()
    _streams()
    _incidents()


def _models() -> None:
    op.create_table(
        "seqmlm_datasets",
        _id(),
        _text("fingerprint", 128, unique=True),
        _text("domain", 100),
        _json("sources"),
        _json("counts"),
        _time("created"),
    )
    op.create_table(
        "seqmlm_tokenizers",
        _id(),
        _text("hash", 128, unique=True),
        _text("name", 100),
        _json("options"),
        _number("vocabulary_size"),
        _time("created"),
    )
    op.create_table(
        "seqmlm_models",
        _id(),
        _text("name", 100),
        _number("version"),
        _text("path", 4096),
        _text("domain", 100),
        _json("masking"),
        _text("init", 4096, nullable=True),
        _number("parent_id", sa.ForeignKey("seqmlm_models.id"), nullable=True, index=True),
        _number("dataset_id", sa.ForeignKey("seqmlm_datasets.id"), index=True),
        _number("tokenizer_id", sa.ForeignKey("seqmlm_tokenizers.id"), index=True),
        _text("mlflow_run_id", 64, nullable=True, index=True),
        _time("created"),
        sa.UniqueConstraint("name", "version"),
    )
    op.create_table(
        "seqmlm_aliases",
        _text("name", 100, primary_key=True),
        _text("alias", 100, primary_key=True),
        _number("model_id", sa.ForeignKey("seqmlm_models.id", ondelete="CASCADE"), index=True),
    )
    op.create_table(
        "seqmlm_calibrations",
        _id(),
        _number("model_id", sa.ForeignKey("seqmlm_models.id", ondelete="CASCADE")),
        _text("level", 100),
        _text("mode", 100),
        _number("rows"),
        _text("source", 128),
        _time("created"),
        sa.UniqueConstraint("model_id", "level", "mode"),
    )


def _streams() -> None:
    op.create_table(
        "seqmlm_streams",
        _id(),
        _text("output", 4096, unique=True),
        *map(_json, ("request", "counts", "mark")),
        _number("written"),
        _time("alive"),
        *map(_json, ("pruned", "rolling")),
        _time("created"),
    )
    op.create_table(
        "seqmlm_stream_files",
        _stream(primary_key=True),
        _number("number", primary_key=True),
        _truth("done"),
        _json("state"),
    )
    op.create_table(
        "seqmlm_stream_rows",
        _stream(primary_key=True),
        _number("number", primary_key=True),
        _truth("alarm"),
        _text("line"),
        _number("incident", nullable=True),
        _time("created", index=True),
    )
    owned = sa.text("incident IS NOT NULL")
    op.create_index(
        "ix_seqmlm_stream_rows_stream_id_incident",
        "seqmlm_stream_rows",
        ["stream_id", "incident"],
        sqlite_where=owned,
        postgresql_where=owned,
    )
    op.create_table(
        "seqmlm_stream_statistics",
        _stream(primary_key=True),
        _number("number", primary_key=True),
        _number("row", nullable=True),
        sa.Column("figures", sa.LargeBinary(), nullable=False),
        _time("created"),
    )


def _incidents() -> None:
    op.create_table(
        "seqmlm_incidents",
        _id(),
        _stream(),
        _number("row"),
        _text("state", 20, index=True),
        _truth("muted"),
        _text("verdict", 20, nullable=True),
        _text("note"),
        _json("facts"),
        _time("opened"),
        _time("updated", index=True),
        _time("resolved", nullable=True),
        sa.UniqueConstraint("stream_id", "row"),
    )
    op.create_table(
        "seqmlm_notices",
        _id(),
        _stream(),
        _text("sink", 400),
        _text("key", 64, unique=True),
        _number("incident"),
        _text("kind", 20),
        _json("body"),
        _number("attempts"),
        _time("due"),
        _time("created"),
        _time("done", nullable=True),
        _text("error", nullable=True),
    )
    op.create_index(
        "ix_seqmlm_notices_stream_id", "seqmlm_notices", ["stream_id", "sink", "done", "incident"]
    )


def _id() -> sa.Column[int]:
    return _number("id", primary_key=True)


def _stream(**options: Any) -> sa.Column[int]:
    return _number("stream_id", sa.ForeignKey("seqmlm_streams.id", ondelete="CASCADE"), **options)


def _number(name: str, *key: sa.ForeignKey, nullable: bool = False, **options: Any) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), *key, nullable=nullable, **options)


def _truth(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def _text(name: str, longest: int | None = None, *, nullable: bool = False, **options: Any) -> sa.Column[str]:
    kind = sa.Text() if longest is None else sa.String(longest)
    return sa.Column(name, kind, nullable=nullable, **options)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)


def _time(name: str, *, nullable: bool = False, index: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, index=index)

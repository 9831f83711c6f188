"""Create the tables of models. Constraints and indexes are named by the rule in `tables.Base`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_one_store"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
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


def _id() -> sa.Column[int]:
    return _number("id", primary_key=True)


def _number(name: str, *key: sa.ForeignKey, nullable: bool = False, **options: Any) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), *key, nullable=nullable, **options)


def _text(name: str, longest: int | None = None, *, nullable: bool = False, **options: Any) -> sa.Column[str]:
    kind = sa.Text() if longest is None else sa.String(longest)
    return sa.Column(name, kind, nullable=nullable, **options)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)


def _time(name: str, *, nullable: bool = False, index: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, index=index)

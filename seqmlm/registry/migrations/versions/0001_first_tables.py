"""First tables: data sets, tokenizers, models, aliases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seqmlm_datasets",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(128), nullable=False),
        sa.Column("domain", sa.String(100), nullable=False),
        sa.Column("sources", sa.JSON(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_seqmlm_datasets"),
        sa.UniqueConstraint("fingerprint", name="uq_seqmlm_datasets_fingerprint"),
    )
    op.create_table(
        "seqmlm_tokenizers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(128), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("vocabulary_size", sa.Integer(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_seqmlm_tokenizers"),
        sa.UniqueConstraint("hash", name="uq_seqmlm_tokenizers_hash"),
    )
    _create_models()
    op.create_table(
        "seqmlm_aliases",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("alias", sa.String(100), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", "alias", name="pk_seqmlm_aliases"),
        sa.ForeignKeyConstraint(
            ["model_id"], ["seqmlm_models.id"], name="fk_seqmlm_aliases_model_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_seqmlm_aliases_model_id", "seqmlm_aliases", ["model_id"])


def _create_models() -> None:
    op.create_table(
        "seqmlm_models",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(4096), nullable=False),
        sa.Column("domain", sa.String(100), nullable=False),
        sa.Column("masking", sa.JSON(), nullable=False),
        sa.Column("init", sa.String(4096), nullable=True),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("tokenizer_id", sa.Integer(), nullable=False),
        sa.Column("mlflow_run_id", sa.String(64), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_seqmlm_models"),
        sa.UniqueConstraint("name", "version", name="uq_seqmlm_models_name_version"),
        sa.ForeignKeyConstraint(["parent_id"], ["seqmlm_models.id"], name="fk_seqmlm_models_parent_id"),
        sa.ForeignKeyConstraint(["dataset_id"], ["seqmlm_datasets.id"], name="fk_seqmlm_models_dataset_id"),
        sa.ForeignKeyConstraint(
            ["tokenizer_id"], ["seqmlm_tokenizers.id"], name="fk_seqmlm_models_tokenizer_id"
        ),
    )
    for column in ("parent_id", "dataset_id", "tokenizer_id", "mlflow_run_id"):
        op.create_index(f"ix_seqmlm_models_{column}", "seqmlm_models", [column])


def downgrade() -> None:
    for table in ("aliases", "models", "tokenizers", "datasets"):
        op.drop_table(f"seqmlm_{table}")

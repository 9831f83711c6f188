"""Calibrations: which normal data a model's p-values come from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seqmlm_calibrations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("level", sa.String(100), nullable=False),
        sa.Column("mode", sa.String(100), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(128), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_seqmlm_calibrations"),
        sa.UniqueConstraint("model_id", "level", "mode", name="uq_seqmlm_calibrations_model_id_level_mode"),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["seqmlm_models.id"],
            name="fk_seqmlm_calibrations_model_id",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("seqmlm_calibrations")

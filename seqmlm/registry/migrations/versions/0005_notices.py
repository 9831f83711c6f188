"""Notices: what webhooks are to be told, kept until they have it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    stream = sa.ForeignKey("seqmlm_streams.id", name="fk_seqmlm_notices_stream_id", ondelete="CASCADE")
    op.create_table(
        "seqmlm_notices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("stream_id", sa.Integer(), stream, nullable=False),
        sa.Column("sink", sa.String(400), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_seqmlm_notices"),
        sa.UniqueConstraint("key", name="uq_seqmlm_notices_key"),
    )
    op.create_index(
        "ix_seqmlm_notices_stream_id", "seqmlm_notices", ["stream_id", "sink", "done", "incident"]
    )


def downgrade() -> None:
    op.drop_table("seqmlm_notices")

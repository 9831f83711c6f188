"""Streams: followed files, how far they were read, and the rows that came of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seqmlm_streams",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("output", sa.String(4096), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("mark", sa.JSON(), nullable=False),
        sa.Column("written", sa.Integer(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_seqmlm_streams"),
        sa.UniqueConstraint("output", name="uq_seqmlm_streams_output"),
    )
    op.create_table(
        "seqmlm_stream_files",
        _stream("seqmlm_stream_files"),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("stream_id", "number", name="pk_seqmlm_stream_files"),
    )
    op.create_table(
        "seqmlm_stream_rows",
        _stream("seqmlm_stream_rows"),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("alarm", sa.Boolean(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("stream_id", "number", name="pk_seqmlm_stream_rows"),
    )
    op.create_index("ix_seqmlm_stream_rows_created", "seqmlm_stream_rows", ["created"])


def _stream(table: str) -> sa.Column[int]:
    key = sa.ForeignKey("seqmlm_streams.id", name=f"fk_{table}_stream_id", ondelete="CASCADE")
    return sa.Column("stream_id", sa.Integer(), key, nullable=False)


def downgrade() -> None:
    op.drop_table("seqmlm_stream_rows")
    op.drop_table("seqmlm_stream_files")
    op.drop_table("seqmlm_streams")

"""Incidents of followed files, and which rows belong to each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLE, INDEX = "seqmlm_incidents", "ix_seqmlm_stream_rows_stream_id_incident"


def upgrade() -> None:
    key = sa.ForeignKey("seqmlm_streams.id", name=f"fk_{TABLE}_stream_id", ondelete="CASCADE")
    texts = ("note", "title", "what", "reason", "template", "first_line", "last_line")
    numbers = ("rows", "lines", "new_lines", "start", "end")
    op.create_table(
        TABLE,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("stream_id", sa.Integer(), key, nullable=False),
        sa.Column("row", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(4096), nullable=False),
        sa.Column("place", sa.String(4096), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("muted", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        *(sa.Column(name, sa.JSON(), nullable=False) for name in ("new", "expected", "likes")),
        sa.Column("first_time", sa.String(40), nullable=True),
        sa.Column("last_time", sa.String(40), nullable=True),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in numbers),
        sa.Column("p_value", sa.Float(), nullable=False),
        sa.Column("opened", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resolved", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{TABLE}"),
        sa.UniqueConstraint("stream_id", "row", name=f"uq_{TABLE}_stream_id_row"),
    )
    op.create_index(f"ix_{TABLE}_state", TABLE, ["state"])
    op.create_index(f"ix_{TABLE}_updated", TABLE, ["updated"])
    op.add_column("seqmlm_stream_rows", sa.Column("incident", sa.Integer(), nullable=True))
    few = sa.text("incident IS NOT NULL")
    columns = ["stream_id", "incident"]
    op.create_index(INDEX, "seqmlm_stream_rows", columns, sqlite_where=few, postgresql_where=few)


def downgrade() -> None:
    op.drop_index(INDEX, "seqmlm_stream_rows")
    op.drop_column("seqmlm_stream_rows", "incident")
    op.drop_table(TABLE)

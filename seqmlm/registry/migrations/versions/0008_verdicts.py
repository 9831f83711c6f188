"""Verdicts: what a person took an incident for, a fault or a false alarm; and when rows' statistics came."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    verdict: sa.Column[str] = sa.Column("verdict", sa.String(20), nullable=True)
    op.add_column("seqmlm_incidents", verdict)
    op.execute(sa.text("UPDATE seqmlm_incidents SET verdict = 'fault' WHERE is_real"))
    # To mute what was acknowledged was the way to say that it was normal.
    op.execute(sa.text("UPDATE seqmlm_incidents SET verdict = 'normal' WHERE is_real AND muted"))
    op.drop_column("seqmlm_incidents", "is_real")
    op.add_column("seqmlm_stream_statistics", sa.Column("created", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("seqmlm_stream_statistics", "created")
    real: sa.Column[bool] = sa.Column("is_real", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("seqmlm_incidents", real)
    op.execute(sa.text("UPDATE seqmlm_incidents SET is_real = true WHERE verdict = 'fault'"))
    op.drop_column("seqmlm_incidents", "verdict")

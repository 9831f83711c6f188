"""Where incidents come from; when streams were alive, and what was pruned of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ORIGIN = ("severity", "host", "service")


def upgrade() -> None:
    for name in ORIGIN:
        op.add_column("seqmlm_incidents", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("seqmlm_streams", sa.Column("alive", sa.DateTime(timezone=True), nullable=True))
    op.add_column("seqmlm_streams", sa.Column("pruned", sa.JSON(), nullable=True))


def downgrade() -> None:
    for name in ("pruned", "alive"):
        op.drop_column("seqmlm_streams", name)
    for name in reversed(ORIGIN):
        op.drop_column("seqmlm_incidents", name)

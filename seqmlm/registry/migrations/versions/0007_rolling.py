"""Rolling calibrations: statistics of a stream's newest rows, and what a person took for a real incident."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, columns, key in (
        ("calibrations", [sa.Column("state", sa.JSON(), nullable=False)], ["stream_id"]),
        (
            "statistics",
            [
                sa.Column("number", sa.Integer(), nullable=False),
                sa.Column("row", sa.Integer(), nullable=True),
                sa.Column("figures", sa.LargeBinary(), nullable=False),
            ],
            ["stream_id", "number"],
        ),
    ):
        name = f"seqmlm_stream_{table}"
        stream = sa.ForeignKey("seqmlm_streams.id", name=f"fk_{name}_stream_id", ondelete="CASCADE")
        op.create_table(
            name,
            sa.Column("stream_id", sa.Integer(), stream, nullable=False),
            *columns,
            sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        )
    # Of incidents that are over it is not known any more; those that go on say so.
    real: sa.Column[bool] = sa.Column("is_real", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("seqmlm_incidents", real)
    op.execute(sa.text("UPDATE seqmlm_incidents SET is_real = true WHERE state = 'acknowledged'"))


def downgrade() -> None:
    op.drop_column("seqmlm_incidents", "is_real")
    op.drop_table("seqmlm_stream_statistics")
    op.drop_table("seqmlm_stream_calibrations")

"""The tables of streams, as `seqmlm.watch.tables` declares them until the first release.

The first migration of the registry made them before: what is there then is kept, but for the statistics of
rolling calibrations, which there are no more.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from seqmlm.watch.tables import Base

revision = "0001_streams"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    if sa.inspect(connection).has_table("seqmlm_stream_statistics"):
        op.drop_table("seqmlm_stream_statistics")
        op.drop_column("seqmlm_streams", "rolling")
    Base.metadata.create_all(connection)

"""Create the tables of streams, as `seqmlm.watch.tables` declares them until the first release.

The first migration of the registry created these tables in earlier versions. Existing tables are kept, except
the statistics of rolling calibrations, which no longer exist.
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

"""The command line with short batches and legs, read ahead always: a kill meets a scoring in its middle."""

from __future__ import annotations

import sys

from seqmlm.cli import main
from seqmlm.inference import batches
from seqmlm.tasks import score

batches.BATCH_RECORDS = 10
score.LEG_RECORDS = 40
score.READ_AHEAD_BYTES = 0

if __name__ == "__main__":
    main(sys.argv[1:])

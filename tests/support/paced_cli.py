"""The command line with short batches and frequent commits, read ahead always: a kill meets its middle."""

from __future__ import annotations

import sys

from seqmlm.cli import main
from seqmlm.inference import batches, runner

batches.BATCH_RECORDS = 10
runner.COMMIT_RECORDS = 40
batches.READ_AHEAD_BYTES = 0

if __name__ == "__main__":
    main(sys.argv[1:])

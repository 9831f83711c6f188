"""`python -m seqmlm`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` looks for modules in the current folder first: beside foreign data, a torch.py would be run.
    del sys.path[0]

from seqmlm.cli import main

if __name__ == "__main__":
    main()

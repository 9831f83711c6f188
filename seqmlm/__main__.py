"""Run the command line as `python -m seqmlm`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` searches the current folder for modules first. In a folder of untrusted data, it would then
    # run a file named torch.py.
    del sys.path[0]

from seqmlm.cli import main

if __name__ == "__main__":
    main()

"""`python -m seqmlm`."""

from seqmlm.cli import main

if __name__ == "__main__":
    main()

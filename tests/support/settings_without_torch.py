"""Command lines in a process in which torch, transformers and mlflow cannot be imported.

Reads command lines as JSON, a list of lists of words, from standard input; writes one JSON object for each:
its exit code and what it printed to standard error.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import MetaPathFinder
from typing import Any

BLOCKED = {"torch", "transformers", "mlflow"}


class Blocked(MetaPathFinder):
    """Refuses to import what takes seconds."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in BLOCKED:
            raise RuntimeError(f"{name} was imported")


def outcome(words: list[str]) -> dict[str, Any]:
    """How a command line ends."""
    from seqmlm.cli import main

    error = io.StringIO()
    code: Any = 0
    with redirect_stderr(error), redirect_stdout(io.StringIO()):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code or 0
        except RuntimeError as blocked:
            code = str(blocked)
    return {"code": code, "err": error.getvalue()}


if __name__ == "__main__":
    sys.meta_path.insert(0, Blocked())
    for line in json.load(sys.stdin):
        print(json.dumps(outcome(line)))

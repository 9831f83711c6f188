"""The notebooks run as they stand, cell by cell, in a forked process each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fork_server import ForkServer

NOTEBOOKS = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
SHOWN = '''
import ast

from small_samples import shrink

shrink()

def shown(source):
    """Run a cell, and show the value of its last line as a notebook does."""
    *lines, last = ast.parse(source).body
    lines += [] if isinstance(last, ast.Expr) else [last]
    exec(compile(ast.Module(lines, []), "cell", "exec"), globals())
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), globals())
        getattr(value, "_repr_html_", value.__repr__)()
'''
FIELDS = ("code", "dna", "english", "logs", "patients", "proteins")


def test_every_field_has_a_notebook() -> None:
    assert tuple(sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))) == FIELDS


@pytest.mark.usefixtures("tracked_workspace")
@pytest.mark.parametrize("name", FIELDS)
def test_a_notebook_runs(name: str, forks: ForkServer, tmp_path: Path) -> None:
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = tmp_path / "cells.py"
    script.write_text(f"{SHOWN}\nfor source in {sources!r}:\n    shown(source)\n")
    forks.run(script=script, environment={"TIME": "0.5s"}).ok()

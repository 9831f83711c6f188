"""The folder a command is started in is one of data: no module is taken from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqmlm.management.doctor import plan_ui

ROOT = Path(__file__).resolve().parents[2]
_SHADOWED = ("torch", "yaml", "rich", "mlflow", "uvicorn")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules that have the names of libraries, and leave `ran` behind when imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in _SHADOWED:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    return folder


def _run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "SEQMLM_HOME": str(folder.parent / "home"), "PYTHONPATH": str(ROOT)}
    variables.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_modules_would_be_run(hostile: Path) -> None:
    _run(hostile, "-m", "torch")
    assert (hostile.parent / "ran").exists()


def test_python_m_seqmlm(hostile: Path) -> None:
    done = _run(hostile, "-m", "seqmlm", "doctor", "--json")
    assert '"torch"' in done.stdout, done.stderr
    assert not (hostile.parent / "ran").exists()


def test_the_ui(hostile: Path, tracked_workspace: Path) -> None:
    plan = plan_ui(0)
    # The command up to "mlflow", with only its help asked for; and what the server would start itself.
    served = _run(hostile, *plan.command[1:4], "--help", **plan.environment)
    assert served.returncode == 0, served.stderr
    started = _run(hostile, "-m", "uvicorn", "--version", **plan.environment)
    assert started.returncode == 0, started.stderr
    assert not (hostile.parent / "ran").exists()

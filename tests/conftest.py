"""Fixtures every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# One BLAS thread a test process: tests run in parallel, and small matrices lose by sharing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with the catalogue of real data sets; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("SEQMLM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("real data sets are not here (set SEQMLM_DATA to their folder)")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace: $SEQMLM_HOME points at it."""
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", "SEQMLM_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path

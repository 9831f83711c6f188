"""Fixtures every test may use."""

from __future__ import annotations

import copy
import functools
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fork_server import Finished, ForkServer
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
MODELS = 16  # in memory at most

# One BLAS thread a test process: tests run in parallel, and small matrices lose by sharing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

# Kills are tested, power cuts are not: what was written outlives the process that wrote it.
os.fsync = lambda descriptor: None

# What libraries make when they are imported stays: garbage is looked for again when all tests are there.
gc.disable()

# No test is about time: a busy machine must not fail one.
settings.register_profile("seqmlm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqmlm")


def pytest_collection_finish() -> None:
    """Tests and libraries stay to the end: garbage is not looked for among them."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with the catalogue of real data sets; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("SEQMLM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("real data sets are not here (set SEQMLM_DATA to their folder)")
    return folder


@pytest.fixture(scope="session")
def no_waits() -> Iterator[None]:
    """As `os.fsync` does not either, SQLite waits for no disk."""
    from sqlalchemy import Engine, event

    def hurry(connection: Any, _: object) -> None:
        if "sqlite" in type(connection).__module__:
            connection.execute("PRAGMA synchronous = OFF").close()

    event.listen(Engine, "connect", hurry)
    yield
    event.remove(Engine, "connect", hurry)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_waits: None) -> Path:
    """An empty workspace: $SEQMLM_HOME points at it."""
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", "SEQMLM_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs, made once for all test processes: that takes MLflow seconds."""
    from mlflow.store.db import utils

    from seqmlm.engine.durable import FileLock
    from seqmlm.tracking import Tracker
    from seqmlm.workspace import Workspace

    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "empty-mlflow-store"
    file = root / "mlflow.db"
    with FileLock(root / "lock"):
        if not (root / "ready").exists():
            Tracker(Workspace(root=root, tracking_uri=f"sqlite:///{file}", database_url="sqlite://")).ensure()
            (root / "ready").touch()
    # MLflow imports all of its migrations whenever a database is opened.
    utils._get_latest_schema_revision = functools.cache(utils._get_latest_schema_revision)
    return file


@pytest.fixture
def tracked_workspace(workspace: Path, empty_store: Path) -> Path:
    """An empty workspace whose MLflow database is there already."""
    shutil.copyfile(empty_store, workspace / "mlflow.db")
    return workspace


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """An empty PostgreSQL database of this test's own."""
    from sqlalchemy import create_engine, text

    url = os.environ.get("SEQMLM_TEST_POSTGRES")
    if not url:
        pytest.skip("needs a PostgreSQL server: set SEQMLM_TEST_POSTGRES, or run .ci/postgres start")
    name = f"seqmlm_test_{os.getpid()}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield url.rpartition("/")[0] + f"/{name}"
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    """Forty proteins of 80 to 89 residues, the first of them twice more."""
    import numpy as np
    from tiny_models import RESIDUES

    file = tmp_path / "p.fasta"
    letters = np.random.default_rng(0).choice(list(RESIDUES), (40, 90))
    sequences = ["".join(row[: 80 + n % 10]) for n, row in enumerate(letters)]
    file.write_text("".join(f">p{n}\n{one}\n" for n, one in enumerate([*sequences, *sequences[:1] * 2])))
    return file


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that commands draw where no data are named are small."""
    import small_samples

    monkeypatch.setattr("seqmlm.training.corpus.draw_sample", small_samples.draw)


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Starts commands in processes of their own."""
    with ForkServer(tmp_path_factory.mktemp("forks")) as server:
        yield server


@pytest.fixture(scope="session")
def one_parser() -> Iterator[None]:
    """The parsers of all commands, made once: that takes Typer as long as a small command."""
    from forked_cli import build_once

    with pytest.MonkeyPatch.context() as patch:
        build_once(patch.setattr)
        yield


@pytest.fixture(scope="session")
def one_reading() -> Iterator[None]:
    """A model whose files are the same is read once: that takes transformers as long as a small command."""
    from seqmlm.engine import backbones

    load, known = backbones.load, dict[Any, Any]()

    def read(reference: Any, space: Any = None, *, head: Any = "needed") -> Any:
        files = sorted(Path(reference).iterdir()) if Path(reference).is_dir() else ()
        key = (space, head, *((file, file.stat().st_ino, file.stat().st_mtime_ns) for file in files))
        if not files or key not in known:
            if len(known) == MODELS:
                known.clear()
            known[key] = load(reference, space, head=head)
        return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbones, "load", read)
        yield


@pytest.fixture
def few_smoothings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training tries few smoothings of its counts: tests/engine tests their choice."""
    monkeypatch.setattr("seqmlm.engine.expert._DISCOUNTS", (0.1, 0.7))
    monkeypatch.setattr("seqmlm.engine.expert._STRENGTHS", (0.5, 16.0))


@pytest.fixture
def seqmlm(
    tracked_workspace: Path,
    capsys: pytest.CaptureFixture[str],
    one_parser: None,
    one_reading: None,
    few_smoothings: None,
) -> Callable[..., Finished]:
    """Run a command line through its entry point, in this process, in an empty workspace."""
    from seqmlm.cli import main

    def run(*arguments: object) -> Finished:
        capsys.readouterr()
        code: Any = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Finished(int(code or 0), captured.out, captured.err)

    return run

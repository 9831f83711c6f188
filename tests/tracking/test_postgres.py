"""One PostgreSQL database for MLflow and for the registry: neither is in the other's way."""

from __future__ import annotations

from pathlib import Path

import pytest
from registered import origin

from seqmlm.management.doctor import schema
from seqmlm.registry.store import Registry
from seqmlm.tasks.register import register_model, track_model
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace


@pytest.mark.slow
def test_mlflow_and_the_registry_share_a_server(
    postgres_url: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, warnings_given: list[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres_url)
    monkeypatch.setenv("SEQMLM_DATABASE_URL", postgres_url)
    home = Workspace.locate()
    tracker = Tracker(home, warn=warnings_given.append)
    tracker.ensure()
    assert schema(upgrade=True)[1:] == (None, "0001_one_store")
    with tracker.start("r", experiment="e", params={"a": 1}) as run:
        run.log_metrics(1, {"train/loss": 2.0})
        model = run.directory / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        entry = register_model(model, "r", origin(mlflow_run_id=run.run_id))
        track_model(run, entry, {"train/loss": 2.0})
    assert (entry.version, warnings_given) == (1, [])
    # MLflow opens the database once more and finds its own schema as it left it.
    (found,) = Tracker(home, warn=warnings_given.append).runs()
    assert (found.status, found.metrics["train/loss"]) == ("FINISHED", 2.0)
    with Registry(home) as registry:
        assert registry.get("r", alias="champion").mlflow_run_id == run.run_id
    assert warnings_given == []

"""Commands that share a workspace, and the servers under them, are killed: nothing is lost or doubled.

A few kills here, as many as SEQMLM_KILLS says under `make kills`; there servers are killed more often, too.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fork_server import ForkServer

WANTED = int(os.environ.get("SEQMLM_KILLS", "0"))


def campaign(forks: ForkServer, folder: Path, kills: int, *scenarios: str) -> None:
    """Check what a campaign of tests/kills/workspace.py prints."""
    script = Path(__file__).with_name("workspace.py")
    done = forks.run(folder / "work", *scenarios, "--kills", kills, script=script, seconds=None).ok()
    assert done.json["problems"] == []
    assert done.json["kills"] == {
        one: min(max(kills, 2), 6) if one == "tracker" else kills for one in scenarios
    }


@pytest.mark.kills
@pytest.mark.slow
def test_two_commands_in_one_workspace_and_an_mlflow_server(tmp_path: Path, forks: ForkServer) -> None:
    commands = ("two-trainings", "training-and-scoring", "two-scorings")
    campaign(forks, tmp_path, WANTED // 3 or 1, *commands, "tracker")


@pytest.mark.kills
@pytest.mark.slow
def test_postgresql_is_restarted_during_a_training(
    tmp_path: Path, forks: ForkServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server is its own: other tests use that of `postgres_url` meanwhile."""
    script = Path(__file__).resolve().parents[2] / ".ci" / "postgres"
    monkeypatch.setenv("SEQMLM_POSTGRES_STATE", str(tmp_path / "state"))
    started = subprocess.run([script, "start"], check=True, capture_output=True, text=True)
    monkeypatch.setenv("SEQMLM_TEST_POSTGRES", started.stdout.strip())
    try:
        campaign(forks, tmp_path, 6 if WANTED else 1, "database")
    finally:
        subprocess.run([script, "stop"], check=True, capture_output=True)

"""kill -9 loses nothing: 20 kills here, as many as SEQMLM_KILLS says under `make kills`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fork_server import ForkServer


@pytest.mark.kills
@pytest.mark.slow
def test_training_survives_kills_at_any_moment(tmp_path: Path, forks: ForkServer) -> None:
    kills = int(os.environ.get("SEQMLM_KILLS", "20"))
    script = Path(__file__).with_name("campaign.py")
    done = forks.run(tmp_path, "--kills", kills, script=script, seconds=None).ok()
    result = done.json
    assert result["problems"] == []
    assert sum(result["kills"].values()) == kills
    assert set(result["kills"]) == {"write", "sync", "rename", "remove", "moment"}
    # The same campaign against a save without temporary folder and rename must find something.
    assert result["planted_problems"]

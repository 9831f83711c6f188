"""kill -9 loses nothing: 20 kills here, as many as SEQMLM_KILLS says under `make kills`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from own_session import printed


@pytest.mark.kills
@pytest.mark.slow
def test_training_survives_kills_at_any_moment(tmp_path: Path) -> None:
    kills = int(os.environ.get("SEQMLM_KILLS", "20"))
    here = Path(__file__).resolve().parent
    environment = {"PYTHONPATH": str(here.parents[1]), "OMP_NUM_THREADS": "1"}
    told = printed(tmp_path, here / "campaign.py", tmp_path, "--kills", kills, environment=environment)
    result = json.loads(told)
    assert result["problems"] == []
    assert sum(result["kills"].values()) == kills
    assert set(result["kills"]) == {"write", "sync", "rename", "remove", "moment"}
    # The same campaign against a save without temporary folder and rename must find something.
    assert result["planted_problems"]

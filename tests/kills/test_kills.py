"""kill -9 loses nothing: 20 kills here, as many as SEQMLM_KILLS says under `make kills`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.mark.kills
@pytest.mark.slow
def test_training_survives_kills_at_any_moment(tmp_path: Path) -> None:
    kills = int(os.environ.get("SEQMLM_KILLS", "20"))
    here = Path(__file__).resolve().parent
    command = [sys.executable, str(here / "campaign.py"), str(tmp_path), "--kills", str(kills)]
    environment = {**os.environ, "PYTHONPATH": str(here.parents[1]), "OMP_NUM_THREADS": "1"}
    # Into files, and a session of its own: a loader whose parent was killed before it looked never ends, and
    # would hold a pipe open for ever.
    told, errors = tmp_path / "told.json", tmp_path / "errors.txt"
    with told.open("w") as out, errors.open("w") as err:
        campaign = subprocess.Popen(
            command, env=environment, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = campaign.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(campaign.pid, signal.SIGKILL)
    assert code == 0, errors.read_text()[-4000:]
    result = json.loads(told.read_text())
    assert result["problems"] == []
    assert sum(result["kills"].values()) == kills
    assert set(result["kills"]) == {"write", "sync", "rename", "remove", "moment"}
    # The same campaign against a save without temporary folder and rename must find something.
    assert result["planted_problems"]

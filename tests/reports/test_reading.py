"""How to read a report: each built-in channel is explained; no word of p-values that are not there."""

from __future__ import annotations

import pytest

from seqmlm import plugins
from seqmlm.reports.report import CHANNELS, reading


def test_without_calibration_it_says_so_and_tells_of_no_p_value() -> None:
    told = " ".join(reading("residue", 10, [], calibrated=False))
    assert "not calibrated" in told
    assert "p-value" not in told


def test_it_tells_how_many_rows_chance_alone_gives() -> None:
    told = " ".join(reading("line", 2000, ["slor", "of-a-plugin"], calibrated=True))
    assert "about 20.0 of them" in told
    assert CHANNELS["slor"] in told
    assert "of-a-plugin" not in told


@pytest.mark.parametrize("field", ["code", "dna", "ehr", "logs", "protein", "text"])
def test_every_built_in_channel_is_explained(field: str) -> None:
    used = {channel for level in plugins.domain(field).levels for channel in level.channels}
    assert used <= set(CHANNELS)

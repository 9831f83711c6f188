"""Small counts and extremes of sensitive data are not told."""

from __future__ import annotations

from seqmlm.data.privacy import PERSONAL, redact_small_counts
from seqmlm.inference.calibrations import BACKGROUND, CALIBRATION, TRAINED_ON
from seqmlm.inference.model_folder import COUNTS

FACTS = {
    "records": 10,
    "tokens": 11,
    "unknown_tokens": 0,
    "share": 0.5,
    "problems": {"no time": 3, "no code": 30},
    "train": {"records": 9, "tokens": 4000},
    "length_quantiles": {"0.0": 2, "0.5": 7, "1.0": 90},
}


def test_sensitive_counts():
    told = redact_small_counts(FACTS, True)
    assert told["records"] == "<11"
    assert told["tokens"] == 11
    assert told["unknown_tokens"] == 0
    assert told["share"] == 0.5
    assert told["problems"] == {"no time": "<11", "no code": 30}
    assert told["train"] == {"records": "<11", "tokens": 4000}
    assert told["length_quantiles"] == {"0.5": 7}, "the shortest and the longest are one person each"


def test_other_data_are_told_as_they_are():
    assert redact_small_counts(FACTS, False) == FACTS


def test_files_about_records_are_known_by_name():
    assert set(PERSONAL) == {TRAINED_ON, CALIBRATION, BACKGROUND, COUNTS}

"""The demo ends with a sentence about its own alarms, whatever came of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqmlm.cli.demo import ODD, SHUFFLED, _show


@pytest.mark.parametrize(
    ("shuffled", "others", "expected"),
    [
        (ODD, 0, "5 of 5 shuffled proteins and 0 of the others raise an alarm."),
        (0, 0, "0 of 5 shuffled proteins and 0 of the others raise an alarm."),
        (2, 20, "2 of 5 shuffled proteins and 20 of the others raise an alarm."),
    ],
)
def test_the_last_sentence_counts_the_alarms(
    shuffled: int, others: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [*(f"{SHUFFLED}p{number}" for number in range(ODD)), *(f"p{number}" for number in range(20))]
    alarmed = {*ids[:shuffled], *ids[ODD : ODD + others]}
    rows = [
        {"id": one, "p_value": 0.01 if one in alarmed else 0.5, "alarm": one in alarmed, "bits_per_unit": 2.0}
        for one in ids
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _show(file) == expected
    assert capsys.readouterr().out.count("ALARM") == min(10, shuffled + others)

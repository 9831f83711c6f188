"""Rows that show what a sample has planted, in each field that plants anomalies, at each kind of level."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from seqmlm import plugins
from seqmlm.errors import DataError
from seqmlm.scoring.labels import Columns, Planted, read_labelled

DNA = {"id": "contig-5", "start": 150, "end": 190}
CODE = {"file": "a_0/b.py", "line": 3, "start": 20, "end": 31}
VISIT = {"subject": "8", "visit": "8-6", "code": "DRUG//X", "instead_of": None}
LOGS = {"kind": "reordered", "session": "ab12", "lines": [14, 19]}
FIELDS = {"dna": DNA, "code": CODE, "ehr": VISIT, "logs": LOGS}


@pytest.mark.parametrize(
    ("anomaly", "row", "shown"),
    [
        (DNA, {"id": "contig-5#100-200", "contig_start": 100, "contig_end": 200}, True),
        (DNA, {"id": "contig-5#70-170", "contig_start": 70, "contig_end": 170}, True),
        (DNA, {"id": "contig-5#60-160", "contig_start": 60, "contig_end": 160}, False),
        (DNA, {"id": "contig-5#190-191", "contig_start": 190, "contig_end": 191}, False),
        (DNA, {"id": "contig-5#189-190", "contig_start": 189, "contig_end": 190}, True),
        (DNA, {"id": "contig-5#100-200", "extra": '{"contig_start": 100, "contig_end": 200}'}, True),
        (DNA, {"id": "contig-5", "contig_start": 0, "contig_end": 900}, True),
        (DNA, {"id": "contig-55#100-200", "contig_start": 100, "contig_end": 200}, False),
        (CODE, {"id": "a_0/b.py#L3", "start": "16", "end": "40"}, True),
        (CODE, {"id": "code/a_0/b.py#L3", "start": "16.0", "end": "40.0"}, True),
        (CODE, {"id": "code/a_0/b.py#L4", "start": "41.0", "end": "50.0"}, False),
        (CODE, {"id": "a_0/b.py#L4", "start": "41", "end": "50"}, False),
        (CODE, {"id": "a_0/b.py#7", "start": 20, "end": 23}, True),
        (CODE, {"id": "a_0/b.py#C.f", "start": 0, "end": 90, "kind": "function"}, True),
        (CODE, {"id": "a_0/b.py#C", "start": 0, "end": 90, "kind": "class"}, False),
        (VISIT, {"id": "8#6", "visit_id": "8-6", "missing": [], "top": []}, True),
        (VISIT, {"id": "8#5", "visit_id": "8-5", "missing": [], "top": []}, False),
        (VISIT, {"id": "8#40", "visit_id": "8-6", "top": [{"unit": "DRUG//X"}]}, True),
        (VISIT, {"id": "8#41", "visit_id": "8-6", "top": '[{"unit": "LAB//Y"}]'}, False),
        (VISIT, {"id": "8", "worst_visit_id": "8-2"}, True),
        (LOGS, {"id": "ab12", "line": 12}, True),
        (LOGS, {"id": "ab12#3", "line": "19"}, True),
        (LOGS, {"id": "ab12#2", "line": 15}, False),
    ],
)
def test_rows_show_the_anomalies_of_their_place(
    anomaly: dict[str, Any], row: dict[str, Any], shown: bool
) -> None:
    [field] = [name for name, one in FIELDS.items() if one is anomaly]
    planted = Planted(plugins.domain(field), [anomaly], "code")
    assert planted.shows_anomaly(row) is shown
    assert bool(planted.undetected) is not shown


@pytest.mark.parametrize("start", ["first", "inf", "nan", [1], {}])
def test_a_row_with_no_place_where_it_should_have_one_is_said(start: Any) -> None:
    planted = Planted(plugins.domain("dna"), [DNA], "")
    with pytest.raises(DataError, match="is not a row of seqmlm score"):
        planted.shows_anomaly({"id": "contig-5#1-2", "contig_start": start, "contig_end": 200})


def test_a_truth_stands_where_labels_do(tmp_path: Path) -> None:
    sample = plugins.domain("logs").sample.draw(tmp_path, n=120, seed=3)
    truth = json.loads(sample.truth.read_text())
    kinds = {one["session"]: one["kind"] for one in truth["sessions"]}
    scores = tmp_path / "scores.csv"
    with scores.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "line", "score"])
        table.writerows([name, 1, number] for number, name in enumerate(kinds))
    found = read_labelled([str(scores)], Columns(), labels=str(sample.truth))
    assert found.labels == [kind != "normal" for kind in kinds.values()]
    assert 0 < sum(found.labels) < 120
    kept = [
        line
        for line in scores.read_text().splitlines()
        if line.split(",")[0] != truth["anomalies"][0]["session"]
    ]
    scores.write_text("\n".join(kept) + "\n")
    with pytest.raises(DataError, match="1 labelled ids have no score"):
        read_labelled([str(scores)], Columns(), labels=str(sample.truth))
    assert read_labelled([str(scores)], Columns(), labels=str(sample.truth), partial=True).missing == 1


def test_a_sample_without_anomalies_says_so_and_other_files_are_labels(tmp_path: Path) -> None:
    sample = plugins.domain("protein").sample.draw(tmp_path, n=3)
    with pytest.raises(DataError, match="this protein sample has no anomalies"):
        Planted.read(str(sample.truth))
    (tmp_path / "labels.json").write_text('{"id": "a", "label": 1}\n')
    (tmp_path / "lines.json").write_text('{"id": "a", "label": 1}\n{"id": "b", "label": 0}\n')
    for name in ("labels.json", "lines.json", "labels.csv"):
        assert Planted.read(str(tmp_path / name)) is None

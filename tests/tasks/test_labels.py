"""Scores and labels find each other by id; what has no partner is counted and named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from written import jsonl, written

from seqmlm.data.problems import Problems
from seqmlm.errors import DataError
from seqmlm.rows.file import Rows
from seqmlm.scoring.labels import Columns, Planted, read_labelled, scores_of_keys

ROWS = [
    {"id": "a", "units": 3, "score": 1.5, "p_value": 0.5, "channels": {"pll": 0.9}, "alarm": False},
    {"id": "b", "units": 4, "score": 2.5, "p_value": 0.01, "channels": {"pll": 0.01}, "alarm": True},
    {"id": "c", "units": 0, "score": None, "p_value": 1.0, "channels": {"pll": 1.0}, "alarm": False},
]


@pytest.fixture
def scores(tmp_path: Path) -> str:
    return str(jsonl(tmp_path / "scores.jsonl", ROWS))


def test_labels_of_a_file_are_joined_by_id(scores: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("Block,Label\nc,Normal\na,Normal\nb,Anomaly\n")
    columns = Columns(label="Label", id="Block", positive="Anomaly")
    found = read_labelled([scores], columns, labels=str(tmp_path / "labels.csv"))
    assert found.labels == [False, True, False]
    assert found.scores == [1.5, 2.5, -math.inf]
    assert found.alarms == [False, True, False]
    assert found.lengths == [3, 4, 0]
    assert found.groups == ["a", "b", "c"]
    turned = Columns(label="Label", id="Block", negative="Normal", score="p_value", baseline="channels.pll")
    again = read_labelled([scores], turned, labels=str(tmp_path / "labels.csv"))
    assert again.labels == found.labels
    assert again.scores == [-0.5, -0.01, -1.0]
    assert again.baseline == [-0.9, -0.01, -1.0]


def test_ids_of_a_table_are_those_of_the_records(tmp_path: Path) -> None:
    ids, path = ["-1", "=x", "'=x", "plain", "'a"], tmp_path / "scores.csv"
    with Rows(path, {}, Problems(), format="csv") as rows:
        rows.write([[{"id": name, "score": 1.0} for name in ids]])
        rows.commit()
        rows.finish()
    labels = str(jsonl(tmp_path / "labels.jsonl", [{"id": name, "label": 1} for name in ids]))
    assert read_labelled([str(path)], Columns(), labels=labels).groups == ids
    keys = [(name, "", "") for name in ids]
    assert scores_of_keys(str(path), "score", keys, False)[0] == [1.0] * 5


@pytest.mark.parametrize(
    ("labels", "sensitive", "message"),
    [
        ("a,0", False, r"2 scored ids are not in .*labels.csv: b, c"),
        ("a,0", True, r"2 scored ids are not in [^:]*labels.csv \("),
        ("a,0\nb,1\nc,0\nd,1", False, r"1 labelled ids have no score: d .*partial=true"),
        ("a,0\na,1", False, r"labels.csv:3: 'a' has two different labels"),
    ],
)
def test_ids_without_a_partner_are_counted(
    labels: str, sensitive: bool, message: str, scores: str, tmp_path: Path
) -> None:
    path = str(written(tmp_path / "labels.csv", f"id,label\n{labels}\n"))
    with pytest.raises(DataError, match=message):
        read_labelled([scores], Columns(), labels=path, sensitive=sensitive)
    if "partial" in message:
        assert read_labelled([scores], Columns(), labels=path, partial=True).missing == 1


def test_labels_beside_the_scores(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("id,score,label,patient\nx,1,true,p\ny,,False,p\n")
    found = read_labelled([str(path)], Columns(group="patient"))
    assert (found.labels, found.scores, found.groups) == ([True, False], [1.0, -math.inf], ["p", "p"])
    assert (found.alarms, found.lengths) == (None, None)


@pytest.mark.parametrize(
    ("row", "label", "message"),
    [
        ("x,1,Anomaly\n", "label", r"scores.csv:2: .*'Anomaly'.*--positive"),
        ("x,high,1\n", "label", r"field 'score': not a number"),
        ("x,1,1\n", "labl", r"field 'labl': no such field"),
        ("", "label", "no scores"),
    ],
)
def test_what_is_no_labelled_score_is_named(row: str, label: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text(f"id,score,label\n{row}")
    with pytest.raises(DataError, match=message):
        read_labelled([str(tmp_path / "scores.csv")], Columns(label=label))


def test_another_file_gives_the_same_rows(tmp_path: Path) -> None:
    labelled = jsonl(tmp_path / "l.jsonl", [{**row, "label": 0} for row in ROWS])
    found = read_labelled([str(labelled)], Columns())
    other = str(jsonl(tmp_path / "o.jsonl", ROWS[::-1]))
    assert scores_of_keys(other, "score", found.keys, False) == (found.scores, [False, True, False])
    for rows, message in (
        (ROWS[:2], r"1 rows have no such score: c"),
        ([*ROWS, ROWS[0]], r"o.jsonl:4: duplicate row"),
    ):
        jsonl(tmp_path / "o.jsonl", rows)
        with pytest.raises(DataError, match=message):
            scores_of_keys(other, "score", found.keys, False)


def test_parts_of_a_record_are_rows_of_their_own(tmp_path: Path) -> None:
    rows = [{"id": "a", "start": n, "end": n + 5, "score": n, "label": n > 0} for n in (0, 5)]
    path = str(jsonl(tmp_path / "a.jsonl", rows))
    found = read_labelled([path], Columns())
    assert len(set(found.keys)) == 2
    assert scores_of_keys(path, "score", found.keys, False)[0] == [0, 5]


@pytest.mark.parametrize("anomalies", ["5", '"abc"', "[5]", "[{}]", '{"a": 1}'])
def test_a_truth_that_is_damaged(tmp_path: Path, anomalies: str) -> None:
    path = tmp_path / "truth.json"
    path.write_text(f'{{"schema": "seqmlm.sample.v1", "domain": "protein", "anomalies": {anomalies}}}')
    with pytest.raises(DataError, match=r"truth\.json: the anomalies of this truth file cannot be read"):
        Planted.read(str(path))
    path.write_text("[" * 100_000)
    assert Planted.read(str(path)) is None

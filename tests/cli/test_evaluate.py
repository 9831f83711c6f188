"""`seqmlm evaluate` through the entry point: figures, floors, rivals, the report; sensitive data."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fork_server import Run
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from written import jsonl


def _rows(count: int = 200, **more: Any) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        label = number % 5 == 0
        score = float(random.normal(2.0 * label))
        drawn = {"units": int(random.integers(5, 50)), "noise": float(random.normal())}
        found = {"id": f"r{number}", "score": score, "alarm": score > 1.5, "label": label}
        rows.append({**found, **drawn, **more})
    return rows


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "scores.jsonl", _rows())


def test_figures_are_scikit_learns(seqmlm: Run, scores: Path) -> None:
    done = seqmlm("evaluate", scores, "--json", "--prevalence", 0.01, "--set", "draws=20").ok()
    rows = _rows()
    labels, values = [row["label"] for row in rows], [row["score"] for row in rows]
    first, length, everything = done.json["rankings"]
    assert first["auroc"] == pytest.approx(roc_auc_score(labels, values))
    assert first["auroc_low"] < first["auroc"] < first["auroc_high"]
    assert first["average_precision"] == pytest.approx(average_precision_score(labels, values))
    assert [rate["trials"] for rate in first["recall"]] == [40, 40]
    assert length["auroc"] == pytest.approx(roc_auc_score(labels, [row["units"] for row in rows]))
    assert (everything["auroc"], everything["average_precision"]) == (0.5, 0.2)
    alarms, always = done.json["alarms"]
    assert alarms["f1"] == pytest.approx(f1_score(labels, [row["alarm"] for row in rows]))
    assert always["f1"] == pytest.approx(2 * 0.2 / 1.2)
    assert alarms["f1_at_prevalence"] < alarms["f1"]
    assert first["oracle_f1"] >= alarms["f1"]


def test_a_rival_is_compared_on_the_same_rows(seqmlm: Run, scores: Path, tmp_path: Path) -> None:
    column = seqmlm("evaluate", scores, "--baseline", "noise", "--json", "--set", "draws=100").ok()
    auroc = column.json["differences"]["auroc"]
    assert 0 < auroc["low"] < auroc["value"] < auroc["high"]
    other = [{**row, "score": row["noise"], "alarm": row["noise"] > 1} for row in _rows()[::-1]]
    rival = jsonl(tmp_path / "rival.jsonl", other)
    file = seqmlm("evaluate", scores, "--baseline", rival, "--json", "--set", "draws=100")
    assert file.json["differences"]["auroc"] == auroc
    assert file.json["differences"]["f1"]["low"] > 0
    assert "f1" not in column.json["differences"]
    grouped = jsonl(tmp_path / "g.jsonl", [{**row, "g": n // 20} for n, row in enumerate(_rows())])
    done = seqmlm("evaluate", grouped, "--group", "g", "--set", "draws=50")
    assert "bootstrap over groups" in done.out
    assert seqmlm("evaluate", grouped, "--group", "g", "--json").json["groups"] == 10


def test_rows_with_p_values_are_ranked_by_these_and_their_scores_stand_beside(
    seqmlm: Run, scores: Path, tmp_path: Path
) -> None:
    rows = [{**row, "p_value": float(np.exp(-abs(row["noise"])))} for row in _rows()]
    judged = jsonl(tmp_path / "judged.jsonl", rows)
    asked = ("--json", "--set", "draws=20")
    first, second, *_ = seqmlm("evaluate", judged, *asked).ok().json["rankings"]
    assert (first["name"], second["name"]) == ("p_value", "score")
    labels = [row["label"] for row in rows]
    assert first["auroc"] == pytest.approx(roc_auc_score(labels, [-row["p_value"] for row in rows]))
    assert second["auroc"] == seqmlm("evaluate", scores, *asked).json["rankings"][0]["auroc"]
    names = [one["name"] for one in seqmlm("evaluate", judged, "--score", "score", *asked).json["rankings"]]
    assert names[0] == "score"
    assert "p_value" not in names
    beside = seqmlm("evaluate", judged, "--baseline", scores, *asked).ok().json
    assert [one["name"] for one in beside["rankings"]][:2] == ["p_value", str(scores)]


def test_tables_and_report(seqmlm: Run, scores: Path, tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    done = seqmlm("evaluate", scores, "--baseline", "units", "--report", page, "--set", "draws=20").ok()
    first, *others = [line.split("\t")[0] for line in done.out.splitlines()]
    assert first.startswith("200 rows, 40 positive; AUROC 0.956 by score, 0.423 by units, ")
    assert "than" not in first
    worse = seqmlm("evaluate", scores, "--score", "units", "--set", "draws=20").ok().out.splitlines()[0]
    assert worse.endswith(": units is worse than flag everything (floor)")
    floors = ["length (floor)", "flag everything (floor)"]
    assert others[:5] == ["score", "score", "units", *floors]
    assert others[5:9] == ["threshold", "alarms", floors[1], "score minus units"]
    html = page.read_text()
    assert "false positive rate" in html.split("<svg")[1]
    assert "http://" not in html
    assert "AUPRC" in html


def test_sensitive_scores_hide_small_counts(seqmlm: Run, tmp_path: Path) -> None:
    rows = _rows(300, sensitive=True)
    found = [n for n, row in enumerate(rows) if row["label"]]
    for number, row in enumerate(rows):
        row["alarm"] = number in found[:55]  # of 60 positives five are missed
    path, page = jsonl(tmp_path / "s.jsonl", rows), tmp_path / "s.html"
    done = seqmlm("evaluate", path, "--json", "--report", page).ok()
    alarms = done.json["alarms"][0]
    assert alarms["true_positives"] == alarms["false_negatives"] == "withheld"
    assert alarms["recall"] is alarms["f1"] is None
    assert done.json["rankings"][0]["oracle_f1"] is None
    assert (done.json["rows"], done.json["positives"]) == (300, 60)
    assert "svg+xml" not in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    few = jsonl(tmp_path / "few.jsonl", _rows(40))
    seqmlm("evaluate", few, "--set", "sensitive=true").refused(3, "fewer than 11")
    seqmlm("evaluate", few).ok()


@pytest.mark.parametrize(
    ("change", "arguments", "code", "message"),
    [
        ({"label": True}, (), 3, "all items are positive (200 of 200)"),
        ({"label": "x"}, (), 3, "neither 0/1 nor true/false: 'x'"),
        ({}, ("--score", "scor"), 3, "field 'scor': no such field"),
        ({}, ("--labels", "none.csv"), 3, "no such file"),
        ({}, ("--prevalence", "2"), 2, "between 0 and 1"),
        ({}, ("--positive", "a", "--negative", "b"), 2, "exclude each other"),
        ({}, ("--baseline", "nois"), 3, "field 'nois': no such field"),
    ],
)
def test_what_is_wrong_is_named(
    seqmlm: Run, tmp_path: Path, change: dict[str, Any], arguments: tuple[str, ...], code: int, message: str
) -> None:
    path = jsonl(tmp_path / "scores.jsonl", _rows(**change))
    seqmlm("evaluate", path, *arguments).refused(code, message)

"""Risks: against a naive computation, and what is counted, left out and refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from encoders import separate_logits
from fork_server import Run
from histories import DAY, histories, table
from text_models import text_model
from tiny_models import random_model, saved

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.history import Event, History, iso
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.engine.packing import Document
from seqmlm.engine.types import Bools
from seqmlm.engine.units import Doubles
from seqmlm.inference import model_folder
from seqmlm.inference.model_folder import LoadedModel

PEOPLE = 90
CODE = "DRUG//metformin"
PREVALENT = ("--set", "prevalent=true")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, a table of events, and labels: does the drug come later?"""
    path = tmp_path_factory.mktemp("risk")
    people = [replace(one, meanings={CODE: "Metformin <500 MG>"}) for one in histories(PEOPLE)]
    model = random_model("ehr", EventsTokenizer.train(people, min_subjects=1), max_length=256)
    saved(model, path / "model", sensitive=True)
    labels = ["subject_id,prediction_time,boolean_value"]
    for one in histories(PEOPLE):
        times = sorted({event.time for event in one.events if event.visit is not None})
        time = times[len(times) // 3]
        later = any(event.code == CODE and event.time > time for event in one.events if event.time)
        labels.append(f"{one.subject},{iso(time)},{str(later).lower()}")
    (path / "events.csv").write_text("\n".join(table(histories(PEOPLE))) + "\n")
    (path / "labels.csv").write_text("\n".join(labels) + "\n")
    return path


def asked(folder: Path, out: Path, *more: object) -> tuple[object, ...]:
    read = (folder / "model", folder / "events.csv", "--labels", folder / "labels.csv")
    return ("risk", *read, "--code", CODE, "--out", out, *more)


def naive(model: LoadedModel, raw: History, code: str) -> float:
    """p(code) where the last event of a history is hidden, by one forward pass of the whole history."""
    encoding = model.tokenizer.encode(raw)
    start, end = raw.code_spans()[-1]
    [place] = np.flatnonzero((encoding.spans[:, 0] == start) & (encoding.spans[:, 1] == end)).tolist()
    true, ids = int(encoding.ids[place]), encoding.ids.copy()
    assert model.tokenizer.spelling.surface(true) == code
    ids[place] = model.tokenizer.space.mask
    hidden = Document(ids=ids, asked=np.array([place]), positions=encoding.positions)
    with torch.no_grad():
        [logits] = separate_logits(model.rows.model, [hidden]).double()
    logits[torch.from_numpy(model.tokenizer.space.is_special)] = -torch.inf
    return float(torch.softmax(logits, -1)[true])


def auroc(scores: Doubles, labels: Bools) -> float:
    above = scores[labels][:, None] - scores[~labels][None]
    return float(np.mean((above > 0) + (above == 0) / 2))


def test_a_risk_is_the_probability_at_a_later_visit(folder: Path, tmp_path: Path, seqmlm: Run):
    done = seqmlm(
        *asked(folder, tmp_path / "out.jsonl", "--gap", "30d", "--gap", "90d", *PREVALENT, "--json")
    ).ok()
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == done.json["predictions"] == PEOPLE
    model, ehr = model_folder.load(folder / "model"), plugins.domain("ehr")
    people = {one.id: one.raw for one in ehr.read([folder / "events.csv"], Problems())}
    for row in rows[:8]:
        raw = people[row["subject_id"]]
        time = np.datetime64(row["prediction_time"][:19]).astype(float)
        expected = {}
        for known in (True, False):
            past = [
                e for e in raw.events if e.time is None or "BIRTH" in e.code or (known and e.time <= time)
            ]
            later = [
                replace(raw, events=(*past, Event(time=time + days * DAY, code=CODE))) for days in (30, 90)
            ]
            expected[known] = np.mean([naive(model, one, CODE) for one in later])
        assert row["predicted_boolean_probability"] == pytest.approx(expected[True], rel=1e-4)
        assert row["log_ratio"] == pytest.approx(np.log(expected[True] / expected[False]), abs=1e-4)


def test_figures_are_those_of_the_rows(folder: Path, tmp_path: Path, seqmlm: Run):
    out, report = tmp_path / "out.jsonl", tmp_path / "risk.html"
    done = seqmlm(*asked(folder, out, *PREVALENT, "--json", "--report", report))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    labels = np.array([row["boolean_value"] for row in rows])
    risk = np.array([row["predicted_boolean_probability"] for row in rows])
    own = done.json["overall"]
    assert own["auroc"] == pytest.approx(auroc(risk, labels))
    assert own["brier"] == pytest.approx(np.mean((risk - labels) ** 2))
    assert own["brier_constant"] == pytest.approx(labels.mean() * (1 - labels.mean()))
    assert set(own["floors"]) == {"events", "before"}
    for name, floor in own["floors"].items():
        assert floor == pytest.approx(auroc(np.array([row[name] for row in rows]), labels))
    told = Counter(
        (f"{key}={value}", row["boolean_value"]) for row in rows for key, value in row["groups"].items()
    )
    groups = {name for name, _ in told if min(told[name, True], told[name, False]) >= 11}
    assert groups
    assert {name: one["n"] for name, one in done.json["groups"].items()} == {
        name: told[name, True] + told[name, False] for name in groups
    }
    assert "Calibration" in report.read_text()
    assert "Highest risks" in report.read_text()
    assert "Metformin &lt;500 MG&gt;" in report.read_text()
    assert not any(row["subject_id"] in done.err for row in rows)


def test_who_had_the_code_is_left_out(folder: Path, tmp_path: Path, seqmlm: Run):
    everyone = seqmlm(*asked(folder, tmp_path / "a.jsonl", *PREVALENT, "--json")).json
    new = seqmlm(*asked(folder, tmp_path / "b.jsonl", "--json")).json
    assert new["seen"] > 0
    assert new["predictions"] + new["seen"] == everyone["predictions"]


def test_codes_are_patterns(folder: Path, tmp_path: Path, seqmlm: Run):
    several = seqmlm(*asked(folder, tmp_path / "a.jsonl", "--code", "DRUG//*", *PREVALENT, "--json"))
    assert several.json["codes"] == 5


@pytest.mark.parametrize(
    ("labels", "more", "code", "said"),
    [
        (
            "subject_id,prediction_time\np1,never\n",
            (),
            3,
            "labels.csv:2: field 'prediction_time': not a time",
        ),
        ("subject_id,when\np1,2020-01-01\n", (), 3, "no such field"),
        (
            "subject_id,prediction_time,boolean_value\np1,2020-01-01,perhaps\n",
            (),
            3,
            "neither true nor false",
        ),
        ("subject_id,prediction_time\n", (), 3, "no labels"),
        (None, ("--gap", "soon"), 2, "--gap must be a duration"),
        (None, ("--code", "DRUG//gold"), 2, "the model has no code 'DRUG//gold'"),
        (None, ("--code", CODE.partition("//")[2]), 2, f"did you mean {CODE}?"),
    ],
)
def test_requests_without_sense(
    folder: Path, tmp_path: Path, seqmlm: Run, labels: str | None, more: tuple[str, ...], code: int, said: str
):
    table = tmp_path / "labels.csv"
    table.write_text(labels or (folder / "labels.csv").read_text())
    given = ["risk", folder / "model", folder / "events.csv", "--labels", table]
    seqmlm(*given, "--out", tmp_path / "o.jsonl", "--code", CODE, *more).refused(code, said)


def test_a_field_without_times(tmp_path: Path, seqmlm: Run):
    (tmp_path / "t.txt").write_text("the cat\n")
    seqmlm("risk", text_model(tmp_path), tmp_path / "t.txt", "--code", "cat").refused(2, "have no times")

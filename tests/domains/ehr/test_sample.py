"""The patient sample holds what its truth says, and says it twice."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr import sample as sample_module
from seqmlm.domains.ehr.history import iso
from seqmlm.domains.ehr.readers import exports, meds

COUNT = 1500


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Record]]:
    out = tmp_path_factory.mktemp("ehr")
    drawn = sample_module.write(out, COUNT, 11)
    problems = Problems()
    records = list(meds.read_meds(drawn.files[0], problems))
    assert drawn.files == (out / "meds",)
    assert problems.counts == {}
    return out, json.loads(drawn.truth.read_text()), records


def days(records: list[Record]) -> dict[str, dict[str, float]]:
    """Code -> subject -> day it is first recorded."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for record in records:
        for event in record.raw.events:
            found[event.code].setdefault(record.id, (event.time or 0) / 86_400)
    return found


def test_both_folders_hold_the_same_patients(sample) -> None:
    out, truth, records = sample
    problems = Problems()
    tables = {record.id: str(record.raw) for record in exports.read_synthea(out / "synthea", problems)}
    assert {record.id: str(record.raw) for record in records} == tables
    assert len(tables) == truth["n"] == COUNT
    assert problems.bad_count == 0
    assert meds.is_meds(out / "meds")
    assert meds.is_meds(out)  # the folder with truth.json beside the data will do
    assert [record.id for record in meds.read_meds(out, Problems())] == [record.id for record in records]
    assert exports.is_synthea(out / "synthea")
    assert records[0].raw.meanings["DRUG//A10BA02"] == "Metformin"


def test_splits_are_given(sample) -> None:
    for name, share in {"train": 0.8, "validation": 0.1, "test": 0.1}.items():
        assert sum(r.meta["split"] == name for r in sample[2]) / COUNT == pytest.approx(share, abs=0.03)


def test_causes_raise_their_effects_and_come_before_them(sample) -> None:
    _, truth, records = sample
    found = days(records)
    edges = [edge for edge in truth["edges"] if edge["kind"] == "comorbidity"]
    assert len(edges) == 10
    for edge in edges:
        source, target = found[edge["source"]], found[edge["target"]]
        share_with = len(target.keys() & source.keys()) / len(source)
        others = len(records) - len(source)
        share_without = len(target.keys() - source.keys()) / others
        assert share_with > share_without + 0.08, edge
        lags = [target[who] - source[who] for who in source.keys() & target.keys()]
        late = [lag for lag in lags if lag > 0]
        # Long lags run out of the time that is observed.
        assert 0.5 * edge["lag_days"] < np.median(late) < 1.4 * edge["lag_days"], edge


def test_drugs_are_given_for_their_condition_only_but_for_the_wrong_ones(sample) -> None:
    _, truth, records = sample
    cause = {edge["target"]: edge["source"] for edge in truth["edges"] if edge["kind"] == "drug"}
    wrong = {(anomaly["subject"], anomaly["code"]) for anomaly in truth["anomalies"]}
    planted = 0
    for record in records:
        codes = {event.code for event in record.raw.events}
        for drug in codes & cause.keys():
            assert (cause[drug] in codes) != ((record.id, drug) in wrong)
            planted += (record.id, drug) in wrong
    assert planted == len(wrong) == len(truth["anomalies"])
    assert 0.06 < len(wrong) / len(records) < 0.10
    for edge in truth["edges"]:
        if edge["kind"] == "drug":
            found = days(records)
            drug, disease = found[edge["target"]].keys(), found[edge["source"]].keys()
            treated = len(drug & disease) / len(disease)
            assert treated == pytest.approx(edge["probability"], abs=0.12), edge


def test_wrong_codes_stand_where_the_truth_says(sample) -> None:
    _, truth, records = sample
    raw = {record.id: record.raw for record in records}
    replaced = 0
    for anomaly in truth["anomalies"]:
        (event,) = [e for e in raw[anomaly["subject"]].events if e.code == anomaly["code"]]
        assert (event.visit, iso(event.time)) == (anomaly["visit"], anomaly["time"])
        replaced += anomaly["instead_of"] is not None
    assert replaced > len(truth["anomalies"]) / 4


def test_indirect_pairs_are_dependent_and_not_linked(sample) -> None:
    _, truth, records = sample
    direct = {(edge["source"], edge["target"]) for edge in truth["edges"]}
    assert [*map(tuple, truth["indirect"])] == sorted(set(map(tuple, truth["indirect"])) - direct)
    assert ["CONDITION//E66.9", "CONDITION//N18.3"] in truth["indirect"]
    found = days(records)
    lifts = [
        len(found[a].keys() & found[b].keys()) * len(records) / (len(found[a]) * len(found[b]))
        for a, b in truth["indirect"]
    ]
    assert np.mean(lifts) > 1.5


def test_measurements_and_background(sample) -> None:
    _, truth, records = sample
    found = days(records)
    for lab in truth["labs"]:
        have = found[lab["condition"]]
        high = [
            e.value
            for r in records
            for e in r.raw.events
            if e.code == lab["code"] and r.id in have and (e.time or 0) / 86_400 >= have[r.id]
        ]
        usual = [e.value for r in records for e in r.raw.events if e.code == lab["code"] and r.id not in have]
        assert np.mean(high) == pytest.approx(lab["mean_with_condition"], abs=lab["spread"] / 2)
        assert np.mean(usual) == pytest.approx(lab["mean"], abs=lab["spread"] / 4)
        assert np.std(usual) == pytest.approx(lab["spread"], rel=0.15)
    women = found["SEX//F"].keys()
    old = {r.id for r in records if iso(r.raw.birth) < "1960"}
    bones = found["CONDITION//M81.0"].keys()
    assert len(bones & women) / len(women) > 1.7 * len(bones - women) / (COUNT - len(women))
    assert len(bones & old) / len(old) > 1.7 * len(bones - old) / (COUNT - len(old))

"""The network of codes: planted links hold in the patients drawn, and figures by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from decoded import decoded, planted_and_noise

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr import EHR
from seqmlm.domains.ehr.history import Event, History
from seqmlm.domains.ehr.structure import CodesDecoder
from seqmlm.domains.structure import Decoded
from seqmlm.errors import DataError

DAY = 86_400.0


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory):
    made = EHR.sample.draw(tmp_path_factory.mktemp("ehr"), n=600, seed=5)
    return made, json.loads(made.truth.read_text()), list(EHR.read(made.files, Problems()))


def units_of(record: Record) -> list[str]:
    """Codes of the visits, as units are spelled."""
    return [event.code for event in record.raw.events if event.visit and not event.code.startswith("VISIT//")]


def patient(subject: str, codes: list[tuple[str, float]]) -> Record:
    events = tuple(Event(time=day * DAY, code=code) for code, day in codes)
    raw = History(subject=subject, birth=None, events=events)
    return Record(id=subject, raw=raw, source="-", line=1)


def test_linked_codes_stand_where_the_truth_says(sample) -> None:
    _, truth, records = sample
    placed = {one["subject"]: one for one in truth["patients"]}
    linked = {(one["source"], one["target"]) for one in truth["edges"]}
    linked |= {(one["condition"], one["code"]) for one in truth["labs"]}
    indirect = {tuple(pair) for pair in truth["indirect"]}
    assert len(placed) == len(records) == 600
    seen = {"direct": 0, "indirect": 0}
    for record in records:
        first: dict[str, str | None] = {}
        for event in record.raw.events:
            if event.visit:
                first.setdefault(event.code, event.visit)
        for kind, pairs in (("direct", linked), ("indirect", indirect)):
            own = placed[record.id][kind]
            assert [[first[a], a, first[b], b] for _, a, _, b in own] == own
            assert {(a, b) for _, a, _, b in own} == {(a, b) for a, b in pairs if {a, b} <= set(first)}
            seen[kind] += len(own)
    assert seen["direct"] > 500
    assert seen["indirect"] > 30


def test_indirect_codes_share_a_cause(sample) -> None:
    made, _, records = sample
    knows = CodesDecoder().truths(made.truth, Problems())
    kinds: dict[tuple[str, str], str] = {}
    for record in records:
        units = units_of(record)
        truth = knows(record, units)
        kinds |= {
            (min(units[i], units[j]), max(units[i], units[j])): kind for (i, j), kind in truth.kinds.items()
        }
        for i, j in truth.edges:
            assert truth.covers((i, j))
    obesity, diabetes, knee, kidney = (f"CONDITION//{code}" for code in ("E66.9", "E11.9", "M17.9", "N18.3"))
    assert kinds[diabetes, obesity] == "comorbidity"
    assert kinds[diabetes, knee] == "indirect", "both follow obesity"
    assert kinds[obesity, kidney] == "indirect", "through diabetes"
    assert kinds[kidney, "DRUG//A10BA02"] == "indirect", "metformin is for what leads to it"
    assert kinds[diabetes, "DRUG//A10BA02"] == "drug"
    assert kinds[diabetes, "LAB//4548-4"] == "measurement"
    assert (diabetes, "CONDITION//J44.9") not in kinds


def test_pairs_without_a_condition_are_unknown(sample) -> None:
    made, _, records = sample
    units = ["DRUG//A10BA02", "DRUG//C09AA05", "CONDITION//I10", "CONDITION//I10"]
    truth = CodesDecoder().truths(made.truth, Problems())(records[0], units)
    assert [truth.covers(pair) for pair in [(0, 1), (1, 2), (2, 3)]] == [False, True, False]
    stranger = patient("nobody", [("CONDITION//I10", 0.0)])
    assert CodesDecoder().truths(made.truth, Problems())(stranger, ["CONDITION//I10"]) is None


def test_the_planted_network_is_measured_as_perfect_and_noise_as_null(sample) -> None:
    made, _, records = sample
    decoder = CodesDecoder()
    right, noise = planted_and_noise(decoder, made.truth, records, units_of)
    found, floor = decoder.measures(right), decoder.measures(noise)
    assert found["auprc"] == found["auroc_against_indirect"] == 1
    assert 0.3 < found["auprc_of_pmi"] < 1, "PMI shows indirect pairs too"
    assert found["recall_of_direct"] == 1
    assert floor["auroc"] == pytest.approx(0.5, abs=0.12)
    assert floor["auprc_of_pmi"] == found["auprc_of_pmi"], "counting needs no map"


def cohort(count: int) -> list[Decoded]:
    """Patients with A on day 0 or 10, B 30 or 50 days later, and C, which half of them have, with B."""
    made = []
    for number in range(count):
        begin, lag = (0.0, 30.0) if number % 2 else (10.0, 50.0)
        codes = [("A", begin), ("B", begin + lag)] + ([("C", begin + lag)] if number % 2 else [])
        values = np.full((len(codes),) * 2, 0.5)
        values[0, 1] = values[1, 0] = 2.0
        made.append(decoded(CodesDecoder(), patient(str(number), codes), [code for code, _ in codes], values))
    return made


def test_time_lag_direction_and_what_few_have() -> None:
    files = CodesDecoder().files(cohort(20))
    assert list(files) == ["network.graphml", "network.tsv"]
    graph = nx.read_graphml(io.BytesIO("".join(files["network.graphml"]).encode()))
    assert set(graph.edges) == {("A", "B")}, "ten patients have C: fewer than 11"
    assert graph.edges["A", "B"]["lag_days"] == pytest.approx(40.0)
    assert graph.edges["A", "B"]["count"] == 20
    assert "C" not in "".join(files["network.tsv"])
    more = "".join(CodesDecoder().files(cohort(22))["network.tsv"]).splitlines()
    assert [line.split("\t")[:2] for line in more[1:]] == [["A", "B"], ["A", "C"], ["B", "C"]]
    assert more[3].split("\t")[5] == "0", "on one day"


def test_equal_codes_are_no_edge_and_no_patient_is_drawn() -> None:
    one = patient("1", [("A", 0.0), ("A", 1.0), ("B", 2.0)])
    one = decoded(CodesDecoder(), one, ["A", "A", "B"], np.array([[0, 9, 5], [9, 0, 1], [5, 1, 0.0]]))
    assert (0, 1) not in one.predicted
    assert CodesDecoder().picture(one) is None
    assert EHR.structure().measure == "auprc"


def test_a_truth_without_its_lists_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text(
        '{"schema": "seqmlm.sample.ehr.v1", "conditions": [], "edges": [], "labs": []}'
    )
    with pytest.raises(DataError, match="patients") as error:
        CodesDecoder().truths(tmp_path / "truth.json", Problems())
    assert "draw the sample again" in str(error.value)

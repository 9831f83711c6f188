"""Generate the patient sample: synthetic lives from a planted graph of conditions, drugs and measurements.

A person gets a condition by chance, with a probability that depends on sex and year of birth, or from another
condition after a lag. Each condition is found at its own visit. Chronic conditions are recorded again at
later visits, with their drugs and measurements. Some patients have one wrong code.

All data are invented. The codes are real (ICD-10, ATC, LOINC), but of the figures only the direction of
effects is realistic.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.labels import SUBJECT, TIME, VALUE
from seqmlm.domains.ehr.history import BIRTH, iso
from seqmlm.domains.samples import LABELS, Sample, checked_count, heading, write_lines, write_truth


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A disease.

    Args:
        code, name: code and name in ICD-10.
        base: probability that a person gets it without a cause in the graph.
        women, old: factors on `base` for women, and for people born before 1960.
        chronic: whether it continues and is recorded again.
        kind: class of the visit at which it is found.
        treated: share of its patients who get its drugs.
    """

    code: str
    name: str
    base: float
    women: float = 1.0
    old: float = 1.0
    chronic: bool = True
    kind: str = "outpatient"
    treated: float = 0.85


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A comorbidity edge: patients with `source` get `target` about `lag` days later, with `probability`."""

    source: str
    target: str
    probability: float
    lag: int


@dataclass(frozen=True, kw_only=True)
class Drug:
    """A drug, which is given for one condition only."""

    code: str
    name: str
    condition: str


@dataclass(frozen=True)
class Lab:
    """A measurement with its mean and standard deviation (`spread`).

    Patients with `condition` have the mean `raised`, and are measured more often.
    """

    code: str
    name: str
    mean: float
    spread: float
    condition: str
    raised: float


CONDITIONS = (
    Condition(code="E66.9", name="Obesity", base=0.20),
    Condition(code="E11.9", name="Type 2 diabetes mellitus", base=0.04, old=1.5),
    Condition(code="I10", name="Hypertension", base=0.10, old=2.0),
    Condition(code="N18.3", name="Chronic kidney disease, stage 3", base=0.01),
    Condition(code="I25.1", name="Coronary heart disease", base=0.02, women=0.5, old=2.0),
    Condition(code="I50.9", name="Heart failure", base=0.005, kind="inpatient"),
    Condition(code="D63.1", name="Anaemia in chronic kidney disease", base=0.0),
    Condition(code="F17.2", name="Nicotine dependence", base=0.18, women=0.7, treated=0.3),
    Condition(code="J44.9", name="Chronic obstructive pulmonary disease", base=0.01, old=1.5),
    Condition(code="J18.9", name="Pneumonia", base=0.03, chronic=False, kind="inpatient"),
    Condition(code="F32.9", name="Depression", base=0.10, women=1.6),
    Condition(code="G47.0", name="Insomnia", base=0.04),
    Condition(code="M81.0", name="Osteoporosis", base=0.04, women=2.5, old=2.5),
    Condition(code="S72.0", name="Fracture of neck of femur", base=0.003, chronic=False, kind="inpatient"),
    Condition(code="M17.9", name="Osteoarthritis of knee", base=0.06, old=2.5),
    Condition(code="K21.9", name="Gastro-oesophageal reflux", base=0.09),
    Condition(code="J06.9", name="Upper respiratory infection", base=0.50, chronic=False, treated=0.3),
    Condition(
        code="N39.0", name="Urinary tract infection", base=0.12, women=2.0, chronic=False, kind="emergency"
    ),
    Condition(code="S93.4", name="Sprain of ankle", base=0.15, old=0.5, chronic=False, kind="emergency"),
)

CAUSES = (
    Cause(source="E66.9", target="E11.9", probability=0.40, lag=900),
    Cause(source="E66.9", target="M17.9", probability=0.30, lag=700),
    Cause(source="E11.9", target="N18.3", probability=0.40, lag=1000),
    Cause(source="N18.3", target="D63.1", probability=0.60, lag=400),
    Cause(source="I10", target="I25.1", probability=0.35, lag=800),
    Cause(source="I25.1", target="I50.9", probability=0.40, lag=600),
    Cause(source="F17.2", target="J44.9", probability=0.45, lag=900),
    Cause(source="J44.9", target="J18.9", probability=0.50, lag=300),
    Cause(source="F32.9", target="G47.0", probability=0.55, lag=120),
    Cause(source="M81.0", target="S72.0", probability=0.35, lag=500),
)

DRUGS = (
    Drug(code="A10BA02", name="Metformin", condition="E11.9"),
    Drug(code="A10AE04", name="Insulin glargine", condition="E11.9"),
    Drug(code="C09AA05", name="Ramipril", condition="I10"),
    Drug(code="C08CA01", name="Amlodipine", condition="I10"),
    Drug(code="B01AC06", name="Acetylsalicylic acid", condition="I25.1"),
    Drug(code="C10AA05", name="Atorvastatin", condition="I25.1"),
    Drug(code="C03CA01", name="Furosemide", condition="I50.9"),
    Drug(code="V03AE02", name="Sevelamer", condition="N18.3"),
    Drug(code="B03XA01", name="Erythropoietin", condition="D63.1"),
    Drug(code="N07BA01", name="Nicotine", condition="F17.2"),
    Drug(code="R03BB04", name="Tiotropium bromide", condition="J44.9"),
    Drug(code="J01CA04", name="Amoxicillin", condition="J18.9"),
    Drug(code="N06AB06", name="Sertraline", condition="F32.9"),
    Drug(code="N05CF02", name="Zolpidem", condition="G47.0"),
    Drug(code="M05BA04", name="Alendronic acid", condition="M81.0"),
    Drug(code="B01AB05", name="Enoxaparin", condition="S72.0"),
    Drug(code="M01AE01", name="Ibuprofen", condition="M17.9"),
    Drug(code="A02BC01", name="Omeprazole", condition="K21.9"),
    Drug(code="R01AA07", name="Xylometazoline", condition="J06.9"),
    Drug(code="J01XE01", name="Nitrofurantoin", condition="N39.0"),
)

LABS = (
    Lab("39156-5", "Body mass index", mean=24.0, spread=2.0, condition="E66.9", raised=34.0),
    Lab("4548-4", "Haemoglobin A1c", mean=5.3, spread=0.4, condition="E11.9", raised=8.0),
    Lab("8480-6", "Systolic blood pressure", mean=120.0, spread=8.0, condition="I10", raised=152.0),
    Lab("33914-3", "Glomerular filtration rate", mean=95.0, spread=9.0, condition="N18.3", raised=45.0),
    Lab("718-7", "Haemoglobin", mean=14.0, spread=0.8, condition="D63.1", raised=9.5),
)

RACES = ("white", "black", "asian")
RACE_SHARES = (0.7, 0.15, 0.15)


def indirect() -> list[tuple[str, str]]:
    """The pairs of conditions that depend on each other only indirectly.

    They are joined by a path of two or more edges, but not by an edge.
    """
    from networkx import DiGraph, descendants

    graph = DiGraph((cause.source, cause.target) for cause in CAUSES)
    return sorted((a, b) for a in graph for b in descendants(graph, a) - set(graph[a]))


# Lives

DEFAULT_COUNT = 2000
WRONG = 0.08  # share of patients with one wrong code
DAY = 86_400
BEGIN, END = 14_610, 20_089  # days since 1970: 2010-01-01 to 2025-01-01

_AGAIN, _CONTINUED, _MONITORED, _SCREENED = 0.35, 0.5, 0.5, 0.05
_BY_CODE = {condition.code: condition for condition in CONDITIONS}
_Random = np.random.Generator


@dataclass(slots=True)
class Visit:
    """One visit: its time in seconds since 1970, its class, its codes with vocabularies, and (code, value) of
    its measurements."""

    id: str
    time: int
    kind: str
    codes: list[str] = field(default_factory=list)
    labs: list[tuple[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Patient:
    """One generated patient. `birth` is in seconds since 1970, and `split` is a name of MEDS."""

    subject: int
    birth: int
    sex: str
    race: str
    split: str
    visits: list[Visit]


def draw(n: int, seed: int) -> tuple[list[Patient], list[dict[str, Any]]]:
    """Generate `n` patients, numbered from 1, and the list of wrong codes (docs/reference/samples.md)."""
    patients, wrong = [], []
    for number in range(1, n + 1):
        rng = np.random.Generator(np.random.Philox(key=[seed, number]))
        patient = _life(number, rng)
        patients.append(patient)
        if rng.random() < WRONG:
            wrong.append(_spoil(patient, rng))
    return patients, wrong


def truth(n: int, seed: int, anomalies: list[dict[str, Any]], patients: Sequence[Patient]) -> dict[str, Any]:
    """The planted graph and anomalies in the form of `truth.json` (docs/reference/samples.md)."""
    return {
        **heading("ehr", n, seed, MEDS, "events are named by subject, visit and code"),
        "synthea": SYNTHEA,
        "conditions": [_condition_row(condition) for condition in CONDITIONS],
        "edges": _edges(),
        "indirect": [[f"CONDITION//{a}", f"CONDITION//{b}"] for a, b in indirect()],
        "patients": [_linked_visits(patient) for patient in patients],
        "labs": [
            {"code": f"LAB//{lab.code}", "mean": lab.mean, "spread": lab.spread}
            | {"condition": f"CONDITION//{lab.condition}", "mean_with_condition": lab.raised}
            for lab in LABS
        ],
        "anomalies": anomalies,
    }


def _edges() -> list[dict[str, Any]]:
    """The planted links between conditions, and between conditions and their drugs."""
    rows = [("comorbidity", c.source, f"CONDITION//{c.target}", c.probability, c.lag) for c in CAUSES]
    rows += [("drug", d.condition, f"DRUG//{d.code}", _BY_CODE[d.condition].treated, 0) for d in DRUGS]
    names = ("kind", "source", "target", "probability", "lag_days")
    return [dict(zip(names, (kind, f"CONDITION//{a}", *details), strict=True)) for kind, a, *details in rows]


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write the folders `meds` and `synthea` with the same patients, the labels, and the truth to `out`."""
    count = checked_count(n, DEFAULT_COUNT)
    patients, anomalies = draw(count, seed)
    return write_files(out, patients, truth(count, seed, anomalies, patients))


def _linked_visits(patient: Patient) -> dict[str, Any]:
    """The linked pairs of codes that a patient has, each code with the visit of its first record."""
    first: dict[str, str] = {}
    for visit in patient.visits:
        for code in (*visit.codes, *(code for code, _ in visit.labs)):
            first.setdefault(code, visit.id)
    direct = [(edge["source"], edge["target"]) for edge in _edges()]
    direct += [(f"CONDITION//{lab.condition}", f"LAB//{lab.code}") for lab in LABS]
    through = [(f"CONDITION//{a}", f"CONDITION//{b}") for a, b in indirect()]

    def visit_pairs(pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
        """Visit and code of both codes, for each pair that the patient has."""
        return [[first[a], a, first[b], b] for a, b in pairs if a in first and b in first]

    return {"subject": str(patient.subject), "direct": visit_pairs(direct), "indirect": visit_pairs(through)}


def _condition_row(condition: Condition) -> dict[str, Any]:
    """A condition in the form of `truth.json`."""
    factors = {name: getattr(condition, name) for name in ("name", "base", "women", "old")}
    return {
        "code": f"CONDITION//{condition.code}",
        **factors,
        "recorded_again": _AGAIN if condition.chronic else 0.0,
    }


def _life(number: int, rng: _Random) -> Patient:
    """Generate a patient with visits."""
    birth = int(rng.integers(-14_600, 8_000))  # 1930 to 1991
    sex = "F" if rng.random() < 0.5 else "M"
    race = str(rng.choice(RACES, p=RACE_SHARES))
    split = str(rng.choice(_SPLITS, p=[0.8, 0.1, 0.1]))
    begin = int(rng.integers(BEGIN, BEGIN + 1_500))
    onsets = _onsets(sex == "F", birth < -3_653, begin, rng)
    days = _days(begin, onsets, rng)
    visits = [
        Visit(id="", time=day * DAY + int(rng.integers(8 * 60, 18 * 60)) * 60, kind=_kind(day, onsets))
        for day in days
    ]
    _fill(visits, days, onsets, rng)
    # Visits without codes and measurements are dropped, except the first visit.
    visits = visits[:1] + [visit for visit in visits[1:] if visit.codes or visit.labs]
    for order, visit in enumerate(visits, start=1):
        visit.id = f"{number}-{order}"
    return Patient(number, birth * DAY, sex, race, split, visits)


def _onsets(woman: bool, early_born: bool, begin: int, rng: _Random) -> dict[str, int]:
    """Generate the conditions of a person: code -> day of onset. Causes come before their effects."""
    onsets: dict[str, int] = {}
    for condition in CONDITIONS:
        odds = condition.base * (condition.women if woman else 1.0) * (condition.old if early_born else 1.0)
        if rng.random() < min(odds, 0.95):
            onsets[condition.code] = int(rng.integers(begin, END - 200))
        for cause in CAUSES:
            if cause.target == condition.code and cause.source in onsets and rng.random() < cause.probability:
                day = onsets[cause.source] + round(cause.lag * float(rng.lognormal(0.0, 0.3)))
                if day < END:
                    onsets[condition.code] = min(onsets.get(condition.code, END), day)
    return onsets


def _days(begin: int, onsets: dict[str, int], rng: _Random) -> list[int]:
    """Generate the days of visits: the day of each onset, and random other days."""
    days = set(onsets.values()) | {begin}
    day = begin
    while (day := day + 20 + int(rng.exponential(300.0))) < END:
        days.add(day)
    return sorted(days)


def _kind(day: int, onsets: dict[str, int]) -> str:
    """The class of a visit, from the conditions that begin on its day."""
    kinds = {_BY_CODE[code].kind for code, onset in onsets.items() if onset == day}
    return next((kind for kind in ("inpatient", "emergency") if kind in kinds), "outpatient")


def _fill(visits: list[Visit], days: list[int], onsets: dict[str, int], rng: _Random) -> None:
    """Add codes and measurements to the visits."""
    treated = {code for code in onsets if rng.random() < _BY_CODE[code].treated}
    for visit, day in zip(visits, days, strict=True):
        present = {code for code, onset in onsets.items() if onset == day}
        chronic = {code for code, onset in onsets.items() if onset < day and _BY_CODE[code].chronic}
        recorded = [
            c.code for c in CONDITIONS if c.code in present or (c.code in chronic and rng.random() < _AGAIN)
        ]
        visit.codes += [f"CONDITION//{code}" for code in recorded]
        for drug in DRUGS:
            due = drug.condition in present or (drug.condition in chronic and rng.random() < _CONTINUED)
            if due and drug.condition in treated:
                visit.codes.append(f"DRUG//{drug.code}")
        for lab in LABS:
            has = lab.condition in present or lab.condition in chronic
            if rng.random() < (_MONITORED if has else _SCREENED):
                value = rng.normal(lab.raised if has else lab.mean, lab.spread)
                visit.labs.append((f"LAB//{lab.code}", round(float(value), 1)))


def _spoil(patient: Patient, rng: _Random) -> dict[str, Any]:
    """Add a drug for a condition that the patient never has to a visit. It replaces a drug of the visit, if
    there is one."""
    codes = {code for visit in patient.visits for code in visit.codes}
    foreign = [
        f"DRUG//{drug.code}"
        for drug in DRUGS
        if f"CONDITION//{drug.condition}" not in codes and f"DRUG//{drug.code}" not in codes
    ]
    with_codes = [visit for visit in patient.visits if visit.codes] or patient.visits
    visit = with_codes[int(rng.integers(len(with_codes)))]
    wrong = foreign[int(rng.integers(len(foreign)))]
    drugs = [place for place, code in enumerate(visit.codes) if code.startswith("DRUG//")]
    replaced_code = None
    if drugs:
        place = drugs[int(rng.integers(len(drugs)))]
        replaced_code, visit.codes[place] = visit.codes[place], wrong
    else:
        visit.codes.append(wrong)
    where = {"subject": str(patient.subject), "visit": visit.id, "time": iso(visit.time)}
    return {**where, "code": wrong, "instead_of": replaced_code}


# Files

MEDS, SYNTHEA = "meds", "synthea"

_MICRO = 1_000_000
_SPLITS = ("train", "tuning", "held_out")
_TABLES = {"conditions": "CONDITION//", "medications": "DRUG//"}
_NAMES = {
    **{f"CONDITION//{c.code}": c.name for c in CONDITIONS},
    **{f"DRUG//{d.code}": d.name for d in DRUGS},
    **{f"LAB//{lab.code}": lab.name for lab in LABS},
}


def write_files(out: Path, patients: Sequence[Patient], truth: dict[str, Any]) -> Sample:
    """Write both folders, the labels and `truth.json`. The MEDS folder is the data of the sample."""
    _write_meds(out / MEDS, patients)
    _write_synthea(out / SYNTHEA, patients)
    write_lines(out / LABELS, (json.dumps(_outcome_label(patient)) for patient in patients))
    return Sample(
        files=(out / MEDS,), truth=write_truth(out, truth), extra_files=(out / SYNTHEA, out / LABELS)
    )


def _outcome_label(patient: Patient) -> dict[str, Any]:
    """A label in the form of MEDS: whether a condition with a cause in the graph first occurs after the
    middle visit."""
    middle = (len(patient.visits) - 1) // 2
    now, later = (
        {code for visit in visits for code in visit.codes}
        for visits in (patient.visits[: middle + 1], patient.visits[middle + 1 :])
    )
    caused = {f"CONDITION//{cause.target}" for cause in CAUSES}
    subject, time = patient.subject, iso(patient.visits[middle].time)
    return {SUBJECT: subject, TIME: time, VALUE: bool(caused & later - now)}


def _write_meds(folder: Path, patients: Sequence[Patient]) -> None:
    """Write the patients as a MEDS data set."""
    import pyarrow as pa

    names = ("subject_id", "time", "code", "numeric_value", "visit_id")
    types = (pa.int64(), pa.timestamp("us"), pa.string(), pa.float32(), pa.string())
    schema = pa.schema(list(zip(names, types, strict=True)))
    for split in _SPLITS:
        rows = [row for patient in patients if patient.split == split for row in _events(patient)]
        if rows:
            _write_parquet(folder / "data" / split / "0.parquet", rows, schema)
    codes = pa.schema([("code", pa.string()), ("description", pa.string())])
    _write_parquet(folder / "metadata" / "codes.parquet", list(_NAMES.items()), codes)
    splits = pa.schema([("subject_id", pa.int64()), ("split", pa.string())])
    _write_parquet(
        folder / "metadata" / "subject_splits.parquet", [(p.subject, p.split) for p in patients], splits
    )
    about = {"dataset_name": "seqmlm sample", "meds_version": "0.4.0"}
    write_lines(folder / "metadata" / "dataset.json", [json.dumps(about)])


def _events(patient: Patient) -> Iterator[tuple[int, int | None, str, float | None, str | None]]:
    """The events of a patient: subject, time in microseconds, code, value and visit.

    Events without a time come first, then the others in order of time.
    """
    subject = patient.subject
    yield subject, None, f"SEX//{patient.sex}", None, None
    yield subject, None, f"RACE//{patient.race}", None, None
    yield subject, patient.birth * _MICRO, BIRTH, None, None
    for visit in patient.visits:
        microseconds = visit.time * _MICRO
        yield subject, microseconds, f"VISIT//{visit.kind}", None, visit.id
        for code in _sorted_codes(visit):
            yield subject, microseconds, code, None, visit.id
        for code, value in visit.labs:
            yield subject, microseconds, code, value, visit.id


def _sorted_codes(visit: Visit) -> list[str]:
    """The distinct codes of a visit, conditions before drugs, in the order of the tables."""
    return [
        code for front in _TABLES.values() for code in dict.fromkeys(visit.codes) if code.startswith(front)
    ]


def _write_parquet(path: Path, rows: Sequence[tuple[Any, ...]], schema: Any) -> None:
    """Write rows to a parquet file. Equal rows give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    # All options are explicit, so that a seed always gives the same bytes, whatever the defaults of pyarrow.
    pq.write_table(
        pa.table(arrays, schema=schema),
        path,
        compression="zstd",
        compression_level=3,
        row_group_size=65_536,
        version="2.6",
        data_page_version="1.0",
        store_schema=False,
    )


def _write_synthea(folder: Path, patients: Sequence[Patient]) -> None:
    """Write the patients as Synthea tables."""
    visits = [(patient, visit) for patient in patients for visit in patient.visits]
    _write_csv(
        folder / "patients.csv",
        "Id,BIRTHDATE,DEATHDATE,RACE,GENDER",
        ((p.subject, iso(p.birth)[:10], "", p.race, p.sex) for p in patients),
    )
    _write_csv(
        folder / "encounters.csv",
        "Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE,DESCRIPTION",
        ((v.id, _utc_time(v), "", p.subject, v.kind, "", "") for p, v in visits),
    )
    for name, front in _TABLES.items():
        _write_csv(
            folder / f"{name}.csv",
            "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION",
            (
                (_utc_time(v), "", p.subject, v.id, code.removeprefix(front), _NAMES[code])
                for p, v in visits
                for code in dict.fromkeys(v.codes)
                if code.startswith(front)
            ),
        )
    _write_csv(
        folder / "observations.csv",
        "DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION,VALUE,UNITS,TYPE",
        (
            (_utc_time(v), p.subject, v.id, code.removeprefix("LAB//"), _NAMES[code], value, "", "numeric")
            for p, v in visits
            for code, value in v.labs
        ),
    )


def _utc_time(visit: Visit) -> str:
    """The time of a visit as ISO 8601 in UTC."""
    return iso(visit.time) + "Z"


def _write_csv(path: Path, header: str, rows: Iterable[Sequence[Any]]) -> None:
    """Write a header and rows to a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as handle:
        handle.write(header + "\n")
        csv.writer(handle, lineterminator="\n").writerows(rows)

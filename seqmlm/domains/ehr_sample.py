"""The built-in patient sample: lives drawn from a planted graph of diseases, some with one wrong code.

The graph is that of `ehr_graph`. A person gets conditions by chance (more or less often by sex and year of
birth) and through others, after a lag; each is found at a visit of its own and, if chronic, recorded again at
later ones, with its drugs and measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.events import iso
from seqmlm.domains import ehr_sample_files as files
from seqmlm.domains.base import Sample
from seqmlm.domains.ehr_graph import CAUSES, CONDITIONS, DRUGS, LABS, RACE_SHARES, RACES, Condition, indirect
from seqmlm.domains.samples import checked_count

DEFAULT_COUNT = 2000
WRONG = 0.08  # share of patients with one wrong code
DAY = 86_400
BEGIN, END = 14_610, 20_089  # days since 1970: 2010-01-01 to 2025-01-01

_AGAIN, _CONTINUED, _MONITORED, _SCREENED = 0.35, 0.5, 0.5, 0.05
_BY_CODE = {condition.code: condition for condition in CONDITIONS}
_Random = np.random.Generator


@dataclass(slots=True)
class Visit:
    """One visit: seconds since 1970, class, codes with their vocabularies, (code, value) of measurements."""

    id: str
    time: int
    kind: str
    codes: list[str] = field(default_factory=list)
    labs: list[tuple[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Patient:
    """One drawn life; `split` is a word of MEDS."""

    subject: int
    birth: int
    sex: str
    race: str
    split: str
    visits: list[Visit]


def draw(n: int, seed: int) -> tuple[list[Patient], list[dict[str, Any]]]:
    """`n` patients, numbered from 1, and the wrong codes among their events (docs/SAMPLES.md)."""
    patients, wrong = [], []
    for number in range(1, n + 1):
        rng = np.random.Generator(np.random.Philox(key=[seed, number]))
        patient = _life(number, rng)
        patients.append(patient)
        if rng.random() < WRONG:
            wrong.append(_spoil(patient, rng))
    return patients, wrong


def truth(n: int, seed: int, anomalies: list[dict[str, Any]]) -> dict[str, Any]:
    """What is planted, as `truth.json` holds it (docs/SAMPLES.md)."""
    edges: list[dict[str, Any]] = [
        {
            "kind": "comorbidity",
            "source": f"CONDITION//{cause.source}",
            "target": f"CONDITION//{cause.target}",
            "probability": cause.probability,
            "lag_days": cause.lag,
        }
        for cause in CAUSES
    ]
    edges += [
        {
            "kind": "drug",
            "source": f"CONDITION//{drug.condition}",
            "target": f"DRUG//{drug.code}",
            "probability": _BY_CODE[drug.condition].treated,
            "lag_days": 0,
        }
        for drug in DRUGS
    ]
    return {
        "schema": "seqmlm.sample.ehr.v1",
        "domain": "ehr",
        "seed": seed,
        "n": n,
        "file": files.MEDS,
        "positions": "events are named by subject, visit and code",
        "synthea": files.SYNTHEA,
        "conditions": [_described(condition) for condition in CONDITIONS],
        "edges": edges,
        "indirect": [[f"CONDITION//{a}", f"CONDITION//{b}"] for a, b in indirect()],
        "labs": [
            {
                "code": f"LAB//{lab.code}",
                "mean": lab.mean,
                "spread": lab.spread,
                "condition": f"CONDITION//{lab.condition}",
                "mean_with_condition": lab.raised,
            }
            for lab in LABS
        ],
        "anomalies": anomalies,
    }


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write the folders `meds` and `synthea`, which hold the same patients, and `truth.json` into `out`."""
    count = checked_count(n, DEFAULT_COUNT)
    patients, anomalies = draw(count, seed)
    return files.write(out, patients, truth(count, seed, anomalies))


def _described(condition: Condition) -> dict[str, Any]:
    return {
        "code": f"CONDITION//{condition.code}",
        "name": condition.name,
        "base": condition.base,
        "women": condition.women,
        "old": condition.old,
        "recorded_again": _AGAIN if condition.chronic else 0.0,
    }


def _life(number: int, rng: _Random) -> Patient:
    birth = int(rng.integers(-14_600, 8_000))  # 1930 to 1991
    sex = "F" if rng.random() < 0.5 else "M"
    race = str(rng.choice(RACES, p=RACE_SHARES))
    split = str(rng.choice(["train", "tuning", "held_out"], p=[0.8, 0.1, 0.1]))
    begin = int(rng.integers(BEGIN, BEGIN + 1_500))
    onsets = _onsets(sex == "F", birth < -3_653, begin, rng)
    days = _days(begin, onsets, rng)
    visits = [
        Visit(
            id="",
            time=day * DAY + int(rng.integers(8 * 60, 18 * 60)) * 60,
            kind=_kind(day, onsets),
        )
        for day in days
    ]
    _fill(visits, days, onsets, rng)
    # A visit at which nothing was found says nothing; everybody keeps the first one.
    visits = visits[:1] + [visit for visit in visits[1:] if visit.codes or visit.labs]
    for order, visit in enumerate(visits, start=1):
        visit.id = f"{number}-{order}"
    return Patient(number, birth * DAY, sex, race, split, visits)


def _onsets(woman: bool, old: bool, begin: int, rng: _Random) -> dict[str, int]:
    """Condition -> day it begins, for the conditions a person gets; causes stand before their effects."""
    found: dict[str, int] = {}
    for condition in CONDITIONS:
        odds = condition.base * (condition.women if woman else 1.0) * (condition.old if old else 1.0)
        if rng.random() < min(odds, 0.95):
            found[condition.code] = int(rng.integers(begin, END - 200))
        for cause in CAUSES:
            if cause.target == condition.code and cause.source in found and rng.random() < cause.probability:
                day = found[cause.source] + round(cause.lag * float(rng.lognormal(0.0, 0.3)))
                if day < END:
                    found[condition.code] = min(found.get(condition.code, END), day)
    return found


def _days(begin: int, onsets: dict[str, int], rng: _Random) -> list[int]:
    """Days of the visits: one for each onset, others now and then."""
    days = set(onsets.values()) | {begin}
    day = begin
    while (day := day + 20 + int(rng.exponential(300.0))) < END:
        days.add(day)
    return sorted(days)


def _kind(day: int, onsets: dict[str, int]) -> str:
    kinds = {_BY_CODE[code].kind for code, onset in onsets.items() if onset == day}
    return next((kind for kind in ("inpatient", "emergency") if kind in kinds), "outpatient")


def _fill(visits: list[Visit], days: list[int], onsets: dict[str, int], rng: _Random) -> None:
    treated = {code for code in onsets if rng.random() < _BY_CODE[code].treated}
    for visit, day in zip(visits, days, strict=True):
        present = {code for code, onset in onsets.items() if onset == day}
        known = {code for code, onset in onsets.items() if onset < day and _BY_CODE[code].chronic}
        recorded = [
            c.code for c in CONDITIONS if c.code in present or (c.code in known and rng.random() < _AGAIN)
        ]
        visit.codes += [f"CONDITION//{code}" for code in recorded]
        for drug in DRUGS:
            due = drug.condition in present or (drug.condition in known and rng.random() < _CONTINUED)
            if due and drug.condition in treated:
                visit.codes.append(f"DRUG//{drug.code}")
        for lab in LABS:
            has = lab.condition in present or lab.condition in known
            if rng.random() < (_MONITORED if has else _SCREENED):
                value = rng.normal(lab.raised if has else lab.mean, lab.spread)
                visit.labs.append((f"LAB//{lab.code}", round(float(value), 1)))


def _spoil(patient: Patient, rng: _Random) -> dict[str, Any]:
    """Put a drug of a condition the patient never has into a visit, in place of another drug if it can be."""
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
    instead = None
    if drugs:
        place = drugs[int(rng.integers(len(drugs)))]
        instead, visit.codes[place] = visit.codes[place], wrong
    else:
        visit.codes.append(wrong)
    return {
        "subject": str(patient.subject),
        "visit": visit.id,
        "time": iso(visit.time),
        "code": wrong,
        "instead_of": instead,
    }

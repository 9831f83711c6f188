"""Patients drawn from a few diseases: enough regularity to learn, as `History` values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from seqmlm.domains.ehr.history import Event, History, iso

DAY = 86400.0
DISEASES = {
    "I50": ("ICD10//I50.9", "DRUG//furosemide", "LAB//2345-7"),
    "E11": ("ICD10//E11.9", "DRUG//metformin", "LAB//4548-4"),
    "J45": ("ICD10//J45.20", "DRUG//salbutamol", "LAB//33452-4"),
    "N18": ("ICD10//N18.3", "DRUG//calcitriol", "LAB//2160-0"),
    "F32": ("ICD10//F32.1", "DRUG//sertraline", "LAB//3016-3"),
}


def lines(history: History) -> list[str]:
    """The events as "day code value text visit kind", short enough to compare by eye."""
    return [
        " ".join(
            str(cell)
            for cell in (iso(e.time)[:10], e.code, e.value, e.text, e.visit, e.kind)
            if cell is not None and cell != ""
        )
        for e in history.events
    ]


def history(number: int, seed: int = 0) -> History:
    """One patient: chronic diseases from some visit on, with their drugs and a measured value."""
    rng = np.random.default_rng([seed, number])
    birth = float(rng.integers(-25_000, 5_000)) * DAY
    events = [Event(time=None, code=f"SEX//{rng.choice(['F', 'M'])}")]
    events.append(Event(time=birth, code="MEDS_BIRTH"))
    own = rng.choice(sorted(DISEASES), size=rng.integers(1, 4), replace=False)
    begins = dict(zip(own.tolist(), rng.integers(0, 4, len(own)).tolist(), strict=True))
    time = 10_000 * DAY + float(rng.integers(0, 2_000)) * DAY
    for visit in range(int(rng.integers(2, 8))):
        name, kind = f"v{number}-{visit}", str(rng.choice(["inpatient", "outpatient"]))
        events.append(Event(time=time, code="VISIT//start", visit=name, kind=kind))
        for disease, first in begins.items():
            if first > visit:
                continue
            diagnosis, drug, lab = DISEASES[disease]
            value = float(rng.normal(10 + 5 * (disease in ("I50", "E11")), 3))
            events.append(Event(time=time + 60, code=diagnosis, visit=name))
            events.append(Event(time=time + 120, code=drug, visit=name))
            events.append(Event(time=time + 180, code=lab, value=value, visit=name))
            if disease == "E11":
                word = str(rng.choice(["yellow", "amber"]))
                events.append(Event(time=time + 240, code="LAB//5778-6", text=word, visit=name))
        time += float(rng.choice([3, 10, 40, 200, 500])) * DAY
    return History(subject=f"p{number}", birth=birth, events=tuple(events))


def histories(count: int, seed: int = 0) -> list[History]:
    """The first `count` patients of a seed."""
    return [history(number, seed) for number in range(count)]


def table(people: Iterable[History]) -> list[str]:
    """The lines of a long table of their events, its header first."""
    lines = ["patient,time,code,value,text,visit"]
    for one in people:
        for e in one.events:
            time, value = "" if e.time is None else iso(e.time), "" if e.value is None else repr(e.value)
            lines.append(",".join((one.subject, time, e.code, value, e.text or "", e.visit or "")))
    return lines

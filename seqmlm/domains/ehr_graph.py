"""What the built-in patients suffer from, and why: the planted graph of conditions, drugs and measurements.

Invented for this sample: the codes are real (ICD-10, ATC, LOINC), the figures only have the right direction.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A disease.

    Args:
        code, name: ICD-10.
        base: probability that a person has it without any cause in the graph.
        women, old: factors on `base` for women, and for those born before 1960.
        chronic: it stays and is recorded again.
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
    """A comorbidity edge: of those with `source` a share gets `target`, about `lag` days later."""

    source: str
    target: str
    probability: float
    lag: int


@dataclass(frozen=True, kw_only=True)
class Drug:
    """A drug, given for one condition only."""

    code: str
    name: str
    condition: str


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A measurement: mean and spread, and the mean in those with `condition`, who are measured more often."""

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
    Lab(code="39156-5", name="Body mass index", mean=24.0, spread=2.0, condition="E66.9", raised=34.0),
    Lab(code="4548-4", name="Haemoglobin A1c", mean=5.3, spread=0.4, condition="E11.9", raised=8.0),
    Lab(code="8480-6", name="Systolic blood pressure", mean=120.0, spread=8.0, condition="I10", raised=152.0),
    Lab(
        code="33914-3",
        name="Glomerular filtration rate",
        mean=95.0,
        spread=9.0,
        condition="N18.3",
        raised=45.0,
    ),
    Lab(code="718-7", name="Haemoglobin", mean=14.0, spread=0.8, condition="D63.1", raised=9.5),
)

RACES = ("white", "black", "asian")
RACE_SHARES = (0.7, 0.15, 0.15)


def indirect() -> list[tuple[str, str]]:
    """Pairs of conditions joined by a path of two or more edges and by no edge: dependent, not directly."""
    after: dict[str, set[str]] = {}
    for cause in CAUSES:
        after.setdefault(cause.source, set()).add(cause.target)
    found = set()
    for source, direct in after.items():
        waiting, reached = list(direct), set(direct)
        while waiting:
            for target in after.get(waiting.pop(), set()) - reached:
                reached.add(target)
                waiting.append(target)
        found |= {(source, target) for target in reached - direct}
    return sorted(found)

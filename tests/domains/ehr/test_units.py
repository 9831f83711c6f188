"""Units of measurement: factors against the published ones, and nothing converted that is not known."""

from __future__ import annotations

from itertools import permutations

import pytest

from seqmlm.domains.ehr.units import conversion, unit


# As tables for clinicians print them (AMA Manual of Style), to their digits.
@pytest.mark.parametrize(
    ("code", "old", "new", "factor"),
    [
        ("LAB//Glucose", "mg/dL", "mmol/L", 0.0555),
        ("LAB//2345-7", "mg/dL", "mmol/L", 0.0555),
        ("LAB//creatinine, serum", "mg/dL", "µmol/L", 88.4),
        ("CHOLESTEROL TOTAL", "mg/dL", "mmol/L", 0.0259),
        ("LAB//HDL cholesterol", "mg/dL", "mmol/L", 0.0259),
        ("LAB//Bilirubin (direct)", "mg/dL", "umol/L", 17.1),
        ("LAB//Urea Nitrogen", "mg/dL", "mmol/L", 0.357),
        ("LAB//50931//glucose", "mg/dL", "mmol/L", 0.0555),
        ("LAB//hgb", "g/dL", "g/L", 10.0),
        ("LAB//haemoglobin", "g/dL", "mmol/L", 0.6206),
        ("LAB//sodium", "mEq/L", "mmol/L", 1.0),
        ("VITAL//weight", "lbs", "kg", 0.4536),
        ("VITAL//height", "inches", "cm", 2.54),
        ("LAB//whatever", "mg/dL", "g/L", 0.01),
        ("LAB//leukocytes", "K/uL", "10^9/L", 1.0),
    ],
)
def test_factors_are_the_published_ones(code: str, old: str, new: str, factor: float) -> None:
    found = conversion(code, unit(old), unit(new))
    assert found.scale == pytest.approx(factor, rel=2e-3)
    assert found.offset == 0


@pytest.mark.parametrize(("fahrenheit", "celsius"), [(32.0, 0.0), (98.6, 37.0), (212.0, 100.0)])
def test_temperatures(fahrenheit: float, celsius: float) -> None:
    there = conversion("VITAL//temperature", unit("F"), unit("°C"))
    back = conversion("VITAL//temperature", unit("Cel"), unit("[degF]"))
    assert fahrenheit * there.scale + there.offset == pytest.approx(celsius, abs=1e-9)
    assert celsius * back.scale + back.offset == pytest.approx(fahrenheit)


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("LAB//51000", "mg/dl", "mmol/l"),  # of what?
        ("LAB//glucose tolerance", "mg/dl", "mmol/l"),
        ("LAB//albumin/creatinine", "mg/dl", "mmol/l"),
        ("LAB//glucose", "mg/dl", "u/l"),
        ("LAB//calcium", "meq/l", "mmol/l"),  # of two charges
        ("LAB//glucose", "meq/l", "mmol/l"),
        ("LAB//sodium", "mg/dl", "mmol/l"),
        ("VITAL//weight", "kg", "cm"),
        ("LAB//alt", "u/l", "ukat/l"),
    ],
)
def test_what_is_not_known_is_not_converted(code: str, old: str, new: str) -> None:
    assert conversion(code, old, new) is None
    assert conversion(code, new, old) is None


def test_there_and_back_is_the_same() -> None:
    units = ["g/dl", "g/l", "mg/dl", "ug/l", "mmol/l", "umol/l", "nmol/l"]
    for old, new in permutations(units, 2):
        there, back = conversion("LAB//glucose", old, new), conversion("LAB//glucose", new, old)
        assert 7.0 * there.scale * back.scale == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("spellings", "same"),
    [
        (["mg/dL", "MG/DL", "mg / dl", "mg per dL", "mg/100mL", "milligram per deciliter", "8840"], "mg/dl"),
        (["µmol/L", "μmol/l", "umol/L", "micromole per litre"], "umol/l"),
        (["", " ", None, "NULL", "n/a", "0", "None"], ""),
        (["mL/min/{1.73_m2}"], "ml/min/{1.73_m2}"),
    ],
)
def test_a_unit_has_one_spelling(spellings: list[str | None], same: str) -> None:
    assert {unit(spelling) for spelling in spellings} == {same}

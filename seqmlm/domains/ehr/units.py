"""Normalize the spelling of units of measurement, and convert between units.

Within one dimension, the factors are definitions: SI prefixes, the international pound and inch (0.45359237
kg and 2.54 cm), 0 C = 32 F.

Between mass and amount of substance, a conversion needs the molar mass of the analyte (g/mol, from PubChem).
For haemoglobin, this is the mass of the monomer, as in laboratory reports. Between mmol and mEq, the analyte
must be an ion with one charge. These conversions are therefore made only if the code identifies the analyte.

Other units have no known conversion, such as enzymes in U/L or counts without a volume. Their values are not
converted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class _Unit(NamedTuple):
    dimension: str
    scale: float  # value * scale + offset is in the base unit of the dimension
    offset: float = 0.0


class Conversion(NamedTuple):
    """A conversion: `value * scale + offset` is the value in the other unit."""

    scale: float
    offset: float = 0.0


SAME = Conversion(1.0)

# Dimension -> unit -> (scale, its other spellings). Spellings have the form in which `unit` looks them up.
_DIMENSIONS: dict[str, dict[str, tuple[float, str]]] = {
    "mass concentration": {  # mg/dl
        "g/dl": (1e3, "g/100ml gm/dl g% gram/deciliter"),
        "g/l": (1e2, "gram/liter"),
        "mg/dl": (1.0, "mg/100ml mg% milligram/deciliter"),
        "mg/l": (0.1, "ug/ml mcg/ml milligram/liter microgram/milliliter"),
        "ug/dl": (1e-3, "mcg/dl microgram/deciliter"),
        "ug/l": (1e-4, "ng/ml mcg/l microgram/liter nanogram/milliliter"),
        "ng/dl": (1e-6, "nanogram/deciliter"),
        "ng/l": (1e-7, "pg/ml nanogram/liter picogram/milliliter"),
    },
    "amount concentration": {  # mmol/l
        "mol/l": (1e3, "mole/liter"),
        "mmol/l": (1.0, "millimole/liter"),
        "umol/l": (1e-3, "mcmol/l micromol/l micromole/liter"),
        "nmol/l": (1e-6, "nanomole/liter"),
        "pmol/l": (1e-9, "picomole/liter"),
    },
    "equivalents": {"meq/l": (1.0, "milliequivalent/liter"), "eq/l": (1e3, "")},
    "count concentration": {  # 10*9/l
        "10*9/l": (1.0, "10^9/l x10^9/l x10*9/l k/ul 10*3/ul 10^3/ul x10^3/ul x10*3/ul thousand/microliter"),
        "10*12/l": (1e3, "10^12/l x10^12/l x10*12/l m/ul 10*6/ul 10^6/ul x10^6/ul million/microliter"),
        "/ul": (1e-3, "#/ul cells/ul {cells}/ul /mm3 cells/mm3"),
    },
    "mass": {  # kg
        "kg": (1.0, "kgs kilogram kilograms"),
        "g": (1e-3, "gm gram grams"),
        "lb": (0.45359237, "lbs pound pounds [lb_av] pound(us)"),
        "oz": (0.45359237 / 16, "ounce ounces [oz_av]"),
    },
    "length": {  # cm
        "m": (100.0, "meter"),
        "cm": (1.0, "centimeter centimeters"),
        "mm": (0.1, "millimeter"),
        "in": (2.54, "inch inches [in_i] inch(us)"),
        "ft": (30.48, "foot feet [ft_i]"),
    },
    "temperature": {"cel": (1.0, "c degc celsius degreecelsius"), "[degf]": (5 / 9, "f degf fahrenheit")},
    "pressure": {"mm[hg]": (1.0, "mmhg"), "kpa": (1 / 0.1333223874, "kilopascal")},
}
_OFFSETS = {"[degf]": -32 * 5 / 9}

# Standard concept ids of units in OMOP. A table can have these ids even if the table `concept` is missing.
_OF_CONCEPT = """8840=mg/dl 8753=mmol/l 8749=umol/l 8713=g/dl 8636=g/l 9557=meq/l 9529=kg 8739=lb 8582=cm
    9330=in 586323=cel 9289=[degf]"""
_CONCEPTS = dict(pair.split("=") for pair in _OF_CONCEPT.split())
_NONE = frozenset(("", "-", "0", "none", "null", "nan", "na", "n/a", "unknown", "nomatchingconcept"))


_UNITS = {
    name: _Unit(dimension, scale, _OFFSETS.get(name, 0.0))
    for dimension, members in _DIMENSIONS.items()
    for name, (scale, _) in members.items()
}
_SPELLINGS = _CONCEPTS | {
    spelling: name
    for members in _DIMENSIONS.values()
    for name, (_, spellings) in members.items()
    for spelling in spellings.split()
}


# Analyte -> (g/mol, or None for ions with one charge; names; LOINC codes)
_ANALYTES: dict[str, tuple[float | None, str, str]] = {
    "glucose": (180.156, "glucose glu", "2345-7 2339-0 2340-8 41653-7 1558-6 14749-6 15074-8"),
    "creatinine": (113.12, "creatinine creat", "2160-0 38483-4 14682-9"),
    "cholesterol": (386.65, "cholesterol chol hdl ldl", "2093-3 2085-9 2089-1 13457-7 18262-6 14647-2"),
    "bilirubin": (584.66, "bilirubin bili", "1975-2 1968-7 1971-1 42719-5 14631-6"),
    "haemoglobin": (16_114.5, "haemoglobin hemoglobin hgb hb", "718-7 59260-0"),
    "urea": (60.056, "urea", "3091-6 22664-7"),
    "urea nitrogen": (28.0134, "bun", "3094-0 6299-2 14937-7"),
    "sodium": (None, "sodium na", "2951-2 2947-0"),
    "potassium": (None, "potassium k", "2823-3 6298-4"),
    "chloride": (None, "chloride cl", "2075-0 2069-3"),
    "bicarbonate": (None, "bicarbonate hco3", "1963-8 1959-6 1960-4"),
}
_OF_WORD = {word: name for name, (_, words, _) in _ANALYTES.items() for word in words.split()}
_OF_LOINC = {code: name for name, (_, _, codes) in _ANALYTES.items() for code in codes.split()}
# Words next to the name of an analyte that do not change its meaning.
_NEUTRAL_WORDS = """lab labs loinc test result level total serum plasma blood bld whole ser plas arterial
    venous capillary fasting random direct indirect conjugated calculated mass moles substance volume
    concentration in of measurement chem chemistry"""
_NEUTRAL = frozenset(_NEUTRAL_WORDS.split())
_WORD = re.compile(r"[^\W\d_]+\d*")


@lru_cache(maxsize=1 << 14)
def unit(text: str | None) -> str:
    """The normalized spelling of a unit, in lower case without white space; "" for no unit.

    >>> unit(" µmol / L"), unit("mg per dL"), unit("[lb_av]"), unit("U/L"), unit("None")
    ('umol/l', 'mg/dl', 'lb', 'u/l', '')
    """
    spelling = (text or "").strip().casefold()
    for word, sign in ((" per ", "/"), ("μ", "u"), ("litre", "liter"), ("metre", "meter"), ("°", "deg")):
        spelling = spelling.replace(word, sign)
    spelling = "".join(spelling.split())
    return "" if spelling in _NONE else _SPELLINGS.get(spelling, spelling)


@lru_cache(maxsize=1 << 14)
def analyte(code: str) -> str | None:
    """The analyte that a code measures, or None if it is unknown.

    A code is known by its LOINC code, or if its name has only an analyte and neutral words such as "serum".

    >>> analyte("LAB//2345-7"), analyte("LAB//Glucose, fasting"), analyte("LAB//glucose tolerance")
    ('glucose', 'glucose', None)
    """
    parts = [part for part in code.casefold().split("//") if unit(part) not in _UNITS]
    for part in parts:
        if part in _OF_LOINC:
            return _OF_LOINC[part]
    words = [word for part in parts for word in _WORD.findall(part)]
    if "urea" in words and "nitrogen" in words:
        words = [*(word for word in words if word not in ("urea", "nitrogen")), "bun"]
    names = {_OF_WORD[word] for word in words if word in _OF_WORD}
    all_known = all(word in _OF_WORD or word in _NEUTRAL for word in words)
    return names.pop() if all_known and len(names) == 1 else None


@lru_cache(maxsize=1 << 14)
def conversion(code: str, source: str, target: str) -> Conversion | None:
    """The conversion of a code's values from one unit to another, or None if it is unknown.

    Args:
        code: identifies the analyte, for units of different dimensions.
        source, target: units in the spelling of `unit`.

    >>> round(100 * conversion("LAB//glucose", "mg/dl", "mmol/l").scale, 2)
    5.55
    """
    if source == target:
        return SAME
    if source not in _UNITS or target not in _UNITS:
        return None
    first, second = _UNITS[source], _UNITS[target]
    bridge = 1.0 if first.dimension == second.dimension else _bridge(code, first.dimension, second.dimension)
    if bridge is None:
        return None
    return Conversion(
        first.scale * bridge / second.scale, (first.offset * bridge - second.offset) / second.scale
    )


def _bridge(code: str, source: str, target: str) -> float | None:
    """The factor between the base units of two dimensions, for the analyte of a code; None if unknown."""
    substance = analyte(code)
    if substance is None:
        return None
    molar, _, _ = _ANALYTES[substance]
    if molar is None:  # a mole of ions with one charge is one equivalent
        return 1.0 if {source, target} == {"amount concentration", "equivalents"} else None
    if (source, target) == ("mass concentration", "amount concentration"):
        return 10.0 / molar  # mg/dl -> mg/l -> mmol/l
    if (source, target) == ("amount concentration", "mass concentration"):
        return molar / 10.0
    return None

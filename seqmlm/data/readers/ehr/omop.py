"""OMOP's common data model, CSV or parquet: concepts become codes of their vocabularies, where known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.events import DEATH
from seqmlm.data.problems import Problems
from seqmlm.data.readers.ehr import cells
from seqmlm.data.readers.ehr.relational import People, Table, read_tables
from seqmlm.data.readers.ehr.tables import scan, table_files
from seqmlm.data.record import Record

_PERSON, _VISIT = ("person_id",), ("visit_occurrence_id",)
_SEX = {"8507": "M", "8532": "F"}
_KINDS = {
    "inpatient": "9201 262 8717 8920 32037 42898160",
    "outpatient": "9202 5083 581476 581477 8756 8940 32693 38004193",
    "emergency": "9203 8870",
}
_KIND_OF = {concept: kind for kind, concepts in _KINDS.items() for concept in concepts.split()}
_CHUNK = 1 << 16


def read_omop(path: str | Path, problems: Problems, *, until: str | None = None) -> Iterator[Record]:
    """Read a folder of OMOP tables (.csv, also .gz and .zst, or .parquet), one record a person.

    With a table `concept` codes are its vocabulary and code ("SNOMED//44054006"), else the concept's number
    behind the table's kind ("CONDITION//201826"); a concept 0 gives way to the source's code.

    Args:
        path: the folder: person, visit_occurrence, condition_occurrence, procedure_occurrence, drug_exposure,
            measurement, observation, death, concept; each a file, or a folder of parts.
        problems: receives rows without person or time, and counts of what is odd.
        until: the last day of events; later ones are left out.
    """
    concepts = Concepts(table_files(Path(path)).get("concept", []), problems)
    yield from read_tables(path, problems, _people(concepts), _tables(concepts), until=until)


def is_omop(folder: Path) -> bool:
    """Whether a folder holds OMOP's tables: persons, and something that happened to them."""
    found = table_files(folder).keys() if folder.is_dir() else set()
    return "person" in found and any(table.name in found for table in _tables(None))


class Concepts:
    """Concept number -> vocabulary and code, or name; flat arrays, because there may be ten million.

    Args:
        files: the table `concept`; none leave concepts as numbers.
        problems: receives the table's faults.
    """

    def __init__(self, files: list[Path], problems: Problems) -> None:
        import pyarrow as pa

        columns = {
            "concept_id": ("concept_id",),
            "vocabulary_id": ("vocabulary_id",),
            "concept_code": ("concept_code",),
            "concept_name": ("concept_name",),
        }
        held: list[tuple[int, str, str]] = []
        ids, codes, names = [np.zeros(0, np.int64)], [pa.array([], pa.string())], [pa.array([], pa.string())]

        def keep() -> None:
            if held:
                numbers, spelled, called = zip(*held, strict=True)
                ids.append(np.array(numbers, np.int64))
                codes.append(pa.array(spelled, pa.string()))
                names.append(pa.array(called, pa.string()))
                held.clear()

        for file in files:
            for line, (concept, vocabulary, code, name) in scan(file, problems, columns, list(columns)[:3]):
                number = cells.words(concept)
                if not number.isdecimal() or not cells.words(code):
                    problems.bad(cells.no_code(str(file), line, "concept_id"))
                    continue
                full = f"{cells.words(vocabulary)}//{cells.words(code)}"
                held.append((int(number), full, cells.words(name)))
                if len(held) >= _CHUNK:
                    keep()
        keep()
        numbers = np.concatenate(ids)
        self._order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._order]
        self._codes, self._names = pa.chunked_array(codes), pa.chunked_array(names)

    def code(self, concept: str) -> str | None:
        """ "SNOMED//44054006", or the number itself where the concept is not known; None for concept 0."""
        return self._find(concept, self._codes) or self._number(concept)

    def name(self, concept: str) -> str | None:
        """ "Positive", or the number itself; None for concept 0."""
        return self._find(concept, self._names) or self._number(concept)

    def names(self) -> Iterator[tuple[str, str]]:
        """(code, name) of all concepts."""
        for codes, names in zip(self._codes.chunks, self._names.chunks, strict=True):
            yield from zip(codes.to_pylist(), names.to_pylist(), strict=True)

    def _number(self, concept: str) -> str | None:
        return None if concept in ("", "0") else concept

    def _find(self, concept: str, column: Any) -> str | None:
        if not len(self._numbers) or not concept.isdecimal() or concept == "0":
            return None
        at = int(np.searchsorted(self._numbers, int(concept)))
        if at == len(self._numbers) or self._numbers[at] != int(concept):
            return None
        return str(column[int(self._order[at])].as_py())


def _people(concepts: Concepts) -> People:
    return People(
        name="person",
        subject=_PERSON,
        birth=("birth_datetime",),
        birth_parts=(("year_of_birth",), ("month_of_birth",), ("day_of_birth",)),
        static={
            "SEX": ("gender_concept_id",),
            "RACE": ("race_concept_id",),
            "ETHNICITY": ("ethnicity_concept_id",),
        },
        spell=lambda concept: _SEX.get(concept) or concepts.name(concept),
    )


def _table(concepts: Concepts | None, name: str, stem: str, time: str, vocabulary: str) -> Table:
    return Table(
        name=name,
        subject=_PERSON,
        time=(f"{time}_datetime", f"{time}_date"),
        day=(f"{time}_date",),
        code=(f"{stem}_concept_id",),
        vocabulary=vocabulary,
        visit=_VISIT,
        spell=concepts.code if concepts else None,
        source_code=(f"{stem}_source_value",),
    )


def _tables(concepts: Concepts | None) -> tuple[Table, ...]:
    visits = replace(
        _table(concepts, "visit_occurrence", "visit", "visit_start", "VISIT"),
        opens=True,
        kind=lambda concept: _KIND_OF.get(concept, ""),
        spell=lambda concept: None if concept == "0" else f"VISIT//{_KIND_OF.get(concept, concept)}",
    )
    death = replace(_table(None, "death", "", "death", ""), code=_PERSON, visit=(), spell=lambda _: DEATH)
    values: dict[str, Any] = {
        "value": ("value_as_number",),
        "text": ("value_as_concept_id",),
        "say": lambda concept: (concepts.name(concept) if concepts else None) or "",
    }
    return (
        visits,
        _table(concepts, "condition_occurrence", "condition", "condition_start", "CONDITION"),
        _table(concepts, "procedure_occurrence", "procedure", "procedure", "PROCEDURE"),
        _table(concepts, "drug_exposure", "drug", "drug_exposure_start", "DRUG"),
        replace(_table(concepts, "measurement", "measurement", "measurement", "MEASUREMENT"), **values),
        replace(_table(concepts, "observation", "observation", "observation", "OBSERVATION"), **values),
        death,
    )

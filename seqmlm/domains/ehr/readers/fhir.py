"""Read FHIR R4 resources, as JSON lines or bundles, from one file or a folder of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqmlm.data.clock import when
from seqmlm.data.files import MAX_BYTES, source_of, stem_suffix
from seqmlm.data.lines import lines, text_blocks
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import whole_file
from seqmlm.data.readers.objects import json_object
from seqmlm.data.record import Record
from seqmlm.domains.ehr.history import BIRTH, DEATH
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.histories import Cells, Histories, Meanings
from seqmlm.domains.ehr.readers.relational import number_and_words
from seqmlm.errors import DataError

Resource = Mapping[str, Any]

OTHER = "a resource of a type without events"
RETRACTED = "a resource entered in error, left out"
NOT_SO = (
    "a resource for an event that did not happen (refuted, not done, cancelled, planned, not to be given), "
    "left out"
)

_NOT_SO = {"refuted", "not-done", "cancelled", "planned", "preparation", "draft"}

# Type -> vocabulary, the key of its code, the keys that can have its time.
_TYPES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Condition": ("CONDITION", "code", ("onsetDateTime", "onsetPeriod", "recordedDate")),
    "Procedure": ("PROCEDURE", "code", ("performedDateTime", "performedPeriod", "occurrenceDateTime")),
    "MedicationRequest": ("DRUG", "medicationCodeableConcept", ("authoredOn",)),
    "Immunization": ("IMMUNIZATION", "vaccineCode", ("occurrenceDateTime", "recorded")),
    "AllergyIntolerance": ("ALLERGY", "code", ("onsetDateTime", "recordedDate")),
    "Observation": ("LAB", "code", ("effectiveDateTime", "effectivePeriod", "effectiveInstant", "issued")),
}
# Codes of these systems get the name of the system as vocabulary, so that their hierarchy is known.
_SYSTEMS = {"icd-10": "ICD10", "icd10": "ICD10", "icd-9": "ICD9", "icd9": "ICD9"}
_RACE = {"us-core-race": "RACE", "us-core-ethnicity": "ETHNICITY"}
_SEX = {"female": "F", "male": "M"}
_SUFFIXES = (".ndjson", ".jsonl", ".json")


def read_fhir(
    path: str | Path, problems: Problems, *, until: str | None = None, max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read FHIR R4 resources. Each patient is one record.

    The types Patient, Encounter, Condition, Observation (with components), Procedure, MedicationRequest,
    Immunization and AllergyIntolerance are read. Codes have the same form as in `read_synthea`. Names,
    addresses, identifiers and narratives are never read. If an export has several files, give their folder,
    so that each patient is complete.

    Args:
        path: a folder (with one file per type, or mixed), an .ndjson file, or a .json file with a bundle.
        problems: receives text that is not JSON, and resources without patient, code or time. It counts
            resources that are left out.
        until: the last day. Later events are left out.
        max_bytes: largest line and largest bundle.
    """
    folder = Path(path)
    sources = [str(f) for f in _files(folder)] if folder.is_dir() else [source_of(path)]
    meanings = Meanings()
    histories = Histories(problems, sources, until=until, meanings=meanings)

    def rows() -> Iterator[Cells]:
        """The rows of all resources in all files."""
        for number, source in enumerate(sources):
            for line, resource in _resources(source, problems, max_bytes):
                yield from _ResourceRows(source, line, number, problems, meanings).rows(resource)

    yield from histories.records(rows())


def is_fhir(folder: Path) -> bool:
    """Whether a folder has JSON files, and the first of them begins with a FHIR resource."""
    files = _files(folder) if folder.is_dir() else []
    if not files:
        return False
    head = next(text_blocks(str(files[0]), Problems("skip"), lambda: 1), None) or b""
    return b'"resourceType"' in head[:65_536]


def _files(folder: Path) -> list[Path]:
    """The sorted files of a folder that can contain resources."""
    paths = (path for path in sorted(folder.rglob("*")) if stem_suffix(path) in _SUFFIXES and path.is_file())
    return [path for path in paths if not path.name.lower().startswith((".", "truth.json"))]


def _resources(source: str, problems: Problems, max_bytes: int) -> Iterator[tuple[int, Resource]]:
    """The line and content of each resource in a file. Resources in a bundle have the line of the bundle."""
    for line, text in _texts(source, problems, max_bytes):
        parsed = json_object(text)
        if parsed is None:
            problems.bad(
                DataError("not a JSON object", source=source, line=line, remedy="write one resource per line")
            )
            continue
        if parsed.get("resourceType") != "Bundle":
            yield line, parsed
            continue
        inside = parsed.get("entry") or []
        for entry in inside if isinstance(inside, list) else [None]:
            resource = entry.get("resource") if isinstance(entry, dict) else None
            if isinstance(resource, dict):
                yield line, resource
            else:
                problems.note("an entry of a bundle that is not a resource", source=source, line=line)


def _texts(source: str, problems: Problems, max_bytes: int) -> Iterator[tuple[int, str]]:
    """The line and text of each object in a file: each line, or a whole `.json` file."""
    if stem_suffix(source) != ".json":
        yield from ((n, text) for n, text in lines(source, problems, max_bytes=max_bytes) if text.strip())
        return
    yield from whole_file(source, problems, max_bytes, "bundle")


@dataclass(frozen=True)
class _ResourceRows:
    """Turns one resource into rows.

    source, line: the file and line of the resource. number: the number of the file.
    """

    source: str
    line: int
    number: int
    problems: Problems
    meanings: Meanings

    def rows(self, resource: Resource) -> Iterator[Cells]:
        """The rows of a resource. Resources that are retracted or did not happen have no rows."""
        kind = str(resource.get("resourceType"))
        states = {_coding(resource.get("verificationStatus"))[1], str(resource.get("status"))}
        if "entered-in-error" in states:
            self.problems.note(RETRACTED, source=self.source, line=self.line)
        elif states & _NOT_SO or resource.get("doNotPerform") is True:
            self.problems.note(NOT_SO, source=self.source, line=self.line)
        elif kind == "Patient":
            yield from self._patient(resource)
        elif kind == "Encounter":
            yield from self._encounter(resource)
        elif kind in _TYPES:
            yield from self._event(resource, kind)
        else:
            self.problems.note(OTHER)

    def _fault(self, problem: str, field: str) -> None:
        """Report a resource without patient, code or time."""
        self.problems.bad(cells.fault(problem, self.source, self.line, field))

    def _patient(self, resource: Resource) -> Iterator[Cells]:
        """The rows of a patient: background, birth and death."""
        subject = cells.words(resource.get("id"))
        if not subject:
            self._fault("patient", "id")
            return
        sex = cells.words(resource.get("gender"))
        static_events = [("SEX", _SEX.get(sex, sex))]
        for extension in _dicts(resource.get("extension")):
            vocabulary = _RACE.get(str(extension.get("url", "")).rpartition("/")[2])
            for inner in _dicts(extension.get("extension")) if vocabulary else ():
                coding = inner.get("valueCoding")
                if isinstance(coding, dict) and vocabulary:
                    static_events.append((vocabulary, cells.words(coding.get("code"))))
        for vocabulary, word in static_events:
            if word:
                yield self._row(subject, None, f"{vocabulary}//{word}")
        for code, field in ((BIRTH, "birthDate"), (DEATH, "deceasedDateTime")):
            if resource.get(field) and (seconds := self._time(resource, (field,))) is not None:
                yield self._row(subject, seconds, code)

    def _encounter(self, resource: Resource) -> Iterator[Cells]:
        """The rows of an encounter: the event that opens the visit, and the types of the encounter."""
        subject = self._subject(resource)
        seconds = self._time(resource, ("period",)) if subject else None
        if subject is None or seconds is None:
            return
        coding = resource.get("class")
        word = cells.words(coding.get("code")) if isinstance(coding, dict) else ""
        kind, visit = cells.kind_of(word), cells.words(resource.get("id")) or None
        yield self._row(subject, seconds, f"VISIT//{kind or word or 'other'}", visit=visit, kind=kind)
        for concept in _dicts(resource.get("type")):
            yield from self._concept_rows(subject, seconds, visit, concept, "ENCOUNTER")

    def _concept_rows(
        self,
        subject: str,
        seconds: float,
        visit: str | None,
        concept: Any,
        vocabulary: str,
        value: Any = None,
    ) -> Iterator[Cells]:
        """The row of a concept if it has a code. `value` is its number, words and unit from `_value`."""
        system, code, meaning = _coding(concept)
        if code:
            names = (name for part, name in _SYSTEMS.items() if value and part in system.lower())
            full = f"{next(names, vocabulary)}//{code}"
            self.meanings.add(full, meaning, subject)
            yield self._row(subject, seconds, full, value or (None, None, None), visit)

    def _event(self, resource: Resource, kind: str) -> Iterator[Cells]:
        """The rows of a resource: one for its code, and one for each component with a code."""
        vocabulary, key, times = _TYPES[kind]
        subject = self._subject(resource)
        if subject is None:
            return
        parts = _dicts(resource.get("component")) if kind == "Observation" else []
        if not _coding(resource.get(key))[1] and not parts:
            self._fault("code", key)
            return
        seconds = self._time(resource, times)
        if seconds is None:
            return
        visit = _reference(resource.get("encounter"))
        yield from self._concept_rows(
            subject, seconds, visit, resource.get(key), vocabulary, _value(resource)
        )
        for part in parts:
            yield from self._concept_rows(subject, seconds, visit, part.get("code"), vocabulary, _value(part))

    def _subject(self, resource: Resource) -> str | None:
        """The id of a resource's patient. If it has none, it is reported, and the result is None."""
        subject = _reference(resource.get("subject") or resource.get("patient"))
        if subject is None:
            self._fault("patient", "subject")
        return subject

    def _time(self, resource: Resource, fields: tuple[str, ...]) -> float | None:
        """The first nonempty field as seconds since 1970. If it cannot be read, or all fields are empty, this
        is reported, and the result is None."""
        for field in fields:
            cell = resource.get(field)
            cell = cell.get("start") if isinstance(cell, dict) else cell
            if not cell:
                continue
            seconds = when(cell) if isinstance(cell, str) else None
            if seconds is None:
                self._fault("time", field)
            return seconds
        self._fault("time", fields[0])
        return None

    def _row(
        self,
        subject: str,
        seconds: float | None,
        code: str,
        value: tuple[Any, Any, Any] = (None, None, None),
        visit: str | None = None,
        kind: str = "",
    ) -> Cells:
        """The row of an event. `value` is its number, words and unit."""
        number, text = number_and_words(value[0], value[1], True, self.problems)
        unit = None if number is None else cells.unit(value[2])
        return subject, seconds, code, number, text, unit, visit, kind, self.number, self.line


def _dicts(cell: Any) -> list[Resource]:
    """The objects in a list; an empty list if the cell is not a list."""
    return [item for item in cell if isinstance(item, dict)] if isinstance(cell, list) else []


def _coding(concept: Any) -> tuple[str, str, str]:
    """The system, code and display of the first coding with a code in a CodeableConcept.

    The field `text` of the concept is not read, because it is free text.
    """
    for coding in _dicts(concept.get("coding")) if isinstance(concept, dict) else ():
        if code := cells.words(coding.get("code")):
            return str(coding.get("system", "")), code, cells.words(coding.get("display"))
    return "", "", ""


def _value(resource: Resource) -> tuple[Any, Any, Any]:
    """The number, words and unit of a value. Free text (valueString) is not read."""
    quantity = resource.get("valueQuantity")
    if isinstance(quantity, dict):
        return quantity.get("value"), None, cells.words(quantity.get("code") or quantity.get("unit"))
    if "valueInteger" in resource:
        return resource["valueInteger"], None, None
    return None, _coding(resource.get("valueCodeableConcept"))[1] or None, None


def _reference(cell: Any) -> str | None:
    """The id in a reference, such as "Patient/1", "urn:uuid:1", "http://server/Patient/1" or
    "Patient/1/_history/2"."""
    text = cells.words(cell.get("reference")) if isinstance(cell, dict) else ""
    text = text.partition("/_history/")[0]
    return text.rpartition("/")[2].rpartition(":")[2] or None

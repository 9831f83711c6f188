"""A long table: an event a row, with patient, time and code, in columns of any name and rows of any order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seqmlm.data.events import BIRTH, DEATH
from seqmlm.data.files import source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.ehr import cells
from seqmlm.data.readers.ehr.grouping import Row
from seqmlm.data.readers.ehr.histories import Histories
from seqmlm.data.readers.ehr.meds import opening
from seqmlm.data.readers.ehr.relational import measured
from seqmlm.data.readers.ehr.tables import Columns, scan
from seqmlm.data.record import Record

STATIC = "an event without time, taken as background"

_NAMES = {
    "patient": "patient patient_id subject subject_id person_id patientid pid patient_nbr mrn id",
    "time": "time timestamp datetime date start start_date event_time charttime",
    "code": "code concept concept_code event event_code event_type name",
    "value": "value numeric_value value_as_number result valuenum",
    "text": "text_value value_text value_as_string categorical_value",
    "visit": "visit visit_id encounter encounter_id hadm_id admission_id visit_occurrence_id",
    "vocabulary": "vocabulary vocabulary_id code_system coding_system system table domain",
}
_LIVES = {"birth": BIRTH, "dob": BIRTH, "born": BIRTH, "death": DEATH, "dod": DEATH, "died": DEATH}


def read_long(
    path: str | Path,
    problems: Problems,
    *,
    patient: str | None = None,
    time: str | None = None,
    code: str | None = None,
    value: str | None = None,
    text: str | None = None,
    visit: str | None = None,
    vocabulary: str | None = None,
    delimiter: str | None = None,
    until: str | None = None,
) -> Iterator[Record]:
    """Read a CSV or parquet table with an event a row, one record a patient.

    A code without "//" gets its vocabulary in front, "CODE" where none is known. BIRTH and DEATH (also DOB,
    DOD, MEDS_BIRTH, MEDS_DEATH) are those of the person; an event without time is background.

    Args:
        path: the table, .csv, .tsv (also .gz, .zst) or .parquet.
        problems: receives a missing column, rows without patient or code or with a time that cannot be read.
        patient, time, code, value, text, visit, vocabulary: names of the columns; None finds usual ones
            (patient_id, subject_id, date, timestamp, encounter, ...). A `vocabulary` that is no column's name
            is that of all codes.
        delimiter: of a CSV file; None looks at its first line.
        until: the last day of events; later ones are left out.
    """
    chosen = {
        "patient": patient,
        "time": time,
        "code": code,
        "value": value,
        "text": text,
        "visit": visit,
        "vocabulary": vocabulary,
    }
    columns = {field: (name,) if name else tuple(_NAMES[field].split()) for field, name in chosen.items()}
    needed = ["patient", "time", "code", *(f for f in ("value", "text", "visit") if chosen[f])]
    histories = Histories(problems, [str(path)], until=until, in_order=True)
    rows = _rows(source_of(path), problems, columns, needed, vocabulary or "CODE", delimiter)
    yield from histories.records(rows)


def _rows(
    source: str,
    problems: Problems,
    columns: Columns,
    needed: list[str],
    default: str,
    delimiter: str | None,
) -> Iterator[Row]:
    table = scan(source, problems, columns, needed, delimiter=delimiter, option="column")
    for line, (who, when, name, value, text, place, system) in table:
        subject, code = cells.words(who), cells.words(name)
        if not subject:
            problems.bad(cells.no_subject(source, line, columns["patient"][0]))
            continue
        if not code:
            problems.bad(cells.no_code(source, line, columns["code"][0]))
            continue
        at = cells.when(when)
        if when is None or when == "":
            problems.note(STATIC)
        elif at is None:
            problems.bad(cells.no_time(source, line, columns["time"][0]))
            continue
        full = code if "//" in code else _LIVES.get(code.lower()) or _spelled(code, system, default)
        number, said = measured(value, text, False, problems)
        yield subject, at, full, number, said, cells.words(place) or None, opening(full), 0, line


def _spelled(code: str, system: str | None, default: str) -> str:
    if code in (BIRTH, DEATH):
        return code
    return f"{cells.words(system) or default}//{code}"

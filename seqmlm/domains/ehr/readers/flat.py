"""Read patients from a single table: long (one event per row) or wide (one encounter per row).

Options name the columns. Without options, columns are found by common names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seqmlm.data import clock
from seqmlm.data.counts import Things
from seqmlm.data.files import source_of
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.histories import (
    CODE,
    LINE,
    SUBJECT,
    VISIT,
    Cells,
    Histories,
    Meanings,
    group_by_subject,
)
from seqmlm.domains.ehr.readers.meds import opened_visit_kind
from seqmlm.domains.ehr.readers.relational import EventTable, Source, number_and_words, rows_of_table
from seqmlm.domains.ehr.readers.tables import Columns, column_names, header, scan
from seqmlm.errors import UsageError

OFFSETS = "a table with offsets as times, read as minutes since an admission at the start of 1970"
_ASKED = ("value", "text", "visit", "unit", "description")
STATIC = "an event without time, read as background"

_NAMES = {
    field: tuple(names.split())
    for field, names in {
        "patient": "patient patient_id subject subject_id person_id patientid pid patient_nbr mrn "
        "patientunitstayid id",
        "time": "time timestamp datetime date start start_date event_time charttime observationoffset "
        "labresultoffset diagnosisoffset drugstartoffset treatmentoffset",
        "code": "code concept concept_code event event_code event_type name itemid labname drugname",
        "value": "value numeric_value value_as_number result valuenum labresult",
        "unit": "unit units valueuom unit_of_measure uom unit_concept_id unit_source_value "
        "labmeasurenamesystem value_unit",
        "description": "description code_description long_title short_title concept_name display",
        "text": "text_value value_text value_as_string categorical_value",
        "visit": "visit visit_id encounter encounter_id hadm_id admission_id visit_occurrence_id",
        "vocabulary": "vocabulary vocabulary_id code_system coding_system system table domain",
    }.items()
}


def read_long(
    path: str | Path,
    problems: Problems,
    *,
    patient: str | None = None,
    time: str | None = None,
    code: str | None = None,
    value: str | None = None,
    text: str | None = None,
    unit: str | None = None,
    visit: str | None = None,
    vocabulary: str | None = None,
    description: str | None = None,
    date_format: str | None = None,
    delimiter: str | None = None,
    until: str | None = None,
) -> Iterator[Record]:
    """Read a CSV or parquet table with one event per row. Each patient is one record.

    A code without "//" gets its vocabulary as a prefix, or "CODE" if the vocabulary is unknown. The codes
    BIRTH and DEATH (also DOB, DOD, MEDS_BIRTH and MEDS_DEATH) are the birth and death of the patient. Events
    without a time are background.

    Args:
        path: the table: .csv, .tsv (also .gz, .zst) or .parquet.
        problems: receives missing columns, rows without patient or code, and times that cannot be read.
        patient, time, code, value, text, visit, vocabulary: names of the columns. None searches for common
            names (patient_id, subject_id, date, timestamp, encounter, ...). If no column has the name
            `vocabulary`, this is the vocabulary of all codes.
        unit: column with the unit of the value. None searches for unit, valueuom, unit_concept_id and similar
            names.
        description: column with the description of the code. None searches for common names. A description is
            only kept if at least 11 patients have the same one, because it could be about a patient.
        date_format: format of times: a date format such as %m/%d/%Y, or minutes (seconds, hours, days) since
            an admission. None reads ISO 8601, or infers the order of day and month from the first rows. If
            the column is an offset of eICU, None reads minutes.
        delimiter: separator of a CSV file. None infers it from the first line.
        until: the last day. Later events are left out.
    """
    chosen = {"patient": patient, "time": time, "code": code, "value": value, "text": text, "visit": visit}
    chosen |= {"vocabulary": vocabulary, "unit": unit, "description": description}
    names: dict[str, Any] = {field: (name,) if name else _NAMES[field] for field, name in chosen.items()}
    table = EventTable(
        name="",
        **names,
        prefix=vocabulary or "CODE",
        undated=STATIC,
        worded=True,
        opens=lambda _, code: opened_visit_kind(code),
    )
    histories = Histories(problems, [source_of(path)], until=until, in_order=True, meanings=Meanings())
    form = date_format or _offset_format(path, names["time"], problems)
    source = Source(source_of(path), 0, problems, {}, form, histories.meanings)
    needed = ["patient", "time", "code", *(field for field in _ASKED if chosen[field])]
    rows = rows_of_table(table, source, needed=needed, delimiter=delimiter, option="column")
    yield from histories.records(rows)


def _offset_format(path: str | Path, names: Sequence[str], problems: Problems) -> str | None:
    """The format of times if no option gives it: "minutes" for a column of eICU offsets, otherwise None."""
    named = names[0] if len(names) == 1 else ""
    if not named and os.path.isfile(path):  # a pipe can be read only once, so its header is not read here
        named = column_names({"time": names}, header(path)).get("time", "")
    if not named.lower().endswith("offset"):
        return None
    problems.note(OFFSETS, Things(1), source=source_of(path))
    return "minutes"


# Wide tables

UNDATED = "an encounter without date, placed one day after the previous encounter"

ABSENT = ("", "?", "NA", "NULL", "No", "None")
_DAY = 86_400.0


def read_wide(
    path: str | Path,
    problems: Problems,
    *,
    patient: str = "patient_id",
    visit: str = "encounter_id",
    time: str | None = None,
    kind: str | None = None,
    static: str | Sequence[str] = (),
    columns: str | Sequence[str] = (),
    flags: str | Sequence[str] = (),
    values: str | Sequence[str] = (),
    absent: str | Sequence[str] = ABSENT,
    date_format: str | None = None,
    delimiter: str | None = None,
    until: str | None = None,
) -> Iterator[Record]:
    """Read a table with one encounter per row. Each patient is one record.

    If there are no dates, the encounters of a patient are sorted by id and placed one day apart. Only their
    order then has a meaning. A list can be one text with commas.

    Args:
        path: the table: .csv, .tsv (also .gz, .zst) or .parquet.
        problems: receives missing columns, rows without patient or visit, and times that cannot be read.
        patient, visit, time: names of the columns. `time` is None if the table has no dates.
        kind: the kind of all encounters ("inpatient"), or the column with the kind.
        static: columns with background of the patient ("gender=SEX": cell F becomes SEX//F).
        columns: columns whose cells are codes ("diag_1=ICD9": cell 250.00 becomes ICD9//250.00). Without "=",
            the prefix is the name of the column.
        flags: columns that are named after a code and have its state ("insulin=DRUG": cell Up becomes
            DRUG//insulin with the words Up).
        values: columns of numbers ("a1c=LAB": LAB//a1c with the number).
        absent: cells that mean "no value".
        date_format: format of dates, such as %m/%d/%Y. None reads ISO 8601, or infers the order of day and
            month from the first rows of the table.
        delimiter: separator of a CSV file. None infers it from the first line.
        until: the last day. Later events are left out.

    Raises:
        UsageError: no column with events is given.
    """
    if not (columns or flags or values):
        raise UsageError(
            "a wide table needs the names of columns with events: add, for example, "
            "--option columns=diag_1=ICD9,diag_2=ICD9"
        )
    roles = {"static": static, "columns": columns, "flags": flags, "values": values}
    named = [(*name.partition("="), role) for role, names in roles.items() for name in _split_names(names)]
    roles_of_columns = [(column, vocabulary or column, role) for column, _, vocabulary, role in named]
    fields: dict[str, tuple[str, ...]] = {"patient": (patient,), "visit": (visit,)}
    fields |= {"time": (time,) if time else (), "kind": (kind,) if kind else ()}
    fields |= {f"{role} {column}": (column,) for column, _, role in roles_of_columns}
    needed = [name for name in fields if name not in ("time", "kind")] + (["time"] if time else [])
    kinds = cells.kind_of(kind or "")
    table = scan(source_of(path), problems, fields, needed, delimiter=delimiter)
    reader: clock.When = clock.when
    if time is not None:
        form = date_format or _offset_format(path, [time], problems)
        table, reader = cells.dated_rows(table, problems, source_of(path), {2: time}, form)
    rows = _wide_rows(
        table,
        source_of(path),
        problems,
        fields,
        roles_of_columns,
        kinds,
        frozenset(_split_names(absent)),
        reader,
    )
    histories = Histories(problems, [source_of(path)], until=until, in_order=time is not None)
    if time is not None:
        yield from histories.records(rows)
        return
    groups = ((subject, _at_visit_days(members, problems)) for subject, members in group_by_subject(rows))
    yield from histories.of_groups(groups)


def _split_names(names: str | Sequence[str]) -> Sequence[str]:
    """The names as a list. A text is split at its commas."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else names


def _wide_rows(
    table: cells.Rows,
    source: str,
    problems: Problems,
    fields: Columns,
    roles_of_columns: list[tuple[str, str, str]],
    kinds: str,
    absent: frozenset[str],
    reader: clock.When,
) -> Iterator[Cells]:
    """The rows of events from a table with one encounter per row."""
    dated = bool(fields["time"])
    patient, place = fields["patient"][0], fields["visit"][0]
    for line, (who, stay, when, kind, *role_cells) in table:
        subject, visit = cells.words(who), cells.words(stay)
        if not subject or not visit:
            problems.bad(cells.fault("patient", source, line, place if subject else patient))
            continue
        seconds = reader(when) if dated else 0.0
        if seconds is None:
            problems.bad(cells.fault("time", source, line, fields["time"][0]))
            continue
        opened = kinds or cells.kind_of(cells.words(kind))
        yield subject, seconds, f"VISIT//{opened or 'other'}", None, None, None, visit, opened, 0, line
        for (column, vocabulary, role), cell in zip(roles_of_columns, role_cells, strict=True):
            if (word := cells.words(cell)) in absent:
                continue
            code = f"{vocabulary}//{word if role in ('static', 'columns') else column}"
            number, _ = number_and_words(cell if role == "values" else None, None, True, problems)
            text = word if role == "flags" and len(word) <= cells.TEXT_LIMIT else None
            if role == "static":
                yield subject, None, code, None, None, None, None, "", 0, line
            elif role != "values" or number is not None:
                yield subject, seconds, code, number, text, None, visit, "", 0, line


def _at_visit_days(rows: list[Cells], problems: Problems) -> list[Cells]:
    """The rows of a patient with undated encounters, each with the day of its encounter.

    Only the background of the first encounter is kept.
    """
    visits = sorted({str(row[VISIT]) for row in rows if row[VISIT] is not None}, key=_visit_sort_key)
    day = {visit: number * _DAY for number, visit in enumerate(visits)}
    problems.note(UNDATED, len(visits))
    first = min(rows, key=lambda row: day.get(str(row[VISIT]), len(visits) * _DAY))[LINE]
    placed: list[Cells] = []
    for row in rows:
        if row[VISIT] is not None:
            placed.append((row[SUBJECT], day[row[VISIT]], *row[CODE:]))
        elif row[LINE] == first:
            placed.append(row)
    return placed


def _visit_sort_key(visit: str) -> tuple[int, int, str]:
    """The sort key of a visit id: first numbers by size, then other ids. Numbers can have any length."""
    digits = visit.lstrip("0")
    return (0, len(digits), digits) if visit.isdecimal() else (1, 0, visit)

"""The Medical Event Data Standard (MEDS): shards of parquet, in order of subject and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from seqmlm.data.duplicates import SeenHashes, hash128
from seqmlm.data.files import source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import open_table
from seqmlm.data.record import Record
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.histories import Histories, Meanings, group_by_subject, subject_runs
from seqmlm.domains.ehr.readers.relational import EventTable, Source, rows_of_table
from seqmlm.domains.ehr.readers.tables import code_descriptions, column_names, scan
from seqmlm.errors import DataError

UNORDERED = "a shard that is not in order of subjects"
SCATTERED = "a subject whose events are not together in one shard"

_VISITS = ("VISIT", "ENCOUNTER")
_OPENING = {"HOSPITAL_ADMISSION": "inpatient", "ED_REGISTRATION": "emergency"}


@lru_cache(maxsize=1 << 14)
def opened_visit_kind(code: str) -> str:
    """The kind of visit that a code opens, "" for any other code."""
    front, _, detail = code.partition("//")
    if front in _VISITS:
        return cells.kind_of(detail.partition("//")[0])
    return _OPENING.get(front, "")


_TABLE = EventTable(
    name="data",
    patient=("subject_id",),
    time=("time",),
    code=("code",),
    prefix="",
    undated="",
    visit=("visit_id", "encounter_id", "visit_occurrence_id", "hadm_id"),
    value=("numeric_value",),
    text=("text_value", "categorical_value"),
    unit=("unit", "units", "valueuom", "unit_concept_id", "unit_source_value"),
    opens=lambda _, code: opened_visit_kind(code),
)
_SPLITS = {"train": "train", "tuning": "validation", "held_out": "test"}


def read_meds(path: str | Path, problems: Problems, *, until: str | None = None) -> Iterator[Record]:
    """Read a MEDS data set, or one shard of it, one record a subject.

    `metadata/subject_splits.parquet` gives each record its split: train, validation ("tuning") or test
    ("held_out"). Events keep a `visit_id` where the shards have such a column. A code "VISIT//<class>",
    "HOSPITAL_ADMISSION//..." or "ED_REGISTRATION//..." opens a visit.

    Args:
        path: the folder with `data/` and perhaps `metadata/`, one that holds it as `meds`, or a shard.
        problems: receives shards without a needed column (with those there are), rows without subject, code
            or usable time, and counts of what is odd.
        until: the last day of events; later ones are left out.
    """
    folder = root_of(Path(path))
    shards = [str(shard) for shard in _shards(folder)] if folder.is_dir() else [source_of(path)]
    splits = _splits(folder, problems) if folder.is_dir() else {}
    meanings = Meanings()
    for code, text in code_descriptions(folder / "metadata" / "codes.parquet", Problems("skip")):
        meanings.define(code, text)
    histories = Histories(
        problems, shards, until=until, in_order=True, split=splits.get if splits else None, meanings=meanings
    )
    subjects = SeenHashes()
    for number, shard in enumerate(shards):
        rows = rows_of_table(_TABLE, Source(shard, number, problems, {}, None, meanings))
        in_order = _is_sorted(shard)
        if not in_order:
            problems.note(UNORDERED)
        for record in histories.of_groups(subject_runs(rows) if in_order else group_by_subject(rows)):
            problems.note(SCATTERED, 0 if subjects.add(hash128(record.id)) else 1)
            yield record
    histories.end()


def is_meds(folder: Path) -> bool:
    """Whether a folder is a MEDS data set, with parquet files below `data/`, or holds one called `meds`."""
    root = root_of(folder)
    return (root / "data").is_dir() and bool(_shards(root))


def root_of(folder: Path) -> Path:
    """The data set itself: the folder, or `meds` in it."""
    inside = folder / "meds"
    return inside if not (folder / "data").is_dir() and (inside / "data").is_dir() else folder


def _shards(folder: Path) -> list[Path]:
    """The parquet files of a data set, sorted."""
    return sorted(path for path in (folder / "data").rglob("*.parquet") if path.is_file())


def _splits(folder: Path, problems: Problems) -> Mapping[str, str]:
    """The split of each subject, by its id."""
    file = folder / "metadata" / "subject_splits.parquet"
    if not file.exists():
        return {}
    columns = {"subject_id": ("subject_id",), "split": ("split",)}
    splits = {}
    for _, (subject, split) in scan(file, problems, columns, list(columns)):
        if split in _SPLITS:
            splits[cells.words(subject)] = _SPLITS[split]
        else:
            problems.note("a subject with an unknown split, divided like the others")
    return splits


def _is_sorted(shard: str) -> bool:
    """Whether subjects only go up; a file that cannot be read is found out later."""
    import pyarrow as pa
    import pyarrow.compute as pc

    last: Any = None
    try:
        table = open_table(shard)
        column = column_names({"id": _TABLE.patient}, table.names)["id"]
        for batch in table.batches([column], 1 << 16):
            ids = batch.column(0).drop_null()
            if pa.types.is_dictionary(ids.type):
                ids = ids.dictionary_decode()
            if not len(ids):
                continue
            if last is not None and ids[0].as_py() < last:
                return False
            if len(ids) > 1 and pc.any(pc.greater(ids[:-1], ids[1:])).as_py():
                return False
            last = ids[-1].as_py()
    except (pa.ArrowException, OSError, KeyError, DataError):
        pass
    return True

"""Read the Medical Event Data Standard (MEDS): parquet shards with events sorted by subject and time."""

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

UNORDERED = "a shard that is not sorted by subject, grouped by subject first"
SCATTERED = "a subject with events in several shards: each shard gives a separate record"

_VISITS = ("VISIT", "ENCOUNTER")
_OPENING = {"HOSPITAL_ADMISSION": "inpatient", "ED_REGISTRATION": "emergency"}


@lru_cache(maxsize=1 << 14)
def opened_visit_kind(code: str) -> str:
    """The kind of visit that a code opens; "" if it opens none."""
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
    """Read a MEDS data set or one of its shards. Each subject is one record.

    The split of each record comes from `metadata/subject_splits.parquet`: train, validation ("tuning") or
    test ("held_out"). Events keep their `visit_id` if the shards have this column. The codes
    "VISIT//<class>", "HOSPITAL_ADMISSION//..." and "ED_REGISTRATION//..." open a visit.

    Args:
        path: the folder with `data/` and optionally `metadata/`, a folder that contains it as `meds`, or a
            shard.
        problems: receives shards without a required column (with the columns that exist), and rows without
            subject, code or usable time. It counts unusual events.
        until: the last day. Later events are left out.
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
    """Whether a folder is a MEDS data set with parquet files in `data/`, or has one in the folder `meds`."""
    root = root_of(folder)
    return (root / "data").is_dir() and bool(_shards(root))


def root_of(folder: Path) -> Path:
    """The folder of the data set: the folder itself, or `meds` in it."""
    inside = folder / "meds"
    return inside if not (folder / "data").is_dir() and (inside / "data").is_dir() else folder


def _shards(folder: Path) -> list[Path]:
    """The sorted parquet files of a data set."""
    return sorted(path for path in (folder / "data").rglob("*.parquet") if path.is_file())


def _splits(folder: Path, problems: Problems) -> Mapping[str, str]:
    """The split of each subject by its id. It is empty if the data set has no file of splits."""
    file = folder / "metadata" / "subject_splits.parquet"
    if not file.exists():
        return {}
    columns = {"subject_id": ("subject_id",), "split": ("split",)}
    splits = {}
    for _, (subject, split) in scan(file, problems, columns, list(columns)):
        if split in _SPLITS:
            splits[cells.words(subject)] = _SPLITS[split]
        else:
            problems.note("a subject with an unknown split, which seqmlm assigns to a split")
    return splits


def _is_sorted(shard: str) -> bool:
    """Whether the subjects of a shard are in ascending order. It is True for a file that cannot be read,
    which is reported when its rows are read."""
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

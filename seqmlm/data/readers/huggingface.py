"""Read Arrow tables: Parquet files, folders saved with `datasets`, and data sets of the Hugging Face hub.

The name of a data set is `hf:NAME[@REVISION][:[SUBSET/]SPLIT]`. NAME is a name on the hub, or a folder of
files that `datasets` can load. Data sets are streamed: only some rows are in memory, and nothing is copied to
the disk. The code of a data set is never run. Its descriptions (README.md, state.json) cannot name files
outside of it.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

from seqmlm.data.files import REFERENCE, expand, is_reference, require_file
from seqmlm.data.problems import Problems
from seqmlm.data.readers.arrow import BATCH_ROWS, ArrowTable, Columns, arrow_rows, open_parquet
from seqmlm.data.readers.objects import json_value
from seqmlm.data.readers.tables import Fields, RecordMaker, complete_row, missing, names_of
from seqmlm.data.record import Record
from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import parse_yaml, read_bounded

SPLITS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "calibration": "calibration",
    "test": "test",
}
"""Common names of splits, with their part of the data.

Records of other splits are divided by the split rule.
"""

_DESCRIPTION = 16 << 20  # size of a README.md in bytes
_AGAIN = "save the data set again"
_TALKATIVE = ("datasets", "huggingface_hub")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A data set named `hf:NAME[@REVISION][:[SUBSET/]SPLIT]`.

    Args:
        name: name on the hub, or a folder.
        revision: branch, tag or commit. None is the newest.
        subset: configuration of the data set. None is the default.
        split: split of the data set. None is all splits.
    """

    name: str
    revision: str | None = None
    subset: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a reference.

        >>> Reference.parse("hf:nyu-mll/glue@main:sst2/train")
        Reference(name='nyu-mll/glue', revision='main', subset='sst2', split='train')

        Raises:
            UsageError: the text does not name a data set.
        """
        name, colon, part = text.removeprefix(REFERENCE), "", ""
        if not Path(name).is_dir():
            name, colon, part = name.rpartition(":") if ":" in name else (name, "", "")
        name, _, revision = (name, "", "") if Path(name).is_dir() else name.partition("@")
        subset, _, split = part.rpartition("/")
        if not name or (colon and not part):
            raise UsageError(f"a data set is named hf:NAME or hf:NAME:SPLIT, as hf:imdb:train; got {text!r}")
        return cls(name=name, revision=revision or None, subset=subset or None, split=split or None)

    def __str__(self) -> str:
        part = f"{self.subset}/{self.split or ''}" if self.subset else self.split
        revision = f"@{self.revision}" if self.revision else ""
        return REFERENCE + self.name + revision + (f":{part}" if part else "")

    @property
    def local(self) -> bool:
        """Whether it is a local folder."""
        return Path(self.name).is_dir()

    def fixed(self) -> Reference:
        """The same data set, with the folder's full path or the hub's commit, so that it cannot change."""
        if self.local:
            return replace(self, name=str(Path(self.name).resolve()))
        from huggingface_hub import HfApi

        with _faults(str(self)):
            _check_hub(self.name)
            info = HfApi().dataset_info(self.name, revision=self.revision)
        return replace(self, revision=info.sha)


def is_shards(path: Path) -> bool:
    """Whether a folder contains Parquet files, and otherwise only their descriptions."""
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    suffixes = {file.suffix.lower() for file in files}
    return ".parquet" in suffixes and suffixes <= {".parquet", ".md", ".json", ".yaml"}


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of `datasets`."""
    return (path / "dataset_dict.json").is_file() or _is_one(path)


def _is_one(path: Path) -> bool:
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def deciding_sources(path: str | Path) -> list[str]:
    """The sources that determine the rows of a data set: the fixed reference, and the files of a folder."""
    reference = Reference.parse(str(path)).fixed()
    return [str(reference), *(expand([reference.name]) if reference.local else [])]


def by_split(path: str | Path) -> list[tuple[str, str | None]]:
    """The splits of a reference or a saved folder, each as a source with its part of the data.

    If the user names a split, it is a single source without a part, and is divided like other data.

    Raises:
        DataError: the data set does not exist, or its files cannot be listed.
    """
    text = str(path)
    reference = Reference.parse(text) if is_reference(text) else Reference(name=text)
    if reference.split is not None or _is_one(Path(reference.name)):
        return [(str(reference), None)]
    names = _split_names(reference)
    return [(str(replace(reference, split=name)), SPLITS.get(name.lower())) for name in names]


def read_dataset(
    record_of: RecordMaker,
    path: str | Path,
    problems: Problems,
    *,
    text: str | None = None,
    column: str | None = None,
    id_column: str | None = None,
    document_column: str | None = None,
    keep: Sequence[str] = (),
) -> Iterator[Record]:
    """Read one column of a Parquet file, a folder saved with `datasets`, or hf:NAME[:SPLIT].

    The `line` of a record is its row, from 1. The splits of a data set are used for training, validation and
    test by their names. Test splits are left out of a training. If the user names a split (hf:NAME:train),
    all its rows are divided.

    Args:
        record_of: creates the record of the field from a record whose raw data is the text of the column.
        path: the file, folder or reference. Standard input cannot be Parquet, which has its index at the end.
        problems: receives data that cannot be read, a missing column, and rows without text.
        text: column with the sequence. Default: "text", or the only column.
        column: another name of the option text, as for other tables.
        id_column: column of the record's id. Default: "id" if it has text or a number, else the row.
        document_column: column of the document that the record belongs to.
        keep: other columns for `meta` (as an option: names separated by commas).
    """
    source, fields = str(path), Fields(text or column or "text", id_column, document_column, names_of(keep))

    def columns(names: list[str]) -> list[str]:
        nonlocal fields
        if len(names) == 1 and not (text or column):
            fields = replace(fields, text=names[0])
        columns = [*fields.needed, *fields.keep]
        absent = next((name for name in columns if name not in names), None)
        if absent is None:
            id_columns = ["id"] if id_column is None and "id" in names else []
            return list(dict.fromkeys([*columns, *id_columns]))
        options = {fields.text: "column", id_column: "id_column", document_column: "document_column"}
        raise missing(absent, names, source, None, options.get(absent, "keep"), problems)

    for number, row in numbered_rows(source, problems, columns):
        if (record := fields.record(row, source, number, problems)) is not None:
            yield from record_of(record, problems)


read_parquet = partial(read_dataset, complete_row)
"""Reads rows of plain text."""


def is_table(source: str) -> bool:
    """Whether `open_table` can open a source: a data set, a saved folder or a Parquet file."""
    return is_reference(source) or source.lower().endswith(".parquet") or Path(source).is_dir()


def numbered_rows(
    source: str, problems: Problems, columns: Columns = lambda names: names
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, column name -> value) for every row of a source for `open_table`."""
    return arrow_rows(open_table, source, problems, columns)


def open_table(source: str) -> ArrowTable:
    """Open a Parquet file, a folder saved with `datasets`, or a split of a data set.

    Raises:
        DataError: it is missing, empty or out of reach.
        ArrowException: it is not Parquet.
    """
    if is_reference(source):
        return _open_reference(Reference.parse(source), source)
    return _open_saved(source) if Path(source).is_dir() else open_parquet(source)


def _open_saved(path: str, split: str | None = None, source: str | None = None) -> ArrowTable:
    with _faults(source or path):
        import datasets

        _check_saved(Path(path))
        dataset = datasets.load_from_disk(_plainly_named(path))
        if split is not None:
            splits = dataset if isinstance(dataset, dict) else {}
            if split not in splits:
                there = f"there are: {', '.join(splits)}" if splits else "the folder has no splits"
                raise ValueError(f"Bad split: {split}. {there}")
            dataset = splits[split]
    return _of_datasets(dataset.column_names, dataset)


def _open_reference(reference: Reference, source: str) -> ArrowTable:
    if is_saved(Path(reference.name)):
        return _open_saved(reference.name, reference.split, source)
    with _faults(source):
        dataset = _builder(reference).as_streaming_dataset(split=reference.split)
        if dataset.features is None:  # files without a schema, such as JSON lines: the first rows show it
            first = next(iter(dataset.with_format("arrow").iter(BATCH_ROWS)), None)
            names = [] if first is None else first.schema.names
        else:
            names = list(dataset.features)

    return _of_datasets(names, dataset)


def _of_datasets(names: list[str], dataset: Any) -> ArrowTable:
    def batches(columns: Sequence[str], size: int) -> Iterator[Any]:
        parts = iter(dataset.select_columns(list(columns)).with_format("arrow").iter(size))
        while True:
            with _silent():  # not while rows are used, because other code may log then
                part = next(parts, None)
            if part is None:
                return
            yield _plain(part)

    return ArrowTable(names, batches)


def _plain(batch: Any) -> Any:
    """Convert columns with several types, which `datasets` stores as JSON, to columns of text.

    Texts and numbers are kept. Objects, lists and NaN become None.
    """
    import pyarrow as pa

    for number, field in enumerate(batch.schema):
        if isinstance(field.type, pa.JsonType):
            texts: list[str | None] = []
            for cell in batch.column(number).to_pylist():
                value = json.loads(cell or "null")
                counts = isinstance(value, bool | int | float) and value == value
                texts.append(value if isinstance(value, str) else cell if counts else None)
            batch = batch.set_column(number, field.name, pa.array(texts, pa.string()))
    return batch


def _split_names(reference: Reference) -> list[str]:
    with _faults(str(reference)):
        import datasets

        if is_saved(Path(reference.name)):
            _check_saved(Path(reference.name))
            return list(datasets.load_from_disk(_plainly_named(reference.name)))
        return list(_builder(reference).as_streaming_dataset())


def _builder(reference: Reference) -> Any:
    """The builder of `datasets` for a folder or a data set of the hub, after a check of its files."""
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    name = reference.name
    if reference.local:
        _check_described(Path(name))
        name = _plainly_named(name)  # a folder named csv is not the format csv
    elif name in _PACKAGED_DATASETS_MODULES:  # `datasets` would read the files of the current folder
        reason = "the name of a file format, not of a data set"
        raise DataError(reason, source=str(reference), remedy="name a folder: hf:./FOLDER")
    if not reference.local:
        _check_hub(name)
    _bound_json()
    builder = datasets.load_dataset_builder(name, reference.subset, revision=reference.revision)
    root = f"{Path(name)}/" if reference.local else "hf://datasets/"
    for file in map(str, chain.from_iterable((builder.config.data_files or {}).values())):
        if not (os.path.normpath(file) if reference.local else file).startswith(root):
            raise _outside(str(reference), file)
    return builder


def _check_hub(name: str) -> None:
    """Check once whether the hub can be reached. `datasets` would retry for each file, and log it."""
    from huggingface_hub.utils._validators import validate_repo_id

    from seqmlm.engine import foreign

    validate_repo_id(name)
    if not foreign.hub_is_reachable():
        raise ConnectionError("the hub does not answer")


# `datasets` reads other characters of a path as patterns or separators, or not as text.
_PLAIN_NAME = re.compile(r"[\w ./+,=~-]+")


def _plainly_named(name: str) -> str:
    """A path of the folder that `datasets` reads as a plain path.

    If needed, it is a temporary folder with links to the files, which is kept until the process ends. A link
    to the folder itself would be followed.
    """
    folder = Path(name).resolve()
    if _PLAIN_NAME.fullmatch(str(folder)):
        return str(folder)
    folder_made = Path(mkdtemp(prefix="seqmlm-")).resolve()
    atexit.register(rmtree, folder_made, ignore_errors=True)
    for place, _, files in os.walk(folder):
        inside = folder_made / Path(place).relative_to(folder)
        inside.mkdir(exist_ok=True)
        for file in files:
            (inside / file).symlink_to(Path(place, file))
    return str(folder_made)


# Depth of nested objects and lists. The parser of pyarrow calls itself for each level, until the stack is
# full.
_DEEPEST = 200
_BRACKETS = re.compile(rb'"(?:[^"\\\n]|\\.)*"|([\[{])|([\]}])')


def _bound_json() -> None:
    """Make `datasets` refuse JSON lines that are nested too deeply, from any source."""
    from datasets.packaged_modules.json import json as module

    parse = module.paj.read_json

    def read_json(file: Any, **options: Any) -> Any:
        for line in file.getvalue().split(b"\n"):
            if line.count(b"{") + line.count(b"[") > _DEEPEST and _depth(line) > _DEEPEST:
                raise ValueError(f"nested more than {_DEEPEST} deep")
        return parse(file, **options)

    if not isinstance(module.paj, SimpleNamespace):
        module.paj = SimpleNamespace(**{**vars(module.paj), "read_json": read_json})


def _depth(line: bytes) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(line):
        depth += bool(bracket[1]) - bool(bracket[2])
        deepest = max(deepest, depth)
    return deepest


def _check_described(folder: Path) -> None:
    """Refuse a folder whose description names files in another folder or on the network.

    This must happen before `datasets` looks for them, because looking on the network sends a request.
    """
    import datasets
    import yaml
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    described = []
    for name in (datasets.config.REPOCARD_FILENAME, datasets.config.REPOYAML_FILENAME):
        if not os.path.lexists(folder / name):
            continue
        try:
            text = read_bounded(folder / name, _DESCRIPTION).decode("utf-8")
            if name == datasets.config.REPOCARD_FILENAME:
                block = REGEX_YAML_BLOCK.search(text)
                text = block[2] if block else ""
            described.append(parse_yaml(text))
        except (ValueError, OSError, yaml.YAMLError) as error:
            reason = f"the description of the data set cannot be read ({type(error).__name__})"
            remedy = "correct it, or remove it: the data can be read without it"
            raise DataError(reason, source=str(folder / name), remedy=remedy) from None
    for name in chain.from_iterable(_named_files(description, False) for description in described):
        if _leads_out(name):
            raise _outside(str(folder), name)


def _named_files(value: Any, named: bool) -> Iterator[str]:
    """The texts below keys that name files, at any depth."""
    if isinstance(value, str) and named:
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _named_files(inner, named or key in ("data_files", "data_dir"))
    elif isinstance(value, list):
        for inner in value:
            yield from _named_files(inner, named)


def _check_saved(folder: Path) -> None:
    """Refuse a saved folder whose index names files or splits outside of it."""
    if not _is_one(folder):
        index = json_value((folder / "dataset_dict.json").read_bytes(), str(folder), 1, _AGAIN)
        for name in index.get("splits", ()) if isinstance(index, dict) else ():
            if _leads_out(str(name)):
                raise _outside(str(folder), str(name))
            if _is_one(folder / str(name)):
                _check_saved(folder / str(name))
        return
    state = json_value((folder / "state.json").read_bytes(), str(folder / "state.json"), 1, _AGAIN)
    files = state.get("_data_files", ()) if isinstance(state, dict) else ()
    for file in files if isinstance(files, list) else ():
        name = str(file.get("filename", "")) if isinstance(file, dict) else ""
        if _leads_out(name):
            raise _outside(str(folder), name)
        require_file(str(folder / name))  # `datasets` would wait for a writer of a pipe


def _leads_out(name: str) -> bool:
    """Whether the name of a file in a data set leads out of its folder."""
    return name.startswith(("/", "~")) or ":" in name or ".." in name.replace("\\", "/").split("/")


def _outside(source: str, name: str) -> DataError:
    reason = f"the data set names a file outside of itself: {name[:200]!r}"
    remedy = "its description (README.md, state.json) may only name files in its own folder"
    return DataError(reason, source=source, remedy=remedy)


@contextmanager
def _silent() -> Iterator[None]:
    """Context in which `datasets` does not log. seqmlm reports errors itself, and logs may contain data."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _faults(source: str) -> Iterator[None]:
    """Context that turns errors of finding and opening a data set into a DataError with one sentence."""
    try:
        with _silent():
            yield
    except DataError:
        raise
    # These libraries raise any exception because of files or the network, and httpx has its own exceptions.
    except Exception as error:
        raise _explained(error, source) from error


# The hub does not know the name. A path that does not exist is not even a valid name.
_MISSING = ("RepositoryNotFoundError", "HFValidationError")


def _explained(error: Exception, source: str) -> DataError:
    """The error message for an exception of `datasets`."""
    message, kind = " ".join(str(error).split()), type(error)
    if isinstance(error, ConnectionError) or kind.__module__.startswith("httpx"):
        reason, remedy = "the hub cannot be reached", "check the network, or name a folder: hf:FOLDER"
    elif isinstance(error, FileNotFoundError) or kind.__name__ in _MISSING:
        reason = "there is no such data set, or no data in it"
        remedy = "check the folder, or the name (https://huggingface.co/datasets); log in if it needs that"
    elif isinstance(error, RuntimeError) and "script" in message:
        reason, remedy = "the data set is made by a program, which is not run", "take a copy in Parquet files"
    elif message.startswith("nested more than"):
        reason, remedy = f"a line of JSON is {message}", "remove it"
    elif message.startswith("Bad split"):
        reason, remedy = "there is no split of this name", message.partition(". ")[2]
    elif "BuilderConfig" in message or "Config name is missing" in message:
        reason, remedy = "there is no subset of this name, or one must be named", message[:300]
    else:  # the message may contain values of the data
        reason, remedy = "the data set cannot be opened", f"check its files ({kind.__name__} in datasets)"
    return DataError(reason, source=source, remedy=remedy)

"""Tables of Arrow: a Parquet file, a folder that `datasets` saved, any data set of the Hugging Face hub.

A data set is named `hf:NAME[@REVISION][:[SUBSET/]SPLIT]`, NAME being that of the hub or a folder of files
that `datasets` can load. It is streamed: memory holds some rows, and nothing is copied to the disk. No code
of a data set is ever run, and what describes it (README.md, state.json) cannot name files outside of it.
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
"""Usual names of splits and the part of the data they mean; records of other splits are divided by rule."""

_DESCRIPTION = 16 << 20  # bytes of a README.md
_AGAIN = "save the data set again"
_TALKATIVE = ("datasets", "huggingface_hub")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A data set named by `hf:NAME[@REVISION][:[SUBSET/]SPLIT]`: of the hub at a branch, tag or commit, or a
    folder; one of its configurations, and one of its splits. None is the newest, the default one, and all.
    """

    name: str
    revision: str | None = None
    subset: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference; a UsageError where it names nothing.

        >>> Reference.parse("hf:nyu-mll/glue@main:sst2/train")
        Reference(name='nyu-mll/glue', revision='main', subset='sst2', split='train')
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
        """Whether it is a folder here."""
        return Path(self.name).is_dir()

    def fixed(self) -> Reference:
        """The same data set wherever and whenever it is read: with the folder's full path, or the hub's
        commit.
        """
        if self.local:
            return replace(self, name=str(Path(self.name).resolve()))
        from huggingface_hub import HfApi

        with _faults(str(self)):
            _check_hub(self.name)
            info = HfApi().dataset_info(self.name, revision=self.revision)
        return replace(self, revision=info.sha)


def is_shards(path: Path) -> bool:
    """Whether a folder holds Parquet files, and beside them nothing but what describes them."""
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    suffixes = {file.suffix.lower() for file in files}
    return ".parquet" in suffixes and suffixes <= {".parquet", ".md", ".json", ".yaml"}


def is_saved(path: Path) -> bool:
    """Whether a folder is one that `save_to_disk` of `datasets` wrote."""
    return (path / "dataset_dict.json").is_file() or _is_one(path)


def _is_one(path: Path) -> bool:
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def deciding_sources(path: str | Path) -> list[str]:
    """Names of all that decides the rows of a data set: the reference with its commit, a folder's files."""
    reference = Reference.parse(str(path)).fixed()
    return [str(reference), *(expand([reference.name]) if reference.local else [])]


def by_split(path: str | Path) -> list[tuple[str, str | None]]:
    """Each split of a reference, or a folder that `datasets` saved, as a source, and the part it means.

    A split that the user names is one source without a part, divided like other data. DataError: there is no
    such data set, or its files cannot be told.
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
    """Read one column of a Parquet file, of a folder that `datasets` saved, or of hf:NAME[:SPLIT].

    A record's `line` is its 1-based row. Splits that a data set names train, validate and test as they say
    (tests are left out of a training); of a split that is named, as hf:NAME:train, all rows are divided.

    Args:
        record_of: makes the record of the field from one whose raw is the text of the column.
        path: the file, folder or reference; standard input cannot be Parquet, whose index stands at the end.
        problems: receives data that cannot be read, a missing column, rows without text.
        text: the column with the sequence; None is "text", or the only column there is.
        column: the same as text, as other tables call it.
        id_column: column of the record's id; None takes "id" where it holds text or a number, else the row.
        document_column: column of what the record belongs to.
        keep: further columns that go into `meta` (as an option: names between commas).
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
"""Rows of plain text."""


def is_table(source: str) -> bool:
    """Whether a source is one that `open_table` opens: a data set, a saved folder, a Parquet file."""
    return is_reference(source) or source.lower().endswith(".parquet") or Path(source).is_dir()


def numbered_rows(
    source: str, problems: Problems, columns: Columns = lambda names: names
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(1-based number, column name to value) of every row of what `open_table` opens."""
    return arrow_rows(open_table, source, problems, columns)


def open_table(source: str) -> ArrowTable:
    """Open a Parquet file, a folder that `datasets` saved, or one split of a data set.

    A DataError says where it is not there, empty, or out of reach; an ArrowException where it is no Parquet.
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
        if dataset.features is None:  # files without a schema, as JSON lines: their first rows tell it
            first = next(iter(dataset.with_format("arrow").iter(BATCH_ROWS)), None)
            names = [] if first is None else first.schema.names
        else:
            names = list(dataset.features)

    return _of_datasets(names, dataset)


def _of_datasets(names: list[str], dataset: Any) -> ArrowTable:
    def batches(columns: Sequence[str], size: int) -> Iterator[Any]:
        parts = iter(dataset.select_columns(list(columns)).with_format("arrow").iter(size))
        while True:
            with _silent():  # not while the rows are used: others may log then
                part = next(parts, None)
            if part is None:
                return
            yield _plain(part)

    return ArrowTable(names, batches)


def _plain(batch: Any) -> Any:
    """The batch with columns of several types, which `datasets` writes as JSON, as columns of text.

    Texts and numbers stay; objects, lists and what is no number are nothing.
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
    """The builder of `datasets` for a folder or a data set of the hub, after a look at what it would open."""
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    name = reference.name
    if reference.local:
        _check_described(Path(name))
        name = _plainly_named(name)  # a folder called csv is not the format csv
    elif name in _PACKAGED_DATASETS_MODULES:  # `datasets` would read whatever is in the current folder
        reason = "the name of a format of files, and of no data set"
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
    """Ask once whether the hub is there: `datasets` would ask for each file many times, and log it."""
    from huggingface_hub.utils._validators import validate_repo_id

    from seqmlm.engine import foreign

    validate_repo_id(name)
    if not foreign.hub_is_reachable():
        raise ConnectionError("the hub does not answer")


# Other letters of a path are patterns, separators or not text to `datasets`.
_PLAIN_NAME = re.compile(r"[\w ./+,=~-]+")


def _plainly_named(name: str) -> str:
    """A path of the folder that `datasets` takes for one: where need be another one, with links to its files,
    kept until the process ends. (It would follow a link to the folder itself.)"""
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


# Objects and lists in each other: pyarrow's parser calls itself for each, until the process has no stack.
_DEEPEST = 200
_BRACKETS = re.compile(rb'"(?:[^"\\\n]|\\.)*"|([\[{])|([\]}])')


def _bound_json() -> None:
    """Make `datasets` refuse JSON lines that are nested too deeply, wherever they come from."""
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
    """Refuse a folder whose description names files elsewhere: in another folder, or on the network.

    Before `datasets` looks for them, since looking on the network is a request to somebody.
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
            remedy = "correct it, or take it away: the data can be read without it"
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
    """Refuse a saved folder whose index names files or splits elsewhere."""
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
        require_file(str(folder / name))  # `datasets` would wait for a pipe to be written


def _leads_out(name: str) -> bool:
    """Whether the name of a file in a data set leads out of its folder."""
    return name.startswith(("/", "~")) or ":" in name or ".." in name.replace("\\", "/").split("/")


def _outside(source: str, name: str) -> DataError:
    reason = f"the data set names a file outside of itself: {name[:200]!r}"
    remedy = "its description (README.md, state.json) may only name files in its own folder"
    return DataError(reason, source=source, remedy=remedy)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep `datasets` from logging: errors are reported by us, and its own may hold values of the data."""
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
    """While a data set is found and opened: what goes wrong is one sentence."""
    try:
        with _silent():
            yield
    except DataError:
        raise
    # Whatever a data set's files or the network make these libraries raise; httpx has exceptions of its own.
    except Exception as error:
        raise _explained(error, source) from error


# The hub knows no such name; a path that does not exist cannot even be a name there.
_MISSING = ("RepositoryNotFoundError", "HFValidationError")


def _explained(error: Exception, source: str) -> DataError:
    """The sentence for what `datasets` raises."""
    message, kind = " ".join(str(error).split()), type(error)
    if isinstance(error, ConnectionError) or kind.__module__.startswith("httpx"):
        reason, remedy = "the hub cannot be reached", "check the network, or name a folder: hf:FOLDER"
    elif isinstance(error, FileNotFoundError) or kind.__name__ in _MISSING:
        reason = "there is no such data set, or no data in it"
        remedy = "check the folder, or the name (https://huggingface.co/datasets); log in if it needs that"
    elif isinstance(error, RuntimeError) and "script" in message:
        reason, remedy = "the data set is made by a program, which is not run", "take a copy in Parquet files"
    elif message.startswith("nested more than"):
        reason, remedy = f"a line of JSON is {message}", "take it out"
    elif message.startswith("Bad split"):
        reason, remedy = "there is no split of this name", message.partition(". ")[2]
    elif "BuilderConfig" in message or "Config name is missing" in message:
        reason, remedy = "there is no subset of this name, or one must be named", message[:300]
    else:  # what it says may hold values of the data
        reason, remedy = "the data set cannot be opened", f"check its files ({kind.__name__} in datasets)"
    return DataError(reason, source=source, remedy=remedy)

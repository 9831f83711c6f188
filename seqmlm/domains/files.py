"""Read the files of a field: its formats, the format of each file, and the files in a folder."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from seqmlm.data.counts import Things
from seqmlm.data.files import expand, is_reference, stem_suffix
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import (
    Reference,
    by_split,
    deciding_sources,
    is_saved,
    is_shards,
    read_parquet,
)
from seqmlm.data.readers.tables import RecordMaker, csv_records
from seqmlm.data.record import Record
from seqmlm.domains.samples import LABELS, TRUTH
from seqmlm.errors import DataError, UsageError, nearest
from seqmlm.parsing import share

DATASET = "huggingface"
"""Name of the format for data sets, which every field has."""

_BESIDE = (TRUTH, LABELS, "README.md", "README", "README.txt", "LICENSE")

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "Share": "a share such as 0.05 or 5%",
    "bool": "true or false",
}

# (path, problems, **options) -> records. It streams, and passes records that it cannot read to `problems`.
Reader = Callable[..., Iterator[Record]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format of a field.

    Args:
        read: the reader. Its keyword parameters are the options of the format.
        suffixes: file name endings that mean this format, without compression (".fasta", not ".fasta.gz").
        folder: for a format that is a whole folder (tables that belong together, a work tree): whether a
            folder has this format. The reader then receives the folder.
        files: the files in such a folder that the reader would open, given its options; None for all files.
        in_folders: whether files of this format are read when they are found in a folder and not named. A
            table next to sequences may contain anything.
        scoring: default options for named files that will be scored. Training may leave out records that
            teach nothing, but all named records are scored.
    """

    read: Reader
    suffixes: tuple[str, ...] = ()
    folder: Callable[[Path], bool] | None = None
    files: Callable[..., Iterable[Path]] | None = None
    in_folders: bool = True
    scoring: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def options(self) -> Mapping[str, str]:
        """The options of the reader: name to type, as written in the reader."""
        parameters = inspect.signature(self.read).parameters.values()
        keyword_only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        return {p.name: str(getattr(p.annotation, "__name__", p.annotation)) for p in keyword_only}

    def select_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Select the options that the reader takes, and convert them to the types it needs.

        Raises:
            UsageError: a value that is not a number, or not true or false, although the reader needs that.
        """
        types = self.options
        return {name: _convert(name, types[name], value) for name, value in options.items() if name in types}


def _convert(name: str, type_name: str, value: Any) -> Any:
    """Convert the value of an option, which is text or a value from a config file."""
    kind = type_name.removesuffix(" | None")
    text = str(value).lower()
    if kind == "int | str" and text.isdecimal():
        return int(value)
    if value is None or kind not in _TYPES:
        return value
    if kind == "int" and text.isdecimal():
        return int(value)
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind == "float" and not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            return float(value)
    if kind == "Share":
        with suppress(ValueError):
            return share(value)
    raise UsageError(f"the option {name} takes {_TYPES[kind]}, not {value!r}")


def dataset_format(reader: Reader) -> Format:
    """The data set format, given a reader for one split of a data set (see `Reading.dataset`)."""
    return Format(read=reader, suffixes=(".parquet",), folder=is_saved)


def table_formats(make_records: RecordMaker) -> dict[str, Format]:
    """CSV and TSV with a column `sequence` and perhaps others, for a field that mostly has other formats.

    Args:
        make_records: makes the field's records from a record whose `raw` is the text of the column.
    """
    reader = partial(csv_records, make_records, column="sequence")
    return {
        "csv": Format(read=reader, suffixes=(".csv",), in_folders=False),
        "tsv": Format(read=partial(reader, delimiter="\t"), suffixes=(".tsv",), in_folders=False),
    }


def _nothing(records: Iterator[Record], problems: Problems) -> dict[str, Any]:
    for _ in records:
        pass
    return {}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Rules for reading the files of a field.

    Args:
        dataset: the format that every field has under the name "huggingface". It reads the rows of a Hugging
            Face data set (hf:NAME), of a folder that `datasets` saved, and of Parquet files.
        usual: the name of the format for a file that the user named, if its name does not determine one. None
            means the first format. Raises DataError for a file that has none of the formats.
        original: the name of a file before it was rotated, which determines its format.
        rotation: a key that groups the rotated files of one log, and sorts them in the order of writing.
        followed: whether the readers keep a `data.files.Memory`, so that files can be scored while they are
            written.
        cuts: options of the readers that define the extent of a record. A model stores them, because its
            p-values apply to such records.
        scoring: default options for records to be scored, from named files or from folders.
        content: the kinds of data that its records may be (`seqmlm.domains.content`). Reading warns about
            other kinds. If empty, nothing is checked.
        inspect: passes on all records as they are read, and counts unusual ones.
        tokenizer: converts reader options to the tokenizer options that they imply. Raises UsageError for
            options that do not fit.
        audit: reads records to the end and counts facts that matter only in this field. The figures can be
            shown to people. `problems` has the counts of the reader.
    """

    dataset: Format = Format(read=read_parquet, suffixes=(".parquet",), folder=is_saved)
    usual: Callable[[str], str | None] = lambda path: None
    original: Callable[[Path | str], str | None] = lambda path: None
    rotation: Callable[[str], tuple[Any, ...]] = lambda file: ("",)
    followed: bool = False
    cuts: tuple[str, ...] = ()
    scoring: Mapping[str, Any] = field(default_factory=dict)
    content: tuple[str, ...] = ()
    inspect: Callable[[Iterator[Record], Problems], Iterator[Record]] = lambda records, problems: records
    tokenizer: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda options: {}
    audit: Callable[[Iterator[Record], Problems], dict[str, Any]] = _nothing


class Files:
    """The files of a field.

    Args:
        domain: name of the field.
        formats: the field's own formats, by name. The first is used if a file's name does not determine one.
        rule: special rules for reading the files.
    """

    def __init__(self, domain: str, formats: Mapping[str, Format], rule: Reading) -> None:
        self.domain, self.own_formats, self.rule = domain, formats, rule
        self.formats = {**formats, DATASET: rule.dataset}  # by name, including the data set format

    def options(self, format: str | None = None) -> set[str]:
        """Names of the reader options for a format, or for all formats if the field lacks this one."""
        chosen = [self.formats[format]] if format in self.formats else self.formats.values()
        return {name for form in chosen for name in form.options}

    def check(self, format: str | None, options: Mapping[str, Any]) -> None:
        """Refuse an unknown format, options that no format takes, and options of a wrong type."""
        if format is not None and format not in self.formats:
            raise UsageError(f"domain {self.domain} has no format {format!r}{nearest(format, self.formats)}")
        option_names = self.options(format)
        for name in options:
            if name not in option_names:
                owner = f"format {format!r}" if format else f"no format of domain {self.domain}"
                raise UsageError(
                    f"{owner} takes the option {name!r}{nearest(name, option_names)}; "
                    f"'seqmlm data formats --domain {self.domain}' explains them"
                )
        for form in [self.formats[format]] if format else self.formats.values():
            form.select_options(options)

    def records(
        self,
        paths: Sequence[Path | str],
        problems: Problems,
        format: str | None,
        options: Mapping[str, Any],
        scoring: bool,
    ) -> Iterator[Record]:
        """Yield the records of all files. `options` must have passed `check`."""
        common = self.formats[format] if format else None
        for path, from_folder in self._list_files(paths, common, problems):
            chosen = common or self.format_of(path)
            if common is None and from_folder and not self.in_folders(chosen):
                # A README, a truth.json or a table of scores next to the data is not data.
                if Path(path).name not in _BESIDE:
                    problems.note(
                        "a file of another kind in the folder, left out", Things(1), source=str(path)
                    )
                continue
            chosen = chosen or self.usual_format(path)
            reader_options = chosen.select_options(options)
            if scoring and not from_folder:
                reader_options = {**chosen.scoring, **reader_options}
            if chosen is self.rule.dataset and (is_reference(path) or Path(path).is_dir()):
                yield from self._splits(path, problems, reader_options)
            elif is_reference(path):
                raise UsageError(f"{path} has the format {DATASET!r}, not {format!r}; leave the format out")
            else:
                yield from chosen.read(path, problems, **reader_options)

    def _splits(self, path: Path | str, problems: Problems, options: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a data set, each with its split: train, validation, calibration or test."""
        try:
            splits = by_split(path)
        except DataError as error:
            problems.bad(error)
            return
        for source, part in splits:
            for record in self.rule.dataset.read(source, problems, **options):
                yield record if part is None else replace(record, meta={**record.meta, "split": part})

    def _list_files(
        self, paths: Sequence[Path | str], chosen: Format | None, problems: Problems | None = None
    ) -> Iterator[tuple[Path | str, bool]]:
        """Yield (path, whether it was found in a folder) for each file.

        A folder that is read as one unit is a path itself.
        """
        for path in paths:
            folder = str(path) != "-" and os.path.isdir(path)
            is_unit = folder and (self.format_of(path) if chosen is None else chosen.folder) is not None
            if str(path) == "-" or is_unit:
                yield path, False
                continue
            hit = False
            for file in sorted(expand([path], problems), key=self.rule.rotation):
                hit = hit or not folder or chosen is not None or self.in_folders(self.format_of(file))
                yield file, folder
            if not hit:
                folder_formats = (form for form in self.own_formats.values() if form.in_folders)
                suffixes = {suffix for form in folder_formats for suffix in form.suffixes}
                rotated = {suffix for suffix in suffixes if suffix[1:].isdecimal()}
                endings = ", ".join([*sorted(suffixes - rotated), *([".0 to .99"] if rotated else [])])
                remedy = f"known endings are {endings}, also with .gz or .zst; name other files one by one"
                raise DataError(f"no {self.domain} file in this folder", source=str(path), remedy=remedy)

    def inputs(
        self, paths: Sequence[Path | str], *, format: str | None = None, options: Mapping[str, Any]
    ) -> list[str]:
        """The files that `read` depends on: named files, files in folders, and files that options name."""
        self.check(format, {})
        names: list[str] = []
        common = self.formats[format] if format else None
        for path, _ in self._list_files(paths, common):
            chosen = common or self.format_of(path)
            if is_reference(path):
                names += deciding_sources(path)
            elif str(path) != "-" and Path(path).is_dir() and chosen is not None and chosen.files is not None:
                names += map(str, chosen.files(Path(path), **chosen.select_options(options)))
            else:
                names += expand([path])
        return names + [v for v in options.values() if isinstance(v, str) and Path(v).is_file()]

    def fixed_reference(self, reference: str) -> str:
        """The name of a data set (hf:NAME) with its full path, or with the current commit on the hub."""
        return str(Reference.parse(reference).fixed())

    def usual_format(self, path: Path | str) -> Format:
        """The format for a file that the user named, if its name does not determine one."""
        return self.own_formats[self.rule.usual(str(path)) or next(iter(self.own_formats))]

    def in_folders(self, format: Format | None) -> bool:
        """Whether files of this format are read wherever they are, not only when they are named."""
        return format is not None and format is not self.rule.dataset and format.in_folders

    def format_of(self, path: Path | str) -> Format | None:
        """The format by a file's name or by a folder's content; None if neither determines it."""
        if is_reference(path):
            return self.rule.dataset
        if os.path.isdir(path):
            return self._format_of_folder(Path(path))
        file_format = self._format_of_name(path)
        original_name = self.rule.original(path) if file_format is None else None
        return file_format if original_name is None else self._format_of_name(original_name)

    def _format_of_folder(self, path: Path) -> Format | None:
        """The format of a folder that is read as one unit; None for a folder of files."""
        if is_saved(path):
            return self.rule.dataset
        formats = self.own_formats.values()
        chosen = next((form for form in formats if form.folder is not None and form.folder(path)), None)
        shards = chosen is None and not any(".parquet" in form.suffixes for form in formats)
        return self.rule.dataset if shards and is_shards(path) else chosen

    def _format_of_name(self, path: Path | str) -> Format | None:
        """The format by the ending of a file's name; None if no format has that ending."""
        suffix = stem_suffix(path)
        return next((form for form in self.formats.values() if suffix in form.suffixes), None)

"""How the files of a field become records: its formats, which one a file has, what is read of a folder."""

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
"""Name of the format of data sets, which every field has."""

_BESIDE = (TRUTH, LABELS, "README.md", "README", "README.txt", "LICENSE")

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "Share": "a share such as 0.05 or 5%",
    "bool": "true or false",
}

# (path, problems, **options) -> records; streams, and hands what it cannot read to `problems`.
Reader = Callable[..., Iterator[Record]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format of a field.

    Args:
        read: the reader; its keyword parameters are the options of the format.
        suffixes: file name endings that mean this format, without compression (".fasta", not ".fasta.gz").
        folder: for a format that is a whole folder (tables that belong together, a work tree): whether a
            folder is one; the reader is then given the folder.
        files: of such a folder, the files the reader would open, given its options; None for all in it.
        in_folders: whether files of it are data where they are found in a folder, not named: a table beside
            sequences may be of anything.
        scoring: options for what is named to be scored, where the user says nothing: a training may leave out
            what has nothing to teach, but what is given to be scored is scored.
    """

    read: Reader
    suffixes: tuple[str, ...] = ()
    folder: Callable[[Path], bool] | None = None
    files: Callable[..., Iterable[Path]] | None = None
    in_folders: bool = True
    scoring: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def options(self) -> Mapping[str, str]:
        """The options the reader takes: name to type, as the reader writes it."""
        parameters = inspect.signature(self.read).parameters.values()
        keyword_only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        return {p.name: str(getattr(p.annotation, "__name__", p.annotation)) for p in keyword_only}

    def select_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that the reader takes, converted to the types it wants.

        Raises:
            UsageError: one that is no number, or neither true nor false, where the reader wants that.
        """
        types = self.options
        return {name: _convert(name, types[name], value) for name, value in options.items() if name in types}


def _convert(name: str, type_name: str, value: Any) -> Any:
    """The value of an option, from text or as a config file has it."""
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
    """The format of data sets, for a reader of one split of them (see `Reading.dataset`)."""
    return Format(read=reader, suffixes=(".parquet",), folder=is_saved)


def table_formats(make_records: RecordMaker) -> dict[str, Format]:
    """CSV and TSV where they are not what a field is in as a rule: a column `sequence`, and others beside it.

    Args:
        make_records: makes the field's records from one whose raw is the text of the column.
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
    """Rules by which the files of a field are read.

    Args:
        dataset: how the rows of a Hugging Face data set (hf:NAME), of a folder that `datasets` saved and of
            Parquet files are read: a format that every field has, by the name "huggingface".
        usual: name of the format of a file that the user named, where its name says none; None for the first;
            raises DataError for one that is in none.
        original: the name a file had before it was rotated, which tells its format.
        rotation: of whose files this is one, and what sorts these in the order they were written.
        followed: the readers keep a `data.files.Memory`, so that files can be scored while they are written.
        cuts: options of the readers that say what is a record. A model keeps them: its p-values are those of
            such records.
        scoring: options for what is to be scored, named or found in a folder.
        content: the kinds of data that its records may be (`seqmlm.domains.content`); of others, reading
            warns. Empty: nothing is checked.
        inspect: passes all records on as they are read, and counts odd ones.
        tokenizer: options of the tokenizer that options of the readers ask for, where records are what it is
            told there; raises UsageError for one that makes no sense.
        audit: reads records to the end and counts what matters in this field alone, in figures fit to show;
            `problems` has what their reader counted.
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
        formats: its own, by name; the first is assumed where a file's name says nothing.
        rule: what is particular in how they are read.
    """

    def __init__(self, domain: str, formats: Mapping[str, Format], rule: Reading) -> None:
        self.domain, self.own_formats, self.rule = domain, formats, rule
        self.formats = {**formats, DATASET: rule.dataset}  # by name, that of data sets among them

    def options(self, format: str | None = None) -> set[str]:
        """Names of what the readers of a format take; of all, where it is none of the field's."""
        chosen = [self.formats[format]] if format in self.formats else self.formats.values()
        return {name for form in chosen for name in form.options}

    def check(self, format: str | None, options: Mapping[str, Any]) -> None:
        """Refuse an unknown format, and options that no format takes, or of another type."""
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
        """The records of files as their readers give them, by options that `check` let pass."""
        common = self.formats[format] if format else None
        for path, from_folder in self._list_files(paths, common, problems):
            chosen = common or self.format_of(path)
            if common is None and from_folder and not self.in_folders(chosen):
                # A README, a truth.json or a table of scores beside the data is not data.
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
        """The records of a data set, with the part of the data that each of its splits is meant to be."""
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
        """(path, whether it lay in a folder) of each file; a folder read as one unit is a path itself."""
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
        """The files that `read` depends on: those named, those in folders, those that options name."""
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
        """The name of a data set (hf:NAME) with its full path, or the commit that the hub has now."""
        return str(Reference.parse(reference).fixed())

    def usual_format(self, path: Path | str) -> Format:
        """The format of a file that the user named, where its name says none."""
        return self.own_formats[self.rule.usual(str(path)) or next(iter(self.own_formats))]

    def in_folders(self, format: Format | None) -> bool:
        """Whether a file of this format is one of records wherever it lies, not only where it is named."""
        return format is not None and format is not self.rule.dataset and format.in_folders

    def format_of(self, path: Path | str) -> Format | None:
        """The format by a file's name, or by a folder's content; None where neither tells."""
        if is_reference(path):
            return self.rule.dataset
        if os.path.isdir(path):
            return self._format_of_folder(Path(path))
        file_format = self._format_of_name(path)
        original_name = self.rule.original(path) if file_format is None else None
        return file_format if original_name is None else self._format_of_name(original_name)

    def _format_of_folder(self, path: Path) -> Format | None:
        """The format of a folder that is one unit; None for a folder of files."""
        if is_saved(path):
            return self.rule.dataset
        formats = self.own_formats.values()
        chosen = next((form for form in formats if form.folder is not None and form.folder(path)), None)
        shards = chosen is None and not any(".parquet" in form.suffixes for form in formats)
        return self.rule.dataset if shards and is_shards(path) else chosen

    def _format_of_name(self, path: Path | str) -> Format | None:
        """The format by the ending of a file's name; None where none has that ending."""
        suffix = stem_suffix(path)
        return next((form for form in self.formats.values() if suffix in form.suffixes), None)

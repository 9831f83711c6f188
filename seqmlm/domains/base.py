"""The door through which a field comes in: how its files become records, and which defaults make sense.

A domain is declarative. It names its file formats, its defaults, what siblings must stay together in a
split, and how to draw a sample with planted truth. Tokenizers, maskers and readers do the work; nothing in
the engine or in tasks asks which domain it is serving. What differs between fields is carried by values:

    what a unit is          Encoding.groups: word, residue, base, lexer token, visit, event
    order without meaning   Encoding.positions, shared by a set; `layers` "everywhere" in `defaults.model`
    further inputs          Encoding.channels (age, time), .classes, .weights (soft-masked bases)
    what must not leak      `split_key`: patient, session, package, article; `order_key`: time, position
    what must not be shown  `sensitive`
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from seqmlm.anomaly.levels import Level, RecordLevel, UnitLevel
from seqmlm.anomaly.values import Row
from seqmlm.data.files import expand, is_reference, stem_suffix
from seqmlm.data.readers.huggingface import by_split, decides, is_saved, is_shards, read_parquet
from seqmlm.data.readers.tables import Made, csv_records
from seqmlm.data.record import Record
from seqmlm.domains.holes import MASK, Prompt, frame, put, read_holes
from seqmlm.domains.samples import LABELS, TRUTH, Sample, overlap
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.types import Encoding, Ids
from seqmlm.engine.units import EXACT, Mode
from seqmlm.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    from seqmlm.data.problems import Problems
    from seqmlm.domains.structure import Decoder
    from seqmlm.domains.variants import Variants
    from seqmlm.reports.pictures import Picture
    from seqmlm.tokenizers.base import Tokenizer, Unknown

DATASET = "huggingface"
"""Name of the format of data sets, which every field has."""

_BESIDE = (TRUTH, LABELS, "README.md", "README", "README.txt", "LICENSE")

_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}

# (path, problems, **options) -> records; streams, and hands what it cannot read to `problems`.
Reader = Callable[..., Iterator[Record]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format of a domain.

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

    def options(self) -> Mapping[str, str]:
        """The options the reader takes: name to type, as the reader writes it."""
        parameters = inspect.signature(self.read).parameters.values()
        asked = [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
        return {one.name: str(getattr(one.annotation, "__name__", one.annotation)) for one in asked}

    def known(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some options that the reader takes, of the types it wants.

        Raises:
            UsageError: one that is no number, or neither true nor false, where the reader wants that.
        """
        types = self.options()
        return {name: _typed(name, types[name], value) for name, value in options.items() if name in types}


def _typed(name: str, wanted: str, value: Any) -> Any:
    """The value of an option, from text or as a config file has it."""
    kind = wanted.removesuffix(" | None")
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
    raise UsageError(f"the option {name} takes {_TYPES[kind]}, not {value!r}")


def dataset_format(read: Reader) -> Format:
    """The format of data sets, for a reader of one split of them (see `Domain.dataset`)."""
    return Format(read=read, suffixes=(".parquet",), folder=is_saved)


def table_formats(made: Made) -> dict[str, Format]:
    """CSV and TSV where they are not what a field is in as a rule: a column `sequence`, and others beside it.

    Args:
        made: what the field makes of a record whose raw is the text of the column.
    """
    read = partial(csv_records, made, column="sequence")
    return {
        "csv": Format(read=read, suffixes=(".csv",), in_folders=False),
        "tsv": Format(read=partial(read, delimiter="\t"), suffixes=(".tsv",), in_folders=False),
    }


@dataclass(frozen=True, kw_only=True)
class DomainDefaults:
    """What `train` uses where the user says nothing.

    Args:
        tokenizer: versioned name of a tokenizer.
        tokenizer_options: its options.
        vocabulary_size: ids to train for; None fits the size to the data, or the vocabulary is fixed.
        masking: masker, rate and what is put in a masked place.
        size: "tiny", "small" or "base".
        max_length: tokens of the longest window, special tokens included.
        model: further fields of `ModelConfig` (a set-like field sets `layers="everywhere.v1"`).
        join_documents: consecutive records of one document share a window.
        split, validation, calibration: how records are held out, and which shares (see `DataConfig`).
    """

    tokenizer: str
    tokenizer_options: Mapping[str, Any] = field(default_factory=dict)
    vocabulary_size: int | None = None
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    size: str = "small"
    max_length: int = 512
    model: Mapping[str, Any] = field(default_factory=dict)
    join_documents: bool = False
    split: Literal["key", "chronological"] = "key"
    validation: float = 0.05
    calibration: float = 0.05


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A record before and after a change of its file.

    Args:
        source: the file.
        before, after: None where there was nothing, or where nothing is left to score.
        gone, came: half-open offsets, in the text before and after, of what the change touches: rows
            are needed of these alone.
        rows: given the rows of both versions, those that changed, scored by their change, each with its index
            among the rows after.
    """

    source: str
    before: Record | None
    after: Record | None
    gone: Sequence[tuple[int, int]]
    came: Sequence[tuple[int, int]]
    rows: Callable[[Sequence[Row], Sequence[Row]], list[tuple[int, Row]]]


class Domain:
    """One field. A new one is a subclass, an instance of it, and an entry point in `seqmlm.domains`.

    Class attributes:
        name: what `--domain` takes.
        title: a line for people.
        unit: what the field counts (singular).
        formats: format name to `Format`; the first is assumed where a file's name says nothing.
        dataset: how the rows of a Hugging Face data set (hf:NAME), of a folder that `datasets` saved and of
            Parquet files are read: a format that every field has, by the name "huggingface".
        example: a made-up sequence, to show what a served model is sent; "" where records are no texts.
        columns: of a table that `datasets` loads, name to Arrow type, in which `row` spells a record.
        defaults: see `DomainDefaults`.
        mode: how records are scored where nobody says, and what a training calibrates: by
            docs/benchmarks/speed.md the cheapest that ranks as `exact` does, or `exact` where that is cheap.
        sensitive: records concern people: no values in errors, samples or artifacts.
        cuts: options of its readers that say what is a record. A model keeps them: its p-values are those of
            such records.
        followed: its readers keep a `data.files.Memory`, so that files can be scored while they are written.
        hidden: how a masked place is shown to a person.
        gaps: how people write a gap in a sequence (`seqmlm.domains.holes`), beside the model's mask token.
        empty: a raw sequence of nothing.
        changes_level: level at which `changes` are scored; None where the field has none.
        structure: class of the field's decoder in its chapter `structure`; None where it has none.
        planted_in: what the anomalies of the sample's truth call the record they are in.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[str]
    formats: ClassVar[Mapping[str, Format]]
    dataset: ClassVar[Format] = dataset_format(read_parquet)
    columns: ClassVar[Mapping[str, str]] = {"text": "string"}
    example: ClassVar[str] = ""
    defaults: ClassVar[DomainDefaults]
    mode: ClassVar[Mode] = EXACT
    sensitive: ClassVar[bool] = False
    cuts: ClassVar[tuple[str, ...]] = ()
    followed: ClassVar[bool] = False
    hidden: ClassVar[str] = MASK
    gaps: ClassVar[tuple[str, ...]] = (MASK,)
    empty: ClassVar[Any] = ""
    changes_level: ClassVar[str | None] = None
    structure: ClassVar[str | None] = None
    planted_in: ClassVar[str] = "id"

    @property
    def all_formats(self) -> dict[str, Format]:
        """The field's own formats by name, and that of data sets."""
        return {**self.formats, DATASET: self.dataset}

    def reader_options(self, format: str | None = None) -> set[str]:
        """Names of what the readers of a format take; of all, where it is none of the field's."""
        formats = self.all_formats
        asked = [formats[format]] if format in formats else formats.values()
        return {name for one in asked for name in one.options()}

    @property
    def levels(self) -> tuple[Level, ...]:
        """What of a record can be judged; the first is the default."""
        return RecordLevel("record"), UnitLevel(self.unit)

    def level(self, name: str | None) -> Level:
        """The level called so, or the default.

        Raises:
            UsageError: the field has no such level.
        """
        if name is None:
            return self.levels[0]
        found = {level.name: level for level in self.levels}
        if name not in found:
            raise UsageError(f"domain {self.name} has no level {name!r}{nearest(name, found)}")
        return found[name]

    def pictures(self, level: Level) -> Sequence[Picture]:
        """How a report shows rows of a level, in this order; new ones at every call."""
        from seqmlm.reports.pictures import Coloured

        return (Coloured(),)

    def identity(self, record: Record) -> str:
        """What makes two records the same one: a model is not calibrated on what it was trained on."""
        return str(record.raw)

    def read(
        self,
        paths: Sequence[Path | str],
        problems: Problems,
        *,
        format: str | None = None,
        scoring: bool = False,
        **options: Any,
    ) -> Iterator[Record]:
        """Stream the records of files and folders, in the order given; memory stays bounded.

        Args:
            paths: files, folders (walked; only files with a known ending are taken), data sets (hf:NAME) or
                "-" for stdin.
            problems: what to do with a record that cannot be read.
            format: read every file as this format, whatever its name.
            scoring: the records are to be scored (`Format.scoring`).
            options: options of the readers (`field` of a JSON line, `column` of a table); each reader
                takes those it knows.

        Raises:
            UsageError: an unknown format, or an option that none of the formats takes.
            DataError: a missing or empty file, or a bad record where `problems` raise.
        """
        self.check_request(format, options)
        return self._stream(paths, problems, format, options, scoring)

    def check_request(self, format: str | None, options: Mapping[str, Any]) -> None:
        """Refuse an unknown format, and options that no format takes, or of another type."""
        formats = self.all_formats
        if format is not None and format not in formats:
            raise UsageError(f"domain {self.name} has no format {format!r}{nearest(format, formats)}")
        known = self.reader_options(format)
        for name in options:
            if name not in known:
                what = f"format {format!r}" if format else f"no format of domain {self.name}"
                raise UsageError(
                    f"{what} takes the option {name!r}{nearest(name, known)}; "
                    f"'seqmlm data formats --domain {self.name}' explains them"
                )
        for one in [formats[format]] if format else formats.values():
            one.known(options)

    def _stream(
        self,
        paths: Sequence[Path | str],
        problems: Problems,
        format: str | None,
        options: Mapping[str, Any],
        scoring: bool,
    ) -> Iterator[Record]:
        named = self.all_formats[format] if format else None
        for path, from_folder in self._files(paths, named, problems):
            chosen = named or self.format_of(path)
            if named is None and from_folder and not self.in_folders(chosen):
                # A README, a truth.json or a table of scores beside the data is not data.
                if Path(path).name not in _BESIDE:
                    problems.note("a file of another kind in the folder, left out", source=str(path))
                continue
            chosen = chosen or self.usual_format(path)
            known = chosen.known(options)
            if scoring and not from_folder:
                known = {**chosen.scoring, **known}
            if chosen is self.dataset and (is_reference(path) or Path(path).is_dir()):
                yield from self._splits(path, problems, known)
            elif is_reference(path):
                raise UsageError(f"{path} has the format {DATASET!r}, not {format!r}; leave the format out")
            else:
                yield from chosen.read(path, problems, **known)

    def _splits(self, path: Path | str, problems: Problems, options: Mapping[str, Any]) -> Iterator[Record]:
        """The records of a data set, with the part of the data that each of its splits is meant to be."""
        try:
            splits = by_split(path)
        except DataError as error:
            problems.bad(error)
            return
        for source, part in splits:
            for record in self.dataset.read(source, problems, **options):
                yield record if part is None else replace(record, meta={**record.meta, "split": part})

    def _files(
        self, paths: Sequence[Path | str], chosen: Format | None, problems: Problems | None = None
    ) -> Iterator[tuple[Path | str, bool]]:
        """Every file, and whether it was found in a folder; folders that are read as a whole, as they are."""
        for path in paths:
            folder = str(path) != "-" and os.path.isdir(path)
            whole = folder and (self.format_of(path) if chosen is None else chosen.folder) is not None
            if str(path) == "-" or whole:
                yield path, False
                continue
            found = False
            for file in sorted(expand([path], problems), key=self.rotation):
                found = found or not folder or chosen is not None or self.in_folders(self.format_of(file))
                yield file, folder
            if not found:
                known = (one for one in self.formats.values() if one.in_folders)
                endings = ", ".join(sorted(suffix for one in known for suffix in one.suffixes))
                remedy = f"known endings are {endings}, also with .gz or .zst; name other files one by one"
                raise DataError(f"no {self.name} file in this folder", source=str(path), remedy=remedy)

    def usual_format(self, path: Path | str) -> Format:
        """The format of a file that the user named, where its name says none."""
        return next(iter(self.formats.values()))

    def rotation(self, file: str) -> tuple[Any, ...]:
        """Of whose files this is one, and what sorts these in the order they were written."""
        return ("",)

    def in_folders(self, format: Format | None) -> bool:
        """Whether a file of this format is one of records wherever it lies, not only where it is named."""
        return format is not None and format is not self.dataset and format.in_folders

    def files(
        self, paths: Sequence[Path | str], *, format: str | None = None, options: Mapping[str, Any]
    ) -> list[str]:
        """The files that decide what `read` gives: those named, those in folders, those that options name."""
        self.check_request(format, {})
        found: list[str] = []
        named = self.all_formats[format] if format else None
        for path, _ in self._files(paths, named):
            chosen = named or self.format_of(path)
            if is_reference(path):
                found += decides(path)
            elif str(path) != "-" and Path(path).is_dir() and chosen is not None and chosen.files is not None:
                found += map(str, chosen.files(Path(path), **chosen.known(options)))
            else:
                found += expand([path])
        return found + [v for v in options.values() if isinstance(v, str) and Path(v).is_file()]

    def format_of(self, path: Path | str) -> Format | None:
        """The format a file's name, or a folder's content, speaks of; None where it says nothing."""
        if is_reference(path):
            return self.dataset
        own = self.formats.values()
        if os.path.isdir(path):
            if is_saved(Path(path)):
                return self.dataset
            found = next((one for one in own if one.folder is not None and one.folder(Path(path))), None)
            shards = found is None and not any(".parquet" in one.suffixes for one in own)
            return self.dataset if shards and is_shards(Path(path)) else found
        suffix = stem_suffix(path)
        return next((one for one in self.all_formats.values() if suffix in one.suffixes), None)

    def check(self, record: Record, tokenizer: Tokenizer, problems: Problems) -> bool:
        """Whether the tokenizer can spell the record; what it cannot is handed to `problems`.

        Only closed alphabets refuse a record; an open vocabulary counts its unknown tokens elsewhere.
        """
        if not tokenizer.traits.closed:
            return True
        found = tokenizer.unknown(record.raw)
        if not found:
            return True
        problems.bad(self.unknown_error(record, found, sensitive=problems.sensitive), str(record.raw))
        return False

    def unknown_error(
        self, record: Record, found: Sequence[Unknown], *, sensitive: bool = False
    ) -> DataError:
        """The error for a record with pieces outside the alphabet; sensitive data shows no value."""
        what = "a unit" if sensitive or self.sensitive else repr(found[0].text)
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return DataError(
            f"{what} is not in the {self.name} alphabet",
            source=record.source,
            line=record.line,
            remedy=f"position {found[0].offset + 1} of the sequence{more}; correct it, check that this is "
            f"{self.name} data, or continue without such records",
        )

    def row(self, record: Record) -> dict[str, Any]:
        """The sequence of a record as `columns`, from which `dataset` reads the same record."""
        return {"text": str(record.raw)}

    def training_text(self, record: Record) -> Any:
        """What a tokenizer learns its vocabulary from."""
        return record.raw

    def split_key(self, record: Record) -> str:
        """Records with equal keys are siblings: they go to the same side of a split.

        By default those of one document, else equal sequences.
        """
        return record.document if record.document is not None else str(record.raw)

    def given_split(self, record: Record) -> str | None:
        """The split the data itself puts the record in: "train", "validation", "calibration" or "test".

        None if it does not. Test records are left out of a training.
        """
        label = record.meta.get("split")
        return None if label is None else str(label)

    def clusters(self) -> Callable[[Record], str]:
        """A split key by which similar records are siblings, for a split by identity.

        Returns:
            A function that is given every record once, in order: clusters grow as records stream by.

        Raises:
            UsageError: the field has no such clusters.
        """
        raise UsageError(f"domain {self.name} has no identity clusters; set data.split to 'key'")

    def order_key(self, record: Record) -> Any | None:
        """Where the record stands in time or along a genome (sortable), for chronological splits; or None."""
        return None

    def of_text(self, text: str, fields: Mapping[str, Any]) -> Any:
        """The raw form of a sequence in a table; `fields` are the row's other columns and the options."""
        return text

    def spelled(self, raw: Any) -> str:
        """The text of a raw sequence, into which spans of its encoding point."""
        return str(raw)

    def respelled(self, raw: Any, text: str) -> Any:
        """A raw sequence that says another text, and is as it was in all else."""
        return text

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """A sequence within a template, gaps still written; what data say is no gap and no field.

        Args:
            raw: the sequence, or `empty` for none.
            template: with `{text}`, and `{NAME}` for other `fields` of the record; `{{` is one brace.
            forms: how gaps may be written.

        Raises:
            UsageError: a field that is not there.
        """
        text = frame(template, {**fields, "text": str(raw)}, forms)
        return self.respelled(raw, text)

    def blank(self, units: int) -> Any:
        """A raw sequence of so many gaps, and nothing else.

        Raises:
            UsageError: the field has no sequences without a beginning.
        """
        return f"[MASK:{units}]"

    def written(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Sequences (name, raw) as a file of the field has them, here one a line."""
        for _, raw in sequences:
            yield " ".join(self.spelled(raw).splitlines()) + "\n"

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """A sequence in which a person has written gaps, in any of some forms."""
        text, holes = read_holes(str(raw), forms)
        return Prompt(raw=self.respelled(raw, text), holes=tuple(holes))

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """The sequence with something in each of its gaps, spelled as in the field's data."""
        text, holes = put(str(prompt.raw), prompt.holes, texts)
        return Prompt(raw=self.respelled(prompt.raw, text), holes=tuple(holes))

    def later(self, raw: Any, time: float, gap: float, *, known: bool = True) -> Prompt:
        """A sequence as it was known at a time, with one gap in what comes after it.

        Args:
            time: seconds since 1970-01-01 UTC.
            gap: seconds after it.
            known: False leaves out all that has a time: what is asked then is what anybody of the kind has.

        Raises:
            UsageError: the field's sequences have no such times.
        """
        raise UsageError(f"sequences of domain {self.name} have no times before and after which can be asked")

    def until(self, raw: Any, time: float) -> Any | None:
        """A sequence as it was known at a time, that included; None where nothing had happened yet.

        Args:
            time: seconds since 1970-01-01 UTC.

        Raises:
            UsageError: the field's sequences have no such times.
        """
        raise UsageError(f"sequences of domain {self.name} have no times at which they could be cut")

    def ends(self, raw: Any) -> float | None:
        """When the last thing of a sequence was, seconds since 1970-01-01 UTC; None where nobody knows."""
        return None

    def at(self, raw: Any, time: float) -> tuple[Sequence[str], Mapping[str, str]]:
        """What a sequence had until a time, and the groups that results are told for (sex, age)."""
        return (), {}

    def candidates(self, tokenizer: Tokenizer) -> Sequence[str] | None:
        """What can stand in a gap of one unit, where that is less than the vocabulary; else None."""
        return None

    def variants(self) -> Variants:
        """What the field knows of variants: how they are written, checked and predicted without a model.

        Raises:
            UsageError: the field has none.
        """
        raise UsageError(f"domain {self.name} has no variants; seqmlm score compares whole sequences")

    def decoder(self) -> Decoder:
        """What maps of dependence mean in the field: `structure` of its chapter of that name.

        Raises:
            UsageError: the field does not say.
        """
        if self.structure is None:
            raise UsageError(f"domain {self.name} does not say what its maps of dependence mean")
        found: Decoder = getattr(self._chapter("structure"), self.structure)()
        return found

    def _chapter(self, name: str) -> Any:
        """A module of the field's folder, which is loaded where it is needed."""
        return import_module(f"{type(self).__module__}.{name}")

    def changes(
        self, root: Path, problems: Problems, *, since: str | None = None, diff: Path | None = None
    ) -> Iterator[Changed]:
        """Stream what changed in a folder, file by file.

        Args:
            root: the folder.
            problems: receives files that cannot be read.
            since, diff: a revision to compare with, or a unified diff; one of them.

        Raises:
            UsageError: the field has no folders that change, or there is no such revision.
            DataError: a diff that cannot be read.
        """
        raise UsageError(f"domain {self.name} has no folders whose changes could be scored")

    def shows(self, row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
        """Whether a scored part of a record shows an anomaly that the sample planted in it.

        By default: they share at least half of the shorter one.

        Args:
            row: its JSON line, with what is under "extra" beside the other fields.
            anomaly: as the sample's truth has it; `start` and `end` are half open.
        """
        return overlap(row["start"], row["end"], anomaly)

    def tokenizer_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of the tokenizer that a reader's options ask for, where records are what it is told there.

        Args:
            options: of the reader, as a training has them.

        Raises:
            UsageError: one that makes no sense.
        """
        return {}

    def audit(self, records: Iterator[Record], problems: Problems) -> dict[str, Any]:
        """Read the records to the end and count what matters in this field alone, in figures fit to show.

        Args:
            records: as they are read; others count beside.
            problems: where their reader counted what was odd.
        """
        for _ in records:
            pass
        return {}

    def sample(self, out: Path, *, n: int | None = None, seed: int = 0) -> Sample:
        """Write the built-in sample and `truth.json` into the folder `out`: `write` of the chapter `sample`.

        What is planted is fixed for the domain; `seed` only changes what is drawn from it, and the same seed
        writes the same bytes.

        Args:
            out: a folder; made if missing. n: of records; None for the domain's own. seed: of the draws.
        """
        found: Sample = self._chapter("sample").write(out, n, seed)
        return found

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, asked: Ids, predicted: Ids) -> str:
        """Three lines for a person: the sequence as the model saw it, as it guessed, and as it is.

        Args:
            tokenizer: the one that made `encoding` from `raw`.
            raw: the sequence.
            encoding: with spans.
            asked: (A,) positions that were hidden.
            predicted: (A,) the ids the model found most likely there.
        """
        text, texts = str(raw), [tokenizer.spelling.surface(int(token)) for token in predicted]
        lines = [
            ("masked", self._fill(text, encoding, asked, [self.hidden] * len(asked))),
            ("predicted", self._fill(text, encoding, asked, texts)),
            ("true", text),
        ]
        return "\n".join(f"{label:<10}{' '.join(line.split())}" for label, line in lines)

    def _fill(self, raw: str, encoding: Encoding, asked: Ids, texts: Sequence[str]) -> str:
        """`raw` with the spans of the asked positions replaced by `texts`."""
        assert encoding.spans is not None
        pieces: list[str] = []
        done = 0
        for position, text in sorted(zip(asked.tolist(), texts, strict=True)):
            start, end = encoding.spans[position].tolist()
            # Byte pieces of one character share its span: the first one stands for them all.
            if start >= done:
                pieces += [raw[done:start], text]
                done = end
        return "".join(pieces) + raw[done:]

"""The declaration of a field: how its files become records, which defaults it has, and what it can do.

A field is a value of the class `Field`. It names its file formats, its defaults and the records that must
stay together in a split. It also says how to draw a sample with planted truth. Tokenizers, maskers and
readers do the work. Code in the engine and in tasks never asks which field it serves.

A capability is a value that a field may have. If a field lacks a capability, the value is None and the
command reports it. Other differences between fields are carried by these values:

    units                            Encoding.groups: word, residue, base, lexer token, visit, event
    order without meaning            Encoding.positions, shared within a set; `layers` "everywhere" in
                                     `defaults.model`
    other inputs                     Encoding.channels (age, time), .classes, .weights (soft-masked bases)
    records that must stay together  `keys.split`: patient, session, package, article;
                                     `keys.order`: time, position
    data that must not be shown      `sensitive`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from seqmlm.anomaly.levels import Level, RecordLevel, UnitLevel
from seqmlm.anomaly.values import Row
from seqmlm.data.record import Record
from seqmlm.domains.content import check_content
from seqmlm.domains.files import Files, Format, Reading
from seqmlm.domains.holes import MASK, Prompt, fill_holes, frame, read_holes
from seqmlm.domains.samples import Sample, overlap
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.types import Encoding, Ids
from seqmlm.engine.units import EXACT, Mode
from seqmlm.errors import UsageError, nearest

if TYPE_CHECKING:
    from seqmlm.data.problems import Problems
    from seqmlm.domains.structure import Decoder
    from seqmlm.domains.variants import Variants
    from seqmlm.reports.pictures import Picture
    from seqmlm.tokenizers.base import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The settings that `train` and `score` use if the user gives none.

    Args:
        tokenizer: versioned name of a tokenizer.
        tokenizer_options: options of the tokenizer.
        checkpoints: names of tokenizers that recognise vocabularies of imported checkpoints, best first.
        vocabulary_size: number of ids to train. None fits the size to the data, or the vocabulary is fixed.
        masking: the masker, the rate, and the tokens that replace masked ones.
        size: "tiny", "small" or "base".
        max_length: length of the longest window in tokens, special tokens included.
        model: other fields of `ModelConfig` (a field of sets uses `layers="everywhere.v1"`).
        join_documents: whether consecutive records from one document share a window.
        split, validation, calibration: how records are held out, and which shares (see `DataConfig`).
        mode: the mode for scoring, and for the calibration after training. It is the cheapest mode that ranks
            records as `exact` does, or `exact` if that is cheap (docs/explanation/benchmarks/speed.md).
    """

    tokenizer: str
    tokenizer_options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[str, ...] = ()
    vocabulary_size: int | None = None
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    size: str = "small"
    max_length: int = 512
    model: Mapping[str, Any] = field(default_factory=dict)
    join_documents: bool = False
    split: Literal["key", "chronological"] = "key"
    validation: float = 0.05
    calibration: float = 0.05
    mode: Mode = EXACT


class Text:
    """Convert between raw sequences and text. Fields whose sequences are plain text use this class unchanged.

    Attributes:
        example: a made-up sequence, shown as input for a served model; "" if records are not texts.
        empty: a raw sequence without content.
        hidden: how reports show a masked place.
        columns: columns of a table that `datasets` loads, name to Arrow type. `row` writes them.
        endings: endings of files that contain a `file_text`; empty for the endings of the field's first
            format.
    """

    example: ClassVar[str] = ""
    empty: ClassVar[Any] = ""
    hidden: ClassVar[str] = MASK
    columns: ClassVar[Mapping[str, str]] = {"text": "string"}
    endings: ClassVar[Sequence[str]] = ()

    def of_text(self, text: str, fields: Mapping[str, Any]) -> Any:
        """The raw form of a sequence in a table; `fields` are the row's other columns and the options."""
        return text

    def text_of(self, raw: Any) -> str:
        """The text of a raw sequence. Spans of its encoding are offsets in this text."""
        return str(raw)

    def with_text(self, raw: Any, text: str) -> Any:
        """A copy of a raw sequence with another text and everything else unchanged."""
        return text

    def language(self, raw: Any) -> str:
        """The programming language of a raw sequence of source code; "" for other sequences."""
        return ""

    def row(self, record: Record) -> dict[str, Any]:
        """The sequence of a record as a row with `columns`.

        The data set format reads the same record from the row.
        """
        return {"text": str(record.raw)}

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Yield a file of sequences (name, raw) in the field's format, piece by piece.

        Here, each sequence is one line.
        """
        for _, raw in sequences:
            yield " ".join(self.text_of(raw).splitlines()) + "\n"

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, places: Ids, predicted: Ids) -> str:
        """The lines of `Spelling.show` for a raw sequence that `tokenizer` encoded."""
        return tokenizer.spelling.show(str(raw), encoding, places, predicted, self.hidden)


class Letters(Text):
    """Sequences of letters with nothing between them."""

    hidden = "_"

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """The sequences as FASTA."""
        return (f">{name}\n{raw}\n" for name, raw in sequences)


LETTER_GAPS = ("_", "<mask>", "<MASK>", MASK)
"""How people write a gap in a sequence of letters."""


def _document(record: Record) -> str:
    """The document of a record, or its sequence if it has no document."""
    return record.document if record.document is not None else str(record.raw)


def _data_split(record: Record) -> str | None:
    label = record.meta.get("split")
    return None if label is None else str(label)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Keys of records. They define which records are equal, which are siblings in a split, and their order.

    Args:
        identity: two records with this key in common are the same record. A model is not calibrated on
            records of its training data.
        split: records with equal keys are siblings, and go to the same side of a split. By default, siblings
            are the records of one document. Records without a document are siblings if their sequences are
            equal.
        order: the sortable place of a record in time or along a genome, for chronological splits; or None.
        data_split: the split that the data themselves name: "train", "validation", "calibration" or "test";
            None if they name none. Test records are not used in training.
        clusters: makes a split key by which similar records are siblings. The key function must see every
            record once, in order, because clusters grow as records stream by.
    """

    identity: Callable[[Record], str] = lambda record: str(record.raw)
    split: Callable[[Record], str] = _document
    order: Callable[[Record], Any | None] = lambda record: None
    data_split: Callable[[Record], str | None] = _data_split
    clusters: Callable[[], Callable[[Record], str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Gaps in raw sequences, as people write them (`seqmlm.domains.holes`).

    Args:
        forms: how a gap may be written, besides the model's mask token.
        text: the conversion between the field's raw sequences and text.
    """

    forms: tuple[str, ...] = (MASK,)
    text: Text = field(default_factory=Text)

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """Insert a sequence into a template, with gaps still in their written form.

        Text in the data that looks like a gap or a field is not treated as one.

        Args:
            raw: the sequence, or an empty one.
            template: text with `{text}`, and `{NAME}` for other `fields` of the record; `{{` is one brace.
            forms: how gaps may be written.

        Raises:
            UsageError: the template names a field that does not exist.
        """
        text = frame(template, {**fields, "text": str(raw)}, forms)
        return self.text.with_text(raw, text)

    def blank(self, units: int) -> Any:
        """A raw sequence of `units` gaps and nothing else.

        Raises:
            UsageError: sequences of the field cannot consist of gaps only.
        """
        return f"[MASK:{units}]" if self.forms[0] == MASK else self.forms[0] * units

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """Find the gaps that a person has written in a sequence, in any of the given forms."""
        text, holes = read_holes(str(raw), forms)
        return Prompt(raw=self.text.with_text(raw, text), holes=tuple(holes))

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """Fill each gap of the sequence with a text, spelled as in the field's data."""
        text, holes = fill_holes(str(prompt.raw), prompt.holes, texts)
        return Prompt(raw=self.text.with_text(prompt.raw, text), holes=tuple(holes))

    def candidates(self, tokenizer: Tokenizer) -> Sequence[str] | None:
        """The texts that can fill a gap of one unit; None for the whole vocabulary."""
        return None


class Times(Protocol):
    """Past states of a sequence. Times are in seconds since 1970-01-01 UTC."""

    def history_at(self, raw: Any, time: float) -> Any | None:
        """The sequence as it was known at this time, inclusive; None if it had no events yet."""

    def prompt_after(self, raw: Any, time: float, gap: float, *, past: bool = True) -> Prompt:
        """The sequence as it was known at this time, with one gap in an event `gap` seconds later.

        `past=False` leaves out everything that has a time. The answer then describes any person of the same
        groups.
        """

    def last_time(self, raw: Any) -> float | None:
        """Time of the last event of a sequence; None if no event has a time."""

    def state_at(self, raw: Any, time: float) -> tuple[Sequence[str], Mapping[str, str]]:
        """The codes up to this time, and the sequence's groups (sex, age) by name, for results by group."""


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """A record before and after a change of its file.

    Args:
        source: the file.
        old_record, new_record: before and after; None if the file did not exist or has nothing left to score.
        old_spans, new_spans: half-open offsets of the changed stretches in both texts. Only these need rows.
        rows: takes the rows of both versions and returns the changed rows, scored by their change, each with
            its index among the new rows.
    """

    source: str
    old_record: Record | None
    new_record: Record | None
    old_spans: Sequence[tuple[int, int]]
    new_spans: Sequence[tuple[int, int]]
    rows: Callable[[Sequence[Row], Sequence[Row]], list[tuple[int, Row]]]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """How changes of a folder are read, and the level at which they are scored.

    Args:
        level: the name of this level.
        read: (root, problems, since=, diff=) -> `FileChange`, file by file. `since` is a revision to compare
            with, `diff` a unified diff, and exactly one of the two is set. It raises UsageError if the
            revision does not exist, and DataError for a diff that cannot be read.
    """

    level: str
    read: Callable[..., Iterator[FileChange]]


def shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a part of a record and an anomaly share at least half of the shorter of the two."""
    return overlap(row["start"], row["end"], anomaly)


@dataclass(frozen=True, kw_only=True)
class BuiltInSample:
    """The built-in sample of a field, and the rule for which rows show its anomalies.

    Args:
        write: (folder, records or None for the field's own number, seed) -> the sample and `truth.json`. The
            planted patterns are fixed for the field. The seed only changes the random draws, and the same
            seed writes the same bytes.
        planted_in: the key in an anomaly of the truth that names its record.
        shows: whether a scored part of a record shows an anomaly of the truth. The part is a JSON line with
            the fields of "extra" next to the others; its `start` and `end` are half open.
    """

    write: Callable[[Path, int | None, int], Sample] | None = None
    planted_in: str = "id"
    shows: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = shows

    def draw(self, out: Path, *, n: int | None = None, seed: int = 0) -> Sample:
        """Write the sample into a folder, which is created if missing.

        Raises:
            UsageError: the field has no sample.
        """
        if self.write is None:
            raise UsageError("this domain has no built-in sample; name input files")
        return self.write(out, n, seed)


def chapter(package: str, name: str) -> Callable[..., Any]:
    """A function or class from a module in the field's folder, loaded only when it is called.

    Args:
        package: the `__name__` of the folder.
        name: module and attribute, as in "sample.write".
    """
    module, _, attribute = name.partition(".")

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(f"{package}.{module}"), attribute)(*arguments, **options)

    return call


def _coloured(level: Level) -> Sequence[Picture]:
    from seqmlm.reports.pictures import Coloured

    return (Coloured(),)


@dataclass(frozen=True, kw_only=True, eq=False)
class Field:
    """One field. A new field is a value of this class, and an entry point in `seqmlm.domains`.

    Args:
        name: the value for `--domain`.
        title: one line that describes the field to people.
        unit: name of the smallest part that gets a probability (singular).
        formats: format name to `Format`. The first is used if a file's name does not determine the format.
        defaults: see `Defaults`.
        reading: special rules for reading its files.
        text: converts between raw sequences and text.
        keys: which records are equal, siblings, or later than others.
        levels: the parts of a record that can be scored; the first is the default. By default, these are the
            record and each unit.
        pictures: how a report shows rows of a level, in this order. Every call returns new pictures.
        gaps: how people write and fill gaps.
        times: past states of a sequence.
        variants: makes the field's knowledge of variants: how to read, check and predict them without a
            model.
        structure: makes the decoder for the field's maps of dependence.
        changes: how changes of a folder are read and scored.
        sample: the built-in sample.
        sensitive: whether records describe people. If so, errors, samples and artifacts contain no values.
    """

    name: str
    title: str
    unit: str
    formats: Mapping[str, Format]
    defaults: Defaults
    reading: Reading = field(default_factory=Reading)
    text: Text = field(default_factory=Text)
    keys: Keys = field(default_factory=Keys)
    levels: tuple[Level, ...] = ()
    pictures: Callable[[Level], Sequence[Picture]] = _coloured
    gaps: Gaps = field(default_factory=Gaps)
    times: Times | None = None
    variants: Callable[[], Variants] | None = None
    structure: Callable[[], Decoder] | None = None
    changes: Changes | None = None
    sample: BuiltInSample = field(default_factory=BuiltInSample)
    sensitive: bool = False

    def __post_init__(self) -> None:
        if not self.levels:
            object.__setattr__(self, "levels", (RecordLevel("record"), UnitLevel(self.unit)))

    @cached_property
    def files(self) -> Files:
        """The files of the field: their formats, their selection in a folder, and the reader options."""
        return Files(self.name, self.formats, self.reading)

    def read(
        self,
        paths: Sequence[Path | str],
        problems: Problems,
        *,
        format: str | None = None,
        scoring: bool = False,
        **options: Any,
    ) -> Iterator[Record]:
        """Stream the records of files and folders, in the order given, in bounded memory.

        Args:
            paths: files, folders (searched for files with a known ending), data sets (hf:NAME), or "-" for
                stdin.
            problems: what to do with a record that cannot be read.
            format: read every file in this format, whatever its name.
            scoring: whether the records will be scored (`Format.scoring`, `Reading.scoring`).
            options: options of the readers (`field` of a JSON line, `column` of a table). Each reader takes
                the options that it knows.

        Raises:
            UsageError: an unknown format, or an option that none of the formats takes.
            DataError: a missing or empty file, or a bad record if `problems` raises.
        """
        self.files.check(format, options)
        merged = {**self.reading.scoring, **options} if scoring else options
        records = self.reading.inspect(self.files.records(paths, problems, format, merged, scoring), problems)
        if not self.reading.content:
            return records
        return check_content(records, problems, self.name, self.reading.content, self.text.text_of)

    def level(self, name: str | None) -> Level:
        """The level with this name, or the default level.

        Raises:
            UsageError: the field has no such level.
        """
        if name is None:
            return self.levels[0]
        levels = {key: level for level in self.levels for key in (level.name, *level.aliases)}
        if name not in levels:
            raise UsageError(f"domain {self.name} has no level {name!r}{nearest(name, levels)}")
        return levels[name]


def check_public(field: Field, why: str) -> None:
    """Refuse a field whose records describe people.

    Args:
        why: which of their data would be shown, for the message.

    Raises:
        UsageError: the field is sensitive.
    """
    if field.sensitive:
        raise UsageError(f"domain {field.name} has data about people, so this is refused: {why}")

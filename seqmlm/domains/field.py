"""The door through which a field comes in: how its files become records, and which defaults make sense.

A field is a value. It names its file formats, its defaults, what siblings must stay together in a split, and
how to draw a sample with planted truth. Tokenizers, maskers and readers do the work; nothing in the engine or
in tasks asks which field it is serving. A capability is a value that a field may have; one that it lacks is
None here, and the command says so. What else differs between fields is carried by values, too:

    what a unit is          Encoding.groups: word, residue, base, lexer token, visit, event
    order without meaning   Encoding.positions, shared by a set; `layers` "everywhere" in `defaults.model`
    further inputs          Encoding.channels (age, time), .classes, .weights (soft-masked bases)
    what must not leak      `keys.split`: patient, session, package, article; `keys.order`: time, position
    what must not be shown  `sensitive`
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
    """The settings that `train` and `score` use where the user gives none.

    Args:
        tokenizer: versioned name of a tokenizer.
        tokenizer_options: its options.
        checkpoints: names of tokenizers that recognise vocabularies of imported checkpoints, best first.
        vocabulary_size: ids to train for; None fits the size to the data, or the vocabulary is fixed.
        masking: masker, rate and what is put in a masked place.
        size: "tiny", "small" or "base".
        max_length: tokens of the longest window, special tokens included.
        model: further fields of `ModelConfig` (a set-like field sets `layers="everywhere.v1"`).
        join_documents: consecutive records of one document share a window.
        split, validation, calibration: how records are held out, and which shares (see `DataConfig`).
        mode: how records are scored, and what a training calibrates. The default is the cheapest mode
            that ranks as `exact` does, or `exact` where that is cheap (docs/explanation/benchmarks/speed.md).
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
    """Raw sequences and their text; a field whose sequences are plain text in lines needs no other.

    Class attributes:
        example: a made-up sequence, to show what a served model is sent; "" where records are no texts.
        empty: a raw sequence of nothing.
        hidden: how a masked place is shown to a person.
        columns: of a table that `datasets` loads, name to Arrow type, in which `row` spells a record.
        endings: of files that hold a `file_text`; none for those of the field's first format.
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
        """The text of a raw sequence, into which spans of its encoding point."""
        return str(raw)

    def with_text(self, raw: Any, text: str) -> Any:
        """A copy of a raw sequence with another text, and all else as it was."""
        return text

    def language(self, raw: Any) -> str:
        """The language of a raw sequence where it has one (source code); else ""."""
        return ""

    def row(self, record: Record) -> dict[str, Any]:
        """The sequence of a record as `columns`, from which the format of data sets reads the same record."""
        return {"text": str(record.raw)}

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """The pieces of a file of sequences (name, raw) in the field's format, here one a line."""
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
"""How people write a gap among letters."""


def _document(record: Record) -> str:
    """The document of a record, else its sequence."""
    return record.document if record.document is not None else str(record.raw)


def _data_split(record: Record) -> str | None:
    label = record.meta.get("split")
    return None if label is None else str(label)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Keys of records: which are equal, which are siblings in a split, and their order.

    Args:
        identity: what makes two records the same one: a model is not calibrated on what it was trained on.
        split: records with equal keys are siblings: they go to the same side of a split. By default those of
            one document, else equal sequences.
        order: where a record stands in time or along a genome (sortable), for chronological splits; or None.
        data_split: the split that the data itself names: "train", "validation", "calibration" or "test"; None
            if it names none. Test records are left out of a training.
        clusters: makes a split key by which similar records are siblings: a function that is given every
            record once, in order, since clusters grow as records stream by.
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
        forms: how a gap may be written, beside the model's mask token.
        text: of the field's sequences.
    """

    forms: tuple[str, ...] = (MASK,)
    text: Text = field(default_factory=Text)

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """A sequence within a template, gaps still written; what data say is no gap and no field.

        Args:
            raw: the sequence, or one of nothing.
            template: with `{text}`, and `{NAME}` for other `fields` of the record; `{{` is one brace.
            forms: how gaps may be written.

        Raises:
            UsageError: a field that is not there.
        """
        text = frame(template, {**fields, "text": str(raw)}, forms)
        return self.text.with_text(raw, text)

    def blank(self, units: int) -> Any:
        """A raw sequence of so many gaps, and nothing else.

        Raises:
            UsageError: the field has no sequences without a beginning.
        """
        return f"[MASK:{units}]" if self.forms[0] == MASK else self.forms[0] * units

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """A sequence in which a person has written gaps, in any of some forms."""
        text, holes = read_holes(str(raw), forms)
        return Prompt(raw=self.text.with_text(raw, text), holes=tuple(holes))

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """The sequence with something in each of its gaps, spelled as in the field's data."""
        text, holes = fill_holes(str(prompt.raw), prompt.holes, texts)
        return Prompt(raw=self.text.with_text(prompt.raw, text), holes=tuple(holes))

    def candidates(self, tokenizer: Tokenizer) -> Sequence[str] | None:
        """The texts that can stand in a gap of one unit; None for the whole vocabulary."""
        return None


class Times(Protocol):
    """Past states of a sequence; times are in seconds since 1970-01-01 UTC."""

    def history_at(self, raw: Any, time: float) -> Any | None:
        """The sequence as it was known then, that time included; None where nothing had happened yet."""

    def prompt_after(self, raw: Any, time: float, gap: float, *, past: bool = True) -> Prompt:
        """The sequence as it was known then, with one gap in what comes so many seconds after it.

        `past=False` leaves out all that has a time: the answer is then that for anybody of the kind.
        """

    def last_time(self, raw: Any) -> float | None:
        """Time of the last event of a sequence; None where no event has a time."""

    def state_at(self, raw: Any, time: float) -> tuple[Sequence[str], Mapping[str, str]]:
        """The codes of the sequence until then, and its groups (sex, age) by name, for results by group."""


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """A record before and after a change of its file.

    Args:
        source: the file.
        old_record, new_record: before and after; None where there was nothing, or nothing is left to score.
        old_spans, new_spans: half-open offsets of the changed stretches in both texts: rows are needed of
            these alone.
        rows: takes the rows of both versions; gives the changed rows, scored by their change, each with its
            index among the new rows.
    """

    source: str
    old_record: Record | None
    new_record: Record | None
    old_spans: Sequence[tuple[int, int]]
    new_spans: Sequence[tuple[int, int]]
    rows: Callable[[Sequence[Row], Sequence[Row]], list[tuple[int, Row]]]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """How changes of a folder are read, and the level they are scored at.

    Args:
        level: at which changes are scored.
        read: (root, problems, since=, diff=) -> `FileChange`, file by file; `since` is a revision to compare
            with, `diff` a unified diff, and one of them is given. Raises UsageError where there is no such
            revision, DataError for a diff that cannot be read.
    """

    level: str
    read: Callable[..., Iterator[FileChange]]


def shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a part of a record and an anomaly share at least half of the shorter one."""
    return overlap(row["start"], row["end"], anomaly)


@dataclass(frozen=True, kw_only=True)
class BuiltInSample:
    """The built-in sample of a field, and which rows show its anomalies.

    Args:
        write: (folder, records or None for the field's own number, seed) -> the sample and `truth.json`. What
            is planted is fixed for the field; the seed only changes what is drawn, and the same seed writes
            the same bytes.
        planted_in: what the anomalies of its truth call the record they are in.
        shows: whether a scored part of a record, a JSON line with what is under "extra" beside the other
            fields, shows an anomaly of the truth; its `start` and `end` are half open.
    """

    write: Callable[[Path, int | None, int], Sample] | None = None
    planted_in: str = "id"
    shows: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = shows

    def draw(self, out: Path, *, n: int | None = None, seed: int = 0) -> Sample:
        """Write the sample into a folder, made if missing.

        Raises:
            UsageError: the field has none.
        """
        if self.write is None:
            raise UsageError("this domain has no built-in sample: name files")
        return self.write(out, n, seed)


def chapter(package: str, name: str) -> Callable[..., Any]:
    """A function or class of a chapter of the field's folder, loaded when it is called.

    Args:
        package: the folder, as `__name__` has it. name: as in "sample.write".
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
    """One field. A new one is a value of this class, and an entry point in `seqmlm.domains`.

    Args:
        name: what `--domain` takes.
        title: a line for people.
        unit: what the field counts (singular).
        formats: format name to `Format`; the first is assumed where a file's name says nothing.
        defaults: see `Defaults`.
        reading: what is particular in how its files are read.
        text: raw sequences and their text.
        keys: what makes records equal, siblings, or later than others.
        levels: what of a record can be judged; the first is the default. None: the record, and each unit.
        pictures: how a report shows rows of a level, in this order; new ones at every call.
        gaps: how people write gaps, and what is put there.
        times: what was known of a sequence at a time.
        variants: makes what the field knows of variants: how they are written, checked and predicted without
            a model.
        structure: makes what maps of dependence mean in the field.
        changes: folders whose changes are scored.
        sample: the built-in sample.
        sensitive: records concern people: no values in errors, samples or artifacts.
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
        """Its files: which format one has, which of a folder are read, and what reading takes."""
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
        """Stream the records of files and folders, in the order given; memory stays bounded.

        Args:
            paths: files, folders (walked; only files with a known ending are taken), data sets (hf:NAME) or
                "-" for stdin.
            problems: what to do with a record that cannot be read.
            format: read every file as this format, whatever its name.
            scoring: the records are to be scored (`Format.scoring`, `Reading.scoring`).
            options: options of the readers (`field` of a JSON line, `column` of a table); each reader
                takes those it knows.

        Raises:
            UsageError: an unknown format, or an option that none of the formats takes.
            DataError: a missing or empty file, or a bad record where `problems` raise.
        """
        self.files.check(format, options)
        merged = {**self.reading.scoring, **options} if scoring else options
        records = self.reading.inspect(self.files.records(paths, problems, format, merged, scoring), problems)
        if not self.reading.content:
            return records
        return check_content(records, problems, self.name, self.reading.content, self.text.text_of)

    def level(self, name: str | None) -> Level:
        """The level of that name, or the default level.

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
    """Refuse a field whose records are of people.

    Args:
        why: what would be shown of them, for the message.

    Raises:
        UsageError: the field is such a one.
    """
    if field.sensitive:
        raise UsageError(f"records of domain {field.name} are of people, and {why}")

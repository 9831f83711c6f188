"""A task: items out of records, rows out of a model's answers about them. Everything else is `run`, for all.

    records -> items -> rows (asks the engine) -> figures -> summary, page, MLflow

A capability is one subclass of `Task`, in one file, and an entry point in the group `seqmlm.tasks`: that
gives it a command, output in four formats, resumption after a kill, bad records, progress, signals, a report
and its tests. Everything behind the rows is a function of the finished rows: nothing is counted on the way,
so nothing has to be restored.

The trade-off: if a task says nothing else (`Task.due`), rows are committed after every part of the input, two
syncs of the disk, so that a run can be stopped and gone on with anywhere, and gives the same bytes.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TextIO, TypeVar

from seqmlm import plugins
from seqmlm.data.compressed import ending
from seqmlm.data.files import Source, expand, is_reference
from seqmlm.data.privacy import redact_small_counts, shown_count
from seqmlm.data.problems import OnError, Problems
from seqmlm.data.record import Record
from seqmlm.domains.field import lacking
from seqmlm.engine.signals import Stopped, StopSignals
from seqmlm.engine.types import Precision
from seqmlm.engine.units import Mode
from seqmlm.errors import (
    DataError,
    SeqmlmError,
    StateError,
    UsageError,
    nearest,
    number_of,
    printable,
    span_text,
)
from seqmlm.inference.batches import BATCH_CHARACTERS, BATCH_RECORDS, characters, is_pipe
from seqmlm.inference.model_folder import read_card
from seqmlm.inference.session import Session
from seqmlm.registry.references import resolve
from seqmlm.rows.file import Order, Row, Rows
from seqmlm.streams.cursor import DEFAULTS, file_facts, with_defaults
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import (
    FORMATS,
    FREE_SPACE,
    ROWS,
    Kind,
    Schema,
    UnwritableError,
    format_of,
    index_command,
)
from seqmlm.tasks import reading, shards
from seqmlm.tasks.pace import Pace
from seqmlm.tokenizers.base import ForeignVocabulary

if TYPE_CHECKING:
    from seqmlm.reports.page import Cell, Page

Item = TypeVar("Item")
Figures = Mapping[str, Any]
"""What finished rows come to: numbers, texts, lists and mappings by name, as JSON has them."""


class Progress(Protocol):
    """Told what happens on the way."""

    def message(self, text: str) -> None:
        """A sentence for a person."""

    def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None:
        """So many items are done, with so many alarms; `share` of all, where that is known."""


class NoProgress:
    """Tells nobody."""

    def message(self, text: str) -> None: ...

    def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None: ...


class Table(NamedTuple):
    """Figures as people read them: on the console, and in the report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """What every command about a model can be told; a field is an option, or goes under `--set`.

    Args:
        model: the model: NAME, NAME@ALIAS, NAME:VERSION, a model folder or a hub id.
        paths: files, folders or Hugging Face data sets (hf:NAME[:SPLIT]) to read; - is standard input.
        domain: field of the sequences; needed only for models that seqmlm did not train.
        format: of the input files (see `seqmlm data formats`); default: detected.
        options: KEY=VALUE: option of the file reader, such as column=text; repeatable.
        on_error: bad records: raise (stop), skip, or quarantine (skip and save to a file).
        precision: of matrix products: fp32 (exact to rounding), bf16, or auto (bf16 on a GPU that has it).
    """

    shown: ClassVar[tuple[str, ...]] = ("options", "on_error")
    """Fields that are options of the command, in the order of its help; the others go under `--set`."""

    metavar: ClassVar[str] = "PATH|-"
    """What stands for the paths in the help; empty where there are none."""

    model: str
    paths: tuple[str, ...] = ()
    domain: str | None = field(default=None, metadata={"also": ("-d",)})
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        """Refuse values out of range and unknown names, before a model is loaded.

        Raises:
            UsageError: one of them.
        """
        for name, least in (("tokens_per_batch", 1), ("seed", 0)):
            value = getattr(self, name, None)
            if value is not None and value < least:
                raise UsageError(f"{name} is at least {least}; got {value}")
        if isinstance(mode := getattr(self, "mode", None), str):
            Mode.parse(mode)
        if self.domain is not None:
            plugins.domain(self.domain)


@dataclass(frozen=True, kw_only=True)
class TaskConfig(CommandConfig):
    """What every task can be told.

    Args:
        out: write the rows to this file: .jsonl, .csv, .tsv or .parquet.
        format_out: format of the rows, where the name of --out does not say it.
        resume: resume an interrupted --out.
        shard: I/N: ask about one of N shares of the input, 0/N to N-1/N; `seqmlm rows merge` puts the files
            together.
        report: write an HTML report to this file and log a run in MLflow.
        tokens_per_batch: of one forward pass; halved when memory runs out; default: by device.
    """

    shown: ClassVar[tuple[str, ...]] = ("out", "resume", "report", "shard", *CommandConfig.shown)
    inputs: ClassVar[tuple[str, ...]] = ()
    """Fields that name a file which is read beside the paths."""

    arrays: ClassVar[bool] = False
    """Rows are vectors, which an array of numpy can hold."""

    later: ClassVar[tuple[str, ...]] = ()
    """Fields that only what is made of finished rows depends on: a resumed run may have others."""

    out: Path | None = None
    format_out: str | None = None
    resume: bool = False
    shard: str | None = None
    report: Path | None = None
    tokens_per_batch: int | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """All that is read: the paths, and what a task reads beside them."""
        beside = (getattr(self, name) for name in self.inputs)
        return (*self.paths, *(str(one) for one in beside if one is not None))

    @property
    def latency(self) -> float | None:
        """Seconds within which rows follow what others still write to standard input; None: it is a file."""
        return None

    @property
    def resumable(self) -> bool:
        """Whether `--resume` can complete a run that is stopped: of a file, from files."""
        return self.out is not None and self.latency is None and not any(map(is_pipe, expand(self.read)))

    @property
    def quarantine(self) -> Path:
        """Where bad records go, if they are kept."""
        return Path(f"{self.out or 'rows'}.quarantine.jsonl")

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The files that are written, by the option that names each."""
        aside = {"--on-error quarantine": self.quarantine} if self.on_error == "quarantine" else {}
        return {"--out": self.out, "--report": self.report, **aside}

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read or loaded, by a UsageError that says why."""
        if not self.paths:
            raise UsageError("nothing to read: name files, folders, or - for standard input")
        self.check_files()

    def check_files(self) -> None:
        """Refuse outputs that are inputs or no files, and what cannot be resumed; as `check`."""

        self.check_ending()
        files = (one for one in self.read if one != "-" and not is_reference(one))
        missing = next((one for one in files if not os.path.exists(one)), None)
        if missing is not None and os.path.isfile(self.model):
            raise UsageError(
                f"no file or folder {missing}, and {self.model} is a file: the model comes first"
            )
        if self.resume and not self.resumable:
            raise UsageError(
                "--resume continues a file named with --out, from files that can be read again: what was "
                "read from standard input or a pipe is gone; write it to a file first"
            )
        if self.shard is not None:
            shards.parse(self.shard)
            if not self.resumable or self.out is None or self.out.suffix.lower() != ".jsonl":
                raise UsageError("--shard reads files, and writes rows to a .jsonl that --out names")
        check_outputs(self.outputs, inputs=expand(self.read), streams=True)

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        """Formats that the command writes for models of a field (None: of any), beside those of rows; their
        endings."""
        return {}

    def writable(self) -> Mapping[str, Sequence[str]]:
        """All formats that the command writes for this model, and their endings."""
        domain = self.domain
        with suppress(SeqmlmError):  # a wrong model is refused later
            folder = resolve(self.model).path
            card = None if folder is None else read_card(folder)
            domain = domain if card is None else card.domain
        return {**self.native(domain), **(FORMATS if self.arrays else ROWS)}

    def check_ending(self) -> None:
        """Refuse a name of `out` whose ending says no format of the command."""
        suffix = "" if self.out is None else ending(self.out)
        named = not suffix or any(suffix in endings for endings in FORMATS.values())
        further = {} if self.format_out in FORMATS or (self.format_out is None and named) else self.native()
        chosen = format_of(self.out, self.format_out, further=further, writable=self.writable)
        if chosen == "npy" and not self.arrays:
            raise UsageError(
                f"{self.out}: an array of numpy holds vectors (seqmlm embed), and these are other rows"
            )


ConfigT = TypeVar("ConfigT", bound=TaskConfig)


class Task(ABC, Generic[ConfigT, Item]):
    """One capability: made of its config and a session, then asked for items, rows and figures.

    The docstring of the class is the help of its command.

    Attributes:
        Config: class of the config; its docstring describes the options.
        unit: what an item is called.
        columns: kinds of columns that rows of tables have, where values alone do not say them (an empty one).
        whole: rows are written when all are there, as `finished` makes them.
        streams: without `--out`, rows go to standard output; else the figures do.
        public: figures that count nothing of the data, and are shown of sensitive data, too.
        page_has_rows: a report lists single rows; so it has exact counts, of sensitive data too, and only its
            owner may read it.
        doubts: what met on the way has to be known before the figures are believed: a report begins with it.
        json_rows: `--json` asks for rows as JSON, not for figures.
        learnt: it asks a fine-tuned model, and nothing else.
        needs: members of `Field` that the model's field must have: a model of another field is refused
            before it is loaded and before anything is read.
        trains: it makes a model; progress is then that of a training.
        own_format: rows are written in the field's own format (`written`), unless JSON is asked for.
        formats: further formats that `written` writes, and the endings of their files; a name that ends in
            .gz or .bgz is packed by bgzip, those of tables by gzip.
        ahead: its items may be read by a fork, ahead of the model: they ask no model.
        sources: what `records` reads.
        out: the file of the rows, or None.
        notes: what a person should know before it begins.
        alarms, done: of the items asked about, alarms, and the share of the input, if that is known.
        wanted: whether a row is written; None for all.
        kept: rows that go to no file are kept, for figures and a report.
        order: what rows on a terminal are sorted by; None: they are shown as they come.
        may_be_empty: an input without any item is no error.

    Raises:
        UsageError: what makes no sense for this model; before anything is read.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    unit: ClassVar[str] = "record"
    columns: Schema | Mapping[str, Kind] = MappingProxyType({})
    public: ClassVar[frozenset[str]] = frozenset()
    page_has_rows: ClassVar[bool] = False
    doubts: ClassVar[frozenset[str]] = frozenset()
    own_format: ClassVar[bool] = False
    whole: bool = False
    json_rows: ClassVar[bool] = False
    learnt: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    trains: ClassVar[bool] = False
    ahead: bool = False
    streams: bool = True
    formats: Mapping[str, Sequence[str]] = MappingProxyType({})
    notes: Sequence[str] = ()
    alarms: int = 0
    done: float | None = None
    wanted: Callable[[Row], bool] | None = None
    kept: bool = True
    order: Order | None = None
    may_be_empty: bool = False

    def __init__(self, config: ConfigT, session: Session) -> None:
        self.config, self.session = config, session
        self.sources: Sequence[str | Source] = config.paths
        self.out: Path | None = config.out

    @classmethod
    def opened(cls, config: ConfigT) -> Session:
        """The model, as `open_model` opens it."""
        return open_model(config, labels="learnt" if cls.learnt else "none")

    @classmethod
    def launch(
        cls, name: str, config: Any, *, stdout: TextIO | None, progress: Progress, as_json: bool
    ) -> Summary:
        """What its command does: `run`."""
        return run(name, cls, config, stdout=stdout, progress=progress, as_json=as_json)

    def records(self, problems: Problems) -> Iterable[Any]:
        """What is read: records of the model's field, if nothing else."""
        return read(self.session, self.config, problems, {}, self.sources)

    def files(self) -> list[str]:
        """Files that decide the rows: one that has changed makes it another request."""
        config, sources = self.config, [str(one) for one in self.sources]
        if not sources or "-" in sources:
            return []
        found = self.session.domain.files.deciding(sources, format=config.format, options=config.options)
        return [*map(str, found), *(one for one in config.read if one not in config.paths)]

    def decided(self) -> Mapping[str, Any]:
        """What the task has settled itself that decides the rows: for the request, and a tracked run."""
        return {}

    def items(self, records: Iterable[Any], problems: Problems) -> Iterable[Item]:
        """What is asked about, in order: several items of a record, or none; if nothing else, the records."""
        return records

    def cost(self, item: Item) -> float:
        """Forward tokens that an item takes, by estimate.

        That of an exact score of its sequence; of an item that is no record, of a whole window.
        """
        tokens = self.session.tokens(item.raw) if isinstance(item, Record) else self.session.card.max_length
        return self.session.budget.cost(tokens)

    def share(self, item: Item) -> float:
        """Share of a part that an item takes. A part is full at 1, and is asked about together.

        It depends on the item alone, so that a resumed run cuts the same parts.
        """
        size = characters(item) / BATCH_CHARACTERS if isinstance(item, Record) else 0.0
        return max(1 / BATCH_RECORDS, size, self.cost(item) / self.session.budget.commit_interval)

    def due(self) -> bool:
        """Whether the rows so far are to be committed; asked after each part of the input."""
        return True

    @abstractmethod
    def rows(self, items: Sequence[Item]) -> Iterable[Sequence[Row]]:
        """The rows of each of some items, in order, which are asked about together.

        Raises:
            DataError, UsageError: an item that cannot be asked about. Then each is asked about alone, and
                only what cannot be is left out.
        """

    def figures(self, rows: Iterable[Row]) -> Figures:
        """What the finished rows come to."""
        return {}

    def sentence(self, figures: Figures, items: int) -> str:
        """The answer, as a person would say it."""
        told = ", ".join(f"{name} {said(value)}" for name, value in figures.items() if _is_cell(value))
        return self.counted(items) + (f": {told}" if told else "")

    def counted(self, items: int) -> str:
        """A number of items in words; of sensitive data no small one is told."""
        return number_of(shown_count(items, self.session.card.sensitive), self.unit)

    def failure(self, figures: Figures) -> str:
        """Why the answer is of no use, and what to do: the command ends with exit code 3; "" if it is."""
        return ""

    def lead(self, figures: Figures) -> str:
        """The first sentence of a report, where that is not the answer's."""
        return ""

    def tables(self, figures: Figures) -> Iterable[Table]:
        """The figures as tables."""
        return ()

    def line(self, row: Row) -> str:
        """A row as a person reads it on a terminal: where it is from, and its fields that are no lists."""
        left_out = ("id", "source", "line", "item")
        told = (
            f"{key} {said(value)}"
            for key, value in counted_from_one(row).items()
            if key not in left_out and _is_cell(value)
        )
        return "  ".join([*where(row), *told])

    def examples(self, rows: Callable[[], Iterator[Row]], figures: Figures) -> Sequence[str]:
        """Lines about single rows that a person is told with the answer; nothing of sensitive data."""
        return ()

    def hint(self) -> str:
        """What a person would do next."""
        if self.config.report is not None:
            return f"next: open {self.config.report}"
        option = "--report " if "report" in self.config.shown else "--set report="
        return f"next: {option}FILE.html draws what was found"

    def page(self, page: Page, rows: Callable[[], Iterator[Row]], figures: Figures) -> None:
        """Add to the report what is no table: warnings, cards, pictures."""
        cards = {name: value for name, value in figures.items() if _is_cell(value)}
        if cards:
            page.head(cards)

    def export(self, rows: Callable[[], Iterator[Row]]) -> Sequence[Path]:
        """Write further files that are made of all rows; their paths, which a run of MLflow keeps.

        Raises:
            StateError: one cannot be written.
        """
        return ()

    def costs(self, problems: Problems) -> Iterable[float]:
        """The cost of each item, for an estimate of the whole; the model is not asked. None: no estimate."""
        again = type(self)(self.config, self.session)
        return map(again.cost, again.items(again.records(problems), problems))

    def finished(self, rows: Iterator[Row], figures: Figures) -> Iterable[Row]:
        """The rows that are written, where each depends on all; for tasks that write them `whole`."""
        raise NotImplementedError

    def written(self, rows: Iterator[Row]) -> Iterable[str]:
        """The text of a file in the field's own format, or in that of `formats` which is asked for."""
        raise NotImplementedError

    @property
    def further_format(self) -> str | None:
        """Which of `formats` is asked for, by its name or that of the output.

        Raises:
            UsageError: the name of the output says another format.
        """
        out, asked = self.out, self.config.format_out
        suffix = "" if out is None else ending(out)
        every = {**self.formats, **FORMATS}
        by_name = [one for one, endings in every.items() if suffix in endings]
        if asked in every and by_name and asked not in by_name:
            raise UsageError(
                f"{out} is {by_name[0]} by its name, and --format-out says {asked}; leave that out"
            )
        chosen = format_of(out, asked, further=self.formats)
        return chosen if chosen in self.formats else None


def check_field(config: Any, level: str | None = None, needs: Sequence[str] = ()) -> None:
    """Refuse what the model's field does not have, before the model is loaded: a format, a level, or a
    capability, which `needs` calls as `Field` does.

    Raises:
        UsageError: one of them. StateError: no such model, or a broken card.
    """
    folder = resolve(config.model).path
    card = None if folder is None else read_card(folder)
    name = config.domain if card is None else card.domain
    if name is not None:
        if card is not None and name not in plugins.names("domains"):
            return  # opening the model says what is wrong with its card
        field = plugins.domain(name)
        if missing := next((one for one in needs if getattr(field, one) is None), None):
            raise lacking(field, missing)
        field.files.check(config.format, {})
        field.level(level)


def open_model(config: Any, labels: Literal["none", "learnt", "any"] = "none") -> Session:
    """The model of a config.

    Raises:
        UsageError, StateError: as `Session.open`; an output in the model's folder.
    """
    session = Session.open(
        config.model,
        domain=config.domain,
        tokens_per_batch=config.tokens_per_batch,
        precision=config.precision,
        expert=getattr(config, "expert", "none"),
        shown=config.out is None,
        remedy=PRIVATE,
        labels=labels,
    )
    if isinstance(session.tokenizer, ForeignVocabulary):
        session.tokenizer.refuses = getattr(config, "latency", None) is None
    check_outputs(config.outputs, folder=session.model.path)
    return session


def _is_cell(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not (isinstance(value, float) and math.isnan(value))


def where(row: Row) -> list[str]:
    """Where a row is from, as editors name a place, and its id where that says more."""
    source, line, id = str(row.get("source") or ""), row.get("line"), str(row.get("id") or "")
    place = source if line is None else f"{source}:{line}"
    return [one for one in (place, "" if place.endswith(id) else id) if one]


def counted_from_one(row: Row) -> Row:
    """The fields of a row with its positions as people count them, from 1 and with the last one.

    `start` and `end` become `position`, and `NAME_start` and `NAME_end` become `NAME_position`. An index
    `i` or `j` is left out where the row has `position_i` or `position_j`.

    >>> counted_from_one({"id": "a", "start": 155, "end": 175, "contig_start": 9, "contig_end": 10})
    {'id': 'a', 'position': '156 to 175', 'contig_position': '10'}
    """
    fields = dict[str, Any]()
    for key, value in row.items():
        name, _, edge = f"_{key}".rpartition("_")
        start, end = (row.get(f"{name}_{one}".lstrip("_")) for one in ("start", "end"))
        if edge in ("start", "end") and isinstance(start, int) and isinstance(end, int):
            fields[f"{name}_position".lstrip("_")] = span_text(start, end)
        elif not (key in ("i", "j") and f"position_{key}" in row):
            fields[key] = value
    return fields


def said(value: Cell) -> str:
    """A figure as people read it."""
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


NOT_COMPUTED = "not_computed"
"""Figure that says why others are not there: name -> reason."""


def defined(figures: Figures) -> Figures:
    """Figures without those that are not defined for the data, and why these are not there.

    >>> defined({"n": 1, "auc": math.nan, "gain": {"value": 0.1, "low": math.nan}})
    {'n': 1, 'gain': {'value': 0.1}, 'not_computed': {'auc': 'not defined for these data', \
'gain/low': 'an interval needs several groups'}}
    """
    reasons = dict(figures.get(NOT_COMPUTED, {}))

    def without(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return value
        kept = {}
        for name, one in value.items():
            where = f"{path}{name}"
            if isinstance(one, float) and math.isnan(one):
                bound = str(name).rpartition("_")[2] in ("low", "high")
                reasons[where] = "an interval needs several groups" if bound else "not defined for these data"
            else:
                kept[name] = without(one, f"{where}/")
        return kept

    kept = without({name: one for name, one in figures.items() if name != NOT_COMPUTED}, "")
    return {**kept, NOT_COMPUTED: reasons} if reasons else kept


def _absences(figures: Figures) -> list[str]:
    """A sentence for each reason why figures are not there; a bound that is not known is not said."""
    names: dict[str, list[str]] = {}
    for name, why in figures.get(NOT_COMPUTED, {}).items():
        if name.rpartition("/")[2].rpartition("_")[2] not in ("low", "high"):
            names.setdefault(why, []).append(name)
    return [f"not computed: {', '.join(own)} ({why})" for why, own in names.items()]


RESUME = "with --resume to complete"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run ended.

    Args:
        items, bad: that the model was asked about, and what was left out.
        notes: what was met on the way, and how often; places: where first, if that is known.
        quarantine: where what was left out is kept, or None.
        answer: the figures in a sentence; tables: the same as tables.
        streamed: whether rows went to standard output.
        stopped: the signal that ended it early, or None; then there are no figures.
        seconds: that it took.
        go_on: what the same command needs to go on with it, where it was stopped; "" where it cannot.
        hint: what a person would do next.
        failure: why the answer is of no use, and what to do; "" if it is.
        examples: lines about single rows that a person is told.
    """

    task: str
    items: int
    bad: int
    notes: Mapping[str, Any]
    places: Mapping[str, str] = field(default_factory=dict)
    quarantine: Path | None = None
    figures: Figures = field(default_factory=dict)
    answer: str = ""
    tables: Sequence[Table] = ()
    streamed: bool = False
    stopped: int | None = None
    seconds: float = 0.0
    go_on: str = RESUME
    hint: str = ""
    failure: str = ""
    examples: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """What machines read: the figures, and what is known of every run."""
        return {**self.figures, **{key: getattr(self, key) for key in ("task", "items", "bad", "notes")}}


def met(problems: Problems, items: int, quarantine: Path, *, sensitive: bool) -> dict[str, Any]:
    """What a summary says of what was met on the way, beside so many items that were asked about."""
    return {
        **redact_small_counts({"items": items, "bad": problems.bad_count}, sensitive),
        "notes": redact_small_counts(problems.counts, sensitive),
        "places": problems.places,
        "quarantine": quarantine if problems.quarantined and problems.bad_count else None,
    }


def read(
    session: Session,
    config: TaskConfig,
    problems: Problems,
    options: Mapping[str, Any],
    sources: Sequence[str | Source] | None = None,
) -> Iterator[Record]:
    """The records of some sources, the paths if nothing else; options are of readers, beside the config's."""
    given = config.paths if sources is None else sources
    yield from session.reader(given, format=config.format, options={**options, **config.options})(problems)


def run(
    name: str,
    make: type[Task[Any, Any]],
    config: TaskConfig,
    *,
    stdout: TextIO | None = None,
    progress: Progress | None = None,
    as_json: bool = False,
) -> Summary:
    """Run a task: read, ask, write, resumed where it stopped; then its figures, tables and report.

    Args:
        stdout: where rows go without `config.out`; None for nowhere.
        as_json: only JSON goes to `stdout`: rows of tasks with `json_rows`, of others none.

    Raises:
        UsageError: a request that makes no sense.
        DataError: a bad record, where `config.on_error` is "raise"; the rows before it are kept. Or nothing
            could be read.
        StateError: no such model, or rows that cannot be written or gone on with.
    """
    config.check()
    if config.shard is not None and make.whole:
        raise UsageError(f"{name} has no shares: each of its rows depends on all of them")
    began, told = time.monotonic(), progress or NoProgress()
    if config.format_out is not None and config.format_out not in {*FORMATS, *make.formats}:
        known = [*FORMATS, *make.formats]
        raise UsageError(
            f"--format-out {config.format_out}: no such format{nearest(config.format_out, known)}"
        )
    check_field(config, needs=make.needs)
    session = make.opened(config)
    task, private = make(config, session), session.card.sensitive
    with (
        StopSignals() as stop,
        Problems(config.on_error, quarantine=config.quarantine, sensitive=private) as problems,
        _rows(task, problems, stdout, as_json) as rows,
    ):
        problems.listener = told.message
        for note in (*task.notes, *rows.notes):
            told.message(note)
        with _resumable(task, rows):
            _ask(task, rows, problems, stop, told)
        summary = Summary(
            task=name,
            **met(problems, rows.asked, config.quarantine, sensitive=private),
            stopped=stop.received,
            streamed=rows.streamed,
            seconds=time.monotonic() - began,
            go_on=_remedy(task, rows),
        )
        if stop.received is not None and config.latency is None:
            return summary
        if rows.asked or task.may_be_empty or config.shard is not None:
            with _resumable(task, rows):
                summary = _finished(task, summary, rows)
            if config.out is not None and (command := index_command(config.out)) is not None:
                told.message(f"an index of {config.out.name}: {command}")
            return summary
        if stop.received is not None:
            return summary
        raise problems.nothing()


def _remedy(task: Task[Any, Any], rows: Rows) -> str:
    """What the same command needs to go on with its rows; "" where nothing of them can be gone on with."""
    return RESUME if task.out is not None and task.config.resumable and rows.committed else ""


@contextmanager
def _resumable(task: Task[Any, Any], rows: Rows) -> Iterator[None]:
    """Say of output that cannot be written that the run can be resumed, where that is so."""
    try:
        yield
    except UnwritableError as error:
        if not _remedy(task, rows):
            raise
        kept = "the rows committed before are kept"
        raise StateError(f"{error.reason}; {kept}: {FREE_SPACE} with --resume") from None


def _finished(task: Task[Any, Any], summary: Summary, rows: Rows) -> Summary:
    """The summary with what all rows come to, once these and the report are written."""
    config = task.config
    if config.shard is not None and not rows.asked:
        rows.finish()
        _keep_share(task, rows)
        return replace(summary, answer=f"nothing is in share {config.shard}")
    found = task.figures(rows.read())
    private = task.session.card.sensitive
    figures = redact_small_counts(found, private) | {name: found[name] for name in task.public}
    whole = defined(figures)
    answer = "\n".join([task.sentence(figures, rows.asked), *_absences(whole)])
    tables = list(task.tables(figures))
    summary = replace(summary, figures=whole, answer=answer, tables=tables, hint=task.hint())
    examples = () if private else tuple(task.examples(rows.read, figures))
    tokenizer = task.session.tokenizer
    unread = tokenizer.unread() if isinstance(tokenizer, ForeignVocabulary) and tokenizer.refuses else ""
    summary = replace(summary, failure=task.failure(found) or unread, examples=examples)
    files = task.export(rows.read)
    if task.config.report is not None:
        _report(task, summary, rows, files, found if task.page_has_rows else figures)
    rows.finish(partial(task.finished, figures=figures) if task.whole else None)
    _keep_share(task, rows)
    return summary


def _keep_share(task: Task[Any, Any], rows: Rows) -> None:
    """Say beside the rows of a share what they are of."""
    shard, out = task.config.shard, task.out
    if shard is not None and out is not None:
        request = {key: value for key, value in _request(task).items() if key not in ("shard", DEFAULTS)}
        shards.Share.finish(out, shard, request, rows.asked, private=task.session.card.sensitive)


PRIVATE = "name a file with --out, which only you can read"
_NO_REQUEST = {"model", "paths", "out", "on_error", "resume", "report", "tokens_per_batch"}


def _rows(task: Task[Any, Any], problems: Problems, stdout: TextIO | None, as_json: bool) -> Rows:
    """Where the rows go, and what decides them."""
    config, session = task.config, task.session
    asked = "own" if task.further_format else format_of(task.out, config.format_out)
    if asked == "npy" and not (isinstance(task.columns, Schema) and task.columns.width):
        what = "an array of numpy holds vectors (seqmlm embed), and these are other rows"
        raise UsageError(f"{task.out}: {what}")
    unnamed = task.out is None or not ending(task.out)
    own = task.own_format and config.format_out is None and unnamed and not as_json
    people = stdout is not None and stdout.isatty() and config.format_out is None and not as_json
    return Rows(
        task.out,
        _request(task),
        problems,
        format="own" if own else asked,
        columns=task.columns,
        own=task.written,
        whole=task.whole,
        wanted=task.wanted,
        kept=task.kept,
        resume=config.resume if config.resumable else None,
        private=session.card.sensitive,
        stdout=stdout if task.streams and (task.json_rows or not as_json) else None,
        line=_fitted(task.line) if people else None,
        order=task.order,
    )


def _request(task: Task[Any, Any]) -> dict[str, Any]:
    """All that decides the rows."""
    config, session = task.config, task.session
    left_out = _NO_REQUEST | {*config.later}
    request = {key: value for key, value in asdict(config).items() if key not in left_out}
    if task.out is not None:
        request |= {"sources": list(config.paths), "input": file_facts(task.files())}
        request |= {"model": file_facts(session.model.files), "precision": session.precision}
    return with_defaults(request | dict(task.decided()), config)


def _fitted(line: Callable[[Row], str]) -> Callable[[Row], str]:
    """Rows as lines of a terminal: the first one of each is cut to its width, a long name of a file first."""
    width = shutil.get_terminal_size().columns

    def fitted(row: Row) -> str:
        first, _, rest = printable(line(row), lines=True).partition("\n")
        place = first.partition("  ")[0]
        if len(first) > width and len(place) > width // 2:
            first = f"…{first[len(place) - width // 2 + 1 :]}"
        first = first if len(first) <= width else f"{first[: width - 1]}…"
        return f"{first}\n{rest}\n" if rest else f"{first}\n"

    return fitted


def _ask(task: Task[Any, Any], rows: Rows, problems: Problems, stop: StopSignals, progress: Progress) -> None:
    """Ask about all items behind those that are done, until a signal comes."""
    live = task.config.latency is not None
    breaking = nullcontext if live else stop.breaking  # what is lost is asked again; not what nobody keeps
    failure: SeqmlmError | None = None
    pace = Pace(task, rows, progress)
    with closing(_parts(task, problems, rows.done, stop)) as parts, suppress(Stopped):
        while failure is None:
            with breaking():
                part = next(parts, None)
                if part is not None:
                    pace.begin(part.items)
                answers = [] if part is None else _answered(task, part.items)
            if part is None:
                rows.commit()
                return
            failure = part.failure
            try:
                _write(rows, part.items, answers, problems)
            except SeqmlmError as error:
                failure = error
            if live or (failure is None and (task.due() or task.config.shard is not None)):
                rows.commit()
                if not live:
                    task.session.forget()  # as in a run that goes on from here: the last bits depend on it
            pace.end()
    rows.keep()
    if failure is not None:
        raise failure


def _parts(
    task: Task[Any, Item], problems: Problems, done: int, stop: StopSignals
) -> Generator[reading.Part]:
    """The input, or a share of it, in parts that are asked about together."""
    if task.config.latency is not None:
        yield from reading.live(task, problems, task.config.latency, lambda: stop.received is not None)
    elif task.config.shard is not None:
        counted = type(task)(task.config, task.session)  # counting leaves no trace in the one that asks
        private = task.session.card.sensitive
        first, last = shards.share_of(counted, task.config.shard, sensitive=private)
        task.session.forget()
        yield from reading.until(reading.parts(task, problems, first + done), last - first - done)
    elif task.ahead and reading.can_read_ahead(task):
        yield from reading.ahead(task, problems, done)
    else:
        yield from reading.parts(task, problems, done)


def _write(
    rows: Rows, some: Sequence[Any], answers: Sequence[Sequence[Row] | SeqmlmError], problems: Problems
) -> None:
    """Write the rows of what could be asked about; those before a bad item that ends the run stay."""
    good: list[Sequence[Row] | None] = []
    try:
        for item, own in zip(some, answers, strict=True):
            if isinstance(own, SeqmlmError):
                read_from = getattr(item, "source", None)
                if read_from is None:
                    raise own  # it was not read: it stands in the request
                problems.bad(placed(own, item, problems.sensitive))
            good.append(None if isinstance(own, SeqmlmError) else own)
    finally:
        if good:
            rows.write(good)


def _answered(task: Task[Any, Any], some: Sequence[Any]) -> list[Sequence[Row] | SeqmlmError]:
    """The rows of each item, or why it cannot be asked about; one bad item costs itself."""
    try:
        made: list[Sequence[Row] | SeqmlmError] = list(task.rows(some))
    except (DataError, UsageError) as error:
        if len(some) == 1:
            return [error]
        made = [own for item in some for own in _answered(task, [item])]
    assert len(made) == len(some), "a task gives rows for each item"
    return made


def placed(error: SeqmlmError, item: Any, sensitive: bool) -> DataError:
    """An error about an item, with its file and line; of sensitive data without any letter of it."""
    letters = sensitive and isinstance(error, DataError)
    reason = getattr(error, "reason", str(error))
    return DataError(
        "something that cannot be asked about" if letters else reason,
        source=item.source,
        line=item.line,
        remedy=getattr(error, "remedy", None) or "correct it, or leave it out",
    )


def place(item: Any) -> dict[str, Any]:
    """What a row says of the record that it is about."""
    return {"id": item.id, "source": item.source, "line": item.line}


def _report(
    task: Task[Any, Any], summary: Summary, rows: Rows, files: Sequence[Path], figures: Figures
) -> None:
    """Write the report, and keep it with the figures in a run of MLflow: of sensitive data no small ones."""
    from seqmlm.reports.page import Page
    from seqmlm.tasks.tracked import command, keep_run, origin

    config, session = task.config, task.session
    assert config.report is not None
    answer, *warnings = summary.answer.split("\n")
    lead = task.lead(figures) or answer
    page = Page(f"{summary.task.capitalize()}: {config.model}", lead)
    page.warnings([*warnings, *(f"{what}: {n}" for what, n in summary.notes.items() if what in task.doubts)])
    page.head(origin(session, summary.task, config) | {"note": "; ".join(task.notes)})
    task.page(page, rows.read, figures)
    for table in summary.tables:
        page.table(*table)
    if summary.notes:
        page.table("Met on the way", ["what", "how often"], list(summary.notes.items()))
    page.write(config.report, private=session.card.sensitive)
    tracked = {"items": summary.items, "bad": summary.bad, **summary.figures}
    told = summary.answer if session.card.sensitive else f"{lead}\n\n`{command(summary.task, config)}`"
    kept = [config.report, *files]
    keep_run(session, summary.task, config, tracked, task.decided(), kept, told, spent=summary.seconds)

"""A task: items out of records, rows out of a model's answers about them. Everything else is `run`, for all.

    records -> items -> rows (asks the engine) -> figures -> summary, page, MLflow

A capability is one subclass of `Task`, in one file, and an entry point in the group `seqmlm.tasks`: that
gives it a command, output in four formats, resumption after a kill, bad records, progress, signals, a report
and its tests. Everything behind the rows is a function of the finished rows: nothing is counted on the way,
so nothing has to be restored.

The trade-off: if a task is not `Live`, rows are committed after every part of the input, two
syncs of the disk, so that a run can be stopped and gone on with anywhere, and gives the same bytes.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from seqmlm.data.compressed import ending
from seqmlm.data.counts import People
from seqmlm.data.files import Source, expand, is_reference
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import SeqmlmError, UsageError, number_of, span_text
from seqmlm.inference.model_folder import read_card
from seqmlm.inference.record_batches import BATCH_CHARACTERS, BATCH_RECORDS, characters, is_pipe
from seqmlm.inference.session import Session
from seqmlm.registry.references import resolve
from seqmlm.reports.summary import Figures, Table
from seqmlm.rows.file import Order, Row
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import FORMATS, ROWS, Kind, Schema, format_of
from seqmlm.tasks import shards
from seqmlm.tasks.settings import CommandConfig
from seqmlm.tokenizers.base import ForeignVocabulary

if TYPE_CHECKING:
    from seqmlm.reports.page import Cell, Page

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class TaskConfig(CommandConfig):
    """Settings of every task.

    Args:
        out: write the rows to this file: .jsonl, .csv, .tsv or .parquet.
        format_out: format of the rows, where the name of --out does not say it.
        resume: resume an interrupted --out.
        shard: I/N: ask about one of N shares of the input, 0/N to N-1/N; `seqmlm rows merge` puts the files
            together.
        report: write an HTML report to this file and log a run in MLflow.
        tokens_per_batch: of one forward pass; halved when memory runs out; default: by device.
    """

    option_fields = ("out", "resume", "report", "shard", *CommandConfig.option_fields)
    inputs: ClassVar[tuple[str, ...]] = ()
    """Fields that name a file which is read beside the paths."""

    arrays: ClassVar[bool] = False
    """Whether rows are vectors, which an array of numpy can hold."""

    later: ClassVar[tuple[str, ...]] = ()
    """Fields that decide nothing in the rows, only what is made of them: a resumed run may change these."""

    out: Path | None = None
    format_out: str | None = None
    resume: bool = False
    shard: str | None = None
    report: Path | None = None
    tokens_per_batch: int | None = None

    @property
    def input_paths(self) -> tuple[str, ...]:
        """All inputs: the paths, and the files that the fields in `inputs` name."""
        side_files = (getattr(self, name) for name in self.inputs)
        return (*self.paths, *(str(path) for path in side_files if path is not None))

    @property
    def sources(self) -> Sequence[str]:
        """The sources of records: the paths, if nothing else."""
        return self.paths

    @property
    def rows_path(self) -> Path | None:
        """The file of the rows; None for standard output, or nowhere."""
        return self.out

    @property
    def latency(self) -> float | None:
        """Seconds within which rows follow what others still write to standard input; None: it is a file."""
        return None

    @property
    def resumable(self) -> bool:
        """Whether `--resume` can complete a run that was stopped: it reads files and writes a file."""
        to_file = self.out is not None and self.latency is None
        return to_file and not any(map(is_pipe, expand(self.input_paths)))

    @property
    def quarantine(self) -> Path:
        """The file for bad records, with `on_error` quarantine."""
        return Path(f"{self.out or 'rows'}.quarantine.jsonl")

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The files that are written, by the option that names each."""
        quarantine = {"--on-error quarantine": self.quarantine} if self.on_error == "quarantine" else {}
        return {"--out": self.out, "--report": self.report, **quarantine}

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read or loaded, by a UsageError that says why."""
        if not self.paths:
            raise UsageError("nothing to read: name files, folders, or - for standard input")
        self.check_files()

    def check_files(self) -> None:
        """Refuse outputs that are inputs or no files, and what cannot be resumed; as `check`."""
        self.check_ending()
        files = (path for path in self.input_paths if path != "-" and not is_reference(path))
        missing = next((path for path in files if not os.path.exists(path)), None)
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
        check_outputs(self.outputs, inputs=expand(self.input_paths), streams=True)

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        """Native formats of a field (None: of all fields) that the command writes: name -> endings."""
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
        native = {} if self.format_out in FORMATS or (self.format_out is None and named) else self.native()
        chosen = format_of(self.out, self.format_out, extra_formats=native, writable=self.writable)
        if chosen == "npy" and not self.arrays:
            raise UsageError(
                f"{self.out}: an array of numpy holds vectors (seqmlm embed), and these are other rows"
            )


ConfigT = TypeVar("ConfigT", bound=TaskConfig)
ReadRows = Callable[[], Iterator[Row]]
"""Reads the finished rows from the first one, as often as it is called."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Needs of a task that a model must meet, else it is refused before it is loaded.

    Args:
        labels: "none" for masked language models, "learnt" for those that are fine-tuned, "any" for both and
            for encoders without a masked-LM head.
        capabilities: members of `Field` that the model's field must have.
        check: refuses a config that the files of the model show to make no sense.
    """

    labels: Literal["none", "learnt", "any"] = "none"
    capabilities: tuple[str, ...] = ()
    check: Callable[[Any], None] | None = None


class NativeFormat(NamedTuple):
    """A format of the field or task for rows; files that end in .gz or .bgz are packed by bgzip."""

    endings: Sequence[str]
    write: Callable[[Iterator[Row]], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Facts about the rows of a task, and how they are written and shown; settled when the task is made.

    Args:
        unit: name of an item.
        stdout: what standard output gets without `--out`.
        json: what `--json` prints.
        columns: kinds of columns that rows of tables have, where values alone do not say them (an empty one).
        native: further formats of rows, by name.
        default_format: the one of `native` that is written where neither a name nor JSON is asked for.
        line: a row as a person reads it on a terminal.
        order: what rows on a terminal are sorted by; None: they are shown as they come.
        row_filter: whether a row is written; None for all.
        keeps_rows: rows that go to no file are kept, for figures and a report.
        final_rows: makes the rows that are written, where each depends on all; then there are no shards.
        page_shows_rows: a report lists single rows; so only its owner may read it, and it has exact counts.
        caution: problems that cast doubt on the figures: a report begins with their counts.
        notes: what a person should know before the run begins.
        hint: what a person would do next; default: look at a report.
        settled: choices of the task that decide the rows: for the request, and a tracked run.
        may_be_empty: an input without any item is no error.
        reads_ahead: items may be read by a fork, ahead of the model: they ask no model.
        costs: the `cost` of each item, for an estimate of the whole; default: items are read once more.
    """

    unit: str = "record"
    stdout: Literal["rows", "figures"] = "rows"
    json: Literal["rows", "figures"] = "figures"
    columns: Schema | Mapping[str, Kind] = field(default_factory=dict)
    native: Mapping[str, NativeFormat] = field(default_factory=dict)
    default_format: str | None = None
    line: Callable[[Row], str] = field(default_factory=lambda: terminal_line)
    order: Order | None = None
    row_filter: Callable[[Row], bool] | None = None
    keeps_rows: bool = True
    final_rows: Callable[[Iterator[Row], Figures], Iterable[Row]] | None = None
    page_shows_rows: bool = False
    caution: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    hint: str = ""
    settled: Mapping[str, Any] = field(default_factory=dict)
    may_be_empty: bool = False
    reads_ahead: bool = False
    costs: Callable[[Problems], Iterable[float]] | None = None


class Conclusion(NamedTuple):
    """The figures of a run in words.

    Args:
        sentence: the answer, as a person would say it.
        lead: the first sentence of a report, where that is not the answer's.
        failure: why the answer is of no use, and what to do: the command ends with exit code 3; "" if it is.
        examples: lines about single rows.
    """

    sentence: str
    lead: str = ""
    failure: str = ""
    examples: Sequence[str] = ()


class Task(ABC, Generic[ConfigT, Item]):
    """One capability: made of its config and a session, then asked for items, rows and figures.

    The docstring of the class is the help of its command. Only `rows` has to be written.

    Attributes:
        Config: class of the config; its docstring describes the options.
        requires: what a model must be or have.
        output: what is written and shown; another one is set in `__init__`.

    Raises:
        UsageError: what makes no sense for this model; before anything is read.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    requires: ClassVar[Requirements] = Requirements()

    def __init__(self, config: ConfigT, session: Session) -> None:
        self.config, self.session = config, session
        self.output = Output()

    def records(self, problems: Problems) -> Iterable[Any]:
        """The input: records of the model's field, if nothing else."""
        return read_records(self.session, self.config, problems, {}, self.config.sources)

    def items(self, records: Iterable[Any], problems: Problems) -> Iterable[Item]:
        """The items of the records, in order: several of a record, or none; if nothing else, the records."""
        return records

    def cost(self, item: Item) -> float:
        """Forward tokens of an item, by estimate; default: of an exact score, or of a window if no record."""
        tokens = self.session.tokens(item.raw) if isinstance(item, Record) else self.session.card.max_length
        return self.session.budget.cost(tokens)

    def batch_share(self, item: Item) -> float:
        """Share of a part that an item takes. A part is full at 1, and is asked about together.

        It depends on the item alone, so that a resumed run cuts the same parts.
        """
        size = characters(item) / BATCH_CHARACTERS if isinstance(item, Record) else 0.0
        return max(1 / BATCH_RECORDS, size, self.cost(item) / self.session.budget.commit_interval)

    @abstractmethod
    def rows(self, items: Sequence[Item]) -> Iterable[Sequence[Row]]:
        """The rows of each of some items, in order, which are asked about together.

        Raises:
            DataError, UsageError: an item that cannot be asked about. Then each is asked about alone, and
                only what cannot be is left out.
        """

    def figures(self, rows: Iterable[Row]) -> Figures:
        """Numbers, texts and tables of the finished rows, and of nothing else."""
        return {}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        """The figures in words."""
        values = [f"{name} {format_figure(value)}" for name, value in figures.items() if _is_cell(value)]
        return Conclusion(": ".join([items_text(self, items), *([", ".join(values)] if values else [])]))

    def tables(self, figures: Figures) -> Iterable[Table]:
        """The figures as tables."""
        return ()

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        """Add to the report what is no table: warnings, cards, pictures."""
        cards = {name: value for name, value in figures.items() if _is_cell(value)}
        if cards:
            page.head(cards)

    def input_files(self) -> list[str]:
        """Files that decide the rows: one that has changed makes it another request."""
        config, sources = self.config, [str(path) for path in self.config.sources]
        if not sources or "-" in sources:
            return []
        files = self.session.domain.files.inputs(sources, format=config.format, options=config.options)
        return [*map(str, files), *(path for path in config.input_paths if path not in config.paths)]

    def extra_files(self, rows: ReadRows) -> Sequence[Path]:
        """Write further files that are made of all rows; their paths, which a run of MLflow keeps."""
        return ()


@runtime_checkable
class Live(Protocol):
    """A task that can follow an input to which others still write, and says itself when to commit.

    Attributes:
        alarms: of the items asked about.
        done: share of the input that is asked about; None where that is not known.
    """

    alarms: int
    done: float | None

    def live_records(self, source: Source, problems: Problems) -> Iterator[Record]:
        """The records of a stretch of the input."""

    def commit_due(self) -> bool:
        """Whether the rows so far are to be committed; asked after each part of the input."""


def native_format(config: TaskConfig, native: Mapping[str, Sequence[str]]) -> str | None:
    """The format of `native` (name -> endings) that a config asks for, by option or by the output's ending.

    Raises:
        UsageError: the name of the output says another format.
    """
    out, option = config.rows_path, config.format_out
    suffix = "" if out is None else ending(out)
    formats = {**native, **FORMATS}
    by_name = [name for name, endings in formats.items() if suffix in endings]
    if option in formats and by_name and option not in by_name:
        raise UsageError(f"{out} is {by_name[0]} by its name, and --format-out says {option}; leave that out")
    chosen = format_of(out, option, extra_formats=native)
    return chosen if chosen in native else None


def items_text(task: Task[Any, Any], items: People) -> str:
    """A number of items in words."""
    return number_of(items, task.output.unit)


def terminal_line(row: Row) -> str:
    """A row as a person reads it on a terminal: where it is from, and its fields that are no lists."""
    excluded = ("id", "source", "line", "item")
    fields = one_based_fields(row).items()
    cells = (f"{key} {format_figure(cell)}" for key, cell in fields if key not in excluded and _is_cell(cell))
    return "  ".join([*row_location(row), *cells])


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
        shows_records=config.out is None,
        labels=labels,
    )
    if isinstance(session.tokenizer, ForeignVocabulary):
        session.tokenizer.refuses = getattr(config, "latency", None) is None
    check_outputs(config.outputs, folder=session.model.path)
    return session


def _is_cell(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not (isinstance(value, float) and math.isnan(value))


def row_location(row: Row) -> list[str]:
    """Source and line of a row, as editors name a place, and its id where that says more."""
    source, line, id = str(row.get("source") or ""), row.get("line"), str(row.get("id") or "")
    place = source if line is None else f"{source}:{line}"
    return [part for part in (place, "" if place.endswith(id) else id) if part]


def one_based_fields(row: Row) -> Row:
    """The fields of a row with its positions as people count them, from 1 and with the last one.

    `start` and `end` become `position`, and `NAME_start` and `NAME_end` become `NAME_position`. An index
    `i` or `j` is left out where the row has `position_i` or `position_j`.

    >>> one_based_fields({"id": "a", "start": 155, "end": 175, "contig_start": 9, "contig_end": 10})
    {'id': 'a', 'position': '156 to 175', 'contig_position': '10'}
    """
    fields = dict[str, Any]()
    for key, value in row.items():
        name, _, edge = f"_{key}".rpartition("_")
        start, end = (row.get(f"{name}_{bound}".lstrip("_")) for bound in ("start", "end"))
        if edge in ("start", "end") and isinstance(start, int) and isinstance(end, int):
            fields[f"{name}_position".lstrip("_")] = span_text(start, end)
        elif not (key in ("i", "j") and f"position_{key}" in row):
            fields[key] = value
    return fields


def format_figure(value: Cell) -> str:
    """A figure as people read it."""
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


NOT_COMPUTED = "not_computed"
"""Figure that says why others are not there: name -> reason."""


def drop_undefined(figures: Figures) -> Figures:
    """Figures without those that are NaN; `not_computed` has the reasons why these are missing.

    >>> drop_undefined({"n": 1, "auc": math.nan, "gain": {"value": 0.1, "low": math.nan}})
    {'n': 1, 'gain': {'value': 0.1}, 'not_computed': {'auc': 'not defined for these data', \
'gain/low': 'an interval needs several groups'}}
    """
    reasons = dict(figures.get(NOT_COMPUTED, {}))

    def keep_defined(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return value
        defined = {}
        for name, figure in value.items():
            place = f"{path}{name}"
            if isinstance(figure, float) and math.isnan(figure):
                bound = str(name).rpartition("_")[2] in ("low", "high")
                reasons[place] = "an interval needs several groups" if bound else "not defined for these data"
            else:
                defined[name] = keep_defined(figure, f"{place}/")
        return defined

    defined = keep_defined({name: figure for name, figure in figures.items() if name != NOT_COMPUTED}, "")
    return {**defined, NOT_COMPUTED: reasons} if reasons else defined


def read_records(
    session: Session,
    config: TaskConfig,
    problems: Problems,
    options: Mapping[str, Any],
    sources: Sequence[str | Source] | None = None,
) -> Iterator[Record]:
    """The records of `sources` (default: the paths), read with `options` and those of the config."""
    inputs = config.paths if sources is None else sources
    yield from session.reader(inputs, format=config.format, options={**options, **config.options})(problems)


def place(item: Any) -> dict[str, Any]:
    """Columns of a row that name its record: id, source and line."""
    return {"id": item.id, "source": item.source, "line": item.line}

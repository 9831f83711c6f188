"""The base class of tasks. A task turns records into items, and items into rows with a model.

    records -> items -> rows (uses the engine) -> figures -> summary, page, MLflow

`seqmlm.tasks.run` does everything else, for all tasks. A new capability is one subclass of `Task` in one
file, and an entry point in the group `seqmlm.tasks`. It then has a command, output in four formats,
resumption after a kill, handling of bad records, progress, signals, a report and tests.

Figures and reports are functions of the finished rows. Nothing is counted during the run, so a resumed run
has nothing to restore.

The trade-off: if a task is not `Live`, rows are committed after every part of the input, with two syncs of
the disk. A run can therefore be stopped and resumed anywhere, and gives the same bytes.
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
        format_out: format of the rows, if the name of --out does not tell.
        resume: continue an interrupted --out.
        shard: I/N: process one of N shares of the input, 0/N to N-1/N. `seqmlm rows merge` joins the files.
        report: write an HTML report to this file and log a run in MLflow.
        tokens_per_batch: tokens of one forward pass; halved when memory runs out. Default: depends on the
            device.
    """

    option_fields = ("out", "resume", "report", "shard", *CommandConfig.option_fields)
    inputs: ClassVar[tuple[str, ...]] = ()
    """Fields that name a file to read in addition to the paths."""

    arrays: ClassVar[bool] = False
    """Whether rows are vectors, which can be written as a numpy array."""

    later: ClassVar[tuple[str, ...]] = ()
    """Fields that do not affect the rows, only the figures and files made from them.

    A resumed run may change these fields.
    """

    out: Path | None = None
    format_out: str | None = None
    resume: bool = False
    shard: str | None = None
    report: Path | None = None
    tokens_per_batch: int | None = None

    @property
    def input_paths(self) -> tuple[str, ...]:
        """All inputs: the paths, and the files in the fields named by `inputs`."""
        side_files = (getattr(self, name) for name in self.inputs)
        return (*self.paths, *(str(path) for path in side_files if path is not None))

    @property
    def sources(self) -> Sequence[str]:
        """The sources of records. Default: the paths."""
        return self.paths

    @property
    def rows_path(self) -> Path | None:
        """The file of the rows, or None for standard output or no output."""
        return self.out

    @property
    def latency(self) -> float | None:
        """Maximum seconds between a line of live standard input and its row, or None for files."""
        return None

    @property
    def resumable(self) -> bool:
        """Whether `--resume` can complete a stopped run. It must read files and write a file."""
        to_file = self.out is not None and self.latency is None
        return to_file and not any(map(is_pipe, expand(self.input_paths)))

    @property
    def quarantine(self) -> Path:
        """The file for bad records if `on_error` is "quarantine"."""
        return Path(f"{self.out or 'rows'}.quarantine.jsonl")

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The output files, by the option that names each."""
        quarantine = {"--on-error quarantine": self.quarantine} if self.on_error == "quarantine" else {}
        return {"--out": self.out, "--report": self.report, **quarantine}

    def check(self) -> None:
        """Check the settings before anything is read or loaded.

        Raises:
            UsageError: a setting is not valid. The message tells why.
        """
        if not self.paths:
            raise UsageError("nothing to read: give files, folders, or - for standard input")
        self.check_files()

    def check_files(self) -> None:
        """Check input and output files, and whether the run can be resumed.

        Raises:
            UsageError: an output is an input or not a regular file, or the run cannot be resumed.
        """
        self.check_ending()
        files = (path for path in self.input_paths if path != "-" and not is_reference(path))
        missing = next((path for path in files if not os.path.exists(path)), None)
        if missing is not None and os.path.isfile(self.model):
            raise UsageError(f"no file or folder {missing}, and {self.model} is a file: give the model first")
        if self.resume and not self.resumable:
            raise UsageError(
                "--resume needs --out and input that can be read again. Standard input and pipes cannot be "
                "read twice: write the input to a file first"
            )
        if self.shard is not None:
            shards.parse(self.shard)
            if not self.resumable or self.out is None or self.out.suffix.lower() != ".jsonl":
                raise UsageError("--shard needs input files and an --out that ends in .jsonl")
        check_outputs(self.outputs, inputs=expand(self.input_paths), streams=True)

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        """Native formats of a field, or of all fields, that the command can write: name -> endings."""
        return {}

    def writable(self) -> Mapping[str, Sequence[str]]:
        """All formats that the command writes for this model, and their endings."""
        domain = self.domain
        with suppress(SeqmlmError):  # an invalid model is refused later
            folder = resolve(self.model).path
            card = None if folder is None else read_card(folder)
            domain = domain if card is None else card.domain
        return {**self.native(domain), **(FORMATS if self.arrays else ROWS)}

    def check_ending(self) -> None:
        """Check that the ending of `out` is a format of the command.

        Raises:
            UsageError: the ending is not a format of the command.
        """
        suffix = "" if self.out is None else ending(self.out)
        named = not suffix or any(suffix in endings for endings in FORMATS.values())
        native = {} if self.format_out in FORMATS or (self.format_out is None and named) else self.native()
        chosen = format_of(self.out, self.format_out, extra_formats=native, writable=self.writable)
        if chosen == "npy" and not self.arrays:
            raise UsageError(
                f"{self.out}: a numpy array can store only vectors from seqmlm embed; use .jsonl or .csv"
            )


ConfigT = TypeVar("ConfigT", bound=TaskConfig)
ReadRows = Callable[[], Iterator[Row]]
"""A function that reads the finished rows from the beginning, each time it is called."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirements of a task. A model that does not meet them is refused before it is loaded.

    Args:
        labels: "none" for masked language models, "learnt" for fine-tuned models, "any" for both and for
            encoders without a masked-LM head.
        capabilities: members of `Field` that the model's field must have.
        check: function that raises an error if the config does not fit the files of the model.
    """

    labels: Literal["none", "learnt", "any"] = "none"
    capabilities: tuple[str, ...] = ()
    check: Callable[[Any], None] | None = None


class NativeFormat(NamedTuple):
    """A format of the field or the task for rows. Files that end in .gz or .bgz are compressed with bgzip."""

    endings: Sequence[str]
    write: Callable[[Iterator[Row]], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Facts about the rows of a task, and how to write and show them. They are fixed when the task is made.

    Args:
        unit: name of an item.
        stdout: whether standard output gets rows or figures without `--out`.
        json: whether `--json` prints rows or figures.
        columns: kinds of the columns in tables, needed for columns without values.
        native: other formats of rows, by name.
        default_format: the format in `native` to use if neither a file name nor JSON selects one.
        line: formats a row for a terminal.
        order: sort order of rows on a terminal. None keeps the order of the input.
        row_filter: tells whether to write a row. None writes all rows.
        keeps_rows: whether rows that go to no file are kept for figures and a report.
        final_rows: makes the written rows if each depends on all rows. Such a task has no shards.
        page_shows_rows: whether a report lists single rows. Such a report has exact counts and is readable
            only by its owner.
        caution: problems that cast doubt on the figures. A report begins with their counts.
        notes: messages to show before the run begins.
        hint: the next step for the user. Default: look at a report.
        settled: choices of the task that determine the rows, for the request and a tracked run.
        may_be_empty: whether an input without items is allowed.
        reads_ahead: whether a fork may read items ahead of the model. Reading them must not need the model.
        costs: the `cost` of each item, for an estimate of the whole. Default: items are read again.
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
        sentence: the answer in a sentence.
        lead: the first sentence of a report, if it differs from the answer.
        failure: why the answer is useless, and what to do. The command then ends with exit code 3. "" for a
            useful answer.
        examples: lines about single rows.
    """

    sentence: str
    lead: str = ""
    failure: str = ""
    examples: Sequence[str] = ()


class Task(ABC, Generic[ConfigT, Item]):
    """A capability, made from a config and a session. It gives items, rows and figures.

    The docstring of the class is the help of its command. A subclass only has to implement `rows`.

    Attributes:
        Config: class of the config. Its docstring describes the options.
        requires: requirements for the model.
        output: how rows are written and shown. A subclass can replace it in `__init__`.

    Raises:
        UsageError: the request is not valid for this model. It is raised before anything is read.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    requires: ClassVar[Requirements] = Requirements()

    def __init__(self, config: ConfigT, session: Session) -> None:
        self.config, self.session = config, session
        self.output = Output()

    def records(self, problems: Problems) -> Iterable[Any]:
        """The input. Default: records of the model's field."""
        return read_records(self.session, self.config, problems, {}, self.config.sources)

    def items(self, records: Iterable[Any], problems: Problems) -> Iterable[Item]:
        """The items of the records in order.

        A record can have several items or none. Default: the records.
        """
        return records

    def cost(self, item: Item) -> float:
        """Estimated forward tokens of an item.

        Default: the tokens of an exact score of a record, or of a window.
        """
        tokens = self.session.tokens(item.raw) if isinstance(item, Record) else self.session.card.max_length
        return self.session.budget.cost(tokens)

    def batch_share(self, item: Item) -> float:
        """The share of a part that an item takes. A part is full at 1, and is processed together.

        The share depends only on the item, so that a resumed run makes the same parts.
        """
        size = characters(item) / BATCH_CHARACTERS if isinstance(item, Record) else 0.0
        return max(1 / BATCH_RECORDS, size, self.cost(item) / self.session.budget.commit_interval)

    @abstractmethod
    def rows(self, items: Sequence[Item]) -> Iterable[Sequence[Row]]:
        """The rows of each item, in order. The items are processed together.

        Raises:
            DataError, UsageError: an item cannot be processed. Each item is then processed separately, and
                only the bad ones are left out.
        """

    def figures(self, rows: Iterable[Row]) -> Figures:
        """Numbers, texts and tables, computed only from the finished rows."""
        return {}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        """The figures in words."""
        values = [f"{name} {format_figure(value)}" for name, value in figures.items() if _is_cell(value)]
        return Conclusion(": ".join([items_text(self, items), *([", ".join(values)] if values else [])]))

    def tables(self, figures: Figures) -> Iterable[Table]:
        """The figures as tables."""
        return ()

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        """Add warnings, cards and pictures to the report. Tables are added separately."""
        cards = {name: value for name, value in figures.items() if _is_cell(value)}
        if cards:
            page.head(cards)

    def input_files(self) -> list[str]:
        """Files that determine the rows. If one changes, the request is a different one."""
        config, sources = self.config, [str(path) for path in self.config.sources]
        if not sources or "-" in sources:
            return []
        files = self.session.domain.files.inputs(sources, format=config.format, options=config.options)
        return [*map(str, files), *(path for path in config.input_paths if path not in config.paths)]

    def extra_files(self, rows: ReadRows) -> Sequence[Path]:
        """Write additional files made from all rows.

        Returns:
            Their paths. The MLflow run keeps copies.
        """
        return ()


@runtime_checkable
class Live(Protocol):
    """A task that can follow live input, and that decides when to commit.

    Attributes:
        alarms: number of alarms so far.
        done: processed share of the input, or None if it is unknown.
    """

    alarms: int
    done: float | None

    def live_records(self, source: Source, problems: Problems) -> Iterator[Record]:
        """The records of a section of the input."""

    def commit_due(self) -> bool:
        """Whether to commit the rows so far. Called after each part of the input."""


def native_format(config: TaskConfig, native: Mapping[str, Sequence[str]]) -> str | None:
    """The format in `native` (name -> endings) that the option or the ending of the output selects, or None.

    Raises:
        UsageError: the option and the ending select different formats.
    """
    out, option = config.rows_path, config.format_out
    suffix = "" if out is None else ending(out)
    formats = {**native, **FORMATS}
    by_name = [name for name, endings in formats.items() if suffix in endings]
    if option in formats and by_name and option not in by_name:
        raise UsageError(f"{out} ends like {by_name[0]}, but --format-out is {option}: remove --format-out")
    chosen = format_of(out, option, extra_formats=native)
    return chosen if chosen in native else None


def items_text(task: Task[Any, Any], items: People) -> str:
    """A number of items in words."""
    return number_of(items, task.output.unit)


def terminal_line(row: Row) -> str:
    """A row as a line for a terminal: its place, and its fields except lists."""
    excluded = ("id", "source", "line", "item")
    fields = one_based_fields(row).items()
    cells = (f"{key} {format_figure(cell)}" for key, cell in fields if key not in excluded and _is_cell(cell))
    return "  ".join([*row_location(row), *cells])


def open_model(config: Any, labels: Literal["none", "learnt", "any"] = "none") -> Session:
    """Open the model of a config.

    Raises:
        UsageError, StateError: see `Session.open`; or an output is in the model's folder.
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
    """The source and line of a row as SOURCE:LINE, and its id if the id adds information."""
    source, line, id = str(row.get("source") or ""), row.get("line"), str(row.get("id") or "")
    place = source if line is None else f"{source}:{line}"
    return [part for part in (place, "" if place.endswith(id) else id) if part]


def one_based_fields(row: Row) -> Row:
    """The fields of a row with positions that count from 1 and include the end.

    `start` and `end` become `position`, and `NAME_start` and `NAME_end` become `NAME_position`. An index
    `i` or `j` is left out if the row has `position_i` or `position_j`.

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
    """A figure as text for people."""
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


NOT_COMPUTED = "not_computed"
"""Name of the figure with the reasons for missing figures: name -> reason."""


def drop_undefined(figures: Figures) -> Figures:
    """Remove figures that are NaN. `not_computed` has the reasons.

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
    """The records of `sources` (default: the paths), read with `options` and the options of the config."""
    inputs = config.paths if sources is None else sources
    yield from session.reader(inputs, format=config.format, options={**options, **config.options})(problems)


def place(item: Any) -> dict[str, Any]:
    """The columns of a row that identify its record: id, source and line."""
    return {"id": item.id, "source": item.source, "line": item.line}

"""`run`: the steps that all tasks share, from the request to the report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import Any, TextIO

from seqmlm.data.compressed import ending
from seqmlm.data.counts import People, released
from seqmlm.data.problems import Problems
from seqmlm.engine.signals import Stopped, StopSignals
from seqmlm.errors import DataError, SeqmlmError, StateError, UsageError, printable
from seqmlm.reports.summary import RESUME, Figures, NoProgress, Progress, Summary, problem_counts
from seqmlm.rows.file import Row, Rows
from seqmlm.streams.cursor import DEFAULTS, file_facts, with_defaults
from seqmlm.streams.sinks import FREE_SPACE, Schema, UnwritableError, format_of, index_command
from seqmlm.tasks import reading, shards
from seqmlm.tasks.pace import Pace
from seqmlm.tasks.settings import check_field
from seqmlm.tasks.task import (
    NOT_COMPUTED,
    Item,
    Live,
    Task,
    TaskConfig,
    drop_undefined,
    native_format,
    open_model,
)
from seqmlm.tokenizers.base import ForeignVocabulary

_NO_REQUEST = {"model", "paths", "out", "on_error", "resume", "report", "tokens_per_batch"}


def run(
    name: str,
    make: type[Task[Any, Any]],
    config: TaskConfig,
    *,
    stdout: TextIO | None = None,
    progress: Progress | None = None,
    as_json: bool = False,
) -> Summary:
    """Run a task: read, compute, write (and resume), then make its figures, tables and report.

    Args:
        name: name of the command.
        make: class of the task.
        stdout: where rows go without `config.out`. None discards them.
        as_json: only JSON goes to `stdout`. Rows are written only if the task's `output.json` is "rows".

    Raises:
        UsageError: the request is not valid.
        DataError: there is a bad record and `config.on_error` is "raise" (the rows before it are kept), or
            nothing could be read.
        StateError: the model does not exist, or the rows cannot be written or resumed.
    """
    began, reporter = time.monotonic(), progress or NoProgress()
    with (
        _open_task(name, make, config) as task,
        StopSignals() as stop,
        Problems(config.on_error, quarantine=config.quarantine) as problems,
        _rows(task, problems, stdout, as_json) as rows,
    ):
        problems.listener = reporter.message
        for note in (*task.output.notes, *rows.notes):
            reporter.message(note)
        with _resumable(task, rows):
            _ask(task, rows, problems, stop, reporter)
        summary = Summary(
            task=name,
            **problem_counts(problems, rows.asked, config.quarantine),
            stopped=stop.received,
            streamed=rows.streamed,
            seconds=time.monotonic() - began,
            go_on=_remedy(task, rows),
        )
        if stop.received is not None and config.latency is None:
            return summary
        if rows.asked or task.output.may_be_empty or config.shard is not None:
            with _resumable(task, rows):
                summary = _finish_rows(task, summary, rows)
            if config.out is not None and (command := index_command(config.out)) is not None:
                reporter.message(f"an index of {config.out.name}: {command}")
        elif stop.received is None:
            raise problems.nothing()
        return summary


@contextmanager
def _open_task(name: str, make: type[Task[Any, Any]], config: TaskConfig) -> Iterator[Task[Any, Any]]:
    """The task with its model, inside the rules for the model's data.

    Invalid requests are refused as early as possible.
    """
    config.check()
    check_field(config, needs=make.requires.capabilities)
    if make.requires.check is not None:
        make.requires.check(config)
    session = open_model(config, labels=make.requires.labels)
    with session.data_rules():
        task = make(config, session)
        if config.shard is not None and task.output.final_rows is not None:
            raise UsageError(f"{name} cannot use --shard here: each row depends on all the others")
        yield task


def _remedy(task: Task[Any, Any], rows: Rows) -> str:
    """The option that continues the rows of a command, "" if no rows were committed."""
    return RESUME if task.config.rows_path is not None and task.config.resumable and rows.committed else ""


@contextmanager
def _resumable(task: Task[Any, Any], rows: Rows) -> Iterator[None]:
    """If output cannot be written and the run can be resumed, tell so in the error."""
    try:
        yield
    except UnwritableError as error:
        if not _remedy(task, rows):
            raise
        consequence = "rows that were already written are kept"
        raise StateError(f"{error.reason}; {consequence}: {FREE_SPACE} with --resume") from None


def _finish_rows(task: Task[Any, Any], summary: Summary, rows: Rows) -> Summary:
    """Finish the file of rows, write the report, and return the summary with figures, answer and tables."""
    config = task.config
    if config.shard is not None and not rows.asked:
        rows.finish()
        _keep_share(task, rows)
        return replace(summary, answer=f"share {config.shard} is empty")
    exact_figures = task.figures(rows.read())
    figures, items = released(exact_figures), People(rows.asked)
    defined_figures = drop_undefined(figures)
    conclusion = exact = task.conclusion(figures, items, rows.read)
    if figures != exact_figures:  # the exit code, and a report for the owner only, use exact counts
        exact = task.conclusion(exact_figures, items, rows.read)
    answer = "\n".join([conclusion.sentence, *_absences(defined_figures)])
    tables = list(task.tables(figures))
    summary = replace(summary, figures=defined_figures, answer=answer, tables=tables, hint=_hint(task))
    tokenizer = task.session.tokenizer
    unread = tokenizer.unread() if isinstance(tokenizer, ForeignVocabulary) and tokenizer.refuses else ""
    summary = replace(summary, failure=exact.failure or unread, examples=tuple(conclusion.examples))
    files = task.extra_files(rows.read)
    if task.config.report is not None:
        from seqmlm.tasks.tracked import write_report  # imported here, because few runs need it

        page_values = (exact, exact_figures) if task.output.page_shows_rows else (conclusion, figures)
        write_report(task, summary, rows, files, *page_values)
    final_rows = task.output.final_rows
    rows.finish(None if final_rows is None else lambda all_rows: final_rows(all_rows, figures))
    _keep_share(task, rows)
    return summary


def _absences(figures: Figures) -> list[str]:
    """A sentence for each reason why figures are missing. Missing interval bounds are not mentioned."""
    names: dict[str, list[str]] = {}
    for name, why in figures.get(NOT_COMPUTED, {}).items():
        if name.rpartition("/")[2].rpartition("_")[2] not in ("low", "high"):
            names.setdefault(why, []).append(name)
    return [f"not computed: {', '.join(figure_names)} ({why})" for why, figure_names in names.items()]


def _hint(task: Task[Any, Any]) -> str:
    """A sentence about the next step for the user."""
    if task.output.hint or task.config.report is not None:
        return task.output.hint or f"next: open {task.config.report}"
    option = "--report " if "report" in task.config.option_fields else "--set report="
    return f"next: add {option}FILE.html for a report with pictures"


def _keep_share(task: Task[Any, Any], rows: Rows) -> None:
    """Write the facts about a finished share to a file next to its rows."""
    shard, out = task.config.shard, task.config.rows_path
    if shard is not None and out is not None:
        request = {key: value for key, value in _request(task).items() if key not in ("shard", DEFAULTS)}
        shards.Share.finish(out, shard, request, rows.asked)


def _rows(task: Task[Any, Any], problems: Problems, stdout: TextIO | None, as_json: bool) -> Rows:
    """The output for the rows, with the request that determines them."""
    config, output, out = task.config, task.output, task.config.rows_path
    native = native_format(config, {name: native_kind.endings for name, native_kind in output.native.items()})
    format = "own" if native is not None else format_of(out, config.format_out)
    if format == "npy" and not (isinstance(output.columns, Schema) and output.columns.width):
        raise UsageError(f"{out}: a numpy array can store only vectors from seqmlm embed; use .jsonl or .csv")
    unnamed = (out is None or not ending(out)) and config.format_out is None and not as_json
    if native is None and unnamed and output.default_format is not None:
        native, format = output.default_format, "own"
    people = stdout is not None and stdout.isatty() and config.format_out is None and not as_json
    shows = output.stdout == "rows" and (output.json == "rows" or not as_json)
    return Rows(
        out,
        _request(task),
        problems,
        format=format,
        columns=output.columns,
        native=None if native is None else output.native[native].write,
        needs_all=output.final_rows is not None,
        row_filter=output.row_filter,
        keeps=output.keeps_rows,
        resume=config.resume if config.resumable else None,
        stdout=stdout if shows else None,
        line=_line_cutter(output.line) if people else None,
        order=output.order,
    )


def _request(task: Task[Any, Any]) -> dict[str, Any]:
    """The request: the settings, inputs and model that determine the rows."""
    config, session = task.config, task.session
    left_out = _NO_REQUEST | {*config.later}
    request = {key: value for key, value in asdict(config).items() if key not in left_out}
    if config.rows_path is not None:
        request |= {"sources": list(config.paths), "input": file_facts(task.input_files())}
        request |= {"model": file_facts(session.model.files), "precision": session.precision}
    return with_defaults(request | dict(task.output.settled), config)


def _line_cutter(line: Callable[[Row], str]) -> Callable[[Row], str]:
    """A function that formats rows for a terminal. It cuts the first line of a row to the width.

    Long file names are cut first.
    """
    width = shutil.get_terminal_size().columns

    def cut_line(row: Row) -> str:
        first, _, other_lines = printable(line(row), lines=True).partition("\n")
        place = first.partition("  ")[0]
        if len(first) > width and len(place) > width // 2:
            first = f"…{first[len(place) - width // 2 + 1 :]}"
        first = first if len(first) <= width else f"{first[: width - 1]}…"
        return f"{first}\n{other_lines}\n" if other_lines else f"{first}\n"

    return cut_line


def _ask(task: Task[Any, Any], rows: Rows, problems: Problems, stop: StopSignals, progress: Progress) -> None:
    """Process the items that are not done yet and write their rows, until the end or a signal."""
    live = task.config.latency is not None
    breaking = nullcontext if live else stop.breaking  # lost work is repeated, but live input is gone
    failure: SeqmlmError | None = None
    pace = Pace(task, rows, progress)
    with closing(_parts(task, problems, rows.done, stop)) as parts, suppress(Stopped):
        while failure is None:
            with breaking():
                part = next(parts, None)
                if part is not None:
                    pace.begin(part.items)
                answers = [] if part is None else _answers(task, part.items)
            if part is None:
                rows.commit()
                return
            failure = part.failure
            try:
                _write(rows, part.items, answers, problems)
            except SeqmlmError as error:
                failure = error
            due = not isinstance(task, Live) or task.commit_due() or task.config.shard is not None
            if live or (failure is None and due):
                rows.commit()
                if not live:
                    task.session.forget()  # as in a run resumed here: the last bits depend on it
            pace.end()
    rows.keep()
    if failure is not None:
        raise failure


def _parts(
    task: Task[Any, Item], problems: Problems, done: int, stop: StopSignals
) -> Generator[reading.Part]:
    """The input, or a share of it, in parts that are processed together."""
    if task.config.latency is not None:
        yield from reading.live_parts(task, problems, task.config.latency, lambda: stop.received is not None)
    elif task.config.shard is not None:
        counted = type(task)(
            task.config, task.session
        )  # a separate task, so that counting has no side effects
        first, last = shards.share_of(counted, task.config.shard)
        task.session.forget()
        yield from reading.first_parts(reading.parts(task, problems, first + done), last - first - done)
    elif task.output.reads_ahead and reading.can_read_ahead(task):
        yield from reading.parts_read_ahead(task, problems, done)
    else:
        yield from reading.parts(task, problems, done)


def _write(
    rows: Rows, items: Sequence[Any], answers: Sequence[Sequence[Row] | SeqmlmError], problems: Problems
) -> None:
    """Write the rows of all good items. If a bad item ends the run, the rows before it are written."""
    good: list[Sequence[Row] | None] = []
    try:
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, SeqmlmError):
                read_from = getattr(item, "source", None)
                if read_from is None:
                    raise answer  # the item was not read from a file, but comes from the request
                problems.bad(problems.located(answer, item))
            good.append(None if isinstance(answer, SeqmlmError) else answer)
    finally:
        if good:
            rows.write(good)


def _answers(task: Task[Any, Any], items: Sequence[Any]) -> list[Sequence[Row] | SeqmlmError]:
    """The rows or the error of each item. A bad item does not affect the others."""
    try:
        answers: list[Sequence[Row] | SeqmlmError] = list(task.rows(items))
    except (DataError, UsageError) as error:
        if len(items) == 1:
            return [error]
        answers = [answer for item in items for answer in _answers(task, [item])]
    assert len(answers) == len(items), "a task gives rows for each item"
    return answers

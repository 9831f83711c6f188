"""The items of a task, in parts that are asked about together: of files, ahead of the model, or live.

Which items a part has depends on the items alone, never on a clock, so that a run that goes on after a crash
cuts the input where an undisturbed one does; but for an input that others still write to, which comes as it
comes and is not gone on with.

A second process may read ahead. It is a fork: it shares the tokenizer, and touches neither torch nor a
device. A pipe joins the two, so that it is never more than a part ahead of what the pipe holds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from seqmlm.data.files import Source
from seqmlm.data.problems import ProblemCounts, Problems
from seqmlm.errors import SeqmlmError, StateError
from seqmlm.inference.record_batches import BATCH_RECORDS, input_bytes

READ_AHEAD_BYTES = 4 << 20
"""Input from which a second process reads; starting one takes longer than reading less."""

TICK_SHARE = 0.4  # of the latency that lines may wait to become records; the rest is for asking


@dataclass(frozen=True, kw_only=True)
class Part:
    """Items that are asked about together.

    Args:
        items: in order.
        failure: what ended the input behind them, if anything did.
        problem_counts: problems of reading them, where another process read.
    """

    items: list[Any] = field(default_factory=list)
    failure: SeqmlmError | None = None
    problem_counts: ProblemCounts | None = None


def parts(task: Any, problems: Problems, done: int = 0) -> Iterator[Part]:
    """The parts of a task behind `done` items, the same whether reading began there or not.

    The `task` (`seqmlm.tasks.task.Task`) gives the records, and the items of these; problems before the last
    item that is done are not met again.

    Raises:
        StateError: the input has fewer items than were done before.
    """
    with problems.replaying(problems.snapshot()) if done else nullcontext():
        items = iter(task.items(task.records(problems), problems))
        skipped = sum(1 for _ in islice(items, done))
    if skipped < done:
        raise StateError(
            f"cannot continue: {done:,} items are done, but the input now has {skipped:,}; run again without "
            "--resume"
        )
    yield from parts_of(items, task.batch_share)


def parts_of(items: Iterable[Any], share: Callable[[Any], float]) -> Iterator[Part]:
    """Items in parts; the last part has the error that ended the input, if one did.

    Of a part, which is full at 1 or with `BATCH_RECORDS`, an item takes its `share`.
    """
    batch: list[Any] = []
    full = 0.0
    try:
        for item in items:
            batch.append(item)
            full += share(item)
            if len(batch) >= BATCH_RECORDS or full >= 1:
                yield Part(items=batch)
                batch, full = [], 0.0
    except SeqmlmError as error:
        yield Part(items=batch, failure=error)
        return
    if batch:
        yield Part(items=batch)


def first_parts(parts: Iterator[Part], count: int) -> Iterator[Part]:
    """The parts that hold the first `count` items; an error behind these is not raised."""
    while count > 0 and (part := next(parts, None)) is not None:
        count -= len(part.items)
        yield part


def can_read_ahead(task: Any) -> bool:
    """Whether it pays to read in a second process, and a fork is safe: on Linux, with one Python thread."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return False
    size = input_bytes(task.config.sources)
    return size is not None and size >= READ_AHEAD_BYTES


def parts_read_ahead(task: Any, problems: Problems, done: int = 0) -> Iterator[Part]:
    """The parts of a task, read in a second process: the same as of `parts`, with its problems and errors.

    Raises:
        StateError: as `parts`; or the second process died.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, ours, task, problems.for_worker(), done)
    reader = context.Process(target=_send_parts, args=arguments, daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside native threads; the reader calls none of the libraries that
        # have any.
        warnings.simplefilter("ignore", DeprecationWarning)
        reader.start()
    theirs.close()
    try:
        while True:
            try:
                part = ours.recv()
            except (EOFError, OSError):  # between two messages, or within one
                raise StateError(
                    "the process that reads the input died; is there enough memory? Try again with less "
                    "at a time"
                ) from None
            if isinstance(part, BaseException):
                raise part
            problems.add(part.problem_counts)
            if not (part.items or part.failure):
                return
            yield part
    finally:
        ours.close()
        reader.terminate()
        reader.join()


def _send_parts(pipe: Connection, parent_pipe: Connection, task: Any, problems: Problems, done: int) -> None:
    """Send the parts of a task through a pipe, in the second process; end when nobody listens any more."""
    parent_pipe.close()  # else a parent that was killed would seem to listen
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads did not survive the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever listens decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        try:
            for part in parts(task, problems, done):
                pipe.send(replace(part, problem_counts=problems.take_counts()))
            pipe.send(Part(problem_counts=problems.take_counts()))
        except Exception as error:
            pipe.send(error)
    except BrokenPipeError:
        pass


def live_parts(task: Any, problems: Problems, latency: float, stopping: Callable[[], bool]) -> Iterator[Part]:
    """Parts of standard input, as soon as anything has come; larger ones under load.

    Results are wanted within `latency` seconds. While input is awaited, it is asked again and again whether
    it is `stopping`; once it is, nothing more is read, and what was read is handed on.
    """
    from seqmlm.streams import sources

    def live_records(source: Source) -> Iterator[Any]:
        return iter(task.live_records(source, problems))

    try:
        for records in sources.live(live_records, TICK_SHARE * latency, stopping):
            yield from parts_of(task.items(records, problems), task.batch_share)
    except SeqmlmError as error:
        yield Part(failure=error)

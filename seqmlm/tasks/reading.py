"""Read the items of a task in parts for the model: from files, ahead of the model, or live.

The division into parts depends only on the items, never on a clock. A run that continues after a crash
therefore divides the input like an uninterrupted one. Live input is the exception: it is divided as it
arrives, and such a run cannot be resumed.

A second process can read ahead. It is a fork: it shares the tokenizer, and uses neither torch nor a device. A
pipe connects the two processes, so it is never more than one part ahead of the contents of the pipe.
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
"""Minimum input size for a second process. Reading less takes less time than starting a process."""

TICK_SHARE = 0.4  # share of the latency for completing records; the rest is for the model


@dataclass(frozen=True, kw_only=True)
class Part:
    """Items that the model processes together.

    Args:
        items: the items in order.
        failure: the error that ended the input after these items, or None.
        problem_counts: problems while reading them, if another process read.
    """

    items: list[Any] = field(default_factory=list)
    failure: SeqmlmError | None = None
    problem_counts: ProblemCounts | None = None


def parts(task: Any, problems: Problems, done: int = 0) -> Iterator[Part]:
    """The parts of a task after the first `done` items, the same as in a run from the beginning.

    Args:
        task: the `seqmlm.tasks.task.Task` that gives the records and their items.
        problems: receives problems of items after the first `done`. Earlier ones are not reported again.

    Raises:
        StateError: the input has fewer than `done` items.
    """
    with problems.replaying(problems.snapshot()) if done else nullcontext():
        items = iter(task.items(task.records(problems), problems))
        skipped = sum(1 for _ in islice(items, done))
    if skipped < done:
        raise StateError(
            f"cannot continue: {done:,} items are done, but the input now has only {skipped:,}; run again "
            "without --resume"
        )
    yield from parts_of(items, task.batch_share)


def parts_of(items: Iterable[Any], share: Callable[[Any], float]) -> Iterator[Part]:
    """Divide items into parts. The last part has the error that ended the input, if any.

    A part is full when the `share` of its items adds up to 1, or when it has `BATCH_RECORDS` items.
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
    """The parts with the first `count` items. Errors after these items are not raised."""
    while count > 0 and (part := next(parts, None)) is not None:
        count -= len(part.items)
        yield part


def can_read_ahead(task: Any) -> bool:
    """Whether a second process saves time and a fork is safe (on Linux, with one Python thread)."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return False
    size = input_bytes(task.config.sources)
    return size is not None and size >= READ_AHEAD_BYTES


def parts_read_ahead(task: Any, problems: Problems, done: int = 0) -> Iterator[Part]:
    """The parts of a task, read in a second process: the same as from `parts`, with the same problems.

    Raises:
        StateError: as in `parts`, or the second process died.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, ours, task, problems.for_worker(), done)
    reader = context.Process(target=_send_parts, args=arguments, daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns about forks next to native threads. The reader calls none of the libraries with
        # such threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        reader.start()
    theirs.close()
    try:
        while True:
            try:
                part = ours.recv()
            except (EOFError, OSError):  # between two messages, or within one
                raise StateError(
                    "the process that reads the input died, perhaps because memory ran out: try again with "
                    "less input at a time"
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
    """Send the parts of a task through a pipe, in the second process. End when the pipe is closed."""
    parent_pipe.close()  # otherwise the pipe would stay open after the parent was killed
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads did not survive the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles the signal
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
    """Parts of standard input, as soon as something arrives. Parts are larger under load.

    Args:
        latency: seconds within which results are due.
        stopping: called repeatedly while waiting for input. When it returns True, reading ends, and the
            records read so far are still yielded.
    """
    from seqmlm.streams import sources

    def live_records(source: Source) -> Iterator[Any]:
        return iter(task.live_records(source, problems))

    try:
        for records in sources.live(live_records, TICK_SHARE * latency, stopping):
            yield from parts_of(task.items(records, problems), task.batch_share)
    except SeqmlmError as error:
        yield Part(failure=error)

"""Records in batches that are scored together: the same ones whenever a file is read, or as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

from seqmlm.data.live import LiveInput, live_stdin
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError, StateError
from seqmlm.streams.cursor import Position
from seqmlm.streams.live import ReadAhead
from seqmlm.tasks.encoding import BATCH_RECORDS, batches

_AHEAD = 1024  # records of a live input that wait at most
_TICK_SHARE = 0.4  # of the latency that lines may wait to become records; the rest is for scoring


def from_files(records: Iterator[Record], problems: Problems, position: Position) -> Iterator[list[Record]]:
    """The batches of the input behind a position.

    A batch depends on the records in it alone, so those behind a position at which a batch ended are the
    same whether reading began there or not; nothing is read beyond the batch that was asked for.

    Raises:
        StateError: the input has fewer records than were done before.
    """
    if position.records:
        with problems.replaying(position.problems):
            passed = sum(1 for _ in islice(records, position.records))
        if passed < position.records:
            raise StateError(
                f"cannot go on: {position.records:,} records were scored, but the input now has {passed:,}; "
                "score again without --resume"
            )
    yield from batches(records)


@contextmanager
def from_live(
    read: Callable[[], Iterator[Record]], live: LiveInput, stopping: Callable[[], bool]
) -> Iterator[Iterator[list[Record]]]:
    """Batches of what has come.

    Args:
        read: begins to read standard input.
        live: standard input.
        stopping: asked again and again; once it is true nothing more is read, and what was is handed on.
    """
    ahead = ReadAhead(read(), capacity=_AHEAD)
    stopped = False

    def look() -> None:
        nonlocal stopped
        if not stopped and stopping():
            stopped = True
            live.stop()

    try:
        yield ahead.batches(BATCH_RECORDS, meanwhile=look)
    finally:
        live.stop()
        ahead.close()


def live_input(latency: float | None) -> AbstractContextManager[LiveInput | Any]:
    """Standard input as it comes, where a latency is asked for."""
    return nullcontext() if latency is None else live_stdin(_TICK_SHARE * latency)


class Faults:
    """Lets records through up to the first that ends the reading, whose error is raised later.

    Readers raise where a record is bad and the user wants no bad ones; the records before it, which wait for
    their batch to be full, are to be scored all the same.
    """

    def __init__(self) -> None:
        self._error: DataError | None = None

    @property
    def met(self) -> bool:
        """Whether the input ended with a fault."""
        return self._error is not None

    def before(self, records: Iterator[Record]) -> Iterator[Record]:
        """The records before the fault."""
        try:
            yield from records
        except DataError as error:
            self._error = error

    def raise_first(self) -> None:
        """Raise the fault, where there was one.

        Raises:
            DataError: what the reader raised.
        """
        if self._error is not None:
            raise self._error

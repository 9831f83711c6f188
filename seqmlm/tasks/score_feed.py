"""Records in batches that are scored together: the same ones whenever a file is read, or as they come."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain
from seqmlm.errors import StateError
from seqmlm.streams.cursor import Position
from seqmlm.streams.sources import LiveInput, ReadAhead
from seqmlm.tasks.encoding import BATCH_RECORDS, Size
from seqmlm.tasks.read_ahead import Batch, Read, encoded_batches
from seqmlm.tokenizers.base import Tokenizer

_AHEAD = 1024  # records of a live input that wait at most
_TICK_SHARE = 0.4  # of the latency that lines may wait to become records; the rest is for scoring


def from_files(
    read: Read,
    domain: Domain,
    tokenizer: Tokenizer,
    problems: Problems,
    position: Position,
    *,
    size: Size,
    ahead: bool,
) -> Generator[Batch]:
    """The batches of the input behind a position.

    A batch depends on the records in it alone, so those behind a position at which a batch ended are the
    same whether reading began there or not.

    Args:
        read: begins to read the input.
        position: where to go on; what the input had before is not told again.
        size: of a batch.
        ahead: read in a second process.

    Raises:
        DataError: a bad record, where `problems` raises, after the batch before it.
        StateError: the input has fewer records than were done before.
    """

    def behind(told: Problems) -> Iterator[Record]:
        records = iter(read(told))
        if position.records:
            with told.replaying(position.problems):
                passed = sum(1 for _ in islice(records, position.records))
            if passed < position.records:
                raise StateError(
                    f"cannot go on: {position.records:,} records were scored, but the input now has "
                    f"{passed:,}; score again without --resume"
                )
        yield from records

    if position.records:
        with problems.replaying(position.problems):
            pass  # counting goes on from what was met then
    yield from encoded_batches(behind, domain, tokenizer, problems, ahead=ahead, size=size)


def _these(records: list[Record], told: Problems) -> list[Record]:
    """Records that were read already."""
    return records


@contextmanager
def from_live(
    read: Read,
    domain: Domain,
    tokenizer: Tokenizer,
    problems: Problems,
    live: LiveInput,
    stopping: Callable[[], bool],
    *,
    size: Size,
) -> Iterator[Iterator[Batch]]:
    """Batches of what has come; an error of the input is raised after the batch before it.

    Args:
        read: begins to read standard input.
        live: standard input.
        stopping: asked again and again; once it is true nothing more is read, and what was is handed on.
        size: of a batch.
    """
    ahead = ReadAhead(iter(read(problems)), capacity=_AHEAD)
    stopped = False

    def look() -> None:
        nonlocal stopped
        if not stopped and stopping():
            stopped = True
            live.stop()

    def come() -> Iterator[Batch]:
        for some in ahead.batches(BATCH_RECORDS, meanwhile=look):
            given = partial(_these, some)
            yield from encoded_batches(given, domain, tokenizer, problems, ahead=False, size=size)

    try:
        yield come()
    finally:
        live.stop()
        ahead.close()


def live_input(latency: float | None) -> AbstractContextManager[LiveInput | Any]:
    """Standard input as it comes, where a latency is asked for."""
    return nullcontext() if latency is None else closing(LiveInput(_TICK_SHARE * latency))

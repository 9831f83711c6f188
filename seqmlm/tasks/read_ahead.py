"""Reading and tokenizing in a second process, a few batches ahead of the model; the same results in order.

The reader is a fork: it shares the tokenizer, and touches neither torch nor a device. A pipe joins the two,
so that it is never more than a batch ahead of what the pipe holds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain
from seqmlm.errors import DataError, SeqmlmError, StateError
from seqmlm.tasks.encoding import Encoded, batches, encoded
from seqmlm.tokenizers.base import Tokenizer

Read = Callable[[Problems], Iterable[Record]]

_Event = tuple[str, tuple[Any, ...], dict[str, Any]]


def can_read_ahead() -> bool:
    """Whether there is a second core, and a fork is safe: on Linux, in a process with one Python thread."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


def encoded_batches(
    read: Read, domain: Domain, tokenizer: Tokenizer, problems: Problems, *, ahead: bool
) -> Iterator[list[Encoded]]:
    """Records in batches, tokenized; those before a bad record come before its error is raised.

    Args:
        read: gives the records, handing what cannot be read to the `Problems` it is called with.
        domain, tokenizer: theirs.
        problems: of this process; told everything in the order of the input.
        ahead: read in a second process. Results, notes and errors are the same.

    Raises:
        DataError: a bad record, where `problems` raises.
        StateError: the second process died.
    """
    if ahead:
        yield from _from_reader(read, domain, tokenizer, problems)
        return
    told = _Told(problems)
    for batch, events, error in _batches(read, domain, tokenizer, told):
        yield from _heard(batch, events, error, problems)


def _batches(
    read: Read, domain: Domain, tokenizer: Tokenizer, told: _Told
) -> Iterator[tuple[list[Encoded], list[_Event], SeqmlmError | None]]:
    """Batches, with what was told while each was read, and the error that ended the input."""
    ended: list[SeqmlmError] = []

    def until_error() -> Iterator[Record]:
        try:
            yield from read(told)
        except SeqmlmError as error:
            ended.append(error)

    for batch in batches(until_error()):
        try:
            found, stopped = encoded(domain, tokenizer, batch, told), None
        except SeqmlmError:
            found, stopped = _before_error(domain, tokenizer, batch, told)
        yield found, told.taken(), stopped
        if stopped is not None:
            return
    yield [], told.taken(), ended[0] if ended else None


def _before_error(
    domain: Domain, tokenizer: Tokenizer, batch: list[Record], told: _Told
) -> tuple[list[Encoded], SeqmlmError | None]:
    """What of a batch comes before its first bad record, and the error of that."""
    found: list[Encoded] = []
    for record in batch:
        try:
            found += encoded(domain, tokenizer, [record], told)
        except SeqmlmError as error:
            return found, error
    return found, None


def _heard(
    batch: list[Encoded], events: list[_Event], error: SeqmlmError | None, problems: Problems
) -> Iterator[list[Encoded]]:
    """Tell `problems` what was told elsewhere; hand on the batch; raise what ended the input."""
    for name, positional, named in events:
        getattr(problems, name)(*positional, **named)
    if batch:
        yield batch
    if error is not None:
        raise error


class _Told(Problems):
    """Notes down what it is told, for the `Problems` it stands for, and raises where that one would."""

    def __init__(self, problems: Problems) -> None:
        super().__init__("raise" if problems.on_error == "raise" else "skip", sensitive=problems.sensitive)
        self._events: list[_Event] = []

    def bad(self, error: DataError, raw: str | None = None) -> None:
        super().bad(error)
        self._events.append(("bad", (error, raw), {}))

    def note(self, reason: str, n: int = 1, *, source: str | None = None, line: int | None = None) -> None:
        self._events.append(("note", (reason, n), {"source": source, "line": line}))

    def taken(self) -> list[_Event]:
        """What was told since the last time."""
        events, self._events = self._events, []
        return events


def _from_reader(
    read: Read, domain: Domain, tokenizer: Tokenizer, problems: Problems
) -> Iterator[list[Encoded]]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    reader = context.Process(
        target=_reader, args=(theirs, ours, read, domain, tokenizer, _Told(problems)), daemon=True
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside native threads; the reader calls none of the libraries that
        # have any.
        warnings.simplefilter("ignore", DeprecationWarning)
        reader.start()
    theirs.close()
    try:
        while True:
            try:
                message = ours.recv()
            except EOFError:
                raise StateError(
                    "the process that reads the input died; is there enough memory? Try again with less "
                    "at a time"
                ) from None
            if message is None:
                return
            if isinstance(message, BaseException):
                raise message
            batch, events, error = message
            yield from _heard(batch, events, error, problems)
    finally:
        ours.close()
        reader.terminate()
        reader.join()


def _reader(
    out: Connection, other: Connection, read: Read, domain: Domain, tokenizer: Tokenizer, told: _Told
) -> None:
    """The second process: ends when everything is read, or when nobody listens any more."""
    other.close()  # else a parent that was killed would seem to listen
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads did not survive the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever listens decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        try:
            for message in _batches(read, domain, tokenizer, told):
                out.send(message)
            out.send(None)
        except Exception as error:
            out.send(error)
    except BrokenPipeError:
        pass

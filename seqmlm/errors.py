"""Every exception a user can meet, and the exit code each one ends the command line with.

    SeqmlmError                 1
    |-- UsageError              2   what was asked for makes no sense: an unknown key, a bad flag
    |-- DataError               3   a file that cannot be read as what it claims to be
    |-- StateError              4   a name already taken, a checkpoint gone bad, a model that is not there
    |   `-- NotFiniteError          a model whose answers are no numbers
    `-- TrainingError           5   the numbers went wrong: NaN in a row, out of memory at the smallest batch

A message says what happened, where (file:line, field) and what to do about it, in one sentence or two.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class SeqmlmError(Exception):
    """Base of all errors that seqmlm raises on purpose; the CLI prints the message without a traceback."""

    exit_code: ClassVar[int] = 1


class UsageError(SeqmlmError):
    """The request itself is wrong: an unknown option, key or name, or values that exclude each other."""

    exit_code = 2


class DataError(SeqmlmError):
    """An input cannot be read as what it claims to be.

    Args:
        reason: what is wrong, without the place.
        source: file (or "-" for standard input) it was found in.
        line: 1-based line, where known.
        field: column or field name, where known.
        remedy: what the user can do.

    Attributes:
        skippable: whether it is about a part of the input that can be left out.
    """

    exit_code = 3
    skippable = False

    def __init__(
        self,
        reason: str,
        *,
        source: str | None = None,
        line: int | None = None,
        field: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.reason, self.source, self.line, self.field, self.remedy = reason, source, line, field, remedy
        place = "" if source is None else f"{source}:{line}: " if line is not None else f"{source}: "
        where = f"field {field!r}: " if field else ""
        super().__init__(f"{place}{where}{reason}" + (f" ({remedy})" if remedy else ""))


class StateError(SeqmlmError):
    """Something on disk or in the registry is not in the state the request needs."""

    exit_code = 4


class NotFiniteError(StateError):
    """A model's answer is NaN or infinite: its weights are damaged, or too large for the precision."""


class TrainingError(SeqmlmError):
    """Training cannot continue: non-finite numbers in a row, or out of memory at the smallest batch."""

    exit_code = 5


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ", did you mean 'x'?" for the closest known name, or a list of the known ones.

    >>> nearest("optimm", ["optim", "data"])
    "; did you mean 'optim'?"
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"

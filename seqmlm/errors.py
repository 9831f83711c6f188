"""All exceptions for users, with the exit code of the command line for each.

    SeqmlmError                 1
    |-- UsageError              2   the request makes no sense: an unknown key, a bad flag
    |-- DataError               3   a file cannot be read in its format
    |-- StateError              4   a name is taken, a checkpoint is damaged, a model does not exist
    |   `-- NotFiniteError          a model returns NaN or infinity
    `-- TrainingError           5   the numbers went wrong: NaN in a row, out of memory at the smallest batch

A message reports what happened, where (file:line, field) and what to do about it, in one or two sentences.
Text quoted from data, including names of files, is safe to display: see `printable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

# Control characters (C0 and C1), line separators, marks that change the direction of text, and lone
# surrogates, which no encoding can write.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plural(unit: str) -> str:
    """The plural of a noun.

    >>> plural("residue"), plural("stitch"), plural("story"), plural("day")
    ('residues', 'stitches', 'stories', 'days')
    """
    if unit.endswith("y") and unit[-2:-1] not in "aeiou":
        return f"{unit[:-1]}ies"
    return f"{unit}es" if unit.endswith(("s", "x", "z", "ch", "sh")) else f"{unit}s"


def per_second(rate: float) -> str:
    """A rate per second as text. Rates below 10 keep two significant digits, so that slow rates are not "0".

    >>> per_second(1234.5), per_second(0.1234)
    ('1,234', '0.12')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def number_of(number: int | str | None, unit: str) -> str:
    """A count with its noun in singular or plural. Withheld counts ("<11") take the plural.

    Counts of people (`seqmlm.data.counts.People`) are formatted as they may be shown.

    >>> number_of(1, "row"), number_of(1200, "row"), number_of("<11", "row")
    ('1 row', '1,200 rows', '<11 rows')
    """
    number = getattr(number, "cell", number)
    text = f"{number:,}" if isinstance(number, int) else number
    return f"{text} {unit if number == 1 else plural(unit)}"


def p_value_text(p_value: float) -> str:
    """A p-value as text. Values below 0.0001 are not shown in detail, because rows do not support them."""
    return f"{p_value:.2g}" if p_value >= 1e-4 else "below 0.0001"


def span_text(start: int, end: int) -> str:
    """The positions of a half-open range as text. They count from 1, and the last position is included.

    An empty range is described by the position after it.

    >>> span_text(155, 175), span_text(155, 156), span_text(5, 5), span_text(1200, 1300)
    ('156 to 175', '156', 'before 6', '1,201 to 1,300')
    """
    if end <= start:
        return f"before {start + 1:,}"
    return f"{end:,}" if end == start + 1 else f"{start + 1:,} to {end:,}"


def printable(text: object, *, lines: bool = False) -> str:
    """A text that is safe to show on a terminal or page: control characters are shown as escapes.

    Args:
        text: any object. It is converted with `str`.
        lines: keep line ends and tabs.

    >>> printable("a\\x1b[2J\\u202eb"), printable("a\\nb", lines=True) == "a\\nb"
    ('a\\\\x1b[2J\\\\u202eb', True)
    """

    def escape(match: re.Match[str]) -> str:
        is_line_mark = lines and match[0] in "\n\t"
        return match[0] if is_line_mark else match[0].encode("unicode_escape").decode("ascii")

    return _UNPRINTABLE.sub(escape, str(text))


def duration_text(seconds: float) -> str:
    """A duration in words, rounded to minutes or hours.

    >>> duration_text(20), duration_text(70), duration_text(400), duration_text(98_000)
    ('less than a minute', '1 minute', '7 minutes', '27 hours')
    """
    minutes = round(seconds / 60)
    if minutes >= _MINUTES_BEFORE_HOURS:
        return f"{round(minutes / 60):,} hours"
    return "less than a minute" if minutes < 1 else f"{minutes} minute{'s' * (minutes > 1)}"


_MINUTES_BEFORE_HOURS = 120


class SeqmlmError(Exception):
    """Base class of the errors that seqmlm raises on purpose. The CLI prints them without a traceback."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UsageError(SeqmlmError):
    """The request is wrong: an unknown option, key or name, or values that exclude each other."""

    exit_code = 2


class DataError(SeqmlmError):
    """An input cannot be read in its format.

    Args:
        reason: description of the problem, without the place.
        source: file in which the problem is. "-" is standard input.
        line: line number, from 1, if known.
        field: name of the column or field, if known.
        remedy: action that solves the problem.

    Attributes:
        skippable: whether the error concerns a part of the input that can be left out.
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
    """A file, folder or registry entry is not in the state that the request needs."""

    exit_code = 4


class NotFiniteError(StateError):
    """The output of a model is NaN or infinite: its weights are damaged, or too large for the precision."""


class TrainingError(SeqmlmError):
    """Training cannot continue: non-finite numbers in a row, or out of memory at the smallest batch."""

    exit_code = 5


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known name, or a list of the known names.

    >>> nearest("optimm", ["optim", "data"])
    "; did you mean 'optim'?"
    """
    names = sorted(names)
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"

"""Dates as tables write them (03/15/2024, 15.3.2024 1:00 PM), and which order of day and month they are in.

ISO 8601 and the times of logs are in `seqmlm.data.timestamps`; these are the others, which mean nothing until
it is known what comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time
from functools import cache, lru_cache

from seqmlm.errors import DataError

ORDERS = tuple(
    order.replace("/", sign) for sign in "/.-" for order in ("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d/%b/%Y")
)
"""Orders of day, month and year that are told by the data, as `datetime.strptime` knows them."""

_CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
_DATE = re.compile(r"\d{1,4}([/.-])(\d{1,2}|[A-Za-z]{3})\1\d{1,4}")
_CLOCK = re.compile(r"(?<=\d)T|\s+")

Moment = Callable[[str], datetime | None]


def is_form(date_format: str) -> bool:
    """Whether `datetime.strptime` reads dates of this form."""
    try:
        return datetime.strptime(datetime(2001, 2, 3).strftime(date_format), date_format).year == 2001
    except ValueError:
        return False


def moments(date_format: str) -> Moment:
    """How text of a form for which `is_form` is true is read: None where it has another. A time of day may
    follow.
    """
    words_of_date = 1 + date_format.count(" ")

    def of(text: str) -> datetime | None:
        parts = _CLOCK.split(text)
        clock = " ".join(parts[words_of_date:])
        try:
            return datetime.strptime(text, date_format)
        except ValueError:
            pass
        try:
            day, moment = datetime.strptime(" ".join(parts[:words_of_date]), date_format), _clock(clock)
        except ValueError:
            return None
        return None if moment is None else datetime.combine(day, moment)

    return of


def _clock(text: str) -> time | None:
    """A time of day; None where it is none."""
    try:
        return time.fromisoformat(text)
    except ValueError:
        pass
    for form in _CLOCKS:
        try:
            return datetime.strptime(text, form).time()
        except ValueError:
            continue
    return None


def is_date(text: str) -> bool:
    """Whether text begins as a date does whose order has to be told."""
    return _DATE.match(text) is not None


@cache
def _of_order(order: str) -> Moment:
    return moments(order)


@lru_cache(maxsize=1 << 16)
def orders(text: str) -> tuple[str, ...]:
    """The orders of day, month and year that a date fits.

    >>> orders("03/04/2024 1:00 PM"), orders("15.03.2024")
    (('%m/%d/%Y', '%d/%m/%Y'), ('%d.%m.%Y',))
    """
    return tuple(order for order in ORDERS if order[2] in text and _of_order(order)(text) is not None)


def common(found: Iterable[Sequence[str]]) -> list[str]:
    """The orders that all of some dates fit, by what each fits."""
    left = list(ORDERS)
    for one in found:
        left = [order for order in left if order in one]
    return left


def read_as(order: str) -> str:
    """The note of a table whose first dates all fit one order."""
    return f"a table whose dates were read as {order}, which all of its first ones fit"


def unsettled(fitting: Sequence[str], source: str, line: int, field: str) -> DataError:
    """The error for a table whose dates fit several orders, or none in common; it is about all of it."""
    if not fitting:
        reason, some = f"the dates, from line {line} on, are in several orders of day and month", ORDERS[:2]
    else:
        reason, some = f"the dates, from line {line} on, fit several orders of day and month", (*fitting,)
    remedy = " or ".join(f"--option date_format={order}" for order in some)
    return DataError(reason, source=source, field=field, remedy=f"say which one it is: {remedy}")

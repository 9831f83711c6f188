"""Convert texts, numbers and dates to seconds since 1970-01-01 UTC, in all time formats of the fields.

Logs repeat their seconds. Therefore `Clock` is a dictionary from the text of a time to its value, and a
repeated time costs one look-up. `orders` and `moments` read dates of tables, such as 03/04/2024, whose order
of day and month must be found first. `seconds`, `when` and `time_reader` read table cells.
"""

from __future__ import annotations

import math
import re
import time
from calendar import isleap
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, tzinfo
from datetime import time as Time
from functools import cache, lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from seqmlm.errors import DataError, UsageError

Moment = Callable[[str], datetime | None]
When = Callable[[Any], float | None]

NAN = float("nan")
DAY = 86400.0
_FIRST = -62_135_596_800.0  # the year 1
_LAST = 253_402_300_800.0  # the year 10000
_FIRST_DAY = date(1970, 1, 1).toordinal() + 1
_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_REMEMBERED = 1 << 16
_HALF_YEAR = 6  # months
_LATEST_LINE = 92 * DAY  # a line of the old year is at most this much late
_BOOT = 3600.0  # a clock that is not set starts within this many seconds after January 1
_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {m: i for i, m in enumerate(_NAMES, 1)}
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?", re.ASCII)

_TIME_OF_DAY = r"(?P<h>\d\d)[:.]?(?P<mi>\d\d)[:.]?(?P<s>\d\d)(?:[.,](?P<f>\d+))?"
_ZONE = r"(?: ?(?P<z>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?))?"
_MONTH = r"(?P<b>[A-Za-z]{3})"
MONTH_FIRST = "month first "
"""Prefix for a time with two numbers and no year ("06-14 15:16:01", "0614 15:16:01"), if the month is first.
"""
_SHAPES = tuple(
    re.compile(shape, re.ASCII)
    for shape in (
        rf"(?P<y>\d{{4}})[-./](?P<mo>\d\d)[-./](?P<d>\d\d)[-T ]{_TIME_OF_DAY}{_ZONE}",  # ISO 8601, BGL
        rf"{_MONTH} +(?P<d>\d\d?) {_TIME_OF_DAY}{_ZONE}",  # RFC 3164: no year
        rf"(?P<y>\d\d)(?P<mo>\d\d)(?P<d>\d\d) {_TIME_OF_DAY}",  # HDFS
        rf"{MONTH_FIRST}(?P<mo>\d\d)-?(?P<d>\d\d) {_TIME_OF_DAY}",
        rf"(?P<y>\d\d)/(?P<mo>\d\d)/(?P<d>\d\d) {_TIME_OF_DAY}",  # Spark
        rf"(?P<d>\d\d)/{_MONTH}/(?P<y>\d{{4}}):{_TIME_OF_DAY}{_ZONE}",  # access logs
        rf"[A-Za-z]{{3}} {_MONTH} +(?P<d>\d\d?) {_TIME_OF_DAY}{_ZONE} (?P<y>\d{{4}})",  # ctime, Apache errors
        rf"{_MONTH} +(?P<d>\d\d?),? (?P<y>\d{{4}}) {_TIME_OF_DAY}{_ZONE}",
        r"(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d)",
    )
)
_COUNTED = re.compile(r"\d{9,19}(?:[.,]\d+)?", re.ASCII)


class Clock(dict[str, float]):
    """Converts the text of a time to seconds since 1970-01-01 UTC. NaN if it cannot be read.

    These formats are read:

    * ISO 8601, with T or a space, a comma or point before the fraction, Z or an offset;
    * RFC 3164 ("Jun 14 15:16:01"), HDFS ("081109 203615"), BGL, Spark, Apache access and error logs;
    * seconds, milliseconds, microseconds or nanoseconds since 1970.

    Times must be looked up in the order of the lines. If they have no year, a change from December to January
    starts the next year.

    A machine without a clock counts from January 1 until its clock is set. Such times stay in the year of the
    lines around them. They are recognised in two ways. In the next year, they would be later than the last
    write to the log. Or they begin in the first hour of January 1, after a line that is not from December.

    Args:
        zone: zone of times without a zone: "UTC", an offset ("+02:00") or a name ("Europe/Berlin").
        year: year of the first time without a year. None selects the latest year that is not after `latest`.
        latest: time of the last write to the log, in seconds. None means now.
        live: whether the log is still being written, so that its next times are at most now.

    Raises:
        UsageError: the zone is unknown.

    >>> Clock()["1970-01-02T00:00:00.5+01:00"]
    82800.5
    """

    def __init__(
        self,
        zone: str = "UTC",
        year: int | None = None,
        latest: float | None = None,
        *,
        live: bool = False,
    ) -> None:
        super().__init__()
        self._zone = find_zone(zone)
        self._first_year, self._latest, self._live = year, latest, live
        self._year, self._month, self._reached = 0, 0, 0.0  # of the last time without a year, if any
        self._unset: float | None = None  # the last time from a clock that was not set, in the same year
        self._dates: Moment | None = None
        self._last = 0  # the format of the last match is tried first
        self._regular = False  # whether the last text ended with its clock time, and all days have 24 hours
        self._cached = True  # whether the last text means the same when it is repeated
        # text before the hour -> midnight, if the zone has no clock changes
        self._days: dict[str, float] = {}

    def __missing__(self, text: str) -> float:
        cut = -8 if text[-3:-2] == ":" else -6
        midnight = self._days.get(text[:cut])
        value, self._cached = NAN if midnight is None else midnight + _seconds_of_day(text[cut:]), True
        if value != value:
            value = self._parse(text)
            if self._regular and len(self._days) < _REMEMBERED:
                self._days[text[:cut]] = value - _seconds_of_day(text[cut:])
        if len(self) >= _REMEMBERED:
            self.clear()
        if self._cached:
            self[text] = value
        return value

    def read_dates(self, dates: Moment) -> None:
        """From now on, also read dates with `dates`, before the other formats."""
        self._dates = dates
        self.clear()

    def _parse(self, text: str) -> float:
        text, self._regular, self._cached = text.strip(), False, True
        if self._dates is not None and (moment := self._dates(text)) is not None:
            return self._of_moment(moment, text)
        for at in (self._last, *range(len(_SHAPES))):
            if matched := _SHAPES[at].fullmatch(text):
                self._last = at
                return self._value(matched)
        return epoch(float(text.replace(",", "."))) if _COUNTED.fullmatch(text) else NAN

    def _of_moment(self, moment: datetime, text: str) -> float:
        if moment.tzinfo is not None:
            return moment.timestamp()
        since = moment - datetime(1970, 1, 1)
        within = since.seconds + since.microseconds / 1e6
        self._regular = isinstance(self._zone, float) and _seconds_of_day(text[-8:]) == within
        return self._utc(since.days, within, None)

    def _value(self, matched: re.Match[str]) -> float:
        part = matched.groupdict()
        month = _MONTHS.get(part["b"].lower(), 0) if part.get("b") else int(part["mo"])
        day = int(part["d"])
        hour, minute, second = (int(part.get(name) or 0) for name in ("h", "mi", "s"))
        if not (
            0 < month < 13 and 0 < day <= _LENGTHS[month - 1] and hour < 24 and minute < 60 and second < 61
        ):
            return NAN
        within = hour * 3600.0 + minute * 60.0 + second + float("0." + (part.get("f") or ""))
        zone = part.get("z")
        self._regular = (
            isinstance(self._zone, float) and bool(part.get("s")) and matched.end("s") == matched.end()
        )
        if "y" in part:
            year = int(part["y"])
            year += (2000 if year < 70 else 1900) if len(part["y"]) == 2 else 0
            if not year or (month == 2 and day == 29 and not isleap(year)):
                return NAN
        else:
            year = self._year_of(month, day, within)
            if not _exists(year, month, day):
                return NAN
        return self._utc(days(year, month, day), within, zone)

    def _utc(self, day: int, within: float, zone: str | None) -> float:
        local = day * DAY + within
        if zone is not None:
            return local - offset(zone)
        if isinstance(self._zone, float):
            return local - self._zone
        try:
            wall = datetime.fromtimestamp(local, UTC).replace(tzinfo=self._zone)
        except (ValueError, OverflowError):
            return NAN
        there = wall.utcoffset()
        return local - (there.total_seconds() if there is not None else 0.0)

    def _year_of(self, month: int, day: int, within: float) -> int:
        """The year of a time without a year.

        January after autumn begins the next year, unless the clock of the machine was not set. A late line
        from last December belongs to the old year.
        """

        def seconds(year: int) -> float:
            return days(year, month, day) * DAY + within

        year = self._year if self._month else self._latest_year(month, day, within)
        if self._is_unset(seconds, year, month, day):
            self._unset, self._regular, self._cached = seconds(year), False, False
            return year
        if self._month - month > _HALF_YEAR:
            year += 1
        elif self._month and month - self._month > _HALF_YEAR:
            late = self._reached - seconds(year - 1) <= _LATEST_LINE
            if late or seconds(year) > self._bound:
                return year - 1
        if not _exists(year, month, day) and self._first_year is None:
            year = _leap_year(year)
        if (year, month) != (self._year, self._month):
            self.clear()  # a repeated text may then belong to another year
            self._days.clear()
        self._year, self._month, self._reached = year, month, seconds(year)
        return year

    def _latest_year(self, month: int, day: int, within: float) -> int:
        """The year of the first time: the given year, or else the latest year that is not after the log."""
        if self._first_year is not None:
            return self._first_year
        latest = DAY + (time.time() if self._latest is None else self._latest)
        latest_year = datetime.fromtimestamp(latest, UTC).year
        possible = (year for year in range(latest_year, latest_year - 9, -1) if _exists(year, month, day))
        return next(year for year in possible if days(year, month, day) * DAY + within <= latest)

    def _is_unset(self, seconds: Callable[[int], float], year: int, month: int, day: int) -> bool:
        """Whether a time comes from a clock that was not set. `seconds` returns the time in a given year."""
        if self._month and self._month - month <= _HALF_YEAR:
            return False  # not January, or a January after lines from spring, which belong to the same year
        if self._month and seconds(year + 1) > self._bound:
            return True
        if self._month == 12 or month > 1:
            return False
        goes_on = self._unset is not None and 0 <= seconds(year) - self._unset <= DAY
        return goes_on or (day == 1 and seconds(year) % DAY < _BOOT)

    @property
    def _bound(self) -> float:
        """A time in seconds that no time of the log exceeds. Infinite if earlier lines exceed it."""
        now = time.time() if self._live or self._latest is None else self._latest
        return now + DAY if self._reached <= now + DAY else math.inf


def _exists(year: int, month: int, day: int) -> bool:
    """Whether the year has this day. Only February 29 is missing in some years."""
    return (month, day) != (2, 29) or isleap(year)


def _leap_year(year: int) -> int:
    """The latest leap year up to this year."""
    return next(candidate for candidate in range(year, year - 9, -1) if isleap(candidate))


def _seconds_of_day(clock: str) -> float:
    """Seconds since midnight of "HH:MM:SS" or "HHMMSS". NaN for other texts."""
    digits = clock.replace(":", "")
    if len(digits) != 6 or not digits.isdecimal() or clock.count(":") not in (0, 2):
        return NAN
    hour, minute, second = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    return hour * 3600.0 + minute * 60.0 + second if hour < 24 and minute < 60 and second < 61 else NAN


def epoch(value: float) -> float:
    """Convert seconds, milliseconds, microseconds or nanoseconds since 1970 to seconds.

    The unit is recognised from the size of the number. The result is NaN after the year 9999.

    >>> epoch(1117838570), epoch(1117838570_000), epoch(1117838570_000_000_000)
    (1117838570.0, 1117838570.0, 1117838570.0)
    """
    size = abs(value)
    scale = 1.0 if size < 1e11 else 1e3 if size < 1e14 else 1e6 if size < 1e17 else 1e9
    return value / scale if size / scale < _LAST else NAN


def days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date. A day after the end of the month continues into the next month."""
    return date(year, month, 1).toordinal() + day - _FIRST_DAY


def offset(zone: str) -> float:
    """Seconds east of UTC for "Z", "UTC", "GMT", "+02:00", "-0530" or "+02"."""
    if matched := _OFFSET.fullmatch(zone):
        sign, hours, minutes = matched.groups()
        return (int(hours) * 3600.0 + int(minutes or 0) * 60.0) * (-1 if sign == "-" else 1)
    return 0.0


def find_zone(name: str) -> float | tzinfo:
    """Seconds east of UTC, or a zone with rules.

    Raises:
        UsageError: the zone is unknown.
    """
    if name.upper() in ("Z", "UTC", "GMT") or _OFFSET.fullmatch(name):
        return offset(name.upper())
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise UsageError(
            f"unknown time zone {name!r}: give UTC, an offset such as +02:00, or a name such as Europe/Berlin"
        ) from None


# Dates of tables, and which order of day and month they are in

ORDERS = tuple(
    order.replace("/", sign) for sign in "/.-" for order in ("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d/%b/%Y")
)
"""Orders of day, month and year that are found from the data, in the notation of `datetime.strptime`."""

_CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
_DATE = re.compile(r"\d{1,4}([/.-])(\d{1,2}|[A-Za-z]{3})\1\d{1,4}")
_BEFORE_CLOCK = re.compile(r"(?<=\d)T|\s+")


def is_form(date_format: str) -> bool:
    """Whether `datetime.strptime` reads dates of this form."""
    try:
        return datetime.strptime(datetime(2001, 2, 3).strftime(date_format), date_format).year == 2001
    except ValueError:
        return False


def moments(date_format: str) -> Moment:
    """A function that reads text of a form for which `is_form` is true. It returns None for other text.

    A time of day may follow the date.
    """
    words_of_date = 1 + date_format.count(" ")

    def of(text: str) -> datetime | None:
        parts = _BEFORE_CLOCK.split(text)
        clock = " ".join(parts[words_of_date:])
        try:
            return datetime.strptime(text, date_format)
        except ValueError:
            pass
        try:
            day, moment = datetime.strptime(" ".join(parts[:words_of_date]), date_format), _time_of_day(clock)
        except ValueError:
            return None
        return None if moment is None else datetime.combine(day, moment)

    return of


def _time_of_day(text: str) -> Time | None:
    """The time of day in a text, or None."""
    try:
        return Time.fromisoformat(text)
    except ValueError:
        pass
    for form in _CLOCKS:
        try:
            return datetime.strptime(text, form).time()
        except ValueError:
            continue
    return None


def is_date(text: str) -> bool:
    """Whether a text starts like a date whose order of day and month must be found."""
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


def common(fitting: Iterable[Sequence[str]]) -> list[str]:
    """The orders that fit all dates, from the orders that fit each date."""
    common_orders = list(ORDERS)
    for orders_of_date in fitting:
        common_orders = [order for order in common_orders if order in orders_of_date]
    return common_orders


def read_as(order: str) -> str:
    """The note for a table whose first dates all fit a single order."""
    return (
        f"a table whose dates were read as {order}, the only order that fits its first dates; for another "
        "order use --option date_format=..."
    )


def order_error(fitting: Sequence[str], source: str, line: int, field: str) -> DataError:
    """The error for a table whose dates fit several orders, or have no common order.

    It concerns the whole table.
    """
    if not fitting:
        reason = f"the dates from line {line} on mix several orders of day and month"
        forms = ORDERS[:2]
    else:
        reason = f"the order of day and month is ambiguous in the dates from line {line} on"
        forms = (*fitting,)
    remedy = " or ".join(f"--option date_format={order}" for order in forms)
    return DataError(reason, source=source, field=field, remedy=f"name the order: {remedy}")


# Cells of tables

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_HL7 = re.compile(r"(\d{8}(?:\d{2}){0,3})(\.\d+)?([+-]\d{4})?")
_PARTIAL = re.compile(r"(\d{4})(?:-(\d{2}))?")
_SINCE = {"seconds": 1.0, "minutes": 60.0, "hours": 3_600.0, "days": 86_400.0}


def seconds(cell: Any) -> float:
    """Convert a time to seconds since 1970-01-01 UTC. A time without a zone is UTC.

    Args:
        cell: ISO 8601 text, which may be only a year, or a year and a month. Or it is a number since 1970,
            whose unit follows from its size: seconds below 1e11, then milliseconds, microseconds and
            nanoseconds. Eight digits are a date, and four are a year. 12 or 14 digits (202103280035) are a
            time of HL7 version 2 if its year is from 1880 to 2199. It may have seconds, a fraction and a
            zone.

    Raises:
        ValueError: the cell has another form. The message may contain the value, and must not be shown.
    """
    if not isinstance(cell, str):
        return _of_count(float(cell))
    if cell[4:5] == "-" and cell[7:8] == "-":  # nearly always, and quickly decided
        return _since_1970(datetime.fromisoformat(cell.strip()))
    text = cell.strip()
    if _PARTIAL.fullmatch(text):
        return (datetime(int(text[:4]), int(text[5:] or 1), 1) - _EPOCH).total_seconds()
    if (moment := _of_digits(text)) is not None:
        return moment
    if len(text) != 8 and _NUMBER.fullmatch(text):
        return _of_count(float(text))
    return _since_1970(datetime.fromisoformat(text))


def _of_digits(text: str) -> float | None:
    """The time written only in digits, as in HL7 version 2. None if it is not a time."""
    written = _HL7.fullmatch(text)
    if written is None:
        return None
    digits, parts, zone = written.groups("")
    if len(digits) < 12 and not zone:
        return None
    try:
        clock = digits[8:].ljust(6, "0")
        moment = datetime.fromisoformat(f"{digits[:8]}T{clock}{parts[:7]}{zone}")
    except ValueError:
        return None
    return _since_1970(moment) if 1880 <= moment.year < 2200 else None


def when(cell: Any) -> float | None:
    """The seconds of a time, or None for other text.

    No exception is raised, so that no error quotes the text.
    """
    if type(cell) is float and _FIRST <= cell < 1e11:
        return cell  # already in seconds: a time stamp of a parquet file
    try:
        return None if cell is None else seconds(cell)
    except (ValueError, TypeError, OverflowError):
        return None


def _since_1970(moment: datetime) -> float:
    """Seconds since 1970-01-01 UTC. A time without a zone is UTC."""
    if moment.tzinfo is None:
        return (moment - _EPOCH).total_seconds()
    # OverflowError outside the years of datetime
    return (moment.astimezone(UTC) - _EPOCH_UTC).total_seconds()


def _of_count(number: float) -> float:
    """Seconds for a number that counts since 1970.

    Raises:
        ValueError: it is outside the years 1 to 9999.
    """
    time_seconds = epoch(number)
    if not _FIRST <= time_seconds < _LAST:  # NaN fails this check too
        raise ValueError("a date outside the years 1 to 9999")
    return time_seconds


def time_reader(date_format: str) -> When:
    """Create a reader of times in a format: cell -> seconds since 1970. It returns None for other formats.

    ISO 8601 and time stamps of parquet files are always read. A time of day may follow the date.

    Args:
        date_format: a date format of `datetime.strptime` ("%m/%d/%Y"). Or it is the unit of numbers that
            count from an admission, which is set to 1970: "seconds", "minutes", "hours" or "days".

    Raises:
        UsageError: `date_format` has another form.
    """
    unit = _SINCE.get(date_format)
    if unit is not None:

        def after(cell: Any) -> float | None:
            try:
                time_seconds = float(cell) * unit
            except (TypeError, ValueError, OverflowError):
                return None
            return time_seconds if _FIRST <= time_seconds < _LAST else None

        return after
    if not is_form(date_format):
        raise UsageError(
            f"date_format must be a pattern such as %m/%d/%Y, or one of {', '.join(_SINCE)}; "
            f"got {date_format!r}"
        )
    moment_of = moments(date_format)

    @lru_cache(maxsize=1 << 16)
    def of(text: str) -> float | None:
        if (text[4:5] == "-" and text[7:8] == "-") or _PARTIAL.fullmatch(text):
            return when(text)
        moment = moment_of(text)
        return None if moment is None else _since_1970(moment)

    return lambda cell: of(cell.strip()) if isinstance(cell, str) else when(cell)


def until_seconds(until: str | None) -> float | None:
    """The option `until` in seconds. A day counts to its end.

    Raises:
        UsageError: it is not a time.
    """
    if until is None:
        return None
    try:
        return seconds(str(until)) + (86_400.0 if len(str(until).strip()) <= 10 else 0.0)
    except (ValueError, OverflowError):
        raise UsageError("until takes a date such as 2024-12-31") from None

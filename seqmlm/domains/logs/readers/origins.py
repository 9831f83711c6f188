"""Read the severity, host and service of a log line.

They come from the header of the format, or from fields of JSON lines and tables. Otherwise, they come from
`level=` and `service=` in the message. Nothing is guessed: facts that no line names are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from seqmlm.data.severities import SYSLOG, highest, severity
from seqmlm.parsing import word_list

Origin = tuple[str, str, str]
"""Severity, host and service; "" for missing ones."""

NOTHING: Origin = ("", "", "")

_SEVERITY = word_list("severity level loglevel log_level lvl levelname severity_text log.level priority")
_HOST = word_list("host hostname _hostname host.name node nodename")
_SERVICE = word_list(
    """service service.name service_name component application app unit _systemd_unit syslog_identifier logger
    program"""
)
_WITHIN = re.compile(
    r"(?<![\w.-])\"?(?:(level|severity|lvl|loglevel|log_level)|(service|component))\"?(?:=| ?: ?(?=\"))"
    r"\"?([A-Za-z][\w.-]*)",
    re.ASCII | re.IGNORECASE,
)
_LONGEST = 100  # most characters of a name
_KNOWN = 1 << 14


@cache
def _origin(level: str, priority: str, host: str, service: str) -> Origin:
    """The origin of a line from the names in its header. A syslog priority determines the severity."""
    if priority:
        level = SYSLOG[int(priority) % 8]
    return severity(level), _first_name(host), _first_name(service)


def header_origins(named: Mapping[str, Sequence[str]], number: int) -> list[Origin] | None:
    """Origins of lines from the names in their headers.

    Args:
        named: a column for each of "severity", "priority" (as in syslog: facility and severity), "host" and
            "service". Other columns of the same kind ("severity_2") are used if the first is empty.
        number: number of lines.
    """
    if not named:
        return None
    columns = []
    for kind in ("severity", "priority", "host", "service"):
        candidates = [column for name, column in named.items() if name.partition("_")[0] == kind]
        first: Sequence[str] = candidates[0] if candidates else [""] * number
        if len(candidates) > 1:
            first = [next(filter(None, texts), "") for texts in zip(*candidates, strict=True)]
        columns.append(first)
    if _origin.cache_info().currsize > _KNOWN:
        _origin.cache_clear()
    return list(map(_origin, *columns))


def origin_reader(names: Iterable[str]) -> Callable[[Mapping[str, Any]], Origin] | None:
    """A function that reads the origin of objects with these field names; None if no field names one."""
    lower = {name.lower(): name for name in names}
    fields = [[lower[name] for name in usual if name in lower] for usual in (_SEVERITY, _HOST, _SERVICE)]
    if not any(fields):
        return None

    def read_origin(row: Mapping[str, Any]) -> Origin:
        """The origin that an object names in these fields."""
        level, host, service = ([_text(row.get(name)) for name in columns] for columns in fields)
        return next(filter(None, map(severity, level)), ""), _first_name(*host), _first_name(*service)

    return read_origin


def origin_facts(messages: Sequence[str], origins: Sequence[Origin] | None) -> dict[str, Any]:
    """Facts about the origin of lines, as far as lines, headers or fields name them.

    The facts are the highest `severity`, and the `host` and the `service` that most lines name. If there are
    several, "hosts" and "services" are their numbers.
    """
    line_origins = origins_of(messages, origins)
    facts: dict[str, Any] = {}
    if worst := highest(origin[0] for origin in line_origins):
        facts["severity"] = worst
    for place, name in ((1, "host"), (2, "service")):
        names = Counter(origin[place] for origin in line_origins if origin[place])
        if names:
            facts[name] = names.most_common(1)[0][0]
        if len(names) > 1:
            facts[f"{name}s"] = len(names)
    return facts


def origins_of(messages: Sequence[str], origins: Sequence[Origin] | None) -> Sequence[Origin]:
    """The origin of each line. If no header has a severity, the text of the line is searched."""
    line_origins = origins or [NOTHING] * len(messages)
    if any(level for level, _, _ in line_origins):
        return line_origins
    inside = map(_message_fields, messages)
    return [
        (level, host, named_service or service)
        for (_, host, named_service), (level, service) in zip(line_origins, inside, strict=True)
    ]


def _message_fields(message: str) -> tuple[str, str]:
    """Severity and service from fields in a message."""
    level = service = ""
    for of_severity, of_service, value in _WITHIN.findall(message):
        level = level or (severity(value) if of_severity else "")
        service = service or (_first_name(value) if of_service else "")
    return level, service


def _text(value: Any) -> str:
    """The text of a field, or the name of an object in it; "" for values that cannot be a name."""
    if isinstance(value, Mapping):
        value = value.get("name")
    return "" if value is None or isinstance(value, (bool, list, dict)) else str(value)


def _first_name(*texts: str) -> str:
    """The first text that is a name, shortened if it is long; "" for none."""
    return next((text[:_LONGEST] for text in texts if text and text != "-"), "")

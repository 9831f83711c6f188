"""Where a line of a log comes from, and how bad it says it is: severity, host and service, as it says them.

A format's header names them, or fields of JSON lines and tables do; else `level=` and `service=` in the
message. Nothing is guessed: what no line says is not there.
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
"""Severity, host, service; "" for what is not said."""

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
_LONGEST = 100  # characters of a name
_KNOWN = 1 << 14


@cache
def _origin(bad: str, priority: str, host: str, service: str) -> Origin:
    if priority:
        bad = SYSLOG[int(priority) % 8]
    return severity(bad), _name(host), _name(service)


def of_headers(named: Mapping[str, Sequence[str]], number: int) -> list[Origin] | None:
    """Origins of lines by what their headers name.

    Args:
        named: a column each of "severity", "priority" (as in syslog: facility and severity), "host" and
            "service"; further columns of one kind ("severity_2") are taken where the first is empty.
        number: of the lines.
    """
    if not named:
        return None
    columns = []
    for kind in ("severity", "priority", "host", "service"):
        own = [column for name, column in named.items() if name.partition("_")[0] == kind]
        first: Sequence[str] = own[0] if own else [""] * number
        if len(own) > 1:
            first = [next(filter(None, some), "") for some in zip(*own, strict=True)]
        columns.append(first)
    if _origin.cache_info().currsize > _KNOWN:
        _origin.cache_clear()
    return list(map(_origin, *columns))


def reading(names: Iterable[str]) -> Callable[[Mapping[str, Any]], Origin] | None:
    """What reads the origin of objects with fields of these names; None where no field says anything."""
    lower = {name.lower(): name for name in names}
    fields = [[lower[one] for one in usual if one in lower] for usual in (_SEVERITY, _HOST, _SERVICE)]
    if not any(fields):
        return None

    def read(row: Mapping[str, Any]) -> Origin:
        bad, host, service = ([_text(row.get(name)) for name in some] for some in fields)
        return next(filter(None, map(severity, bad)), ""), _name(*host), _name(*service)

    return read


def told(messages: Sequence[str], origins: Sequence[Origin] | None) -> dict[str, Any]:
    """What some lines, and their headers or fields, say of their origin, each where something is said: the
    highest `severity`; the `host` and the `service` that most of them name, and of several how many there are
    (`hosts`, `services`)."""
    given = origins_of(messages, origins)
    found: dict[str, Any] = {}
    if worst := highest(one[0] for one in given):
        found["severity"] = worst
    for place, name in ((1, "host"), (2, "service")):
        names = Counter(one[place] for one in given if one[place])
        if names:
            found[name] = names.most_common(1)[0][0]
        if len(names) > 1:
            found[f"{name}s"] = len(names)
    return found


def origins_of(messages: Sequence[str], origins: Sequence[Origin] | None) -> Sequence[Origin]:
    """The origin of each line, as for `told`: where no header says how bad it is, by what the line says."""
    given = origins or [NOTHING] * len(messages)
    if any(bad for bad, _, _ in given):
        return given
    inside = map(_within, messages)
    return [(bad, host, own or service) for (_, host, own), (bad, service) in zip(given, inside, strict=True)]


def _within(message: str) -> tuple[str, str]:
    """Severity and service by fields in a message."""
    bad = service = ""
    for of_severity, of_service, value in _WITHIN.findall(message):
        bad = bad or (severity(value) if of_severity else "")
        service = service or (_name(value) if of_service else "")
    return bad, service


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("name")
    return "" if value is None or isinstance(value, (bool, list, dict)) else str(value)


def _name(*given: str) -> str:
    return next((one[:_LONGEST] for one in given if one and one != "-"), "")

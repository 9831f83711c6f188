"""Requests in access logs: one word for each, of its method, the shape of its path, its status and its time.

As ordinary words they would be lost: templates replace numbers, and any word in which two like lines differ,
so that all requests are one event and a 502 is a 200. As one word a request of a kind never seen is an event
never seen. What every request has another of (numbers, ids, what follows a `?`) is no part of its kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

_LINE = re.compile(r'"(?:(\S+) (\S+)(?: HTTP/[\d.]+)?|[^"\\]*(?:\\.[^"\\]*)*)" (\d{3})(?: \S+)?')
_METHOD = re.compile(r"[A-Z][A-Z-]{1,19}")
_VALUE = re.compile(r"\d+|[0-9A-Fa-f]{8,}|[0-9A-Fa-f-]{32,}|.*\d{4,}.*|.{41,}")
_PHRASES = {status.value: re.sub(r"\W", "", status.phrase) for status in HTTPStatus}
_WORD, _ENDING = re.compile(r"[A-Za-z_]{1,20}"), re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,4}$")
_TIMES = ((0.1, "under100ms"), (1.0, "under1s"), (10.0, "under10s"))

METHODS = ("method", "request_method", "http_method", "verb")
TARGETS = ("uri", "request_uri", "path", "request_path", "url", "target")
STATUSES = ("status", "status_code", "http_status", "response_status", "response_code")
SECONDS = ("request_time", "upstream_response_time")


def shape(target: str) -> str:
    """What the targets of a kind of request have in common.

    The first two parts of the path stay, a third one if it is a word and the last, and the ending of the last
    one; numbers, ids and long words become `*`.

    >>> [shape(target) for target in ("/users/4711?tab=2", "/a/b/c/logo.png", "/users/8/orders", "http://shop/")]
    ['/users/*', '/a/b/*.png', '/users/*/orders', '/']
    """
    path = re.sub(r"^[a-z][a-z0-9+.-]*://[^/?#]*", "", target).split("?")[0].split("#")[0].split(";")[0]
    parts = [part for part in path.split("/") if part]
    kept = [_general(part) if _VALUE.fullmatch(part) else part for part in parts[:2]]
    if len(parts) > 2:
        last = parts[-1]
        kept.append(last if len(parts) == 3 and _WORD.fullmatch(last) else _general(last))
    return "/" + "/".join(kept)


def _general(part: str) -> str:
    """Any part of a path with the same ending."""
    ending = _ENDING.search(part)
    return "*" + (ending[0] if ending else "")


def request(method: str, target: str, status: int, seconds: float | None = None) -> str:
    """The word for a request.

    >>> request("GET", "/items/7", 502), request("GET", "/", 200, 0.82)
    ('GET:/items/*:502BadGateway', 'GET:/:200OK:under1s')
    """
    took = ""
    if seconds is not None:
        took = ":" + next((name for end, name in _TIMES if seconds < end), "over10s")
    kind = method if _METHOD.fullmatch(method) else "malformed"
    return f"{kind}:{shape(target)}:{status}{_PHRASES.get(status, 'Unknown')}{took}"


def of_line(message: str) -> str:
    """The word for what an access log in the common or combined form says; other messages as they are."""
    found = _LINE.match(message)
    if found is None:
        return message
    return request(found[1] or "", found[2] or "", int(found[3]))


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The names under which JSON objects have their requests.

    Args:
        method, target, status: of the request; without a target, `method` has the whole request line.
        seconds: how long it took, or None.
    """

    method: str
    target: str | None
    status: str
    seconds: str | None

    @classmethod
    def among(cls, names: Sequence[str]) -> RequestFields | None:
        """Those among the names that are there; None where the objects are no requests."""
        lower = {name.lower(): name for name in reversed(names)}

        def usual(known: Iterable[str]) -> str | None:
            return next((lower[name] for name in known if name in lower), None)

        method, target, status = usual(METHODS), usual(TARGETS), usual(STATUSES)
        if status is None:
            return None
        if method is not None and target is not None:
            return cls(method, target, status, usual(SECONDS))
        return cls(lower["request"], None, status, usual(SECONDS)) if "request" in lower else None

    def word(self, row: Mapping[str, Any]) -> str | None:
        """The word for an object's request; None where it has none."""
        method, status = row.get(self.method), _number(row.get(self.status)) or 0
        target = None if self.target is None else row.get(self.target)
        if self.target is None and isinstance(method, str):
            method, target = (*method.split(" "), "")[:2]
        if not (isinstance(method, str) and isinstance(target, str) and 100 <= status < 1000):
            return None
        seconds = None if self.seconds is None else _number(row.get(self.seconds))
        return request(method, target, int(status), seconds)


def _number(value: Any) -> float | None:
    """A finite number, also as text; None for anything else."""
    try:
        found = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None

"""Group the files that one service wrote in turn, and order them from the oldest, by their names."""

from __future__ import annotations

import re
from pathlib import Path

from seqmlm.data.files import COMPRESSED

_DATE = r"\d{4}-?\d\d-?\d\d(?:[T._-]?\d\d[:-]?\d\d(?:[:-]?\d\d)?)?"
_ROTATED = re.compile(
    rf"(?:[._-](?:\d{{1,3}}|{_DATE}|old|prev|previous))+(?=\.(?:log|txt|out|err|jsonl?|ndjson|csv|tsv)$|$)",
    re.IGNORECASE,
)
_PART = re.compile(rf"[._-](?:({_DATE})|(\d{{1,3}}))(?![0-9])")


def service_of(source: str) -> str:
    """The path of a log file without the parts that rotation adds. It is equal for all files of one service.

    >>> [service_of(name) for name in ("a/x.log", "a/x.log.2.gz", "a/x-2024-03-05.log", "a/x.log-20240305")]
    ['a/x.log', 'a/x.log', 'a/x.log', 'a/x.log']
    """
    path = _unpacked_path(source)
    return str(path.with_name(_ROTATED.sub("", path.name) or path.name)) if path.name else source


def rotation_of(source: str) -> tuple[str, int, str, int]:
    """A sort key for the files of a folder: by service, and for each service from the oldest to the newest.

    Dates come first. Numbers after a point follow, the greatest first, as in logrotate. Numbers after another
    sign count pieces, so the least comes first. Then come `.old`, and last the file that is being written.

    >>> sorted(("x.log", "x.log.1", "x.log.10.gz", "x.log-20240305", "x.log.2", "x.log.old"), key=rotation_of)
    ['x.log-20240305', 'x.log.10.gz', 'x.log.2', 'x.log.1', 'x.log.old', 'x.log']
    """
    added = _ROTATED.search(_unpacked_path(source).name)
    if added is None:
        return service_of(source), 3, "", 0
    date, number, sign = "", 0, ""
    for part in _PART.finditer(added[0]):
        date = date or re.sub(r"\D", "", part[1] or "")
        number, sign = (int(part[2]), part[0][0]) if part[2] else (number, sign)
    if date:
        return service_of(source), 0, date, number
    return service_of(source), 1 if sign else 2, "", -number if sign == "." else number


def _unpacked_path(source: str) -> Path:
    """A path without the endings of compressed files."""
    path = Path(source)
    while path.suffix.lower() in (*COMPRESSED, ".bz2", ".xz"):
        path = path.with_suffix("")
    return path

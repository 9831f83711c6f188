"""Logs as JSON lines: an application's own, `journalctl -o json`, a container's; or a session an object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.readers.fields import missing
from seqmlm.data.readers.logs.events import Events
from seqmlm.data.readers.logs.fields import Fields, Found, read_time
from seqmlm.data.readers.logs.source import Lines
from seqmlm.data.timestamps import NAN, Clock
from seqmlm.errors import DataError

Row = tuple[int, dict[str, Any]]

DOCKER = frozenset({"log", "stream", "time"})


def objects(batches: Iterator[Lines], source: str, problems: Problems) -> Iterator[list[Row]]:
    """(line, object) of every line that is a JSON object; others go to `problems`, blank ones nowhere.

    An empty list is a pause (`Lines`).
    """
    for numbers, texts in batches:
        if not texts:
            yield []
        rows: list[Row] = []
        for number, text in zip(numbers, texts, strict=True):
            try:
                value = json.loads(text)
                if not isinstance(value, dict):
                    raise ValueError("not an object")
                rows.append((number, value))
            except (ValueError, RecursionError):
                if text and not text.isspace():
                    error = DataError(
                        "not a JSON object",
                        source=source,
                        line=number,
                        remedy="write one object a line, or name the format the file really has",
                    )
                    problems.bad(error, text)
        if rows:
            yield rows


def is_container(row: dict[str, Any]) -> bool:
    """Whether a container runtime wrote it (docker's json-file driver)."""
    return row.keys() >= DOCKER


def docker(batches: Iterator[list[Row]], clock: Clock) -> Iterator[tuple[Events, list[bool]]]:
    """What a container wrote, line by line, and which are parts of a longer one (no line end)."""
    for rows in batches:
        texts = [str(row.get("log", "")) for _, row in rows]
        messages = [text.rstrip("\r\n") for text in texts]
        events = Events(
            numbers=[number for number, _ in rows],
            messages=messages,
            times=[read_time(row.get("time"), clock) for _, row in rows],
            heads=[False] * len(rows),
            whole=messages,
        )
        yield events, [bool(text) and not text.endswith("\n") for text in texts]


def events_of(
    batches: Iterator[list[Row]], found: Found, clock: Clock, source: str, problems: Problems
) -> Iterator[Events]:
    """Objects as events, a message each; objects without a message go to `problems`."""
    name = found.message
    assert name is not None
    for rows in batches:
        if not rows:
            yield Events(numbers=[], messages=[])
            continue
        kept: list[Row] = []
        messages: list[str] = []
        for number, row in rows:
            text = message_of(row.get(name))
            if text is None:
                problems.bad(no_message(name, source, number), _raw(row))
                continue
            kept.append((number, row))
            messages.append(text)
        if not kept:
            continue
        values = [row for _, row in kept]
        yield Events(
            numbers=[number for number, _ in kept],
            messages=messages,
            times=[_time(row, found.times, clock) for row in values] if found.times else None,
            sessions=None if found.session is None else [_ids(row.get(found.session)) for row in values],
            labels=None if found.label is None else [str(row.get(found.label)) for row in values],
            whole=messages,
        )


def message_of(value: Any) -> str | None:
    """The text of a message: journald writes what is no UTF-8 as a list of bytes."""
    if isinstance(value, list) and value and all(isinstance(b, int) and 0 <= b < 256 for b in value):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def no_message(name: str, source: str, line: int) -> DataError:
    """The error for an object without a message."""
    return DataError(
        "no message in the field",
        source=source,
        line=line,
        field=name,
        remedy="name another field with --option message_field=NAME, or leave such lines out "
        "(--on-error skip)",
    )


def fields_of(rows: list[Row], wanted: Fields, source: str, problems: Problems) -> Found | None:
    """The fields of a file by its first objects; None where one is missing, which `problems` then has."""
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    found = wanted.among(names)
    absent = found.missing(wanted, names)
    if absent is None:
        return found
    problems.bad(missing(absent[0], names, source, rows[0][0], absent[1], problems))
    return None


def is_session(row: dict[str, Any], name: str) -> bool:
    """Whether the field holds the lines of a session."""
    return isinstance(row.get(name), list) and bool(row[name]) and isinstance(row[name][0], str)


def _time(row: dict[str, Any], names: tuple[str, ...], clock: Clock) -> float:
    if len(names) == 1:
        return read_time(row.get(names[0]), clock)
    parts = [row.get(name) for name in names]
    return NAN if None in parts else clock[" ".join(map(str, parts))]


def _ids(value: Any) -> tuple[str, ...]:
    return () if value is None or value == "" else (str(value),)


def _raw(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)

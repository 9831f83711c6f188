"""The formats of logs: one reader with many options; the format is named, or found by the first lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from seqmlm.data.dates import is_form
from seqmlm.data.files import live_of, source_of
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.timestamps import Clock
from seqmlm.domains.logs.readers.escapes import without_escapes
from seqmlm.domains.logs.readers.events import line_batches
from seqmlm.domains.logs.readers.headers import HEADERS
from seqmlm.domains.logs.readers.objects import Fields
from seqmlm.domains.logs.readers.reading import Asked, Reading
from seqmlm.domains.logs.readers.sessions import window_of
from seqmlm.errors import UsageError
from seqmlm.parsing import duration

MAX_BYTES = 4 << 20
"""Longest line of a log that is taken for one."""

WINDOW = 64
"""Lines of a window where nothing is said of windows or sessions."""


LIVE_GAP = 60.0
"""Seconds without a line after which a session of a live input is over, where no session_gap is given."""


def read_logs(
    kind: str,
    path: str | Path,
    problems: Problems,
    *,
    session: str = "auto",
    window: int | str | None = None,
    step: int | str | None = None,
    session_gap: int | str | None = None,
    max_open: int = 50_000,
    max_held: int = 1_000_000,
    max_session: int = 10_000,
    multiline: str = "auto",
    zone: str = "UTC",
    year: int | None = None,
    date_format: str | None = None,
    keep_header: bool = False,
    undecodable: str = "refuse",
    text: str | None = None,
    message_field: str | None = None,
    time_field: str | None = None,
    session_field: str | None = None,
    label_field: str | None = None,
    labels: str | None = None,
    fields: str = "auto",
    keep: str | None = None,
    mask: str | None = None,
    patterns: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a log (also .gz, .zst, "-") as windows or sessions: records whose raw is a `LogLines`.

    `meta["lines"]` has the 1-based line each message begins on; `meta["labels"]` what the file calls each and
    `meta["label"]` what it calls the session, where it does; `meta["origins"]` where each comes from (see
    `origins`), and None where no header says so; sensitive logs have none. `document` is the session,
    or the stretch of windows that share lines.

    Args:
        kind: name of a format in `KINDS`; "auto" tells it by the first lines.
        path: the file.
        problems: receives what cannot be read.
        session: expression whose group 1, else whole match, is the id of a line's session (a line with
            several belongs to each); "none" for windows; "auto" takes ids that a field names, or usual ones
            (blk_1, request_id=...) where most of the first lines have them, unless a window is given.
        window: lines of a window, or its duration ("5m"); 64 lines where nothing else is said. With sessions,
            lines that belong to none make such windows.
        step: from one window to the next, in the same kind; None for windows side by side.
        session_gap: pause that ends a session ("30m", or seconds); None: it lasts to the end of the file. On
            a live standard input it is also measured by our own clock, and a minute if it is None.
        max_open, max_held: most sessions open at a time, and most lines of them together; beyond it the one
            idle longest is ended, with a note.
        max_session: most lines of one session's record; further ones make another.
        multiline: "auto" gives lines without the header of the format that go on by their form (indented, of
            a trace) to the message before; "off"; or an expression for the lines that begin a message.
        zone: of times that name none: UTC, an offset (+02:00), or a name (Europe/Berlin).
        year: of the first line, where times have none (syslog); None: the latest the file's age allows.
        date_format: how JSON lines and tables write their dates, such as %m/%d/%Y, where these are no usual
            times of logs; None: in the one order of day and month that all of the first ones fit.
        keep_header: messages are whole lines.
        undecodable: "refuse" lines that are no UTF-8 or hold NUL bytes, or "replace" those bytes.
        text: the same as message_field, as data sets of all fields have it.
        message_field, time_field, session_field, label_field: of JSON lines and tables, where names are not
            the usual ones; several fields of a time with commas between them.
        labels: a CSV or TSV file with a session's id and its label in the first two columns.
        fields: "auto" takes requests of access logs, key=value pairs and JSON objects for fields when a model
            is trained, "none" for words; a trained model reads them as it was trained.
        keep: when a model is trained, fields that stand in templates with each of their values, however many;
            several with commas between them.
        mask: when a model is trained, fields that never do, in the same way.
        patterns: when a model is trained, a file of further kinds of values, one a line: a name in capital
            letters, white space, a regular expression.
        max_bytes: longest line.

    Raises:
        UsageError: options that make no sense.
    """
    if fields not in ("auto", "none"):
        raise UsageError(f"fields is auto or none; got {fields!r}")
    if fields == "none" and (keep or mask):
        raise UsageError("keep and mask name fields, and fields=none reads none: leave one of them out")
    gap = None if session_gap is None else _seconds(session_gap)
    asked = Asked(
        kind=kind,
        session=session,
        window=window_of(WINDOW if window is None else window, step),
        windowed=window is not None or step is not None,
        gap=gap,
        idle=None if live_of(path) is None else gap or LIVE_GAP,
        max_open=max_open,
        max_held=max_held,
        max_session=max_session,
        multiline=multiline,
        keep_header=keep_header,
        fields=Fields(
            message=text or message_field, time=time_field, session=session_field, label=label_field
        ),
        max_bytes=max_bytes,
        whole=fields == "auto",
        date_format=date_format,
    )
    if date_format is not None and not is_form(date_format):
        raise UsageError(f"date_format takes how a date is written, such as %m/%d/%Y; got {date_format!r}")
    if undecodable not in ("refuse", "replace"):
        raise UsageError(f"undecodable is refuse or replace; got {undecodable!r}")
    clock = Clock(zone, year, _last_written(path))
    named = {} if labels is None else _labels(labels, problems)
    batches = line_batches(source_of(path), problems, replace=undecodable == "replace", max_bytes=max_bytes)
    plain = without_escapes(batches, problems)
    return Reading(asked, clock, source_of(path), named, problems).records(plain)


KINDS = (
    "auto",
    "plain",
    *HEADERS,
    "jsonl",
    "journal",
    "docker",
    "csv",
    "tsv",
    "sessions",
)
"""Formats; "journal" and "docker" are told from other JSON lines by their fields."""

READERS = {kind: partial(read_logs, kind) for kind in KINDS}
"""Format name to its reader."""


def _seconds(gap: int | str) -> float:
    seconds = float(gap) if isinstance(gap, int) else duration(gap)
    if not seconds:
        raise UsageError(f"session_gap is a duration such as 90s, 30m, 1h; got {gap!r}")
    return seconds


def patterns_of(path: str) -> dict[str, str]:
    """Kinds of values from a file, name to regular expression; empty lines and those after # are left out.

    Raises:
        UsageError: a file that cannot be read, or a line without a name and an expression.
    """
    try:
        texts = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"patterns: {path} cannot be read: {error}") from None
    found: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        if not text.strip() or text.startswith("#"):
            continue
        name, _, expression = text.strip().partition(" ")
        if not expression.strip():
            raise UsageError(
                f"patterns: {path}:{number} has no expression; write a name in capital letters, a space, "
                "and a regular expression: JOB job-[0-9]+"
            )
        found[name] = expression.strip()
    return found


def _last_written(path: str | Path) -> float:
    try:
        return time.time() if str(path) == "-" else Path(path).stat().st_mtime
    except OSError:
        return time.time()  # what is wrong with the file is said where it is read


def _labels(path: str, problems: Problems) -> dict[str, str]:
    """Session id to label, from a table whose first line names its columns."""
    found: dict[str, str] = {}
    for number, text in lines(path, problems):
        cells = text.split("\t" if "\t" in text else ",")
        if number > 1 and len(cells) > 1:
            found[cells[0]] = cells[1]
    return found

"""Output on stdout and messages on stderr. Tables are formatted on a terminal, and tab-separated in a pipe.

No other module of the command line prints. All text is escaped here, so that control characters in the data
never reach a terminal.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from seqmlm.errors import printable


def say(text: object = "") -> None:
    """Print one or more lines of text on stdout."""
    print(printable(text, lines=True), flush=True)


def tell(text: object) -> None:
    """Print a message of one or more lines on stderr. If stderr is closed, the message is dropped."""
    with suppress(OSError):
        print(printable(text, lines=True), file=sys.stderr, flush=True)


def advise(hint: str) -> None:
    """Print a hint about the next command on stderr, if stderr is a terminal."""
    if hint and sys.stderr.isatty():
        tell(hint)


def print_json(value: Any) -> None:
    """Print one JSON value, indented on a terminal and as one line elsewhere.

    NaN and infinity become null. A dataclass becomes an object with its fields.
    """
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(_plain(value), indent=indent, allow_nan=False))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    on_stderr: bool = False,
) -> None:
    """Print a table: formatted on a terminal, tab-separated lines with a header elsewhere.

    Args:
        columns: the header.
        rows: the cells, as rich markup. Pass untrusted text through `escape`.
        title: shown above the table on a terminal only.
        on_stderr: print on stderr, because stdout has other data.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = sys.stderr if on_stderr else sys.stdout
    if not stream.isatty():
        for row in (columns, *rows):
            texts = (Text.from_markup(str(cell), emoji=False).plain for cell in row)
            print("\t".join(printable(_one_line(text)) for text in texts), file=stream)
        return
    heading = None if title is None else printable(title)
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        # People copy the name in the first column. Only the other columns may wrap on a narrow terminal.
        table.add_column(printable(column), overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*map(printable, row))
    Console(emoji=False, stderr=on_stderr).print(table)  # emoji codes in a log, such as ":bomb:", stay text


def print_facts(facts: dict[str, object]) -> None:
    """Print one fact per line, with names padded to the same width. None and "" are left out."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        if value is not None and value != "":
            print(f"{name:<{width}}  {printable(value)}")


def escape(text: object) -> str:
    """The text with rich markup escaped, so that a table shows it literally."""
    from rich.markup import escape as escape_markup

    return escape_markup(str(text))


def when(milliseconds: int | None) -> str:
    """A time in the local time zone, from milliseconds since 1970; "" for None."""
    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M:%S") if milliseconds else ""


def duration(started: int | None, ended: int | None) -> str:
    """The time between two instants in milliseconds, such as 1h02m or 45s; "" if it has not ended."""
    if not started or not ended:
        return ""
    seconds = max(0, round((ended - started) / 1000))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds % 60:02}s" if minutes else f"{seconds}s"


def number(value: float | int | None) -> str:
    """A number for people.

    It has 4 significant digits below 10,000. From 10,000 on it is rounded to an integer with thousands
    separators. NaN is "-", None is "".
    """
    if value is None:
        return ""
    if math.isnan(value):
        return "-"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value


def end_as_asked(
    signal: int | None, out: Path | str | None, *, go_on: str = "with --resume to complete"
) -> None:
    """If a signal ended the work, print how to continue, and exit with 128 + the signal.

    Args:
        signal: number of the signal; None does nothing.
        out: the output file.
        go_on: the words to add to the same command before the name of the file; "" if it must start again.
    """
    if signal is None:
        return
    if out is not None and go_on:
        tell(f"stopped; run the same command {go_on} {out}")
    elif out is not None:
        tell(f"stopped; {out} is not complete: run the same command again")
    sys.exit(128 + signal)

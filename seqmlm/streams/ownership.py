"""Check which files an output may replace: files that seqmlm wrote, and empty files.

A file is recognised as an output of seqmlm by its first bytes, or by its SHA-256 in the workspace's list of
outputs. The list is for formats without a recognisable beginning, such as lines of text. The price: after a
change, or from another workspace, such an output is not recognised. The user must then move it away.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path

from seqmlm.engine.durable import entry_of
from seqmlm.errors import StateError
from seqmlm.streams.cursor import Cursor
from seqmlm.streams.sinks import PARTIAL, is_at_mark
from seqmlm.workspace import Workspace

_HEAD = 1 << 20  # number of bytes at the beginning of a file that are searched for signatures

_TEXT = r'(?:null|"(?:[^"\\]|\\.)*")'
_SIGNATURES = [
    re.compile(pattern.encode())
    for pattern in (
        # Rows as JSON lines, CSV and TSV, for records, generated sequences, ranked lists and risks.
        rf'\{{(?:"assay": {_TEXT}, )?"id": {_TEXT}, "source": {_TEXT}, "line": (?:null|\d+)[,}}]',
        r'\{"id": "generated-\d+", "text": ',
        rf'\{{"id": {_TEXT}, "ref": {_TEXT}, "weight": [^,]+, "best": ',
        rf'\{{"subject_id": {_TEXT}, "prediction_time": {_TEXT}, "boolean_value": \w+, "predicted_',
        r'(?:"assay",)?"id","source","line"[,\r\n]',
        r"(?:assay\t)?id\tsource\tline[\t\r\n]",
        r'"id","text","filled"[,\r\n]',
        r'"id","ref","weight","best"',
        r'"subject_id","prediction_time","boolean_value","predicted_boolean_value"',
        r"id\ttext\tfilled[\t\r\n]",
        # Files next to rows: quarantined records, the cursor, the facts of a share and of vectors.
        rf'\{{"source": {_TEXT}, "line": (?:null|\d+), "field": {_TEXT}, "reason": ',
        r'\{"version": \d+, "request": \{',
        r'\{"shard": "\d+/\d+", "request": "',
        r'\{"layers": .*"model": "[0-9a-f]{16}"',
        # Pages, SARIF, and tracks of scores.
        r"<!doctype html>[^\0]{0,400}default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-",
        r'\{\s*"\$schema": "[^"]*sarif[^\0]{0,400}"driver": \{\s*"name": "seqmlm"',
        r'#?track [^\n]*description="higher is more unusual"\n',
    )
]
_COLUMNS = (
    ["id", "source", "line"],
    ["assay", "id", "source"],
    ["id", "text", "filled"],
    ["id", "ref", "weight"],
)
"""The first columns of rows in Parquet files."""


def refuse_foreign(path: Path, option: str = "--out") -> None:
    """Refuse to overwrite a file that seqmlm did not write. A path without a file is accepted.

    Args:
        path: the path of an output.
        option: the option that names it, for the message.

    Raises:
        StateError: seqmlm did not write the file, or it cannot be read.
    """
    if path.is_file() and not is_output(path):
        raise StateError(
            f"{option} {path} exists, and seqmlm did not write it: name another file, or move it away"
        )


def is_output(path: Path) -> bool:
    """Whether a file is empty or an output of seqmlm."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    if not size:
        return True
    if head.startswith(b"\x1f\x8b"):
        with suppress(zlib.error):
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD)
    if any(pattern.match(head) for pattern in _SIGNATURES):
        return True
    if head.startswith(b"PAR1") and _has_columns(path):
        return True
    facts = path.with_suffix(".facts.json")
    if head.startswith(b"\x93NUMPY") and facts.is_file() and is_output(facts):
        return True
    if _is_begun(path):
        return True
    listed = _listed(size)
    return bool(listed) and _line(path) in listed


def remember(path: Path) -> None:
    """Add a finished output to the workspace's list, unless it is recognised by its format."""
    if is_output(path):
        return
    line = _line(path)
    with suppress(OSError):  # a workspace that cannot be written has no list
        _list().parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(_list(), flags, 0o600)
        try:
            os.write(handle, line.encode() + b"\n")
        finally:
            os.close(handle)


def _is_begun(path: Path) -> bool:
    """Whether a file belongs to an unfinished run, whose cursor is next to it.

    For a file of partial rows, the cursor is enough. A run that was killed before its first commit may have
    written any part of a row. Any other file must also match the mark in the cursor.
    """
    position, _ = Cursor(path.with_name(path.name.removesuffix(PARTIAL)), {}).unfinished()
    if position is None or path.name.endswith(PARTIAL):
        return position is not None
    return bool(position.output) and is_at_mark(path, position.output)


def _list() -> Path:
    return Workspace.locate().runs / ".outputs"


def _line(path: Path) -> str:
    """The line of a file in the list: its size and SHA-256."""
    entry = entry_of(path)
    return f"{entry['size']} {entry['sha256']}"


def _listed(size: int) -> set[str]:
    """The lines of the workspace's list for files of this size in bytes."""
    try:
        lines = _list().read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    return {line for line in lines if line.startswith(f"{size} ")}


def _has_columns(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        return pa_parquet.read_schema(path).names[:3] in _COLUMNS
    except (OSError, pa.ArrowException):
        return False

"""JSON and YAML that may be damaged or hostile: read as Python reads it, or refused with the reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from seqmlm.parsing import read_json, share


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe{\x00}\x00", "utf-8"),
        (b"\0" * 9, "Expecting value"),
        (b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
        (b"[" * 100_000, "nested more than 64 deep"),
        (b'{"a":' * 100_000, "nested more than 64 deep"),
        (b"1" * 301, "a number with 301 digits"),
        (b"[NaN]", "NaN, which is not a number"),
        (b"[1e999]", "1e999, which is not a number"),
        (b" " * 1001, "more than 1000 bytes"),
    ],
)
def test_json_that_is_none_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_json(tmp_path / "a.json", largest=1000 if b" " in content else 1 << 20, finite=True)


def test_json_is_read_as_python_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for value in ({"a": [1, 2.5, None, True, "é"]}, [[[]]], 5, "x", {"large": 10**30}, []):
        path.write_text(json.dumps(value))
        assert read_json(path, finite=True) == value
    path.write_text("[NaN, -Infinity]")
    assert str(read_json(path)) == "[nan, -inf]"
    path.write_bytes(b"[" * 64 + b"]" * 64)
    read_json(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_json(path)
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_json(path)


@pytest.mark.parametrize("text", ["", "%", "five", "5%%", "5 percent", "1,5%", "inf%%"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        share(text)

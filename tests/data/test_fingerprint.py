"""Fingerprints follow content, whatever the name; of large files they follow samples, size and time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seqmlm.data import fingerprints
from seqmlm.data.fingerprints import combined, file_fingerprint
from seqmlm.errors import DataError


def test_content_counts_and_names_do_not(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"x" * 5000)
    second.write_bytes(b"x" * 5000)
    os.utime(second, (1, 1))
    assert file_fingerprint([first]) == file_fingerprint([second])
    second.write_bytes(b"x" * 4999 + b"y")
    assert file_fingerprint([first]) != file_fingerprint([second])
    assert file_fingerprint([first, second]) != file_fingerprint([second, first])
    # Bytes that move from one file to the next make another input.
    first.write_bytes(b"ab")
    second.write_bytes(b"c")
    before = file_fingerprint([first, second])
    first.write_bytes(b"a")
    second.write_bytes(b"bc")
    assert file_fingerprint([first, second]) != before


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(fingerprints, "_SAMPLE", 10)
    path = tmp_path / "a"
    data = bytearray(range(250)) * 8
    path.write_bytes(data)
    os.utime(path, (1, 1))
    whole = file_fingerprint([path])
    assert whole == file_fingerprint([path])
    for place in (0, 5, len(data) - 1):  # inside the first and the last sample
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        os.utime(path, (1, 1))
        assert file_fingerprint([path]) != whole
    path.write_bytes(data)
    os.utime(path, (2, 2))
    assert file_fingerprint([path]) != whole


def test_what_cannot_be_fingerprinted_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        file_fingerprint([tmp_path / "none"])
    with pytest.raises(DataError, match="a stream has no fingerprint"):
        file_fingerprint(["-"])


def test_combined_names_a_combination() -> None:
    one = combined(files="f", options={"a": 1, "b": 2})
    assert one == combined(options={"b": 2, "a": 1}, files="f")
    assert one != combined(files="f", options={"a": 1, "b": 3})
    assert len(one) == 32
    int(one, 16)

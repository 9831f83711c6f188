"""Standard input written down under the name of its content."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path

import pytest

from seqmlm.data.files import save_stdin
from seqmlm.errors import DataError


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_same_input_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b">a\nMK\n\x1f\x8b")
    first = save_stdin(tmp_path / "new", ".fasta")
    assert first.read_bytes() == b">a\nMK\n\x1f\x8b"
    assert first.suffix == ".fasta"
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    feed(monkeypatch, b">a\nMK\n\x1f\x8b")
    assert save_stdin(tmp_path / "new", ".fasta") == first
    feed(monkeypatch, b">a\nMV\n")
    assert save_stdin(tmp_path / "new", ".fasta") != first
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_nothing_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"")
    with pytest.raises(DataError, match="standard input is empty"):
        save_stdin(tmp_path)
    assert list(tmp_path.iterdir()) == []

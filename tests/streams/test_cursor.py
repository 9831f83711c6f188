"""Cursors: the same request goes on, another is told what differs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from seqmlm.errors import DataError, StateError
from seqmlm.streams.cursor import Cursor, Position, file_facts

POSITION = Position(records=7, output={"bytes": 100}, counts={"units": 5}, problems={"bad": {"x": 1}})


def _request(folder: Path, **changes: Any) -> dict[str, Any]:
    files = file_facts([folder / "a.txt", folder / "b.txt"])
    return {"mode": "exact", "options": {"column": "text"}, "input": files, **changes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    return tmp_path


def test_a_position_comes_back(folder: Path) -> None:
    cursor = Cursor(folder / "out.jsonl", _request(folder), private=True)
    assert cursor.load() is None
    cursor.save(Position())
    cursor.save(POSITION)
    assert Cursor(folder / "out.jsonl", _request(folder)).load() == POSITION
    assert Cursor(folder / "out.jsonl", {}).unfinished() == (POSITION, _request(folder))
    assert (folder / "out.jsonl.resume.json").stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in folder.iterdir()) == ["a.txt", "b.txt", "out.jsonl.resume.json"]
    cursor.remove()
    assert cursor.load() is None
    assert cursor.unfinished() == (None, {})


def test_what_differs_is_named(folder: Path) -> None:
    out = folder / "out.jsonl"
    Cursor(out, _request(folder)).save(POSITION)

    def refused(request: dict[str, Any]) -> str:
        with pytest.raises(StateError) as caught:
            Cursor(out, request).load()
        return str(caught.value)

    assert "mode was exact and is one-pass" in refused(_request(folder, mode="one-pass"))
    assert "options column has changed" in refused(_request(folder, options={"column": "b"}))
    assert "level was not given and is word" in refused(_request(folder, level="word"))
    backwards = dict(reversed(file_facts([folder / "a.txt", folder / "b.txt"]).items()))
    assert "the order of input has changed" in refused(_request(folder, input=backwards))
    fewer = file_facts([folder / "a.txt"])
    assert f"input {folder / 'b.txt'} is missing" in refused(_request(folder, input=fewer))
    os.utime(folder / "a.txt", (1, 1))
    assert Cursor(out, _request(folder)).load() == POSITION, "the same content with another time"
    (folder / "a.txt").write_text("z")
    os.utime(folder / "a.txt", (1, 1))
    assert f"input {folder / 'a.txt'} has changed" in refused(_request(folder))
    assert Cursor(out, _request(folder)).unfinished()[0] == POSITION


def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    data = bytearray(range(250)) * 8
    path.write_bytes(data)
    os.utime(path, (1, 1))
    before = file_facts([path])
    data[777] ^= 1
    path.write_bytes(data)
    os.utime(path, (1, 1))
    assert file_facts([path]) != before
    data[777] ^= 1
    path.write_bytes(data)
    assert file_facts([path]) == before


def test_what_is_read_once_is_not_read_for_its_fingerprint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert file_facts([tmp_path / "pipe", "hf:x@1"]) == {str(tmp_path / "pipe"): "", "hf:x@1": ""}
    with pytest.raises(DataError, match="No such file"):
        file_facts([tmp_path / "none"])


@pytest.mark.parametrize("damage", ["torn", "binary", "list", "digit", "pipe"])
def test_a_broken_cursor_is_refused_and_can_be_started_over(folder: Path, damage: str) -> None:
    cursor = Cursor(folder / "out.jsonl", {})
    cursor.save(POSITION)
    whole = cursor.path.read_bytes()
    if damage == "pipe":
        cursor.path.unlink()
        os.mkfifo(cursor.path)
    else:
        bad = {
            "torn": whole[:20],
            "binary": b"\xff\0",
            "list": b"[3]",
            "digit": whole.replace(b"100", b"900"),
        }
        assert bad[damage] != whole
        cursor.path.write_bytes(bad[damage])
    with pytest.raises(StateError, match="run the command again without --resume"):
        cursor.load()
    assert cursor.unfinished() == (None, {})

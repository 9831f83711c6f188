"""A file that is replaced is the old one or the new one, and nobody else may read it before or after."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from seqmlm.engine import durable


class Recording(durable.Disk):
    """Notes the operations, and fails at one of them."""

    def __init__(self, fail: str = "") -> None:
        self.done: list[str] = []
        self._fail = fail

    def _note(self, kind: str) -> None:
        self.done.append(kind)
        if kind == self._fail:
            raise OSError(28, os.strerror(28))

    def write(self, handle: object, data: bytes | memoryview) -> None:
        self._note("write")
        super().write(handle, data)  # type: ignore[arg-type]

    def sync(self, path: Path) -> None:
        self._note("sync folder" if path.is_dir() else "sync file")
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename")
        super().rename(source, target)


@pytest.mark.parametrize("data", [b"new", lambda file: file.write(b"new")])
def test_a_file_is_replaced_from_bytes_or_by_a_function(data: object, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old and longer")
    durable.replace_file(path, data)  # type: ignore[arg-type]
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_contents_are_on_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Recording()
    monkeypatch.setattr(durable, "DISK", disk)
    durable.replace_file(tmp_path / "a", b"x")
    assert disk.done == ["write", "sync file", "rename", "sync folder"]


@pytest.mark.parametrize("operation", ["write", "sync file", "rename"])
def test_a_failure_leaves_the_old_file_and_no_other(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(durable, "DISK", Recording(operation))
    with pytest.raises(OSError) as caught:
        durable.replace_file(path, b"new")
    assert durable.is_full(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_of_the_writing_function_leaves_the_old_file(tmp_path: Path) -> None:
    def fail(file: object) -> None:
        raise ValueError("a bad value")

    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="a bad value"):
        durable.replace_file(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_on_the_disk_with_its_files_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    building = tmp_path / "building"
    (building / "inner").mkdir(parents=True)
    (building / "inner" / "a").write_bytes(b"x")
    disk = Recording()
    monkeypatch.setattr(durable, "DISK", disk)
    durable.move_into_place(building, tmp_path / "done")
    assert disk.done == ["sync folder", "sync file", "sync folder", "rename", "sync folder"]
    assert (tmp_path / "done" / "inner" / "a").read_bytes() == b"x"


def test_a_file_that_is_moved_into_place_replaces_the_old_one_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    monkeypatch.setattr(durable, "DISK", Recording("sync file"))
    with pytest.raises(OSError):
        durable.move_into_place(new, old)
    assert (old.read_bytes(), new.read_bytes()) == (b"old", b"new")
    monkeypatch.setattr(durable, "DISK", durable.Disk())
    durable.move_into_place(new, old)
    assert (old.read_bytes(), new.exists()) == (b"new", False)


def test_a_private_file_is_private_from_its_first_byte_on(tmp_path: Path) -> None:
    path, seen = tmp_path / "a", []
    path.touch(mode=0o644)
    durable.replace_file(path, lambda file: seen.append(os.fstat(file.fileno()).st_mode & 0o777), mode=0o600)
    assert (seen, path.stat().st_mode & 0o777) == ([0o600], 0o600)


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
        (b"1" * 301, "a number of 301 digits"),
        (b"[NaN]", "NaN, which is no number"),
        (b"[1e999]", "1e999, which is no number"),
        (b" " * 1001, "more than 1000 bytes"),
    ],
)
def test_json_that_is_none_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        durable.read_json(tmp_path / "a.json", largest=1000 if b" " in content else 1 << 20, finite=True)


def test_json_is_read_as_python_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for value in ({"a": [1, 2.5, None, True, "é"]}, [[[]]], 5, "x", {"large": 10**30}, []):
        path.write_text(json.dumps(value))
        assert durable.read_json(path, finite=True) == value
    path.write_text("[NaN, -Infinity]")
    assert str(durable.read_json(path)) == "[nan, -inf]"
    path.write_bytes(b"[" * 64 + b"]" * 64)
    durable.read_json(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        durable.read_json(path)
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        durable.read_json(path)

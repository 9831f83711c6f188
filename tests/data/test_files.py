"""Files and folders to blocks of bytes: compression, what is no file, standard input."""

from __future__ import annotations

import gzip
import io
import os
import socket
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard
from written import refused, written

from seqmlm.data.files import blocks, expand, stem_suffix
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

TEXT = "".join(f"line {i} äöü {sha256(str(i).encode()).hexdigest()}\n" for i in range(5000))
DATA = TEXT.encode()


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, zstandard.compress])
def test_compression_is_transparent_whatever_the_name(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = written(tmp_path / "data", pack(DATA))
    assert b"".join(blocks(path)) == DATA
    assert list(lines(path, Problems())) == list(enumerate(TEXT.splitlines(), 1))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_data_cut_off(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    packed = pack(DATA)
    path = written(tmp_path / "bad", packed[: len(packed) // 2])
    found = list(lines(path, Problems("skip")))
    # What came before is whole lines, and the line given is where it broke off.
    assert found == list(enumerate(TEXT.splitlines(), 1))[: len(found)]
    assert 100 < len(found) < 4900
    message = "data are damaged or truncated"
    assert refused(lines, path, message, found, line=len(found) + 1).bad_count == 1


def test_folders_are_walked_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/2.txt", "a/1.txt", ".hidden", ".git/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [str(tmp_path / name) for name in ("a/1.txt", "a/2.txt", "b.txt")]
    assert expand([tmp_path]) == names
    assert expand(["-", tmp_path / "b.txt"]) == ["-", names[2]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no files"):
        expand([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.FASTA.gz", ".fasta"), ("x/b.txt", ".txt"), ("c.jsonl.zst", ".jsonl"), ("-", ""), ("d.gz", "")],
)
def test_stem_suffix(name: str, suffix: str) -> None:
    assert stem_suffix(name) == suffix


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        said = {
            "pipe": "a pipe, socket or device",
            "nowhere": "a link that leads nowhere",
            "": "a folder where",
        }
        said |= {"loop": "symbolic links", "socket": "cannot be opened", "x/y": "no such file"}
        for name, message in said.items():
            with pytest.raises(DataError, match=message):
                list(blocks(tmp_path / name))
    with pytest.raises(DataError, match="no such file"):
        list(blocks("a\0b"))
    with pytest.raises(DataError, match="a pipe, socket or device"):
        list(blocks("/dev/null"))
    for path in ("a\0b", "x" * 5000, tmp_path / "nowhere", tmp_path / "loop"):
        with pytest.raises(DataError):
            expand([path])
    with pytest.raises(DataError, match="no such file or folder"):
        expand([tmp_path / "none.txt"])


def test_no_permission_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = written(tmp_path / "bad", b"secret")

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(DataError, match="no permission to read it"):
        list(blocks(path))


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_standard_input_by_any_of_its_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b"one\ntwo"))))
    assert list(lines(name, Problems())) == [(1, "one"), (2, "two")]


def test_a_folder_is_read_without_outputs_under_way(tmp_path: Path) -> None:
    output = [f"a.jsonl{end}" for end in ("", ".lock", ".partial.jsonl", ".quarantine.jsonl", ".resume.json")]
    for name in (*output, "a.jsonl.1", "b.jsonl", "b.jsonl.lock", "c.jsonl"):
        (tmp_path / name).write_text("x\n")
    problems = Problems()
    found = expand([tmp_path], problems)
    assert [Path(name).name for name in found] == ["a.jsonl.1", "b.jsonl", "b.jsonl.lock", "c.jsonl"]
    assert problems.counts == {"a file of an unfinished scoring, left out": len(output)}


def test_what_a_folder_holds_beside_files_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "closed").mkdir()
    for name in ("b.txt", "inner/a.txt", ".hidden"):
        (folder / name).write_text("x\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/c.txt").write_text("x\n")
    (folder / "link.txt").symlink_to(tmp_path / "elsewhere/c.txt")
    (folder / "links").symlink_to(tmp_path / "elsewhere")
    (folder / "gone").symlink_to(tmp_path / "gone")
    os.mkfifo(folder / "pipe")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    problems = Problems()
    found = expand([folder], problems)
    assert found == [str(folder / name) for name in ("b.txt", "inner/a.txt", "link.txt")]
    assert problems.places == {
        "a folder that cannot be read: Permission denied": str(folder / "closed"),
        "a link that leads nowhere, left out": str(folder / "gone"),
        "a link to a folder, not followed": str(folder / "links"),
        "a pipe, socket or device, left out": str(folder / "pipe"),
    }
    assert set(problems.counts.values()) == {1}
    assert problems.bad_count == 0

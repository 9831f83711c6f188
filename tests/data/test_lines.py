"""Bytes to lines: encodings, byte order marks, line ends, and every fault with its place."""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import in_blocks, refused, written

from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.errors import UsageError


def test_lines_of_a_pipe_come_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()
    with open(out) as reading, open(into, "wb", buffering=0) as writing:
        monkeypatch.setattr(sys, "stdin", reading)
        found = lines("-", Problems())
        writing.write(b"a\n")  # shorter than the bytes that tell a compression
        writing.write(b"second\nth")
        assert [next(found), next(found)] == [(1, "a"), (2, "second")]
        writing.write(b"ird\n")
        assert next(found) == (3, "third")
        writing.close()
        assert list(found) == []


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"), max_size=30).map(
            lambda text: f"\ufeff{text}" if len(text) % 3 == 1 else text
        )
    ),
    st.integers(1, 40),
    st.booleans(),
)
def test_lines_do_not_depend_on_where_blocks_end(parts: list[str], size: int, ended: bool) -> None:
    text = "\n".join(parts) + "\n" * ended
    data = text.encode()
    with in_blocks(data, size):
        found = list(lines("x", Problems()))
    wanted = text.split("\n")
    if not wanted[-1]:
        wanted.pop()
    wanted = [line.removeprefix("\ufeff") for line in wanted]
    assert found == list(enumerate(wanted, 1))


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\n\nfour\x0cstill four")
    assert list(lines(path, Problems())) == [(1, "one"), (2, "two"), (3, ""), (4, "four\x0cstill four")]


ENCODINGS = ("latin-1", "CP1252", "utf-16", "utf-16-le", "utf-32", "shift_jis", "gb18030", "utf-7", "utf8")


@given(st.sampled_from(ENCODINGS), st.lists(st.text("abc é ß ソ\n", max_size=9)), st.integers(1, 9))
def test_an_encoding_that_is_named_gives_the_lines_that_utf_8_gives(
    encoding: str, parts: list[str], size: int
) -> None:
    text = "\r\n".join(parts) + "end"
    data = text.encode(encoding, "ignore")
    with in_blocks(data, size):
        found = list(lines("x", Problems(), encoding=encoding))
    again = data.decode(encoding)
    assert found == [(n, one.removesuffix("\r")) for n, one in enumerate(again.split("\n"), 1)]


@pytest.mark.parametrize("encoding", ["ascii", "euc_jp", "cp1252"])
def test_bytes_that_are_not_of_the_named_encoding_cost_their_line(encoding: str, tmp_path: Path) -> None:
    # Taken one by one, bytes that are not of the encoding could make a character of UTF-8.
    path = written(tmp_path / "bad", b"one\ntw\x81\xc3\xa9\x8f\nthree\n")
    kept = [(1, "one"), (3, "three")]
    refused(lines, path, f"bytes that are not {encoding}", kept, line=2, encoding=encoding)


MARKED = ("utf-16", "utf-32", "utf-16-be", "utf-32-be")


@given(st.sampled_from(MARKED), st.lists(st.text("abc é ß ソ 👍\u0a0a", max_size=9)), st.booleans())
def test_text_that_a_mark_says_is_in_utf_16_or_32_is_read(
    encoding: str, parts: list[str], packed: bool
) -> None:
    text = "\r\n".join(parts) + "end"
    data = ("\ufeff" * encoding.endswith("be") + text).encode(encoding)
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "bad", gzip.compress(data) if packed else data)
        for named in (None, "utf-8", encoding.removesuffix("-be")):
            found = list(lines(path, Problems(), encoding=named))
            assert found == [(n, one.removesuffix("\r")) for n, one in enumerate(text.split("\n"), 1)]


def test_what_is_not_of_utf_16_costs_its_line(tmp_path: Path) -> None:
    data = "one\n".encode("utf-16") + b"\0\xd8" + "two\nthree\n".encode("utf-16-le") + b"f"
    path = written(tmp_path / "bad", data)
    refused(lines, path, "bytes that are not UTF-8", [(1, "one"), (3, "three")], line=2)


@pytest.mark.parametrize("encoding", ["latin-99", "hex", "", "a\0b", "rot13", "undefined"])
def test_an_encoding_that_nobody_knows_is_a_usage_error(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no encoding .*such as utf-8, latin-1"):
        list(lines(written(tmp_path / "bad", b"one\n"), Problems(), encoding=encoding))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04rest", "a zip archive .*spreadsheet as CSV"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00rest", "compressed with xz"),
        (b"PAR1rest", "a parquet file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "a picture"),
        (bytes(range(256)) * 4, "binary data"),
        ("a line\nanother\n".encode("utf-16-le"), "UTF-16 text without .*iconv -f UTF-16LE"),
        ("a line\nanother\n".encode("utf-16-be"), "UTF-16 text without .*iconv -f UTF-16BE"),
        (gzip.compress(gzip.compress(b"a\n", mtime=0), mtime=0), "compressed twice"),
    ],
)
def test_files_that_are_no_text_are_named(data: bytes, message: str, tmp_path: Path) -> None:
    assert refused(lines, written(tmp_path / "bad", data), message, [], line=None).bad_count == 1
    if data.startswith(b"PK"):
        refused(lines, written(tmp_path / "bad", data), message, [], line=None, encoding="latin-1")


@pytest.mark.parametrize(
    ("bad", "message"), [(b"caf\xe9", "not UTF-8"), (b"a\0b", "binary data"), (b"y" * 101, "longer than")]
)
def test_a_bad_line_is_named_and_the_others_stay(bad: bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "bad", b"z" * 100 + b"\n" + b"fine\n" * 3000 + bad + b"\nlast")
    kept = [(1, "z" * 100), *((n, "fine") for n in range(2, 3002)), (3003, "last")]
    assert refused(lines, path, message, kept, line=3002, max_bytes=100).bad_count == 1


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_of_many_blocks_is_reported_not_kept(end: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "bad", b"one\n" + b"x" * (5 << 20) + end)
    message = "line longer than the limit of 1,048,576 bytes"
    assert refused(lines, path, message, [(1, "one")], line=2, max_bytes=1 << 20).bad_count == 1
    assert len(list(lines(path, Problems()))) == 2  # the ordinary limit is higher


def test_line_ends_of_old_macs_are_read_and_noted(tmp_path: Path) -> None:
    problems = Problems()
    path = written(tmp_path / "bad", b"one\rtwo\rthree")
    assert list(lines(path, problems)) == [(1, "one"), (2, "two"), (3, "three")]
    assert problems.counts == {"lines that end only in CR (old Macs), read as lines": 1}
    path = written(tmp_path / "bad", b"50%\r100%\ndone\r\n")  # a CR inside a line is its own
    assert list(lines(path, Problems())) == [(1, "50%\r100%"), (2, "done")]


def test_a_file_that_shrinks_or_grows_while_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "bad", b"line\n" * 1_000_000)
    found = lines(path, Problems())
    assert next(found) == (1, "line")
    os.truncate(path, 0)
    assert len(list(found)) < 1_000_000
    path = written(tmp_path / "bad", b"line\n" * 10)
    found = lines(path, Problems())
    next(found)
    with path.open("ab") as handle:
        handle.write(b"more\n")
    assert list(found)[-1] in ((11, "more"), (10, "line"))

"""Rows of every format are the same rows, and what is broken is named with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqmlm.data.rows import read_rows, required
from seqmlm.errors import DataError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "1, 2"}\n\n{"id": "y", "text": "3"}\n')
    (tmp_path / "a.csv").write_text('id,text\nx,"1, 2"\n\ny,3\n')
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"id\ttext\nx\t1, 2\n\ny\t3\n"))
    pq.write_table(pa.table({"id": ["x", "y"], "text": ["1, 2", "3"]}), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv.gz", "a.parquet"])
def test_formats_agree(folder: Path, name: str) -> None:
    rows = list(read_rows(str(folder / name)))
    assert [row for _, row in rows] == [{"id": "x", "text": "1, 2"}, {"id": "y", "text": "3"}]
    first = {"a.jsonl": 1, "a.parquet": 1}.get(name, 2)
    assert rows[0][0] == first


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("b.jsonl", '{"id": 1}\n[1]\n', "b.jsonl:2: not a JSON object"),
        ("b.jsonl", "{\n", "b.jsonl:1: not a JSON object"),
        ("b.jsonl", '{"id": 1}\n{"a": [{"b": "\\uD800"}]}\n', "b.jsonl:2: half a character"),
        ("b.csv", "id,text\nx\n", "b.csv:2: a row of 1 fields in a table of 2 columns"),
        ("b.parquet", "PAR1 not", "not parquet"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        list(read_rows(str(tmp_path / name)))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.jsonl, \.csv"):
        list(read_rows(str(tmp_path / "a.txt")))
    for missing in ("no.csv", "no.parquet"):
        with pytest.raises(DataError, match="no such file"):
            list(read_rows(str(tmp_path / missing)))


def test_a_missing_field_is_named_with_what_is_there() -> None:
    assert required({"score": 1}, "score", "f", 3) == 1
    with pytest.raises(DataError, match=r"f:3: field 'scor': no such field \(did you mean 'score'"):
        required({"score": 1}, "scor", "f", 3)

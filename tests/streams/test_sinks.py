"""Sinks: what comes back of rows, and what is left after a stop at any commit."""

from __future__ import annotations

import csv
import json
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from seqmlm.errors import StateError, UsageError
from seqmlm.streams import parquet
from seqmlm.streams.schema import Schema
from seqmlm.streams.sinks import format_of, open_sink

SCHEMA = Schema(
    columns={
        "id": "text",
        "line": "integer",
        "score": "number",
        "alarm": "flag",
        "channels": "channels",
        "top": "units",
    },
    channels=("pll", "length"),
)


def _row(number: int) -> dict[str, Any]:
    return {
        "id": f'r{number}, "x"\n',
        "line": number,
        "score": None if number == 3 else number / 7,
        "alarm": number % 2 == 0,
        "channels": {"pll": 0.5, "length": float("nan") if number == 4 else 1 / (number + 1)},
        "top": [
            {"unit": "ä", "start": 0, "end": 1, "surprisal": 2.5, "expected": [{"unit": "b", "p": 0.25}]}
        ],
        "missing": ["E11"],
    }


ROWS = [_row(number) for number in range(23)]


def _write(path: Path, kind: str, commits: list[int], *, finish: bool = True, private: bool = False) -> Any:
    """Write the rows, committing after those numbers of them."""
    sink = open_sink(path, SCHEMA, format=kind, private=private)
    mark, done = None, 0
    for upto in commits:
        sink.write(ROWS[done:upto])
        mark, done = sink.commit(), upto
    if finish:
        sink.write(ROWS[done:])
        sink.finish()
    sink.close()
    return mark


def _read(path: Path, kind: str) -> list[dict[str, Any]]:
    if kind == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if kind == "csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_json_lines_are_the_rows_with_null_for_what_is_no_number(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", "jsonl", [])
    found = _read(tmp_path / "a.jsonl", "jsonl")
    assert found[4]["channels"] == {"pll": 0.5, "length": None}
    assert [row for n, row in enumerate(found) if n != 4] == [row for n, row in enumerate(ROWS) if n != 4]


def test_a_table_has_flat_columns_and_json_in_cells(tmp_path: Path) -> None:
    _write(tmp_path / "a.csv", "csv", [])
    found = _read(tmp_path / "a.csv", "csv")
    assert list(found[0]) == ["id", "line", "score", "alarm", "p_pll", "p_length", "top", "extra"]
    assert (found[3]["id"], found[3]["score"], found[3]["alarm"]) == ('r3, "x"\n', "", "false")
    assert float(found[5]["score"]) == ROWS[5]["score"]
    assert found[4]["p_length"] == ""
    assert json.loads(found[0]["top"]) == ROWS[0]["top"]
    assert json.loads(found[0]["extra"]) == {"missing": ["E11"]}


def test_parquet_has_nested_units_and_one_schema(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", "parquet", [1, 2, 20])
    found = _read(tmp_path / "a.parquet", "parquet")
    assert [row["line"] for row in found] == list(range(23))
    assert found[2]["top"][0]["expected"] == [{"unit": "b", "p": 0.25}]
    assert (found[3]["score"], found[4]["p_length"], found[5]["p_pll"]) == (None, None, 0.5)
    assert not (tmp_path / "a.parquet.parts").exists()


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_does_not_depend_on_commits_and_stops(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_NESTED_ROW_GROUP", 5)
    whole = tmp_path / f"whole.{kind}"
    _write(whole, kind, [])
    for stop in (1, 7, 22):
        path = tmp_path / f"stopped{stop}.{kind}"
        sink = open_sink(path, SCHEMA, format=kind)
        sink.write(ROWS[:stop])
        mark = sink.commit()
        sink.write(ROWS[stop:])  # never committed: must not be there twice
        if kind != "parquet":
            sink.commit()
        sink.close()
        again = open_sink(path, SCHEMA, format=kind, mark=mark)
        again.write(ROWS[stop:])
        again.finish()
        again.close()
        assert path.read_bytes() == whole.read_bytes(), stop


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_another_file_is_not_gone_on_with(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    mark = _write(path, kind, [9], finish=False)
    if kind == "parquet":
        next((tmp_path / "a.parquet.parts").iterdir()).unlink()
    else:
        path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(StateError, match="is not what the unfinished scoring has written"):
        open_sink(path, SCHEMA, format=kind, mark=mark)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_private_files_are_the_owners(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.touch(mode=0o644)
    _write(path, kind, [3], private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_full_disk_leaves_what_was_committed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    sink = open_sink(path, SCHEMA, format=kind)
    sink.write(ROWS[:5])
    mark = sink.commit()
    before = path.read_bytes()
    with _files_of_at_most(len(before) + 50):
        sink.write(ROWS[5:])
        with pytest.raises(StateError, match=r"cannot write .*a\.\w+: .*free space.*--resume"):
            sink.commit()
    sink.close()
    assert path.read_bytes() == before, "no torn row is left"
    again = open_sink(path, SCHEMA, format=kind, mark=mark)
    again.write(ROWS[5:])
    again.finish()
    again.close()
    _write(tmp_path / "whole", kind, [])
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_full_disk_leaves_whole_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sink = open_sink(path, SCHEMA, format="parquet")
    sink.write(ROWS[:5])
    mark = sink.commit()
    with _files_of_at_most(100):
        sink.write(ROWS[5:])
        with pytest.raises(StateError, match="cannot write"):
            sink.commit()
    sink.close()
    assert [file.name for file in (tmp_path / "a.parquet.parts").iterdir()] == ["00000001.parquet"]
    again = open_sink(path, SCHEMA, format="parquet", mark=mark)
    again.write(ROWS[5:])
    again.finish()
    again.close()
    assert [row["line"] for row in _read(path, "parquet")] == list(range(23))


def test_formats_by_name() -> None:
    assert format_of(Path("x.CSV")) == "csv"
    assert format_of(Path("x.csv"), "parquet") == "parquet"
    assert format_of(None) == format_of(Path("scores")) == "jsonl"
    with pytest.raises(UsageError, match="did you mean 'parquet'"):
        format_of(None, "parket")
    with pytest.raises(UsageError, match="standard output"):
        format_of(None, "parquet")
    with pytest.raises(UsageError, match="p_pll"):
        Schema(columns={"p_pll": "number", "channels": "channels"}, channels=("pll",))

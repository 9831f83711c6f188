"""A live standard input, scored as it comes."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scored import score_files
from tiny_models import protein_model, residues, saved

from seqmlm.errors import DataError
from seqmlm.scoring.config import ScoreConfig


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(protein_model(), tmp_path_factory.mktemp("model")))


@pytest.fixture
def pipe(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    read, write = os.pipe()
    with open(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield write


def _config(model: str) -> ScoreConfig:
    return ScoreConfig(model=model, paths=("-",), max_latency="1s", format="fasta")


def ids(out: io.StringIO) -> list[str]:
    return [json.loads(line)["id"] for line in out.getvalue().splitlines()]


def _line(number: int) -> bytes:
    return f"{residues(12)[number % 5 :]}\n".encode()


@pytest.mark.parametrize("out", [None, "x.csv", "x.parquet"])
def test_a_live_input_can_become_a_table(model: str, pipe: int, tmp_path: Path, out: str | None) -> None:
    os.write(pipe, b"".join(f">p{n}\n".encode() + _line(n) for n in range(5)))
    os.close(pipe)
    path, stdout = None if out is None else tmp_path / out, io.StringIO()
    score_files(replace(_config(model), out=path, format_out="csv" if out is None else None), stdout)
    if path is None:
        found = list(csv.DictReader(io.StringIO(stdout.getvalue())))
    elif out == "x.csv":
        found = list(csv.DictReader(io.StringIO(path.read_text())))
    else:
        found = pq.read_table(path).to_pylist()
    assert [(row["id"], row["source"]) for row in found] == [(f"p{n}", "-") for n in range(5)]
    assert list(tmp_path.iterdir()) == ([] if path is None else [path])


def test_a_signal_scores_what_was_read(model: str, pipe: int) -> None:
    os.write(pipe, b"".join(f">p{n}\n".encode() + _line(n) for n in range(30)))
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    out = io.StringIO()
    summary = score_files(_config(model), out)
    os.close(pipe)
    assert summary.stopped == signal.SIGTERM
    assert ids(out) == [f"p{n}" for n in range(29)], "the last one may not have been whole"


def test_a_bad_record_ends_it_after_the_rows_before(model: str, pipe: int) -> None:
    os.write(pipe, b">a\nMKV\n>b\nMKL\n>bad\n>c\nMKV\n")
    os.close(pipe)
    out = io.StringIO()
    with pytest.raises(DataError, match="without a sequence"):
        score_files(_config(model), out)
    assert ids(out) == ["a", "b"]

"""kill -9 during a scoring loses no row and doubles none: 20 kills here, SEQMLM_KILLS under `make kills`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqmlm import plugins
from seqmlm.data.files import UNDER_WAY
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError
from seqmlm.inference.batches import Budget, Input, from_files
from seqmlm.inference.runner import Output
from seqmlm.streams.sinks import Schema, format_of
from seqmlm.tokenizers.residue import ResidueTokenizer

RECORDS = 1200


def _records(problems: Problems) -> Iterator[Record]:
    for number in range(RECORDS):
        if number % 100 == 57:
            problems.bad(DataError("bad", source="x", line=number), str(number))
        yield Record(id=f"r{number}", raw="M" * 9, source="x", line=number)


def _score(out: Path, pause: float) -> None:
    """What a scoring does, with a slow scorer and a commit after every batch."""
    columns = Schema(columns={"id": "text", "source": "text", "line": "integer", "score": "number"})
    output = Output(out, columns, format=format_of(out), request={"input": "x"}, resume=True)
    aside = Path(f"{out}.quarantine.jsonl")
    with Problems("quarantine", quarantine=aside) as problems:
        position = output.begin(problems)
        done = position.records
        given = Input(_records, plugins.domain("protein"), ResidueTokenizer())
        for batch in from_files(given, problems, position, budget=Budget(), ahead=False):
            for record, _ in batch:
                output.write(
                    [{"id": record.id, "source": "x", "line": record.line, "score": record.line / 3}]
                )
            time.sleep(pause)
            done += batch.read
            output.commit(done, {}, problems)
        output.finish()
        output.close()


def _killed(out: Path, delay: float) -> bool:
    """Score in a child that is killed after `delay` seconds; False where it came to its end before."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _score(out, 0.003)
            status = 0
        finally:
            os._exit(status)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    # The cursor goes last: with an output and no cursor the child was killed on its way out.
    finished = out.exists() and not out.with_name(out.name + UNDER_WAY).exists()
    return os.WIFSIGNALED(status) and not finished


@pytest.mark.kills
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_no_row_is_lost_or_doubled(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmlm.inference.batches.BATCH_RECORDS", 16)
    chance = random.Random(suffix)
    whole = tmp_path / f"whole.{suffix}"
    _score(whole, 0.0)
    aside = Path(f"{whole}.quarantine.jsonl").read_bytes()
    kills, wanted, round_ = 0, int(os.environ.get("SEQMLM_KILLS", "20")), 0
    while kills < wanted:
        round_ += 1
        out = tmp_path / f"out{round_}.{suffix}"
        finished = False
        while kills < wanted and not finished:
            finished = not _killed(out, chance.uniform(0.0, 0.25))
            kills += not finished
        if not finished:
            _score(out, 0.0)
        assert out.read_bytes() == whole.read_bytes(), f"after {kills} kills"
        assert Path(f"{out}.quarantine.jsonl").read_bytes() == aside

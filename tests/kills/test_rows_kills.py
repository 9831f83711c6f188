"""kill -9 while rows are written loses and doubles none: 20 kills here, SEQMLM_KILLS under `make kills`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from forked_cli import start

from seqmlm import plugins
from seqmlm.data.files import UNDER_WAY
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError
from seqmlm.inference.batches import Budget, Input, from_files
from seqmlm.inference.runner import Output
from seqmlm.rows.file import Rows
from seqmlm.streams.sinks import Schema, format_of
from seqmlm.tokenizers.residue import ResidueTokenizer

RECORDS = 1200


def _records(problems: Problems) -> Iterator[Record]:
    for number in range(RECORDS):
        if number % 100 == 57:
            problems.bad(DataError("bad", source="x", line=number), str(number))
        yield Record(id=f"r{number}", raw="M" * 9, source="x", line=number)


def task(out: Path, pause: float) -> None:
    """What a task does, with a slow model; an item has none, one or two rows."""
    with (
        Problems("quarantine", quarantine=Path(f"{out}.quarantine.jsonl")) as problems,
        Rows(out, {"input": "x"}, problems, format=out.suffix[1:], resume=True) as rows,
    ):
        items = _records(problems)
        with rows.skipping() as done:
            assert sum(1 for _ in islice(items, done)) == done
        while some := list(islice(items, 16)):
            time.sleep(pause)
            rows.write([[{"id": one.id, "score": one.line / 3}] * (one.line % 3) for one in some])
        rows.finish()


def scoring(out: Path, pause: float) -> None:
    """What a scoring does, with a slow scorer and a commit after every batch; a second process reads."""
    columns = Schema(columns={"id": "text", "source": "text", "line": "integer", "score": "number"})
    output = Output(out, columns, format=format_of(out), request={"input": "x"}, resume=True)
    with Problems("quarantine", quarantine=Path(f"{out}.quarantine.jsonl")) as problems:
        position = output.begin(problems)
        done = position.records
        given = Input(_records, plugins.domain("protein"), ResidueTokenizer())
        for batch in from_files(given, problems, position, budget=Budget(), ahead=True):
            for record, _ in batch:
                output.write(
                    [{"id": record.id, "source": "x", "line": record.line, "score": record.line / 3}]
                )
            time.sleep(pause)
            done += batch.read
            output.commit(done, {}, problems)
        output.finish()
        output.close()


@pytest.mark.kills
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("work", [task, scoring])
def test_no_row_is_lost_or_doubled(
    tmp_path: Path, work: Callable[[Path, float], None], suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmlm.inference.batches.BATCH_RECORDS", 16)
    chance, whole = random.Random(suffix), tmp_path / f"whole.{suffix}"
    work(whole, 0.0)
    aside = Path(f"{whole}.quarantine.jsonl").read_bytes()
    kills, wanted, turn = 0, int(os.environ.get("SEQMLM_KILLS", "20")), 0
    while kills < wanted:
        turn += 1
        out, finished = tmp_path / f"out{turn}.{suffix}", False
        while kills < wanted and not finished:
            running = start(lambda: work(out, 0.003), tmp_path / "streams")  # noqa: B023 called at once
            time.sleep(chance.uniform(0.0, 0.25))
            os.kill(running.process, signal.SIGKILL)
            ended = running.wait()
            assert ended.code in (0, -signal.SIGKILL), ended.err
            # The mark goes last: with an output and no mark the child was killed on its way out.
            written = out.exists() and not out.with_name(out.name + UNDER_WAY).exists()
            finished = ended.code == 0 or written
            kills += not finished
        if not finished:
            work(out, 0.0)
        assert out.read_bytes() == whole.read_bytes(), f"after {kills} kills"
        assert Path(f"{out}.quarantine.jsonl").read_bytes() == aside

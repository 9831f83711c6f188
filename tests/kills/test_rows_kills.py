"""kill -9 while rows are written loses and doubles none: 20 kills here, SEQMLM_KILLS under `make kills`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked_cli import start

from seqmlm.data.files import UNDER_WAY
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError
from seqmlm.rows.file import Rows
from seqmlm.tasks.reading import Part, parts, parts_read_ahead

RECORDS = 1200


def _records(problems: Problems) -> Iterator[Record]:
    for number in range(RECORDS):
        if number % 100 == 57:
            problems.bad(DataError("bad", source="x", line=number), str(number))
        yield Record(id=f"r{number}", raw="M" * 9, source="x", line=number)


class Slow:
    """A task whose items are the records.

    Args:
        pause: seconds that a part takes.
    """

    config = SimpleNamespace(sources=())

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def records(self, problems: Problems) -> Iterator[Record]:
        return _records(problems)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterable[Record]:
        return records

    def batch_share(self, item: Record) -> float:
        return 1 / 16


def work(reading: Callable[..., Iterator[Part]], out: Path, pause: float) -> None:
    """What a task does, with a slow model; an item has none, one or two rows."""
    with (
        Problems("quarantine", quarantine=Path(f"{out}.quarantine.jsonl")) as problems,
        Rows(out, {"input": "x"}, problems, format=out.suffix[1:], resume=True) as rows,
    ):
        for number, part in enumerate(reading(Slow(pause), problems, rows.done)):
            time.sleep(pause)
            rows.write([[{"id": one.id, "score": one.line / 3}] * (one.line % 3) for one in part.items])
            if number % 2:
                rows.commit()
        rows.commit()
        rows.finish()


@pytest.mark.kills
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("reading", [parts, parts_read_ahead])
def test_no_row_is_lost_or_doubled(
    tmp_path: Path, reading: Callable[..., Iterator[Part]], suffix: str
) -> None:
    """Read here and in a second process; a commit is after every second part."""
    chance, whole = random.Random(suffix), tmp_path / f"whole.{suffix}"
    work(reading, whole, 0.0)
    aside = Path(f"{whole}.quarantine.jsonl").read_bytes()
    kills, wanted, turn = 0, int(os.environ.get("SEQMLM_KILLS", "20")), 0
    while kills < wanted:
        turn += 1
        out, finished = tmp_path / f"out{turn}.{suffix}", False
        while kills < wanted and not finished:
            running = start(lambda: work(reading, out, 0.003), tmp_path / "streams")  # noqa: B023 called at once
            time.sleep(chance.uniform(0.0, 0.25))
            os.kill(running.process, signal.SIGKILL)
            ended = running.wait()
            assert ended.code in (0, -signal.SIGKILL), ended.err
            # The mark goes last: with an output and no mark the child was killed on its way out.
            written = out.exists() and not out.with_name(out.name + UNDER_WAY).exists()
            finished = ended.code == 0 or written
            kills += not finished
        if not finished:
            work(reading, out, 0.0)
        assert out.read_bytes() == whole.read_bytes(), f"after {kills} kills"
        assert Path(f"{out}.quarantine.jsonl").read_bytes() == aside

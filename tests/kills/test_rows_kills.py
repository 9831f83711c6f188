"""kill -9 while rows are written loses and doubles none: 20 kills here, SEQMLM_KILLS under `make kills`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from seqmlm.data.files import UNDER_WAY
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError
from seqmlm.rows.file import Rows

ITEMS = 1200


def _items(problems: Problems) -> Iterator[int]:
    for number in range(ITEMS):
        if number % 100 == 57:
            problems.bad(DataError("bad", source="x", line=number), str(number))
        yield number


def _run(out: Path, pause: float) -> None:
    """What a task does, with a slow model; an item has none, one or two rows."""
    aside, format = Path(f"{out}.quarantine.jsonl"), out.suffix[1:]
    with (
        Problems("quarantine", quarantine=aside) as problems,
        Rows(out, {"input": "x"}, problems, format=format, resume=True) as rows,
    ):
        items = _items(problems)
        with rows.skipping() as done:
            assert sum(1 for _ in islice(items, done)) == done
        while some := list(islice(items, 16)):
            time.sleep(pause)
            rows.write([[{"id": f"r{one}", "score": one / 3}] * (one % 3) for one in some])
        rows.finish()


def _killed(out: Path, delay: float) -> bool:
    """Run in a child that is killed after `delay` seconds; False where it came to its end before."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _run(out, 0.003)
            status = 0
        finally:
            os._exit(status)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    # The mark goes last: with an output and no mark the child was killed on its way out.
    finished = out.exists() and not out.with_name(out.name + UNDER_WAY).exists()
    return os.WIFSIGNALED(status) and not finished


@pytest.mark.kills
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_no_row_is_lost_or_doubled(tmp_path: Path, suffix: str) -> None:
    chance, whole = random.Random(suffix), tmp_path / f"whole.{suffix}"
    _run(whole, 0.0)
    aside = Path(f"{whole}.quarantine.jsonl").read_bytes()
    kills, wanted, turn = 0, int(os.environ.get("SEQMLM_KILLS", "20")), 0
    while kills < wanted:
        turn += 1
        out, finished = tmp_path / f"out{turn}.{suffix}", False
        while kills < wanted and not finished:
            finished = not _killed(out, chance.uniform(0.0, 0.25))
            kills += not finished
        if not finished:
            _run(out, 0.0)
        assert out.read_bytes() == whole.read_bytes(), f"after {kills} kills"
        assert Path(f"{out}.quarantine.jsonl").read_bytes() == aside

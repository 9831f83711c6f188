"""Reading in a second process gives what reading in this one gives, in order, faults included."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from seqmlm import plugins
from seqmlm.data.problems import OnError, Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.inference.batches import BATCH_RECORDS, Budget, Input, can_read_ahead, encoded_batches, from_files
from seqmlm.streams.cursor import Position
from seqmlm.tokenizers.residue import ResidueTokenizer

DOMAIN = plugins.domain("protein")
TOKENIZER = ResidueTokenizer()
MANY = 3 * BATCH_RECORDS + 5

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")


def written(tmp_path: Path, *bad: int) -> Path:
    path = tmp_path / "x.fasta"
    path.write_text(
        "".join(f">p{i}\n{'MKTB1' if i in bad else 'MKT' + 'A' * (i % 9)}\n" for i in range(MANY)),
        encoding="utf-8",
    )
    return path


def read(path: Path, ahead: bool, problems: Problems) -> Iterator[tuple[str, list[int], int]]:
    batches = encoded_batches(
        Input(lambda told: DOMAIN.read([path], told), DOMAIN, TOKENIZER), problems, ahead=ahead
    )
    for batch in batches:
        assert len(batch) <= BATCH_RECORDS
        for one in batch:
            yield one.record.id, one.encoding.ids.tolist(), one.record.line


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_both_ways_give_the_same(tmp_path: Path, on_error: OnError) -> None:
    path = written(tmp_path, 3, 300, 301)
    found, told, aside = [], [], []
    for ahead in (False, True):
        file = tmp_path / f"bad-{ahead}.jsonl"
        with Problems(on_error, quarantine=file) as problems:
            found.append(list(read(path, ahead, problems)))
        told.append((problems.counts, problems.bad_count, problems.places, problems.remedies))
        aside.append(file.read_text() if file.exists() else "")
    assert found[0] == found[1]
    assert len(found[0]) == MANY - 3
    assert told[0] == told[1]
    assert told[0][1] == 3
    assert aside[0] == aside[1]
    assert aside[0].count("\n") == (3 if on_error == "quarantine" else 0)


@pytest.mark.parametrize("ahead", [False, True])
def test_records_before_a_bad_one_come_before_its_error(tmp_path: Path, ahead: bool) -> None:
    path = written(tmp_path, 300)
    stream = read(path, ahead, Problems())
    found = [next(stream) for _ in range(300)]
    with pytest.raises(DataError) as caught:
        next(stream)
    assert caught.value.source == str(path)
    assert caught.value.line == 601
    assert [one[0] for one in found] == [f"p{i}" for i in range(300)]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_of_the_reader_is_raised_after_what_it_read(ahead: bool) -> None:
    def broken(told: Problems) -> Iterator[Record]:
        yield Record(id="a", raw="MKT", source="x", line=1)
        raise UsageError("no such option")

    stream = encoded_batches(Input(broken, DOMAIN, TOKENIZER), Problems(), ahead=ahead)
    assert [one.record.id for one in next(stream)] == ["a"]
    with pytest.raises(UsageError, match="no such option"):
        next(stream)


def test_a_reader_that_dies_is_noticed() -> None:
    def killed(told: Problems) -> Iterator[Record]:
        yield Record(id="a", raw="MKT", source="x", line=1)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(StateError, match="died"):
        list(encoded_batches(Input(killed, DOMAIN, TOKENIZER), Problems(), ahead=True))


def test_nobody_reads_on_when_nobody_listens() -> None:
    def endless(told: Problems) -> Iterator[Record]:
        number = 0
        while True:
            number += 1
            yield Record(id=str(os.getpid()), raw="MKT" * 100, source="x", line=number)

    batches = encoded_batches(Input(endless, DOMAIN, TOKENIZER), Problems(), ahead=True)
    reader = int(next(batches)[0].record.id)
    assert reader != os.getpid()
    os.kill(reader, 0)
    batches.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(reader, 0)


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_are_bounded_by_their_work_and_the_same_from_any_of_their_ends(tmp_path: Path, ahead: bool):
    path = written(tmp_path, 3, 40, 41, 700)
    budget = Budget(batch=2000, cost=lambda tokens: tokens**2)

    def batches(skipped: int) -> list[tuple[list[str], int]]:
        def behind(told: Problems) -> Iterator[Record]:
            return islice(DOMAIN.read([path], told), skipped, None)

        found = encoded_batches(
            Input(behind, DOMAIN, TOKENIZER), Problems("skip"), ahead=ahead, budget=budget
        )
        return [([one.record.id for one in batch], batch.read) for batch in found]

    whole = batches(0)
    assert sum(read for _, read in whole) == MANY
    assert all(len(ids) < 100 for ids, _ in whole)
    for done in (1, 7, len(whole) - 1):
        assert batches(sum(read for _, read in whole[:done])) == whole[done:]


def test_what_was_told_before_is_not_told_again(tmp_path: Path) -> None:
    path = written(tmp_path, 3, 600)
    first, again = Problems("skip"), Problems("skip")
    budget, given = Budget(batch=500), Input(lambda told: DOMAIN.read([path], told), DOMAIN, TOKENIZER)
    stream = from_files(given, first, Position(), budget=budget, ahead=True)
    done = sum(next(stream).read for _ in range(5))
    position = Position(records=done, problems=first.snapshot())
    rest = list(stream)
    gone_on = list(from_files(given, again, position, budget=budget, ahead=True))
    assert [[one.record.id for one in batch] for batch in gone_on] == [
        [one.record.id for one in batch] for batch in rest
    ]
    assert (again.counts, again.places, again.bad_count) == (first.counts, first.places, 2)


def test_one_core_reads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert not can_read_ahead()

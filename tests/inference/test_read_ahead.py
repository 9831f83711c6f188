"""Reading in a second process gives what reading in this one gives, in order, faults included."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from seqmlm import plugins
from seqmlm.data.problems import OnError, Problems
from seqmlm.data.record import Record
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.inference.record_batches import BATCH_RECORDS, Budget, Encoded, batches, tokenized
from seqmlm.tasks.reading import Part, can_read_ahead, parts, parts_read_ahead

DOMAIN = plugins.domain("protein")
TOKENIZER = ResidueTokenizer()
MANY = 3 * BATCH_RECORDS + 5

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")

WAYS = pytest.mark.parametrize("reading", [parts, parts_read_ahead])
Reading = Callable[..., Iterator[Part]]


class Spelling:
    """A task whose items are tokenized records.

    Args:
        read: gives the records.
    """

    def __init__(self, read: Callable[[Problems], Iterable[Record]], budget: Budget | None = None) -> None:
        self.records, self.batch_share = read, (budget or Budget()).share
        self.config = SimpleNamespace(sources=())

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Encoded]:
        for some in batches(records):
            yield from tokenized(DOMAIN, TOKENIZER, some, problems)


def of_file(tmp_path: Path, *bad: int, budget: Budget | None = None) -> Spelling:
    path = tmp_path / "x.fasta"
    path.write_text(
        "".join(f">p{i}\n{'MKTB1' if i in bad else 'MKT' + 'A' * (i % 9)}\n" for i in range(MANY)),
        encoding="utf-8",
    )
    return Spelling(lambda told: DOMAIN.read([path], told), budget)


def named(part: Part) -> list[tuple[str, list[int], int]]:
    return [(one.record.id, one.encoding.ids.tolist(), one.record.line) for one in part.items]


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_both_ways_give_the_same(tmp_path: Path, on_error: OnError) -> None:
    task = of_file(tmp_path, 3, 300, 301)
    found, told, aside = [], [], []
    for reading in (parts, parts_read_ahead):
        file = tmp_path / f"bad-{reading.__name__}.jsonl"
        with Problems(on_error, quarantine=file) as problems:
            found.append([named(part) for part in reading(task, problems)])
        told.append((problems.counts, problems.bad_count, problems.places, problems.remedies, problems.met))
        aside.append(file.read_text() if file.exists() else "")
    assert found[0] == found[1]
    assert max(map(len, found[0])) == BATCH_RECORDS
    assert sum(map(len, found[0])) == MANY - 3
    assert told[0] == told[1]
    assert told[0][1] == 3
    assert aside[0] == aside[1]
    assert aside[0].count("\n") == (3 if on_error == "quarantine" else 0)


@WAYS
def test_records_before_a_bad_one_come_before_its_error(tmp_path: Path, reading: Reading) -> None:
    found = [*reading(of_file(tmp_path, 300), Problems())]
    assert [len(part.items) for part in found] == [BATCH_RECORDS, 300 - BATCH_RECORDS]
    failure = found[-1].failure
    assert isinstance(failure, DataError)
    assert (failure.source, failure.line) == (str(tmp_path / "x.fasta"), 601)


@WAYS
def test_an_error_of_the_reader_comes_with_what_it_read(reading: Reading) -> None:
    def broken(told: Problems) -> Iterator[Record]:
        yield Record(id="a", raw="MKT", source="x", line=1)
        raise UsageError("no such option")

    [part] = reading(Spelling(broken), Problems())
    assert [one.record.id for one in part.items] == ["a"]
    assert isinstance(part.failure, UsageError)


def test_a_reader_that_dies_is_noticed() -> None:
    def killed(told: Problems) -> Iterator[Record]:
        yield Record(id="a", raw="MKT", source="x", line=1)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(StateError, match="died"):
        list(parts_read_ahead(Spelling(killed), Problems()))


def test_nobody_reads_on_when_nobody_listens() -> None:
    def endless(told: Problems) -> Iterator[Record]:
        number = 0
        while True:
            number += 1
            yield Record(id=str(os.getpid()), raw="MKT" * 100, source="x", line=number)

    found = parts_read_ahead(Spelling(endless), Problems())
    reader = int(next(found).items[0].record.id)
    assert reader != os.getpid()
    os.kill(reader, 0)
    found.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(reader, 0)


@WAYS
@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_parts_are_bounded_by_their_work_and_the_same_from_any_of_their_ends(
    tmp_path: Path, reading: Reading, on_error: OnError
) -> None:
    """What was met before is not met again, and counting goes on from it."""
    task = of_file(tmp_path, 3, 40, 41, 700, budget=Budget(batch=2000, cost=lambda tokens: tokens**2))
    with Problems(on_error, quarantine=tmp_path / "all") as problems:
        whole, states = [], []
        for part in reading(task, problems):
            whole.append(named(part))
            states.append(problems.snapshot())
        last = problems.snapshot()
    assert sum(map(len, whole)) == MANY - 4
    assert all(len(part) < 100 for part in whole)
    for done in (1, 7, len(whole) - 1):
        with Problems(on_error, quarantine=tmp_path / f"from-{done}") as again:
            with again.replaying(states[done - 1]):
                pass
            items = sum(map(len, whole[:done]))
            assert [named(part) for part in reading(task, again, items)] == whole[done:]
            assert {**again.snapshot(), "quarantined": 0} == {**last, "quarantined": 0}
            assert again.quarantined == last["quarantined"] - states[done - 1]["quarantined"]


@WAYS
def test_an_input_that_has_become_shorter_is_not_gone_on_with(tmp_path: Path, reading: Reading) -> None:
    with pytest.raises(StateError, match="the input now has only 773"):
        list(reading(of_file(tmp_path), Problems(), MANY + 1))


def test_small_inputs_and_one_core_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = of_file(tmp_path)
    task.config.sources = [str(tmp_path / "x.fasta")]
    assert not can_read_ahead(task)
    monkeypatch.setattr("seqmlm.tasks.reading.READ_AHEAD_BYTES", 1)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert can_read_ahead(task)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert not can_read_ahead(task)

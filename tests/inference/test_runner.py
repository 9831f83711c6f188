"""The loop of a run: a task of two functions, commits, and what is continued after a crash."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from tiny_models import protein_model, residues, saved

from seqmlm.data.files import UNDER_WAY
from seqmlm.data.problems import Problems
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.query import Query
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import DataError, StateError
from seqmlm.inference import batches, runner
from seqmlm.inference.batches import Encoded
from seqmlm.inference.runner import Counts, Output, Runner
from seqmlm.inference.session import Session
from seqmlm.streams.sinks import Schema, partial_of

COLUMNS = Schema(columns={"id": "text", "length": "integer"})


@pytest.fixture
def session() -> Session:
    return Session(protein_model())


@pytest.fixture
def fasta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty sequences, four in a batch, a commit after every second batch."""
    monkeypatch.setattr(batches, "BATCH_RECORDS", 4)
    monkeypatch.setattr(runner, "COMMIT_RECORDS", 8)
    path = tmp_path / "p.fasta"
    path.write_text("".join(f">p{n}\n{residues(3 + n % 9)}\n" for n in range(40)))
    return path


def lengths(batch: Sequence[Encoded]) -> list[tuple[str, int]]:
    return [(one.record.id, len(one.encoding)) for one in batch]


def lines(found: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"id": name, "length": length} for name, length in found]


def test_the_task_of_the_docstring_computes_masked_marginals(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = protein_model()
    saved(model, workspace / "enzymes")
    raw = residues(15)
    variants = [f"{raw[place - 1]}{place}{new}" for place, new in ((1, "W"), (7, "A"), (15, "C"))]
    monkeypatch.chdir(workspace)
    Path("variants.fasta").write_text("".join(f">{name}\n{raw}\n" for name in variants))
    text = str(runner.__doc__)
    code = dedent(text[text.index("    session = ") : text.index("What was done")])
    exec(code, {**vars(runner), "np": np, "Query": Query})
    found = [json.loads(line) for line in Path("marginals.jsonl").read_text().splitlines()]
    assert [row["id"] for row in found] == variants
    ask, encoding = Conditionals(model.rows), model.tokenizer.encode(raw)
    for row in found:
        at = np.array([int(row["id"][1:-1])], dtype=np.int32)
        logs = []
        for letter in (row["id"][0], row["id"][-1]):
            target = model.tokenizer.encode(letter).ids[1:2]
            [answer] = ask.ask([Query(encoding=encoding, masked=at, asked=at, targets=target)])
            logs.append(float(answer.values["log_prob"][0]))
        assert row["marginal"] == pytest.approx(logs[1] - logs[0], abs=1e-5)
        assert abs(row["marginal"]) > 1e-3


@pytest.mark.parametrize("crash", range(10))
def test_a_run_that_crashed_is_continued_from_its_last_commit(
    session: Session, fasta: Path, tmp_path: Path, crash: int
) -> None:
    seen: list[str] = []

    class Letters(Counts):
        letters = 0

        def restore(self, counts: Mapping[str, Any]) -> None:
            super().restore(counts)
            self.letters = int(counts.get("letters", 0))

        def snapshot(self) -> dict[str, Any]:
            return {**super().snapshot(), "letters": self.letters}

    def run(out: Path, stop: int | None, resume: bool) -> Runner[Encoded, list[tuple[str, int]]]:
        counts, done = Letters(), 0

        def answers(batch: Sequence[Encoded]) -> list[tuple[str, int]]:
            nonlocal done
            if done == stop:
                raise KeyboardInterrupt
            done += 1
            seen.extend(one.record.id for one in batch)
            return lengths(batch)

        def rows(found: list[tuple[str, int]]) -> list[dict[str, Any]]:
            counts.rows += len(found)
            counts.letters += sum(length for _, length in found)
            return lines(found)

        output = Output(out, COLUMNS, request={"input": str(fasta)}, resume=resume)
        one = Runner(session, answers, rows, output, Problems(), counts=counts)
        one.run([str(fasta)])
        return one

    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    truth = run(whole, None, False)
    with pytest.raises(KeyboardInterrupt):
        run(out, crash, False)
    seen.clear()
    again = run(out, None, True)
    assert seen[0] == f"p{crash // 2 * 8}", "the last commit is after every second batch"
    assert out.read_bytes() == whole.read_bytes()
    assert (again.records, again.counts.snapshot()) == (40, truth.counts.snapshot())
    assert not out.with_name(out.name + UNDER_WAY).exists()


def test_a_signal_ends_answers_but_never_rows(session: Session, fasta: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    ended: list[str] = []

    def run(*, during: str) -> int:
        done = 0

        def answers(batch: Sequence[Encoded]) -> list[tuple[str, int]]:
            nonlocal done
            done += 1
            if done == 3 and during == "answers":
                os.kill(os.getpid(), signal.SIGTERM)
                ended.append("never reached")
            return lengths(batch)

        def rows(found: list[tuple[str, int]]) -> list[dict[str, Any]]:
            if done == 3 and during == "rows":
                os.kill(os.getpid(), signal.SIGTERM)
            return lines(found)

        with StopSignals() as signals:
            output = Output(out, COLUMNS, request={})
            one = Runner(session, answers, rows, output, Problems(), signals=signals)
            one.run([str(fasta)])
        assert one.stopped == signal.SIGTERM
        assert len(out.read_text().splitlines()) == one.records
        return one.records

    assert run(during="answers") == 8
    assert run(during="rows") == 12
    assert ended == []


def test_scores_are_forgotten_at_each_commit(session: Session, fasta: Path, tmp_path: Path) -> None:
    caches: list[int] = []

    def answers(batch: Sequence[Encoded]) -> list[tuple[str, int]]:
        caches.append(id(session.cache))
        kept.append(session.cache)
        return lengths(batch)

    kept: list[Any] = []
    Runner(session, answers, lines, Output(tmp_path / "o.jsonl", COLUMNS), Problems()).run([str(fasta)])
    assert [caches.index(one) for one in caches] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]


def items_up_to_an_error() -> Any:
    yield from ("a", "b", "c")
    raise DataError("no more", source="x")


def named(found: list[str]) -> list[dict[str, Any]]:
    return [{"id": name} for name in found]


def test_on_standard_output_items_come_batch_by_batch_up_to_the_error(session: Session) -> None:
    stdout = io.StringIO()
    one = Runner(session, list[str], named, Output(None, COLUMNS, stdout=stdout), Problems())
    with pytest.raises(DataError, match="no more"):
        one.run_items(items_up_to_an_error(), most=2)
    assert [json.loads(line)["id"] for line in stdout.getvalue().splitlines()] == ["a", "b"]


def test_two_runs_do_not_write_one_file(session: Session, fasta: Path, tmp_path: Path) -> None:
    """The second is refused at once and touches nothing, not even what says how far the first has come."""
    out, tried = tmp_path / "out.jsonl", list[dict[str, bytes]]()

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def answers(batch: Sequence[Encoded]) -> list[tuple[str, int]]:
        if batch[0].record.id == "p12":
            tried.append(files())
            for resume in (False, True):
                other = Output(tmp_path / "." / "out.jsonl", COLUMNS, request={}, resume=resume)
                second = Runner(session, lengths, lines, other, Problems())
                with pytest.raises(StateError, match=r"out\.jsonl is in use by another process"):
                    second.run([str(fasta)])
            assert files() == tried[0]
        return lengths(batch)

    Runner(session, answers, lines, Output(out, COLUMNS, request={}), Problems()).run([str(fasta)])
    assert tried[0].keys() == {"p.fasta", "out.jsonl", "out.jsonl.lock", f"out.jsonl{UNDER_WAY}"}
    assert len(out.read_text().splitlines()) == 40
    assert {path.name for path in tmp_path.iterdir()} == {"p.fasta", "out.jsonl"}


@pytest.mark.parametrize("text", ["", ">a\nM1\n>b\nM2\n"])
@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_an_input_of_which_nothing_could_be_read_is_an_error(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, on_error: Any
) -> None:
    monkeypatch.setattr(runner, "COMMIT_RECORDS", 1)
    monkeypatch.setattr(batches, "BATCH_RECORDS", 1)
    source, out, aside = tmp_path / "p.fasta", tmp_path / "out.jsonl", tmp_path / "aside"
    source.write_text(text)
    out.write_text("old")
    with Problems(on_error, quarantine=aside) as problems:
        one = Runner(session, lengths, lines, Output(out, COLUMNS, request={}), problems)
        with pytest.raises(DataError, match="no record could be read") as caught:
            one.run([str(source)])
    assert (problems.bad_count, caught.value.exit_code) == (2 if text else 1, 3)
    assert out.read_text() == "old"
    if on_error == "skip":
        assert {path.name for path in tmp_path.iterdir()} == {"p.fasta", "out.jsonl"}


@pytest.mark.parametrize("stop", [None, 3])
def test_what_is_asked_and_what_is_left_out_add_up(
    session: Session, fasta: Path, tmp_path: Path, stop: int | None
) -> None:
    """Bad for the reader (no sequence) or for the tokenizer (a digit): left out, and not asked about."""
    text = fasta.read_text().replace(">p5\n", ">bad\nM1\n>p5\n")
    fasta.write_text(text.replace(">p20\n", ">none\n>worse\nM2\n>p20\n"))
    out = tmp_path / "out.jsonl"

    def run(stop: int | None, resume: bool) -> tuple[int, int, int]:
        counts, problems, done = Counts(), Problems("skip"), 0

        def answers(batch: Sequence[Encoded]) -> list[tuple[str, int]]:
            nonlocal done
            if done == stop:
                raise KeyboardInterrupt
            done += 1
            return lengths(batch)

        output = Output(out, COLUMNS, request={}, resume=resume)
        Runner(session, answers, lines, output, problems, counts=counts).run([str(fasta)])
        return counts.asked, problems.bad_count, len(out.read_text().splitlines())

    if stop is not None:
        with pytest.raises(KeyboardInterrupt):
            run(stop, False)
    records = fasta.read_text().count(">")
    asked, bad, rows = run(None, stop is not None)
    assert (asked + bad, rows) == (records, asked)
    assert bad == 3


def test_an_unfinished_table_goes_when_another_format_is_begun(session: Session, fasta: Path, tmp_path: Path):
    out = tmp_path / "out"

    def run(format: str, stop: bool) -> None:
        def answers(batch: Sequence[Encoded]) -> list[tuple[str, int]]:
            if stop and batch[0].record.id == "p12":
                raise KeyboardInterrupt
            return lengths(batch)

        output = Output(out, COLUMNS, format=format, request={"format": format})
        Runner(session, answers, lines, output, Problems()).run([str(fasta)])

    with pytest.raises(KeyboardInterrupt):
        run("csv", True)
    assert partial_of(out).exists()
    run("jsonl", False)
    assert {path.name for path in tmp_path.iterdir()} == {"p.fasta", "out"}

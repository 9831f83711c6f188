"""The loop that tasks over many records run in: input -> batches -> answers -> rows -> output.

A task brings two functions. `answers` asks the model about a batch; a signal may end it anywhere. `rows`
makes the rows of the output out of what was answered; it is always finished. The runner does the rest: it
reads ahead, commits, continues an unfinished output, stops at a signal after what it has begun, and counts.
A new task, here the masked marginals of protein variants that are named as A12G, is written like this:

    session = Session.open("enzymes", shown=True)

    def answers(batch):
        queries = []
        for record, encoding in batch:
            place = np.array([int(record.id[1:-1])], dtype=np.int32)
            both = session.tokenizer.encode(record.id[0] + record.id[-1]).ids[1:-1]
            asked = np.repeat(place, 2)
            queries.append(Query(encoding=encoding, masked=place, asked=asked, targets=both))
        return zip(batch, list(session.conditionals().ask(queries)), strict=True)

    def rows(found):
        scores = [(one.record.id, answer.values["log_prob"]) for one, answer in found]
        return [{"id": name, "marginal": float(new - old)} for name, (old, new) in scores]

    output = Output(Path("marginals.jsonl"), Schema(columns={"id": "text", "marginal": "number"}))
    Runner(session, answers, rows, output, Problems()).run(["variants.fasta"])

What was done between two commits is done again after a crash. Commits are about half a minute of work apart:
each costs two syncs of the disk, and the scores that were remembered (`Session.forget`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TextIO, TypeVar

from seqmlm.data.problems import Problems
from seqmlm.engine.durable import FileLock
from seqmlm.engine.signals import Stopped, StopSignals
from seqmlm.errors import DataError, SeqmlmError
from seqmlm.inference import batches
from seqmlm.inference.batches import Batch, Budget, Encoded, input_batches
from seqmlm.inference.session import Session
from seqmlm.streams.cursor import Cursor, Position
from seqmlm.streams.outputs import output_lock
from seqmlm.streams.sinks import Fields, Schema, Sink, open_sink, partial_of, unwritable

COMMIT_RECORDS = 1 << 16
"""Records after which a commit is made, where the budget of forward tokens is not used up before."""

Item = TypeVar("Item")
Answers = TypeVar("Answers")


class Progress(Protocol):
    """Told what happens on the way."""

    def message(self, text: str) -> None:
        """A sentence for a person."""

    def progress(self, records: int, rows: int, alarms: int, share: float | None = None) -> None:
        """So much is done; `share` of all, where that is known."""


class NoProgress:
    """Tells nobody."""

    def message(self, text: str) -> None: ...

    def progress(self, records: int, rows: int, alarms: int, share: float | None = None) -> None: ...


class Counts:
    """What a run counts, rows at least; a task that counts more extends it.

    Attributes:
        asked: records that the model was asked about: those read without the ones that were left out.
        rows, alarms: of them.
    """

    asked = rows = alarms = 0

    @property
    def share(self) -> float | None:
        """Of the input, by estimate; None where it is not known how much there is."""
        return None

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Continue from what `snapshot` gave at the last commit; empty at the beginning."""
        self.asked, self.rows = int(counts.get("asked", 0)), int(counts.get("rows", 0))

    def snapshot(self) -> dict[str, Any]:
        """What a cursor remembers; JSON can hold it."""
        return {"asked": self.asked, "rows": self.rows}


class Runner(Generic[Item, Answers]):
    """One run under way.

    Args:
        session: the model.
        answers: asks about a batch. A signal may end it between any two operations, so it must not change
            what `rows` or `counts` build on.
        rows: the rows of what was answered, in order; adds to `counts`.
        output: where they go; closed at the end of the run.
        problems: receives bad records.
        counts: what the task counts; written with each commit.
        budget: of a batch and of a commit interval; None for that of exact scores.
        progress: told what happens.
        signals: ask for a stop; None for a run that ends as any program does.

    Attributes:
        records: of the input, done so far, those of earlier processes and those left out included.
    """

    def __init__(
        self,
        session: Session,
        answers: Callable[[Batch[Item]], Answers],
        rows: Callable[[Answers], Sequence[Fields]],
        output: Output,
        problems: Problems,
        *,
        counts: Counts | None = None,
        budget: Budget | None = None,
        progress: Progress | None = None,
        signals: StopSignals | None = None,
    ) -> None:
        self.session, self.output, self.problems = session, output, problems
        self.counts, self.budget = counts or Counts(), budget or Budget.of(session.model)
        self.records = self._before = self._committed = 0
        self._position, self._finished = Position(), True
        self._began = time.monotonic()
        self._answers, self._rows = answers, rows
        self._progress: Progress = progress or NoProgress()
        self._signals = signals or StopSignals()

    @property
    def stopped(self) -> int | None:
        """The signal that ended the run early, or None."""
        return self._signals.received

    @property
    def seconds(self) -> float:
        """Since the input was opened."""
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """Records a second of this process."""
        seconds = self.seconds
        return (self.records - self._before) / seconds if seconds else 0.0

    def run(
        self: Runner[Encoded, Answers],
        sources: Sequence[str],
        *,
        format: str | None = None,
        options: Mapping[str, Any] | None = None,
        latency: float | None = None,
    ) -> None:
        """Run over records of the session's domain, to the end of the input or until a signal comes.

        Args:
            sources: files, folders or "-".
            format, options: as `Domain.read` takes them.
            latency: seconds within which rows follow their lines: standard input is read while it is written,
                and every batch is committed. None: the sources are read as files.

        Raises:
            DataError: a bad record, where `problems` raises; the rows before it are written. Or no record at
                all could be read: then the output is what it was.
            StateError: rows that cannot be written, or an unfinished output that cannot be continued.
        """
        with (
            self._written(),
            input_batches(
                self.session,
                self.problems,
                self._position,
                sources=sources,
                format=format,
                options=options or {},
                latency=latency,
                budget=self.budget,
                stopping=lambda: self.stopped is not None,
            ) as found,
        ):
            if latency is None:
                self._over(found)
            else:
                self._over_live(found)
            if self.stopped is None and not self.counts.asked:
                raise self._nothing(sources)

    def _nothing(self, sources: Sequence[str]) -> DataError:
        """The error for an input of which no record could be read; of sensitive data without a count."""
        bad = self.problems.bad_count
        told = "; ".join(list(self.problems.counts)[:3])
        some = "all" if self.problems.sensitive else f"all {bad:,}"
        return DataError(
            f"no record could be read{f' ({some} were left out: {told})' if bad else ''}",
            source=", ".join(sources[:3]) + (" ..." if len(sources) > 3 else ""),
            remedy="look at the data with 'seqmlm data inspect'",
        )

    def run_items(self, items: Iterable[Item], *, most: int = batches.BATCH_RECORDS) -> None:
        """Run over whatever else is asked about; of an output without a request, which is not continued.

        Args:
            items: in order.
            most: of them in a batch.

        Raises:
            DataError: what the items or `answers` raise.
            StateError: rows that cannot be written.
        """
        stream = iter(items)
        with self._written():
            assert not self.records
            parts = iter(lambda: list(islice(stream, most)), [])
            self._over(Batch(part, read=len(part)) for part in parts)

    def run_turns(self, turns: Iterable[Iterable[Batch[Item]]]) -> None:
        """Run over the batches of turn after turn, each of which is committed as a whole.

        Raises:
            DataError: what the turns raise; the rows of earlier ones are written.
            StateError: rows that cannot be written.
        """
        with self._written():
            for turn in turns:
                for batch in turn:
                    self._done(batch, broken=False)
                self._commit()

    @contextmanager
    def _written(self) -> Iterator[None]:
        """The output: opened, where it was left or anew, and finished unless a signal came."""
        try:
            self._position = self.output.begin(self.problems)
            for note in self.output.notes:
                self._progress.message(note)
            self.records = self._before = self._committed = self._position.records
            self.counts.restore(self._position.counts)
            self._began = time.monotonic()
            yield
            if self._finished:
                self.output.finish()
        except SeqmlmError:
            if not self.counts.asked:
                self.output.forget(self.problems)
            raise
        finally:
            self.output.close()

    def _over(self, found: Iterable[Batch[Item]]) -> None:
        try:
            for batch in found:
                self._done(batch)
                if not batch.whole:
                    self.output.keep()  # what is done stays to be seen, but the interval is not whole
                elif self._due():
                    self._commit()
                    self.session.forget()
                if self.stopped is not None:
                    break
        except Stopped:
            pass
        if self.stopped is not None:
            self._finished = False
            self.output.keep()

    def _over_live(self, found: Iterable[Batch[Item]]) -> None:
        for batch in found:
            self._done(batch, broken=False)
            if self.counts.asked:
                self._commit()

    def _done(self, batch: Batch[Item], *, broken: bool = True) -> None:
        """Ask about a batch and write its rows."""
        if batch:  # else all its records were bad
            with self._signals.breaking() if broken else nullcontext():  # what is lost is asked again
                answers = self._answers(batch)
            self.output.write(self._rows(answers))
        self.records += batch.read
        self.counts.asked += len(batch)
        counts = self.counts
        self._progress.progress(counts.asked, counts.rows, counts.alarms, counts.share)

    def _due(self) -> bool:
        if not self.counts.asked:
            return False  # a commit would take the place of an older output with nothing
        tokens = self.session.forward_tokens
        return tokens >= self.budget.commit_interval or self.records - self._committed >= COMMIT_RECORDS

    def _commit(self) -> None:
        self.output.commit(self.records, self.counts.snapshot(), self.problems)
        self._committed = self.records


class Output:
    """The rows of one run on their way to a file or stream.

    A file has a cursor beside it from the beginning to the end of the run, so that one that was killed can be
    continued, and a lock, so that two runs do not write it at once. One without a `request` is there when it
    is complete; a file that was there before stays until then. `begin` comes first.

    Args:
        path: the file; None for `stdout`.
        columns: of the rows.
        format: one of `seqmlm.streams.sinks.FORMATS`.
        request: what decides the rows, for the cursor: it continues where all of it is the same. None for
            a run that cannot be continued.
        resume: continue an unfinished output.
        private: only the owner may read what is written.
        stdout: where rows go without a file; None for nowhere.
    """

    def __init__(
        self,
        path: Path | None,
        columns: Schema,
        *,
        format: str = "jsonl",
        request: Mapping[str, Any] | None = None,
        resume: bool = False,
        private: bool = False,
        stdout: TextIO | None = None,
    ) -> None:
        self.path, self._columns, self._format = path, columns, format
        self._resume, self._private, self._stdout = resume, private, stdout
        self._cursor: Cursor | None = None
        self._lock: FileLock | None = None
        if path is not None and request is not None:
            self._cursor = Cursor(path, request, private=private)
        self._sink: Sink | None = None
        self._rows = 0
        self._anew = False  # this run has begun it, and has committed nothing
        self._quarantined = 0  # bytes of the quarantine file that are of earlier runs
        self.notes: list[str] = []

    def claim(self) -> None:
        """Keep other runs from this output until `close`; `begin` does so where nobody did before.

        Raises:
            StateError: another run writes it, or its folder is a file or cannot be written.
        """
        if self.path is not None and self._lock is None:
            lock = output_lock(self.path)
            lock.acquire()
            self._lock = lock

    def begin(self, problems: Problems) -> Position:
        """Open the output, where it was left or anew; says where to continue.

        Raises:
            StateError: it cannot be continued: the request, an input or the output is not what it was; or as
                `claim` does.
        """
        self.claim()
        position = self._left(problems)
        self._rows = position.rows
        if self.path is not None or self._stdout is not None:
            self._sink = open_sink(
                self.path,
                self._columns,
                format=self._format,
                private=self._private,
                mark=position.output or None,
                stdout=self._stdout,
                resumable=self._cursor is not None,
            )
        return position

    def _left(self, problems: Problems) -> Position:
        """Where an unfinished run of this output has come, if it is to be continued; else a new beginning."""
        if self._cursor is None:
            return Position()
        if self._resume:
            found = self._cursor.load()
            if found is not None:
                self._quarantined = int(found.counts["quarantined_before"])
                problems.cut_quarantine(int(found.problems["quarantined"]))
                self.notes.append(f"continuing {self.path} after {found.records:,} records")
                return found
            self.notes.append(f"no unfinished scoring of {self.path}: beginning")
        elif (unfinished := self._cursor.unfinished()) is not None:
            if unfinished.records:  # else nothing of it is lost
                self.notes.append(
                    f"an unfinished scoring of {self.path} is started over (--resume would continue it)"
                )
            problems.cut_quarantine(int(unfinished.counts.get("quarantined_before", 0)))
            assert self.path is not None
            partial_of(self.path).unlink(missing_ok=True)  # it may have been in another format
        self._cursor.remove()
        self._quarantined = problems.quarantined
        # From here on there is something to continue; the output itself is not touched yet.
        self._save(Position(), problems)
        self._anew = True
        return Position()

    def write(self, rows: Sequence[Fields]) -> None:
        """Take rows.

        Raises:
            StateError: they cannot be written.
        """
        if self._sink is not None:
            self._sink.write(rows)
            self._rows += len(rows)

    def commit(self, records: int, counts: Mapping[str, Any], problems: Problems) -> None:
        """Make what was written survive, and note that the first `records` records are done.

        Raises:
            StateError: the disk refuses it; the last commit stays.
        """
        mark = {} if self._sink is None else self._sink.commit()
        self._anew = False
        self._save(Position(records=records, rows=self._rows, output=mark, counts=counts), problems)

    def _save(self, position: Position, problems: Problems) -> None:
        if self._cursor is None:
            return
        try:
            met = problems.snapshot()
        except OSError as error:
            raise unwritable(problems.quarantine or Path("the quarantine"), error) from None
        counts = {**position.counts, "quarantined_before": self._quarantined}
        self._cursor.save(replace(position, counts=counts, problems=met))

    def finish(self) -> None:
        """Everything is written: bring the file into its final form, and forget how far it had come.

        Raises:
            StateError: it cannot be written.
        """
        if self._sink is not None:
            self._sink.finish()
        if self._cursor is not None:
            self._cursor.remove()

    def keep(self) -> None:
        """Before a run ends early: let the rows before that be seen.

        Raises:
            StateError: they cannot be written.
        """
        if self._sink is not None:
            self._sink.commit()

    def forget(self, problems: Problems) -> None:
        """A run ends before anything is done: what it has begun itself needs not be continued."""
        if self._cursor is not None and self._anew and problems.quarantined == self._quarantined:
            self._cursor.remove()

    def close(self) -> None:
        """Close the output; rows since the last commit are in the file where the disk took them."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

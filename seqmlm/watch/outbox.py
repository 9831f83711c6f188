"""Turns of reading followed files, each committed with its rows in one transaction.

A turn commits together: the read positions (`watch.generations.FileState`), the rows, the changes of
incidents, and the counts. After a kill, the next process continues from the last commit. No row is lost or
repeated.

The output file is written after the commit. Its length and the number of its last row are part of the next
commit. A later process cuts the file to that length and appends the missing rows from the database. The
trade-off: the rows are stored in both the database and the file. Standard output cannot be cut, so that rows
after the last commit are printed twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import StateError, number_of
from seqmlm.streams.outputs import output_lock
from seqmlm.streams.sinks import Fields, LinesSink, Mark, StreamSink, changed_output_error, json_lines
from seqmlm.watch.follower import Follower
from seqmlm.watch.generations import FileState, Gap
from seqmlm.watch.grouping import Grouping
from seqmlm.watch.request import continued
from seqmlm.watch.store import ALIVE, Change, Incident, Notice, StreamEntry, Streams, Turn

COMMIT_SECONDS = 5.0
"""Seconds between commits of read positions, if there are no rows."""

_MOMENT = 0.05  # seconds between two checks of files that do not grow
_REFILLED = 1000  # rows that are fetched at a time to restore the output


class Outbox:
    """The queue that commits the rows of followed files to the database, then writes them to a file.

    Args:
        path: the file of JSON lines. With `stdout` it is not written, but names the stream and its lock.
        registry: the database.
        request: everything that determines the rows; see `watch.request`.
        follow: begins to follow the files, from the states of an earlier follower.
        grouping: groups alarms into incidents.
        tell: receives changes of incidents after they were committed.
        clock: returns the time in seconds since 1970-01-01 UTC.
        notify: makes notices for the webhook from changes of incidents.
        stdout: receives the rows instead of a file.

    Attributes:
        notes: messages for the user about the start.
        recalibrated: whether rows are scored with another calibration than in the earlier process.
        number: number of the last row.
        stream: id of the stream in the database; 0 before `begin`.
        gaps: number of places in the whole stream where bytes could not be read.
        waiting: rows that wait for a commit, with their numbers.

    Raises:
        StateError: another run writes the output, or its folder is a file or cannot be written.
    """

    follower: Follower
    recalibrated = False
    gaps = stream = number = _written = 0
    _lines: LinesSink | StreamSink | None = None

    def __init__(
        self,
        path: Path,
        registry: Streams,
        request: Mapping[str, Any],
        follow: Callable[[Sequence[FileState]], Follower],
        *,
        grouping: Grouping | None = None,
        tell: Callable[[Change], None] = lambda change: None,
        clock: Callable[[], float] = time.time,
        notify: Callable[[Sequence[Change]], Sequence[Notice]] = lambda changes: (),
        stdout: TextIO | None = None,
    ) -> None:
        self._stdout, self.notes = stdout, list[str]()
        self._lock = output_lock(path)
        self._lock.acquire()
        self._grouping = grouping or Grouping(model="")
        self._tell, self._clock = tell, clock
        self._open: dict[int, Incident] = {}
        self._out, self._registry, self._follow, self._notify = path, registry, follow, notify
        self._name = str(path.expanduser().resolve())
        self._request = json.loads(json.dumps(request, default=str))
        self._mark: Mark = {}
        self.waiting: list[tuple[int, Fields]] = []

    def begin(self, problems: Problems) -> dict[str, Any]:
        """Find the stream of this output or begin a new one, and restore the file from the database.

        Returns:
            The counts of its last commit.

        Raises:
            StateError: the stream has other settings, or the file was changed by others.
        """
        self._registry.protect(self._request)
        entry, resumed = self._entry()
        self.stream = entry.id
        standing = self._registry.incidents(stream=entry.id, standing=True)
        self._open = {incident.row: incident for incident in standing if incident.state != "resolved"}
        self._refill(entry)
        counts = dict(entry.counts)
        if snapshot := counts.pop("problems", {}):
            problems.cut_quarantine(int(snapshot["quarantined"]))
            with problems.replaying(snapshot):
                pass  # counting continues from there
        self.gaps = int(counts.pop("gaps", 0))
        self.follower = self._follow([FileState(**state) for state in entry.files])
        if resumed is not None:
            self.notes.append(f"continuing {self._out} after {'; '.join((self._state(), *resumed))}")
        return counts

    def _entry(self) -> tuple[StreamEntry, Sequence[str] | None]:
        """The stream of this output, and messages about its continuation; None if it is new."""
        entry = self._registry.stream(self._name)
        if entry is not None:
            going_on = continued(entry.request, self._request, self._out)
            self.recalibrated = going_on.recalibrated
            if going_on.request != entry.request:
                self._registry.set_request(entry.id, going_on.request)
            return entry, going_on.notes
        if self._stdout is None and self._out.exists() and self._out.stat().st_size:
            raise StateError(
                f"{self._out} exists, but no stream of this workspace wrote it: name another --out, or move "
                "it away"
            )
        self._registry.begin_stream(self._name, self._request)
        entry = self._registry.stream(self._name)
        assert entry is not None
        return entry, None

    def _state(self) -> str:
        rows, count = number_of(self._written, "row"), len(self._open)
        if not count:
            return rows
        return f"{rows}, with {count:,} {'incident that is' if count == 1 else 'incidents that are'} not over"

    def _refill(self, entry: StreamEntry) -> None:
        """Cut the file to its mark, and write all later rows to it."""
        self._written, mark = entry.written, dict(entry.mark) or None
        if mark is not None and not self._out.exists():
            mark, self._written = None, 0
            if entry.pruned.rows:
                self.notes.append(
                    f"{self._out} no longer exists; it is rewritten without "
                    f"{number_of(entry.pruned.rows, 'row')} up to number {entry.pruned.through:,}, "
                    "which were pruned from the database"
                )
        try:
            if self._stdout is None:
                self._lines = LinesSink(self._out, mark=mark)
            else:
                self._lines = StreamSink(self._stdout, json_lines)
        except StateError as error:
            if str(error) != str(changed_output_error(self._out)):
                raise
            raise StateError(
                f"cannot continue {self._out}: it has changed since it was written; restore it, or move it "
                "away to have it rewritten from the database"
            ) from None
        while rows := self._registry.stream_rows(self.stream, self._written, _REFILLED):
            self._write_lines(rows)
        self._mark = self._lines.commit()
        self.number = self._written

    def _write_lines(self, rows: Sequence[tuple[int, str]]) -> None:
        assert self._lines is not None
        self._lines.write_lines("".join(f"{line}\n" for _, line in rows).encode())
        self._written = rows[-1][0]

    @property
    def due(self) -> bool:
        """Whether an open incident is over, so that a commit must resolve it."""
        now = self._clock()
        return any(self._grouping.over(incident, now) for incident in self._open.values())

    def incidents(self) -> int:
        """The number of incidents of the whole stream, including pruned ones."""
        entry = self._registry.stream(self._name)
        pruned = 0 if entry is None else entry.pruned.incidents
        return len(self._registry.incidents(stream=self.stream)) + pruned

    def write(self, rows: Sequence[Fields]) -> None:
        """Add rows to the next commit."""
        self.waiting += enumerate(rows, self.number + 1)
        self.number += len(rows)

    def write_gap(self, gap: Gap) -> None:
        """Add a row about bytes that could not be read."""
        self.gaps += 1
        place = {"id": f"{Path(gap.path).name}:{gap.line}", "source": gap.path, "line": gap.line}
        lost = {"offset": gap.offset, "bytes": gap.size or None}
        self.write([{**place, "gap": lost, "reason": gap.reason}])

    def commit(self, counts: Mapping[str, Any], problems: Problems) -> None:
        """Commit rows, counts and states of files together. Then write the rows to the file.

        Whenever a row raises an alarm, the incidents are read from the database again: a person may have
        acknowledged or muted them.

        Raises:
            StateError: the database or the file cannot be written. Earlier commits are unchanged.
        """
        assert self._lines is not None
        numbered, changes, belongs = self.waiting, list[Change](), dict[int, int]()
        if self.due or any(row.get("alarm") for _, row in numbered):
            standing = self._registry.patiently(
                partial(self._registry.incidents, stream=self.stream, standing=True)
            )
            numbered, changes, belongs = self._grouping.judge(numbered, standing, self._clock())
        rows = [(n, bool(row.get("alarm")), json_lines([row]).decode().rstrip()) for n, row in numbered]
        turn = Turn(
            files=[asdict(state) for state in self.follower.states()],
            rows=rows,
            counts={**counts, "gaps": self.gaps, "problems": problems.snapshot()},
            mark=self._mark,
            written=self._written,
            changes=changes,
            belongs=belongs,
        )
        save = partial(self._registry.commit_stream, self.stream, turn, self._notify)
        changes, self.waiting = self._registry.patiently(save), []
        if rows:
            self._write_lines([(number, line) for number, _, line in rows])
            self._mark = self._lines.commit()
        for change in changes:
            self._open[change.incident.row] = change.incident
            if change.kind == "resolved":
                del self._open[change.incident.row]
            self._tell(change)

    def close(self) -> None:
        """Close all files, and release the lock of the output."""
        if hasattr(self, "follower"):
            self.follower.close()
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        self._lock.release()


def turns(outbox: Outbox, *, stopping: Callable[[], bool]) -> Iterator[list[Record]]:
    """Yield the records of each turn. The caller must commit each turn before it requests the next.

    The last turn is empty. Its commit saves the final read positions.

    Args:
        outbox: receives the gaps of each turn.
        stopping: called before each turn; True ends the iteration.
    """
    committed, follower = time.monotonic(), outbox.follower
    while not stopping():
        records = follower.turn()
        for gap in follower.gaps:
            outbox.write_gap(gap)
        seconds = time.monotonic() - committed
        late = seconds >= (COMMIT_SECONDS if follower.has_changes else ALIVE.total_seconds()) or outbox.due
        if records or outbox.waiting or late:
            yield records
            committed = time.monotonic()
        if follower.idle:
            time.sleep(_MOMENT)
    yield []

"""A run over files that are followed: turns of reading, each committed with its rows in one transaction.

The database is the truth. What a turn has read (`watch.generations.FileState`), the rows that came of it,
what these did to incidents and the counts are committed together, or not at all; so after a kill the next
process begins where the last commit left it, and no row is lost or doubled. The file of rows comes after
that: its length, with the number of its last row, is in the next commit, and whoever continues cuts it back
to that and fills it again from the database. The trade-off: the rows are in the database as well as in the
file. Standard output cannot be cut back: rows after the last commit before a kill are given twice.
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
"""Between commits of how far files were read, where no row came of it."""

_MOMENT = 0.05  # seconds between two looks at files that do not grow
_REFILLED = 1000  # rows that are fetched at a time to fill the output again


class Outbox:
    """The rows of files that are followed on their way to the database, and from there to a file.

    Args:
        path: of the JSON lines; with `stdout` nothing is there, and what is kept beside it has its name.
        request: what decides the rows; see `watch.request`.
        follow: begins to follow the files, from the states of an earlier follower.
        tell: takes what happened to incidents, after it was committed.
        notify: makes notices of it for the webhook.
        stdout: takes the rows in place of a file.

    Attributes:
        notes: what a person should know of the beginning.
        recalibrated: whether rows are judged by another calibration than those of an earlier process.
        number: of the last row that was taken.
        stream: number of the stream in the database; 0 before `begin`.
        gaps: places where bytes could not be read, of the whole stream.
        waiting: rows that wait for a commit, each with its number.

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
        """Find the stream of this output, or begin a new one; the file is brought to what the database has.

        Returns:
            The counts of its last commit.

        Raises:
            StateError: its settings were others, or the file is not what was written.
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
            self.notes.append(f"going on with {self._out} behind {'; '.join((self._state(), *resumed))}")
        return counts

    def _entry(self) -> tuple[StreamEntry, Sequence[str] | None]:
        """The stream of this output, and what is to be said of its going on, None of a new one."""
        entry = self._registry.stream(self._name)
        if entry is not None:
            going_on = continued(entry.request, self._request, self._out)
            self.recalibrated = going_on.recalibrated
            if going_on.request != entry.request:
                self._registry.set_request(entry.id, going_on.request)
            return entry, going_on.notes
        if self._stdout is None and self._out.exists() and self._out.stat().st_size:
            raise StateError(
                f"{self._out} is there, and no following of this workspace has written it: name another "
                "--out, or move it away"
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
        """Cut the file back to its mark, and write the rows that come after it."""
        self._written, mark = entry.written, dict(entry.mark) or None
        if mark is not None and not self._out.exists():
            mark, self._written = None, 0
            if entry.pruned.rows:
                self.notes.append(
                    f"{self._out} is gone, and is written anew without {number_of(entry.pruned.rows, 'row')} "
                    f"that were pruned from the database, of those up to number {entry.pruned.through:,}"
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
                f"cannot go on with {self._out}: it is not what was written to it; put it back, or move it "
                "away, and it is written anew from what rows the database has"
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
        """Whether an incident is over that is not resolved: time for a commit."""
        now = self._clock()
        return any(self._grouping.over(incident, now) for incident in self._open.values())

    def incidents(self) -> int:
        """The number of incidents of the whole stream."""
        entry = self._registry.stream(self._name)
        pruned = 0 if entry is None else entry.pruned.incidents
        return len(self._registry.incidents(stream=self.stream)) + pruned

    def write(self, rows: Sequence[Fields]) -> None:
        """Take rows; they are kept with the next commit."""
        self.waiting += enumerate(rows, self.number + 1)
        self.number += len(rows)

    def write_gap(self, gap: Gap) -> None:
        """Take a row that says which bytes could not be read."""
        self.gaps += 1
        place = {"id": f"{Path(gap.path).name}:{gap.line}", "source": gap.path, "line": gap.line}
        lost = {"offset": gap.offset, "bytes": gap.size or None}
        self.write([{**place, "gap": lost, "reason": gap.reason}])

    def commit(self, counts: Mapping[str, Any], problems: Problems) -> None:
        """Keep rows, counts and the states of the files together; then write the rows to the file.

        The open incidents are read from the database each time that a row alarms, and not remembered: a
        person may have acknowledged or muted them by then. StateError: the database or the file cannot be
        written; what was committed before stays.
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
        """Close all files, and let others write the output."""
        if hasattr(self, "follower"):
            self.follower.close()
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        self._lock.release()


def turns(outbox: Outbox, *, stopping: Callable[[], bool]) -> Iterator[list[Record]]:
    """The records of turn after turn until it is to stop, asked before each; each is to be committed before
    the next, and in the end what was read last once more."""
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

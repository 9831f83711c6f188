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
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import StateError, number_of
from seqmlm.registry.database import patiently
from seqmlm.streams.cursor import differences
from seqmlm.streams.outputs import output_lock
from seqmlm.streams.ownership import refuse_foreign
from seqmlm.streams.sinks import Fields, LinesSink, Mark, StreamSink, changed, json_lines
from seqmlm.watch.follower import Follower
from seqmlm.watch.generations import FileState, Gap
from seqmlm.watch.grouping import Grouping
from seqmlm.watch.rolling import Rolling
from seqmlm.watch.store import ALIVE, Change, Incident, Notice, StreamEntry, Streams

COMMIT_SECONDS = 5.0
"""Between commits of how far files were read, where no row came of it."""

_MOMENT = 0.05  # seconds between two looks at files that do not grow
_REFILLED = 1000  # rows that are fetched at a time to fill the output again


class Outbox:
    """The rows of files that are followed on their way to the database, and from there to a file.

    Args:
        path: of the JSON lines; with `stdout` nothing is there, and what is kept beside it has its name.
        request: what decides the rows; a stream is continued where all of it is the same.
        follow: begins to follow the files, given how far they were read.
        private: only the owner may read the file, and a database that is a file.
        tell: takes what happened to incidents, after it was committed.
        notify: what webhooks are to be told of it.
        stdout: takes the rows in place of a file.

    Attributes:
        notes: what a person should know of the beginning.
        number: of the last row that was taken.
        stream: number of the stream in the database; 0 before `begin`.
        gaps: places where bytes could not be read, of the whole stream.
        waiting: rows that wait for a commit, each with its number.

    Raises:
        StateError: another run writes the output, or its folder is a file or cannot be written.
    """

    follower: Follower
    gaps = stream = number = _written = 0
    _lines: LinesSink | StreamSink | None = None
    _rolling: Rolling | None = None

    def __init__(
        self,
        path: Path,
        registry: Streams,
        request: Mapping[str, Any],
        follow: Callable[[Sequence[FileState]], Follower],
        *,
        private: bool = False,
        grouping: Grouping | None = None,
        tell: Callable[[Change], None] = lambda change: None,
        clock: Callable[[], float] = time.time,
        notify: Callable[[Sequence[Change]], Sequence[Notice]] = lambda changes: (),
        stdout: TextIO | None = None,
    ) -> None:
        self._private, self._stdout, self.notes = private, stdout, list[str]()
        self._lock = output_lock(path)
        self._lock.acquire()
        self._grouping = replace(grouping or Grouping(model=""), private=private)
        self._tell, self._clock = tell, clock
        self._open: dict[int, Incident] = {}
        self._out, self._registry, self._follow, self._notify = path, registry, follow, notify
        self._name = str(path.expanduser().resolve())
        self._request = json.loads(json.dumps(request, default=str))
        self._mark: Mark = {}
        self.waiting: list[tuple[int, Fields]] = []

    def begin(self, problems: Problems) -> dict[str, Any]:
        """Find the stream of this output, or begin one; the file is brought to what the database has; the
        counts of its last commit; StateError: it was asked something else, or the file is not what was
        written."""
        if self._private:
            self._registry.protect()
        found = self._registry.stream(self._name)
        if new := found is None:
            if self._stdout is None and self._out.exists() and self._out.stat().st_size:
                refuse_foreign(self._out)
                raise StateError(
                    f"{self._out} is there, and no following of this workspace has written it: name another "
                    "--out, or move it away"
                )
            self._registry.begin_stream(self._name, self._request)
            found = self._registry.stream(self._name)
        assert found is not None
        if differing := differences(found.request, self._request):
            other = "name another --out" if self._stdout is None else "name a file with --out"
            raise StateError(
                f"cannot go on with {self._out}: {'; '.join(differing)}; give what was given before, or "
                f"{other}"
            )
        self.stream = found.id
        standing = self._registry.incidents(stream=found.id, standing=True)
        self._open = {one.row: one for one in standing if one.state != "resolved"}
        self._refill(found)
        counts = dict(found.counts)
        if met := counts.pop("problems", {}):
            problems.cut_quarantine(int(met["quarantined"]))
            with problems.replaying(met):
                pass  # counting continues from what was met then
        self.gaps = int(counts.pop("gaps", 0))
        self.follower = self._follow([FileState(**one) for one in found.files])
        left, behind = len(self._open), number_of(self._written, "row")
        more = f", with {left:,} {'incident that is' if left == 1 else 'incidents that are'} not over"
        if not new:
            self.notes.append(f"going on with {self._out} behind {behind}{more if left else ''}")
        return counts

    def _refill(self, found: StreamEntry) -> None:
        """Cut the file back to its mark, and write the rows that come after it."""
        self._written, mark = found.written, dict(found.mark) or None
        if mark is not None and not self._out.exists():
            mark, self._written = None, 0
            if found.pruned.rows:
                self.notes.append(
                    f"{self._out} is gone, and is written anew without {number_of(found.pruned.rows, 'row')} "
                    f"that were pruned from the database, of those up to number {found.pruned.through:,}"
                )
        try:
            if self._stdout is None and mark is None:
                refuse_foreign(self._out)
            if self._stdout is None:
                self._lines = LinesSink(self._out, private=self._private, mark=mark)
            else:
                self._lines = StreamSink(self._stdout, json_lines)
        except StateError as error:
            if str(error) != str(changed(self._out)):
                raise
            raise StateError(
                f"cannot go on with {self._out}: it is not what was written to it; put it back, or move it "
                "away, and it is written anew from what rows the database has"
            ) from None
        while some := self._registry.stream_rows(self.stream, self._written, _REFILLED):
            self._put(some)
        self._mark = self._lines.commit()
        self.number = self._written

    def _put(self, rows: Sequence[tuple[int, str]]) -> None:
        assert self._lines is not None
        self._lines.put("".join(f"{line}\n" for _, line in rows).encode())
        self._written = rows[-1][0]

    def take_up(self, rolling: Rolling | None, model: str) -> None:
        """From now on keep this calibration with the rows (None: keep no statistics), which goes on where it
        was, if it was this one's; `model` is the reference of the one that judges."""
        self._rolling, self._grouping = rolling, replace(self._grouping, model=model)
        if rolling is not None:
            faults = partial(patiently, partial(self._registry.faults, self.stream))
            rolling.begin(self._registry.rolling(self.stream), faults)

    @property
    def due(self) -> bool:
        """Whether an incident is over that is not resolved: time for a commit."""
        now = self._clock()
        return any(self._grouping.over(one, now) for one in self._open.values())

    def incidents(self) -> int:
        """How many there were, in the whole stream."""
        found = self._registry.stream(self._name)
        pruned = 0 if found is None else found.pruned.incidents
        return len(self._registry.incidents(stream=self.stream)) + pruned

    def write(self, rows: Sequence[Fields]) -> None:
        """Take rows; they are kept with the next commit."""
        self.waiting += enumerate(rows, self.number + 1)
        self.number += len(rows)

    def tell_gap(self, gap: Gap) -> None:
        """Take a row that says which bytes could not be read."""
        self.gaps += 1
        place = {"id": f"{Path(gap.path).name}:{gap.line}", "source": gap.path, "line": gap.line}
        lost = {"offset": gap.offset, "bytes": gap.size or None}
        self.write([{**place, "gap": lost, "reason": gap.reason}])

    def commit(self, counts: Mapping[str, Any], problems: Problems) -> None:
        """Keep rows, counts and the states of the files together; then write the rows to the file.

        What is open is asked of the database each time that a row alarms, and not remembered: a person may
        have acknowledged or muted it by then. StateError: the database or the file cannot be written; what
        was committed before stays.
        """
        assert self._lines is not None
        given, changes, belongs = self.waiting, list[Change](), dict[int, int]()
        if self.due or any(row.get("alarm") for _, row in given):
            standing = patiently(partial(self._registry.incidents, stream=self.stream, standing=True))
            given, changes, belongs = self._grouping.judge(given, standing, self._clock())
        rows = [(n, bool(row.get("alarm")), json_lines([row]).decode().rstrip()) for n, row in given]
        save = partial(
            self._registry.commit_stream,
            self.stream,
            files=[asdict(one) for one in self.follower.states()],
            rows=rows,
            counts={**counts, "gaps": self.gaps, "problems": problems.snapshot()},
            mark=self._mark,
            written=self._written,
            changes=changes,
            belongs=belongs,
            notify=self._notify,
            calibration=None if self._rolling is None else self._rolling.change(),
        )
        done, self.waiting = patiently(save), []
        if self._rolling is not None:
            self._rolling.committed()
        if rows:
            self._put([(number, line) for number, _, line in rows])
            self._mark = self._lines.commit()
        for change in done:
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
            outbox.tell_gap(gap)
        waited = time.monotonic() - committed
        late = waited >= (COMMIT_SECONDS if follower.changed else ALIVE.total_seconds()) or outbox.due
        if records or outbox.waiting or late:
            yield records
            committed = time.monotonic()
        if follower.idle:
            time.sleep(_MOMENT)
    yield []

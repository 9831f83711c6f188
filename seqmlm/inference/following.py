"""A run over files that are followed: turns of reading, each committed with its rows in one transaction.

The database is the truth. What a turn has read (`streams.generations.FileState`), the rows that came of it
and the counts are committed together, or not at all; so after a kill the next process begins where the last
commit left it, and no row is lost or doubled. The file of rows comes after that: its length, with the number
of its last row, is in the next commit, and whoever continues cuts it back to that and fills it again from the
database. The trade-off: the rows are in the database as well as in the file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import StateError
from seqmlm.inference.batches import Batch, Budget, Encoded, Input, encoded_batches
from seqmlm.inference.runner import Output
from seqmlm.inference.session import Session
from seqmlm.registry import Change, Notice, Registry, patiently
from seqmlm.streams.cursor import Position, differences
from seqmlm.streams.follow import Follower
from seqmlm.streams.generations import FileState, Gap
from seqmlm.streams.sinks import Fields, LinesSink, Mark, Schema, changed, json_lines

COMMIT_SECONDS = 5.0
"""Between commits of how far files were read, where no row came of it."""

_MOMENT = 0.05  # seconds between two looks at files that do not grow
_REFILLED = 1000  # rows that are fetched at a time to fill the output again


class Outbox(Output):
    """The rows of files that are followed on their way to the database, and from there to a file.

    Args:
        path: of the JSON lines.
        registry: where the stream is kept.
        request: what decides the rows; a stream is continued where all of it is the same.
        follow: begins to follow the files, given how far they were read.
        private: only the owner may read the file, and a database that is a file.
        notify: what webhooks are to be told of changes of incidents.

    Attributes:
        stream: number of the stream in the database; 0 before `begin`.
        gaps: places where bytes were destroyed, of the whole stream.
    """

    follower: Follower
    gaps = 0

    def __init__(
        self,
        path: Path,
        registry: Registry,
        request: Mapping[str, Any],
        follow: Callable[[Sequence[FileState]], Follower],
        *,
        private: bool = False,
        notify: Callable[[Sequence[Change]], Sequence[Notice]] = lambda changes: (),
    ) -> None:
        super().__init__(path, Schema(columns={}), private=private)
        self._out, self._registry, self._follow, self._notify = path, registry, follow, notify
        self._name = str(path.expanduser().resolve())
        self._request = json.loads(json.dumps(request, default=str))
        self._lines: LinesSink | None = None
        self._stream = self._number = self._written = 0
        self._mark: Mark = {}
        self._waiting: list[tuple[int, bool, str]] = []

    @property
    def stream(self) -> int:
        return self._stream

    def begin(self, problems: Problems) -> Position:
        """Find the stream of this output, or begin one; the file is brought to what the database has.

        Raises:
            StateError: the stream was asked something else, or the file is not what was written.
        """
        self.claim()
        if self._private:
            self._registry.protect()
        found = self._registry.stream(self._name)
        if found is None:
            if self._out.exists() and self._out.stat().st_size:
                raise StateError(
                    f"{self._out} is there, and no following of this workspace has written it: name another "
                    "--out, or move it away"
                )
            self._stream = self._registry.begin_stream(self._name, self._request)
            self._lines = LinesSink(self._out, private=self._private)
            self.follower = self._follow([])
            return Position()
        if differing := differences(found.request, self._request):
            raise StateError(
                f"cannot go on with {self._out}: {'; '.join(differing)}; give what was given before, or "
                "name another --out"
            )
        self._stream, self._written, self._mark = found.id, found.written, found.mark
        self._refill()
        counts = dict(found.counts)
        met = counts.pop("problems", {})
        if met:
            problems.cut_quarantine(int(met["quarantined"]))
            with problems.replaying(met):
                pass  # counting continues from what was met then
        self.gaps = int(counts.pop("gaps", 0))
        self.follower = self._follow([FileState(**one) for one in found.files])
        self.notes.append(f"going on with {self._out} behind {self._written:,} rows")
        return Position(records=int(counts.get("records", 0)), rows=self._number, counts=counts)

    def _refill(self) -> None:
        """Cut the file back to its mark, and write the rows that come after it."""
        mark = dict(self._mark) or None
        if mark is not None and not self._out.exists():
            mark, self._written = None, 0
        try:
            self._lines = LinesSink(self._out, private=self._private, mark=mark)
        except StateError as error:
            if str(error) != str(changed(self._out)):
                raise
            raise StateError(
                f"cannot go on with {self._out}: it is not what was written to it; put it back, or move it "
                "away, and it is written anew from the database"
            ) from None
        while some := self._registry.stream_rows(self._stream, self._written, _REFILLED):
            self._lines.put("".join(f"{line}\n" for _, line in some).encode())
            self._written = some[-1][0]
        self._mark = self._lines.commit()
        self._number = self._written

    def write(self, rows: Sequence[Fields]) -> None:
        """Take rows; they are kept with the next commit."""
        for row in rows:
            self._number += 1
            self._waiting.append((self._number, bool(row.get("alarm")), json_lines([row]).decode().rstrip()))

    def tell_gap(self, gap: Gap) -> None:
        """Take a row that says which bytes could not be read."""
        self.gaps += 1
        known = f"at least {gap.size:,} bytes" if gap.size else "what was written"
        self.write(
            [
                {
                    "id": f"{Path(gap.path).name}:{gap.line}",
                    "source": gap.path,
                    "line": gap.line,
                    "gap": {"offset": gap.offset, "bytes": gap.size or None},
                    "reason": f"{known} from here on was destroyed before it could be read: the file was cut "
                    "off or removed, and no copy of it was found",
                }
            ]
        )

    def commit(self, records: int, counts: Mapping[str, Any], problems: Problems) -> None:
        """Keep rows, counts and the states of the files together; then write the rows to the file.

        Raises:
            StateError: the database or the file cannot be written; what was committed before stays.
        """
        assert self._lines is not None
        save = partial(
            self._registry.commit_stream,
            self._stream,
            files=[asdict(one) for one in self.follower.states()],
            rows=self._waiting,
            counts={**counts, "records": records, "gaps": self.gaps, "problems": problems.snapshot()},
            mark=self._mark,
            written=self._written,
            notify=self._notify,
        )
        patiently(save)
        rows, self._waiting = self._waiting, []
        if rows:
            self._lines.put("".join(f"{line}\n" for _, _, line in rows).encode())
            self._mark = self._lines.commit()
            self._written = rows[-1][0]

    def finish(self) -> None:
        """Nothing: a stream has no end."""

    def keep(self) -> None:
        """Nothing: rows that were not committed come again."""

    def forget(self, problems: Problems) -> None:
        """Nothing: what was begun goes on."""

    def close(self) -> None:
        """Close all files, and let others write the output."""
        if hasattr(self, "follower"):
            self.follower.close()
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        super().close()


def turns(
    session: Session,
    outbox: Outbox,
    problems: Problems,
    *,
    budget: Budget,
    stopping: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Iterable[Batch[Encoded]]]:
    """The batches of turn after turn, until it is to stop; each is to be committed before the next.

    Args:
        session: tokenizes the records.
        outbox: its follower reads; it takes what is told of gaps.
        problems: receives bad records.
        budget: of a batch.
        stopping: asked before each turn; then what was read last is committed once more.
        clock, sleep: seconds.
    """
    committed, follower = clock(), outbox.follower
    while not stopping():
        records = follower.turn()
        for gap in follower.gaps:
            outbox.tell_gap(gap)
        late = clock() - committed >= COMMIT_SECONDS and follower.changed
        if records or follower.gaps or late:
            given = Input(partial(_these, records), session.domain, session.tokenizer)
            yield encoded_batches(given, problems, ahead=False, budget=budget) if records else []
            committed = clock()
        if follower.idle:
            sleep(_MOMENT)
    yield []


def _these(records: list[Record], told: Problems) -> list[Record]:
    """Records that were read already."""
    return records

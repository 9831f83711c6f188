"""A run over files that are followed: turns of reading, each committed with its rows in one transaction.

The database is the truth. What a turn has read (`streams.generations.FileState`), the rows that came of it
and the counts are committed together, or not at all; so after a kill the next process begins where the last
commit left it, and no row is lost or doubled. The file of rows comes after that: its length, with the number
of its last row, is in the next commit, and whoever continues cuts it back to that and fills it again from the
database. The trade-off: the rows are in the database as well as in the file.

Rows that alarm become incidents in the same transaction. What is open is asked of the database each time that
a row alarms, and not remembered: a person may have acknowledged or muted it meanwhile.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.severities import highest
from seqmlm.errors import DataError, StateError, printable
from seqmlm.evaluation import incidents as merging
from seqmlm.inference.batches import Batch, Budget, Encoded, Input, encoded_batches
from seqmlm.inference.rolling import Rolling
from seqmlm.inference.runner import Output
from seqmlm.inference.session import Session
from seqmlm.registry import Change, Incident, Notice, Registry, patiently
from seqmlm.registry.incidents import LIKES, TOLD, Kind
from seqmlm.streams.cursor import Position, differences
from seqmlm.streams.follow import Follower
from seqmlm.streams.generations import FileState, Gap
from seqmlm.streams.sinks import Fields, LinesSink, Mark, Schema, changed, json_lines

COMMIT_SECONDS = 5.0
"""Between commits of how far files were read, where no row came of it."""

ALIVE_SECONDS = 60.0
"""Between commits of a stream that reads nothing: whoever looks at the database sees that it is alive."""

QUIET = 300.0
"""Seconds: an alarm that follows an incident of its file so soon belongs to it, and an incident without one
for so long is over."""

_MOMENT = 0.05  # seconds between two looks at files that do not grow
_REFILLED = 1000  # rows that are fetched at a time to fill the output again


# What alarms come to

Ignored = tuple[re.Pattern[str], str]
"""A pattern, and where it was given: "FILE:LINE"."""


def ignored(path: Path) -> list[Ignored]:
    """The regular expressions of a file, one a line; empty lines and those that begin with # are left out.

    Raises:
        DataError: the file cannot be read, or a line is no regular expression.
    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise DataError(f"cannot be read: {reason}", source=str(path)) from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append((re.compile(line), f"{path}:{number}"))
            except re.error as error:
                raise DataError(
                    f"{line!r} is not a regular expression: {error}",
                    source=str(path),
                    line=number,
                    remedy="a backslash in front of a character such as ( or [ or * means that character",
                ) from None
    return found


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Puts the alarms of a stream together.

    Args:
        model: reference of the model that judges.
        stream: id.
        quiet: see `QUIET`.
        ignored: alarms that one of these fits, by the message or the template that they tell of, make no
            incident.
        private: incidents say nothing of what is in the data.
    """

    model: str
    stream: int = 0
    quiet: float = QUIET
    ignored: Sequence[Ignored] = ()
    private: bool = False

    def over(self, incident: Incident, now: float) -> bool:
        """Whether nothing has come for the quiet time; or the clock was set back by as much."""
        return abs(now - incident.updated.timestamp()) >= self.quiet

    def judge(
        self, rows: Sequence[tuple[int, Fields]], standing: Sequence[Incident], now: float
    ) -> tuple[list[tuple[int, Fields]], list[Change], dict[int, int]]:
        """What some rows do to the incidents of their stream.

        Args:
            rows: (number, fields) of each.
            standing: incidents that are not resolved, or whose likes are silenced.
            now: seconds since 1970-01-01 UTC.

        Returns:
            The rows, those that are silenced with `muted`, by what; the changes, at most two of an incident;
            and numbers of rows to the row that opened the incident each belongs to.
        """
        found = _Found(self, now)
        for one in standing:
            found.stand(one)
        given = [(number, found.take(number, row) if row.get("alarm") else row) for number, row in rows]
        return given, list(found.changes.values()), found.belongs

    def begun(self, number: int, row: Fields, now: float) -> Incident:
        """The incident that a row opens; its texts are `printable`: a log may hold what no database takes."""
        at, line = datetime.fromtimestamp(now, UTC), int(row["line"])
        last = int(row.get("last_line", line))
        shown: dict[str, Any] = {}
        if not self.private:
            shown = {
                "template": printable(row.get("template", "")),
                "new": tuple(map(_short, row.get("never_seen", ())))[:TOLD],
                "expected": tuple(map(_short, row.get("expected", ()))),
                "reason": printable(row.get("reason", "")),
                "what": printable(row.get("what", "an alarm")),
                "severity": row.get("severity"),
                **{name: _named(row, name) for name in ("host", "service")},
            }
        place = printable(row["source"])
        made = Incident(
            **{"template": "", "new": (), "reason": "", "what": "unusual lines", **shown},
            stream_id=self.stream,
            row=number,
            model=self.model,
            place=place,
            title="",
            first_line=f"{place}:{line}",
            last_line=f"{place}:{last}",
            first_time=row.get("time"),
            last_time=row.get("last_time"),
            rows=1,
            lines=int(row.get("lines", 1)),
            new_lines=int(row.get("new_lines", 0)),
            p_value=_p_value(row),
            start=line,
            end=last + 1,
            likes=_likes(row),
            opened=at,
            updated=at,
        )
        return replace(made, title=_title(made))


class _Found:
    """What some rows do, while they are taken one by one."""

    def __init__(self, grouping: Grouping, now: float) -> None:
        self._grouping, self._now = grouping, now
        self._merging = merging.Incidents(quiet=grouping.quiet)
        self._open: dict[str, Incident] = {}
        self._silent: dict[int, Incident] = {}
        self._likes: dict[int, frozenset[str]] = {}
        self.changes: dict[tuple[int, bool], Change] = {}
        self.belongs: dict[int, int] = {}

    def stand(self, one: Incident) -> None:
        """Take an incident as it stands; one that nothing was added to for long is over."""
        if one.state != "resolved" and self._grouping.over(one, self._now):
            one = self._end(one)
        if one.silences:
            self._silent[one.row], self._likes[one.row] = one, frozenset(one.likes)
        elif one.state != "resolved":
            self._open[one.place] = one
            self._merging.hold(_merged(one))

    def take(self, number: int, row: Fields) -> Fields:
        """Take an alarm; returns it, marked where it is silenced."""
        texts = [str(row[name]) for name in ("message", "template") if name in row]
        for pattern, where in self._grouping.ignored:
            if any(map(pattern.search, texts)):
                return {**row, "muted": where}
        new = self._grouping.begun(number, row, self._now)
        known = [one for one in self._silent.values() if self._likes[one.row].issuperset(new.likes)]
        if known:  # first one that goes on
            one = min(known, key=lambda one: (one.state == "resolved", one.row))
            self.belongs[number] = one.row
            if one.state != "resolved":
                self._silent[one.row] = self._change("updated", _joined(one, new))
            return {**row, "muted": f"incident {one.id}"}
        for over in self._merging.add(_alarm(new)):
            self._end(self._open.pop(over.place))
        before = self._open.get(new.place)
        one = new if before is None else _joined(before, new)
        self._open[new.place] = self._change("updated" if before else "opened", one)
        self.belongs[number] = one.row
        return row

    def _end(self, one: Incident) -> Incident:
        at = datetime.fromtimestamp(self._now, UTC)
        return self._change("resolved", replace(one, state="resolved", resolved=at))

    def _change(self, kind: Kind, one: Incident) -> Incident:
        key = (one.row, kind == "resolved")
        earlier = self.changes.get(key)
        self.changes[key] = Change(kind=earlier.kind if earlier else kind, incident=one)
        return one


def _joined(one: Incident, new: Incident) -> Incident:
    """An incident with one more row, given as the incident that it alone would be."""
    speaks = (new.new_lines > 0, -new.p_value) > (one.new_lines > 0, -one.p_value)
    names = ("what", "reason", "template", "expected", "host", "service")
    told = {name: getattr(new, name) for name in names}
    near = [one, new] if new.place == one.place else [one]  # an alarm that is silenced may be of another
    first, last = min(near, key=lambda x: x.start), max(near, key=lambda x: x.end)
    times = [x for x in (one.first_time, one.last_time, new.first_time, new.last_time) if x is not None]
    joined = replace(
        one,
        **(told if speaks else {}),
        new=tuple(dict.fromkeys((*one.new, *new.new)))[:TOLD],
        likes=tuple(dict.fromkeys((*one.likes, *new.likes)))[:LIKES],
        first_line=first.first_line,
        last_line=last.last_line,
        first_time=min(times, default=None),
        last_time=max(times, default=None),
        severity=highest((one.severity, new.severity)),
        rows=one.rows + 1,
        lines=one.lines + new.lines,
        new_lines=one.new_lines + new.new_lines,
        p_value=min(one.p_value, new.p_value),
        start=first.start,
        end=last.end,
        updated=new.updated,
    )
    return replace(joined, title=_title(joined))


def _title(one: Incident) -> str:
    """What broke, how much of it, and where."""
    what = one.what
    if one.new:
        more = f" and {len(one.new) - _NAMED} more" if len(one.new) > _NAMED else ""
        was = "was" if len(one.new) == 1 else "were"
        what = f"{', '.join(one.new[:_NAMED])}{more} {was} never seen"
    lines = f"{one.lines:,} {'line' if one.lines == 1 else 'lines'}"
    count = f"{one.new_lines:,} of {lines}" if one.new_lines else lines
    name, last = Path(one.place).name, one.end - 1
    place = f"{name}:{one.start}" if last == one.start else f"{name}:{one.start}-{last}"
    return f"{what}: {count}, {place}"


_NAMED = 3  # new values in a title
_LONGEST = 120  # characters of each


def _short(text: object) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


def _named(row: Fields, name: str) -> str | None:
    """The host or service that most lines of a row name, and how many others there are."""
    if name not in row:
        return None
    more = int(row.get(f"{name}s", 1)) - 1
    return _short(row[name]) + (f" and {more:,} {'other' if more == 1 else 'others'}" if more else "")


def _p_value(row: Fields) -> float:
    p_value = row.get("p_value")
    return 1.0 if p_value is None else float(p_value)


def _likes(row: Fields) -> tuple[str, ...]:
    """What alarms are recognised by: all that was never seen, or else what is wrong, which names a template.

    Digests, for what the lines say may not be shown.
    """
    texts = [f"new {one}" for one in row.get("never_seen", ())] or [f"what {row.get('what')}"]
    return tuple(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] for text in texts)


def _alarm(one: Incident) -> merging.Alarm:
    """An incident of one row as it is merged."""
    return merging.Alarm(
        id=str(one.row),
        place=one.place,
        start=one.start,
        end=one.end,
        p_value=one.p_value,
        times=_times(one),
        seen=one.updated.timestamp(),
    )


def _merged(one: Incident) -> merging.Incident:
    """An incident that goes on, as it is merged."""
    return merging.Incident(
        place=one.place,
        start=one.start,
        end=one.end,
        rows=one.rows,
        p_value=one.p_value,
        worst="",
        times=_times(one),
        seen=one.updated.timestamp(),
    )


def _times(one: Incident) -> tuple[float, float] | None:
    if one.first_time is None or one.last_time is None:
        return None
    return datetime.fromisoformat(one.first_time).timestamp(), datetime.fromisoformat(
        one.last_time
    ).timestamp()


# Where the rows go


class Outbox(Output):
    """The rows of files that are followed on their way to the database, and from there to a file.

    Args:
        path: of the JSON lines.
        registry: where the stream is kept.
        request: what decides the rows; a stream is continued where all of it is the same.
        follow: begins to follow the files, given how far they were read.
        private: only the owner may read the file, and a database that is a file.
        grouping: what puts alarms together; None: by `QUIET`, of no named model.
        tell: takes what happened to incidents, after it was committed.
        clock: seconds since 1970-01-01 UTC.
        notify: what webhooks are to be told of changes of incidents.
        rolling: the calibration that moves on with the rows, kept with them; None for a fixed one.

    Attributes:
        number: of the last row that was taken.
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
        grouping: Grouping | None = None,
        tell: Callable[[Change], None] = lambda change: None,
        clock: Callable[[], float] = time.time,
        notify: Callable[[Sequence[Change]], Sequence[Notice]] = lambda changes: (),
        rolling: Rolling | None = None,
    ) -> None:
        super().__init__(path, Schema(columns={}), private=private)
        self._grouping = replace(grouping or Grouping(model=""), private=private)
        self._tell, self._clock, self._rolling = tell, clock, rolling
        self._unresolved: dict[int, Incident] = {}
        self._out, self._registry, self._follow, self._notify = path, registry, follow, notify
        self._name = str(path.expanduser().resolve())
        self._request = json.loads(json.dumps(request, default=str))
        self._lines: LinesSink | None = None
        self._stream = self.number = self._written = 0
        self._mark: Mark = {}
        self._waiting: list[tuple[int, Fields]] = []

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
            self._stand(self._registry.begin_stream(self._name, self._request))
            self._lines = LinesSink(self._out, private=self._private)
            self.follower = self._follow([])
            return Position()
        if differing := differences(found.request, self._request):
            raise StateError(
                f"cannot go on with {self._out}: {'; '.join(differing)}; give what was given before, or "
                "name another --out"
            )
        self._stand(found.id)
        self._written, self._mark = found.written, found.mark
        if found.pruned.rows and found.mark and not self._out.exists():
            self.notes.append(
                f"{self._out} is gone, and is written anew without {_rows(found.pruned.rows)} that were "
                f"pruned from the database, of those up to number {found.pruned.through:,}"
            )
        self._refill()
        counts = dict(found.counts)
        met = counts.pop("problems", {})
        if met:
            problems.cut_quarantine(int(met["quarantined"]))
            with problems.replaying(met):
                pass  # counting continues from what was met then
        self.gaps = int(counts.pop("gaps", 0))
        self.follower = self._follow([FileState(**one) for one in found.files])
        left = len(self._unresolved)
        more = f", with {left:,} {'incident that is' if left == 1 else 'incidents that are'} not over"
        self.notes.append(f"going on with {self._out} behind {_rows(self._written)}{more if left else ''}")
        return Position(records=int(counts.get("records", 0)), rows=self.number, counts=counts)

    def _stand(self, stream: int) -> None:
        """Go on with the incidents of a stream."""
        self._stream, self._grouping = stream, replace(self._grouping, stream=stream)
        standing = self._registry.incidents(stream=stream, standing=True)
        self._unresolved = {one.row: one for one in standing if one.state != "resolved"}
        self.take_up(self._rolling)

    def take_up(self, rolling: Rolling | None, model: str | None = None) -> None:
        """From now on keep this calibration with the rows; it goes on where it was, if it was this one's.

        Args:
            rolling: see the class.
            model: reference of the model that judges; None: as before.
        """
        self._rolling = rolling
        self._grouping = replace(self._grouping, model=model or self._grouping.model)
        if rolling is not None:
            real = partial(patiently, partial(self._registry.real_rows, self._stream))
            rolling.begin(self._registry.rolling(self._stream), real)

    @property
    def due(self) -> bool:
        """Whether an incident is over that is not resolved: time for a commit."""
        now = self._clock()
        return any(self._grouping.over(one, now) for one in self._unresolved.values())

    def incidents(self) -> int:
        """How many there were, in the whole stream."""
        found = self._registry.stream(self._name)
        pruned = 0 if found is None else found.pruned.incidents
        return len(self._registry.incidents(stream=self._stream)) + pruned

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
                "away, and it is written anew from what rows the database has"
            ) from None
        while some := self._registry.stream_rows(self._stream, self._written, _REFILLED):
            self._lines.put("".join(f"{line}\n" for _, line in some).encode())
            self._written = some[-1][0]
        self._mark = self._lines.commit()
        self.number = self._written

    def write(self, rows: Sequence[Fields]) -> None:
        """Take rows; they are kept with the next commit."""
        for row in rows:
            self.number += 1
            self._waiting.append((self.number, row))

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
                    "reason": f"{known} from here on was destroyed before it could be read: {gap.cause}",
                }
            ]
        )

    def commit(self, records: int, counts: Mapping[str, Any], problems: Problems) -> None:
        """Keep rows, counts and the states of the files together; then write the rows to the file.

        Raises:
            StateError: the database or the file cannot be written; what was committed before stays.
        """
        assert self._lines is not None
        given, changes, belongs = self._waiting, list[Change](), dict[int, int]()
        if self.due or any(row.get("alarm") for _, row in given):
            standing = patiently(partial(self._registry.incidents, stream=self._stream, standing=True))
            given, changes, belongs = self._grouping.judge(given, standing, self._clock())
        rows = [(number, bool(row.get("alarm")), _line(row)) for number, row in given]
        save = partial(
            self._registry.commit_stream,
            self._stream,
            files=[asdict(one) for one in self.follower.states()],
            rows=rows,
            counts={**counts, "records": records, "gaps": self.gaps, "problems": problems.snapshot()},
            mark=self._mark,
            written=self._written,
            changes=changes,
            belongs=belongs,
            notify=self._notify,
            calibration=None if self._rolling is None else self._rolling.change(),
        )
        done, self._waiting = patiently(save), []
        if self._rolling is not None:
            self._rolling.committed()
        if rows:
            self._lines.put("".join(f"{line}\n" for _, _, line in rows).encode())
            self._mark = self._lines.commit()
            self._written = rows[-1][0]
        for change in done:
            self._unresolved[change.incident.row] = change.incident
            if change.kind == "resolved":
                del self._unresolved[change.incident.row]
            self._tell(change)

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
    session: Callable[[], Session],
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
        session: gives what tokenizes the records of a turn.
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
        waited = clock() - committed
        late = waited >= (COMMIT_SECONDS if follower.changed else ALIVE_SECONDS) or outbox.due
        if records or follower.gaps or late:
            current = session()
            given = Input(partial(_these, records), current.domain, current.tokenizer)
            yield encoded_batches(given, problems, ahead=False, budget=budget) if records else []
            committed = clock()
        if follower.idle:
            sleep(_MOMENT)
    yield []


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number:,} rows"


def _line(row: Fields) -> str:
    return json_lines([row]).decode().rstrip()


def _these(records: list[Record], told: Problems) -> list[Record]:
    """Records that were read already."""
    return records

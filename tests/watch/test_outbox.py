"""What the alarms of followed files come to: grouped, silenced, over by the clock, never lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from receiver import NoFiles
from written import written

from seqmlm.data.problems import Problems
from seqmlm.errors import DataError
from seqmlm.registry import database
from seqmlm.registry.database import UnreachableError
from seqmlm.streams.sinks import LinesSink
from seqmlm.watch.generations import FileState
from seqmlm.watch.grouping import Grouping, mute_patterns
from seqmlm.watch.outbox import Outbox
from seqmlm.watch.store import Incident, Notice, NoticeQueue, Streams
from seqmlm.watch.webhooks import Answer, Courier, Origin, Webhook, notices, parse_webhook
from seqmlm.workspace import Workspace

QUIET = 60.0
HOOK = parse_webhook("https://h/hook")
NEW = ("status=502",)


def row(line: int, alarm: bool = True, *, file: str = "/logs/app.log", **more: Any) -> dict[str, Any]:
    """A window of four lines; those of alarms say what is wrong."""
    plain = {"id": f"app.log:{line}", "source": file, "line": line, "p_value": 0.01, "alarm": alarm}
    told = {"what": "'close' is missing", "template": "close", "message": "close 7", "lines": 4}
    if "never_seen" in more:
        told |= {"new_lines": 1, "what": "'status=502 path=/' was never seen"}
    return {**plain, "reason": "why", **(told | {"last_line": line + 3} if alarm else {}), **more}


def lines(found: Sequence[Incident]) -> list[tuple[int, int, int]]:
    return [(one.start, one.end - 1, one.rows) for one in found]


class Stream:
    """Rows that come turn by turn, judged without a database."""

    def __init__(self, **asked: Any) -> None:
        self._grouping = Grouping(model="app:1", quiet=QUIET, **asked)
        self.known: dict[int, Incident] = {}
        self.number = 0
        self.rows: list[Any] = []

    def turn(self, now: float, *rows: dict[str, Any]) -> list[tuple[str, int]]:
        given = [(self.number + n, one) for n, one in enumerate(rows, 1)]
        self.number += len(rows)
        standing = [one for one in self.known.values() if one.state != "resolved" or one.muted]
        judged, changes, self.belongs = self._grouping.judge(given, standing, now)
        for change in changes:
            one = change.incident
            number = self.known[one.row].id if one.row in self.known else len(self.known) + 1
            self.known[one.row] = replace(one, id=number)
        self.rows += judged
        return [(change.kind, self.known[change.incident.row].id) for change in changes]

    def say(self, number: int, **said: Any) -> None:
        (key,) = (key for key, one in self.known.items() if one.id == number)
        self.known[key] = replace(self.known[key], **said)

    @property
    def incidents(self) -> list[Incident]:
        return [self.known[key] for key in sorted(self.known)]


def test_alarms_that_touch_or_follow_soon_are_one_incident() -> None:
    stream = Stream()
    assert stream.turn(0, row(1), row(5), row(9, alarm=False)) == [("opened", 1)]
    assert stream.turn(59, row(201)) == [("updated", 1)]
    assert stream.turn(60, row(1, file="/logs/b.log")) == [("opened", 2)]
    assert stream.turn(118.9) == []
    assert stream.turn(119) == [("resolved", 1)]
    assert stream.turn(119.5, row(205)) == [("opened", 3)]  # it touches one that is over
    assert stream.turn(180) == [("resolved", 2), ("resolved", 3)]
    assert lines(stream.incidents) == [(1, 204, 3), (1, 4, 1), (205, 208, 1)]
    first = stream.incidents[0]
    assert (first.first_line, first.last_line, first.lines) == ("/logs/app.log:1", "/logs/app.log:204", 12)
    assert [one.resolved is not None for one in stream.incidents] == [True] * 3
    assert stream.belongs == {}


def test_the_times_of_lines_part_incidents_that_are_read_at_once() -> None:
    stream = Stream()
    first = {"time": "2024-03-05T10:00:00+00:00", "last_time": "2024-03-05T10:00:09.500000+00:00"}
    soon = {"time": "2024-03-05T10:01:00+00:00", "last_time": "2024-03-05T10:01:09+00:00"}
    late = {"time": "2024-03-05T10:03:00+00:00", "last_time": "2024-03-05T10:03:09+00:00"}
    changes = stream.turn(0, row(1, **first), row(101, **soon), row(201, **late))
    assert changes == [("opened", 1), ("resolved", 1), ("opened", 2)]
    one, two = stream.incidents
    assert (one.rows, one.first_time, one.last_time) == (2, first["time"], soon["last_time"])
    assert (two.rows, two.first_time, two.state) == (1, late["time"], "open")


moments = st.lists(st.tuples(st.sampled_from("uv"), st.integers(0, 900), st.integers(0, 90)), max_size=25)


@given(moments)
def test_incidents_by_the_times_of_lines_are_those_of_the_naive_way(rows: list[tuple[str, int, int]]) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    meeting = networkx.Graph()
    meeting.add_nodes_from(range(len(rows)))
    for (one, (file, start, _)), (two, (other, first, size)) in permutations(enumerate(rows), 2):
        if file == other and 0 <= start - first < size + QUIET:
            meeting.add_edge(one, two)
    stream = Stream()
    given_rows = [
        row(100 * number, file=file, time=_at(start), last_time=_at(start + size))
        for number, (file, start, size) in enumerate(rows)
    ]
    stream.turn(0, *given_rows)
    found = networkx.connected_components(meeting)
    assert [one.rows for one in stream.incidents] == [len(group) for group in sorted(found, key=min)]


def _at(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def test_a_clock_that_is_set_back_leaves_no_incident_open() -> None:
    stream = Stream()
    stream.turn(1000, row(1))
    assert stream.turn(1000 - QUIET / 2) == []
    assert stream.turn(1000 - QUIET) == [("resolved", 1)]


def test_the_worst_severity_and_where_the_row_that_says_most_comes_from() -> None:
    grouping = Grouping(model="app:1")
    rows = [
        (1, row(1, severity="ERROR", host="a", hosts=3, service="api")),
        (2, row(5, severity="WARN", host="b", never_seen=NEW, new_lines=1)),
        (3, row(9)),
    ]
    _, changes, _ = grouping.judge(rows, [], 0.0)
    (one,) = (change.incident for change in changes)
    assert (one.severity, one.host, one.service) == ("ERROR", "b", None)
    first = grouping.incident(*rows[0], 0.0)
    assert (first.severity, first.host, first.service) == ("ERROR", "a and 2 others", "api")
    hidden = grouping.incident(1, rows[0][1] | {"sensitive": True}, 0.0)
    assert (hidden.severity, hidden.host, hidden.service) == (None, None, None)


def test_the_title_says_what_broke_how_much_and_where() -> None:
    stream = Stream()
    stream.turn(0, row(1, p_value=0.001))
    assert stream.incidents[0].title == "'close' is missing: 4 lines, app.log:1-4"
    stream.turn(1, row(5, never_seen=NEW, expected=["status=200"]))  # what is new says more
    one = stream.incidents[0]
    assert one.title == "status=502 was never seen: 1 of 8 lines, app.log:1-8"
    assert (one.new, one.expected, one.p_value) == (NEW, ("status=200",), 0.001)
    stream.turn(2, row(9, never_seen=[f"path=/{n}" for n in range(4)]), row(13, lines=1, last_line=13))
    assert stream.incidents[0].title == (
        "status=502, path=/0, path=/1 and 2 more were never seen: 2 of 13 lines, app.log:1-13"
    )
    other = Stream()
    other.turn(0, {"alarm": True, "source": "x.log", "line": 3})  # rows of other fields say less
    assert other.incidents[0].title == "an alarm: 1 line, x.log:3"


def test_what_is_like_an_acknowledged_incident_joins_it_until_it_is_over() -> None:
    stream = Stream()
    stream.turn(0, row(1, never_seen=NEW))
    stream.say(1, state="acknowledged")
    assert stream.turn(50, row(5, never_seen=NEW), row(1, file="/logs/b.log", never_seen=NEW)) == [
        ("updated", 1)
    ]
    assert [one.get("muted") for _, one in stream.rows] == [None, "incident 1", "incident 1"]
    assert stream.belongs == {2: 1, 3: 1}
    assert lines(stream.incidents) == [(1, 8, 3)]
    assert stream.turn(60, row(9)) == [("opened", 2)]  # it is not like it, and near
    assert stream.turn(111) == [("resolved", 1)]
    assert ("opened", 3) in stream.turn(200, row(99, never_seen=NEW))  # it is back


def test_what_is_like_a_muted_incident_is_silent_for_good() -> None:
    stream = Stream()
    stream.turn(0, row(1), row(5, never_seen=("status=502", "path=/x")))
    stream.say(1, muted=True)
    assert stream.turn(10, row(9)) == [("updated", 1)]
    assert stream.turn(100) == [("resolved", 1)]
    for like in (row(13), row(17, never_seen=NEW), row(21, never_seen=("path=/x",))):
        assert stream.turn(200, like) == []
        assert stream.rows[-1][1] == {**like, "muted": "incident 1"}
        assert stream.belongs == {stream.number: 1}
    unlike = [
        row(25, what="'open' is missing", template="open"),
        row(29, never_seen=("status=502", "status=503")),
    ]
    assert stream.turn(300, *unlike) == [("opened", 2)]
    stream.say(1, muted=False)
    assert stream.turn(500, row(33)) == [("resolved", 2), ("opened", 3)]


def test_a_muted_pause_silences_no_longer_one() -> None:
    def pause(line: int, scale: str, **more: Any) -> dict[str, Any]:
        return row(line, what="a longer pause", scale=scale, **more)

    stream = Stream()
    stream.turn(0, pause(1, "seconds"))
    stream.say(1, muted=True)
    stream.turn(100, pause(101, "seconds"))
    assert stream.rows[-1][1]["muted"] == "incident 1"
    assert stream.turn(200, pause(201, "minutes")) == [("opened", 2)]
    # A log that has stopped, and somebody knows, is one incident however long that lasts.
    stopped = {"lines": 0, "silence": 200.0}
    assert ("opened", 3) in stream.turn(400, pause(300, "minutes", **stopped))
    stream.say(3, state="acknowledged")
    assert stream.turn(420, pause(300, "hours", **stopped)) == [("updated", 3)]
    stream.say(3, state="acknowledged", muted=True)
    assert stream.turn(440, pause(300, "days", **stopped)) == [("opened", 4)]
    assert [one.title for one in stream.incidents][2:] == ["a longer pause, app.log:300-303"] * 2


def test_rules_silence_what_they_fit(tmp_path: Path) -> None:
    rules = written(tmp_path / "ignore.txt", "# nightly\n\n^close \\d+$\n  # more\nstatus=50[23]\n")
    found = mute_patterns(rules)
    assert [where for _, where in found] == [f"{rules}:3", f"{rules}:5"]
    stream = Stream(muted=found)
    assert stream.turn(0, row(1), row(5, message="close 7 late")) == [("opened", 1)]
    assert [one.get("muted") for _, one in stream.rows] == [f"{rules}:3", None]
    stream.turn(1, row(9, message="x", template="status=502"), row(13, False, message="close 1"))
    assert [one.get("muted") for _, one in stream.rows[2:]] == [f"{rules}:5", None]
    assert (stream.incidents[0].rows, stream.belongs) == (1, {})


def test_rules_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for content, told in ((b"ok\n(", r":2: '\(' is not a regular expression"), (b"\xff", "is not UTF-8")):
        with pytest.raises(DataError, match=told):
            mute_patterns(written(tmp_path / "ignore.txt", content))
    with pytest.raises(DataError, match="No such file"):
        mute_patterns(tmp_path / "none")


def test_incidents_of_sensitive_data_quote_nothing() -> None:
    secret = {"what": "'ann fell ill' was never seen", "template": "ann", "message": "ann", "reason": "ann"}
    secret |= {"sensitive": True}
    stream = Stream()
    stream.turn(0, row(1, never_seen=["ann=1"], expected=["ann"], **secret))
    assert "ann" not in repr(stream.incidents)
    assert stream.incidents[0].title == "unusual lines: 1 of 4 lines, app.log:1-4"
    stream.say(1, muted=True)
    assert stream.turn(1, row(5, never_seen=["ann=1"]), row(9, never_seen=["ann=2"]))[-1] == ("opened", 2)


# In the database


class Files(NoFiles):
    """Files that were read as far as a number of turns."""

    def __init__(self, states: Sequence[FileState]) -> None:
        self.turns = states[0].offset if states else 0

    def states(self) -> list[FileState]:
        return [FileState(number=1, path="/logs/app.log", offset=self.turns)]


@dataclass
class World:
    """A stream: what every turn reads, and a process that dies when it is told to."""

    home: Path
    name: str
    turns: Sequence[tuple[float, list[dict[str, Any]]]]
    said: list[tuple[str, int]] = field(default_factory=list)
    sent: dict[str, Notice] = field(default_factory=dict)
    now: float = 0.0

    def start(self) -> tuple[Outbox, Files]:
        """A new process."""
        self.registry = Streams(Workspace.locate(self.home))
        outbox = Outbox(
            self.home / self.name,
            self.registry,
            {},
            Files,  # type: ignore[arg-type]
            grouping=Grouping(model="app:1", quiet=QUIET),
            tell=lambda change: self.said.append((change.kind, change.incident.row)),
            clock=lambda: self.now,
            notify=notices(HOOK, Origin(output=self.name, host="here")),
        )
        outbox.begin(Problems())
        self.courier = Courier(HOOK, self.registry.notices(outbox.stream), print, send=self.send)
        return outbox, outbox.follower  # type: ignore[return-value]

    def send(self, hook: Webhook, one: Notice) -> Answer:
        self.sent.setdefault(one.key, one)
        return Answer(status=200)

    def stop(self, outbox: Outbox) -> None:
        outbox.close()
        self.registry.close()

    def play(self, death: int | None = None, die: Callable[[World, Outbox], None] | None = None) -> None:
        """All turns; in one of them the process dies, and another goes on."""
        outbox, files = self.start()
        while files.turns < len(self.turns):
            dies, turn = files.turns == death, files.turns
            self.now, rows = self.turns[turn]
            files.turns += 1
            outbox.write(rows)
            assert bool(rows) or outbox.due or turn in (3, 8)
            if not dies:
                outbox.commit({}, Problems())
                self.courier.step()
                continue
            death = None
            assert die is not None
            die(self, outbox)
            self.stop(outbox)
            outbox, files = self.start()
        self.courier.step()  # what happened to an incident comes in order, a notice each time
        self.stop(outbox)

    def result(self) -> tuple[Any, ...]:
        """What is kept in the database and the file, and what a webhook was told of each incident."""
        with Streams(Workspace.locate(self.home)) as registry:
            found = registry.stream(str(self.home / self.name))
            kept = registry.incidents(stream=found.id)
            rows = registry.stream_rows(found.id, 0, 99)
            of = {one.row: registry.incident_rows(one, 99) for one in kept}
            incidents = [replace(one, id=0, stream_id=0, output="") for one in kept]
        sent = [[one.kind for one in self.sent.values() if one.incident == known.id] for known in kept]
        return incidents, rows, of, (self.home / self.name).read_text(), sent


TURNS: list[tuple[float, list[dict[str, Any]]]] = [
    (0, [row(1), row(5, alarm=False)]),
    (10, [row(9, never_seen=NEW), row(1, file="/logs/b.log")]),
    (30, [row(13, alarm=False)]),
    (40, []),
    (70, []),  # both are over
    (75, [row(17)]),
    (90, [row(21), row(1001, file="/logs/b.log"), row(25, alarm=False)]),
    (200, [row(29)]),  # what was open is over, and another begins
    (210, []),
    (261, []),
]


def _before(world: World, outbox: Outbox) -> None:
    """It dies, and the rows of this turn with it."""


def _after(world: World, outbox: Outbox) -> None:
    outbox.commit({}, Problems())


def _between(world: World, outbox: Outbox) -> None:
    """It dies when the database has the rows, and the file has not."""
    with dying(LinesSink, "write_lines"), dying(outbox, "_tell"):
        _after(world, outbox)


def _torn(world: World, outbox: Outbox) -> None:
    """It dies when half of the rows are in the file."""
    write_lines = LinesSink.write_lines

    def half(sink: LinesSink, data: bytes) -> None:
        write_lines(sink, data[: len(data) // 2])
        sink.flush()

    with dying(LinesSink, "write_lines", half), dying(outbox, "_tell"):
        _after(world, outbox)


def _unnoted(world: World, outbox: Outbox) -> None:
    """It dies when the webhook has a notice, and the database does not know that."""
    _after(world, outbox)
    with dying(NoticeQueue, "settle"):
        world.courier.step()


@contextmanager
def dying(owner: object, name: str, last: Callable[..., None] = lambda *_: None) -> Iterator[None]:
    """The process dies when this is called, after it has done something else."""

    def die(*arguments: Any, **_: Any) -> None:
        last(*arguments)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(owner, name, die)
        yield


def _unsure(world: World, outbox: Outbox) -> None:
    """The connection is lost when the commit is done, so that it is done again."""
    commit, times = world.registry.commit_stream, iter([True, False])

    def lost(*arguments: Any, **named: Any) -> Any:
        done = commit(*arguments, **named)
        if next(times):
            raise UnreachableError("the server was lost")
        return done

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.registry, "commit_stream", lost)
        patched.setattr(database, "_PAUSES", (0.0,))
        _after(world, outbox)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("whole"), "whole.jsonl", TURNS)
    world.play()
    return world


def test_a_stream_keeps_its_incidents(undisturbed: World) -> None:
    incidents, rows, of, _, sent = undisturbed.result()
    assert [(one.place[6:], one.start, one.rows, one.state) for one in incidents] == [
        ("app.log", 1, 2, "resolved"),
        ("b.log", 1, 1, "resolved"),
        ("app.log", 17, 2, "resolved"),
        ("b.log", 1001, 1, "resolved"),
        ("app.log", 29, 1, "resolved"),
    ]
    assert [number for number, _ in of.values()] == [2, 1, 2, 1, 1]
    assert len(rows) == 10
    kinds = [kind for kind, _ in undisturbed.said]
    assert [kinds.count(kind) for kind in ("opened", "updated", "resolved")] == [5, 2, 5]
    assert sent == [["opened", "resolved"]] * 5


@pytest.mark.parametrize("die", [_before, _after, _between, _torn, _unnoted, _unsure])
def test_whenever_it_dies_incidents_are_as_if_it_had_not(
    tmp_path: Path, undisturbed: World, die: Callable[[World, Outbox], None]
) -> None:
    expected = undisturbed.result()
    for death in range(len(TURNS)):
        world = World(tmp_path, f"{death}.jsonl", TURNS)
        world.play(death, die)
        assert world.result() == expected, death
        if die in (_before, _after, _unnoted, _unsure):
            assert world.said == undisturbed.said


def test_what_a_person_says_meanwhile_is_heard(tmp_path: Path) -> None:
    turns = [(10.0 * n, [row(1 + 4 * n, never_seen=NEW)]) for n in range(3)]
    world = World(tmp_path, "rows.jsonl", turns)
    outbox, _ = world.start()
    for number, (now, rows) in enumerate(turns):
        world.now = now
        outbox.write(rows)
        outbox.commit({}, Problems())
        if number == 0:
            with Streams(Workspace.locate(world.home)) as other:
                other.mark_incident(1, state="acknowledged", note="on it")
    assert world.said == [("opened", 1), ("updated", 1), ("updated", 1)]
    (one,) = world.registry.incidents()
    assert (one.state, one.note, one.rows) == ("acknowledged", "on it", 3)
    world.now = 100
    assert outbox.due
    outbox.close()
    outbox, _ = world.start()
    assert outbox.notes[-1].endswith("after 3 rows, with 1 incident that is not over")
    assert outbox.due
    outbox.commit({}, Problems())
    assert not outbox.due
    (one,) = world.registry.incidents()
    assert (one.state, one.note) == ("resolved", "on it")
    assert world.registry.mark_incident(1, state="acknowledged").state == "resolved"
    world.stop(outbox)

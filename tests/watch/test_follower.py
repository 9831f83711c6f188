"""Files that are followed: each line once, whatever is done to the files and whenever the process dies."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from followed import WINDOW, Row, Step, World, append, compress, copy_truncate, once, rename, truncate

from seqmlm.data.record import Record
from seqmlm.watch import follower as follow
from seqmlm.watch import generations
from seqmlm.watch.follower import Follower
from seqmlm.watch.generations import Content, FileState


def block(start: int, windows: int = 2) -> str:
    """Whole windows of lines that no other block has."""
    lines = range(start * WINDOW, (start + windows) * WINDOW)
    return "".join(f"2024-03-05 10:{n // 60:02d}:{n % 60:02d} INFO step {n} of work\n" for n in lines)


def trace(start: int) -> str:
    """A window of lines, two of which go on in lines without a header."""
    lines = block(start, 1).splitlines()
    return f"{lines[0]}\n{lines[1]}\n  at a({start})\n  at b\n{lines[2]}\n{lines[3]}\n  at c\n"


def sessions(numbers: Sequence[int], lines: Sequence[int], shared: str = "") -> str:
    """Lines of several sessions between each other; one that `shared` names belongs to two."""
    return "".join(
        f"2024-03-05 10:00:{line:02d} INFO job=j{number}{shared} does {line}\n"
        for line in lines
        for number in numbers
    )


def minute(number: int, *jobs: int) -> str:
    """A line that belongs to some sessions; half an hour without one ends a session."""
    return f"2024-03-05 10:{number:02d}:00 INFO {' '.join(f'job=j{one}' for one in jobs)} at {number}\n"


BY_ID = {"session": r"job=(j\d+)", "session_gap": "30m"}
ROLL = [rename("app.log", "app.log.9")]
PAIR = [append(block(0)), append(block(2))]

SESSIONS = [sessions(*one) for one in (([1, 2], [0, 1]), ([2, 3], [2]), ([1, 3], [3]))]
MINUTES = [minute(*one) for one in ((0, 1, 7), (20, 7), (40, 8), (45, 7, 8))]
# Lines that come late, by less and by more than the pause that ends a session.
LATE = [minute(*one) for one in ((10, 1), (2, 2), (30, 3), (12, 2), (25, 1), (59, 2), (28, 3), (58, 1))]
# A pause cuts a window, so that what is torn here is the first line of one.
TORN = [block(0) + block(2)[:20], block(2)[20:] + block(4)[:39], block(4)[39:]]
TORN += [block(6)[:1], block(6)[1:5], block(6)[5:]]
MOVED = rename("app.log", "app.log.1")

CASES: dict[str, tuple[list[Step], list[str], dict[str, object]]] = {
    "append": ([append(block(n)) for n in (0, 2, 4)], [block(0, 6)], {}),
    "rename": ([*PAIR, MOVED, append(block(4)), append(block(6))], [block(0, 4), block(4, 4)], {}),
    "late writer": (
        [append(block(0)), MOVED, append(block(2), "app.log.1"), append(block(4))],
        [block(0, 4), block(4)],
        {},
    ),
    "copy and truncate": (
        [*PAIR, copy_truncate("app.log", "app.log.1"), append(block(4)), append(block(6))],
        [block(0, 4), block(4, 4)],
        {},
    ),
    "compressed": ([*PAIR, MOVED, compress("app.log.1"), append(block(4))], [block(0, 4), block(4)], {}),
    "partial lines": ([append(one) for one in TORN], [block(0, 8)], {}),
    "several lines": (
        [append(trace(0)), append(trace(1) + trace(2)), MOVED, append(trace(3))],
        [trace(0) + trace(1) + trace(2), trace(3)],
        {},
    ),
    "sessions": ([*map(append, SESSIONS), *ROLL], ["".join(SESSIONS)], BY_ID),
    # One is over while another still has a line of both.
    "sessions that share lines": ([*map(append, MINUTES), *ROLL], ["".join(MINUTES)], BY_ID),
    "sessions whose lines come late": ([*map(append, LATE), *ROLL], ["".join(LATE)], BY_ID),
}


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
@pytest.mark.parametrize("name", CASES)
def test_whenever_it_dies_each_line_is_read_once(tmp_path: Path, name: str, pattern: str) -> None:
    steps, contents, options = CASES[name]
    whole = World(tmp_path / "whole", pattern, **options)
    whole.play(steps)
    expected = once(whole, *contents)
    assert sorted(whole.rows) == expected
    assert len(set(expected)) == len(expected) > 1
    last = whole.TURNS * len(steps)
    for death in range(last):
        for after_commit, down in (
            ((False, 0), (True, 0)) if pattern == "app.log" else ((True, 1), (False, 2))
        ):
            world = World(tmp_path / f"{death}-{after_commit}-{down}", pattern, **options)
            assert world.play(steps, death=death, after_commit=after_commit, down=down)
            assert sorted(world.rows) == expected, (death, after_commit, down)
            assert not world.gaps


def test_a_line_that_continues_a_message_after_a_pause_is_read_once(tmp_path: Path) -> None:
    """It is a message of its own then, whoever reads it."""
    late = [f"  at late {n}\n{block(2 * n, 1)}" for n in range(1, 4)]
    written = block(0) + "".join(late)
    for death in range(4 * World.TURNS):
        for after_commit in (False, True):
            world = World(tmp_path / f"{death}-{after_commit}")
            assert world.play([append(block(0)), *map(append, late)], death=death, after_commit=after_commit)
            lines = [line for text, _ in world.rows for line in text.split("\0")[0].split("\n")]
            assert sorted(lines) == sorted(line.split("INFO ")[-1] for line in written.splitlines())


def test_files_have_turns_and_no_turn_reads_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "FILE_BYTES", 2000)
    monkeypatch.setattr(follow, "TURN_BYTES", 3000)
    world = World(tmp_path, "*.log")
    for name in ("a.log", "b.log", "c.log"):
        append(block(ord(name[0]), 200), name)(tmp_path)
    append(block(0), "small.log")(tmp_path)
    follower, before = world.start(), 0
    small = once(world, block(0))
    while not set(small) <= set(world.rows):
        world.turn()
        taken = sum(file.state.offset for file in follower._files)
        assert taken - before <= 3000 + 60, "and the rest of a line"
        before = taken
    assert world.turns < 40, "the small file waited for the large ones"
    world.settle(400)
    assert sorted(world.rows) == once(world, block(0), *(block(ord(one), 200) for one in "abc"))


def test_a_line_longer_than_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FILE_BYTES", 1000)
    text = block(0).replace("step 3 ", f"step {'x' * 5000} ")
    world = World(tmp_path)
    world.after(append(text[:3000]), turns=3)
    world.after(append(text[3000:]))
    assert sorted(world.rows) == once(world, text)


def test_the_last_line_of_a_rotated_file_needs_no_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.play([append(block(0)[:-1]), MOVED, append(block(2))])
    # A pause has cut the window, for nobody knew that the line would have no end.
    assert sorted(line for text, _ in world.rows for line in text.split("\0")[0].split("\n")) == sorted(
        f"step {n} of work" for n in range(16)
    )


def test_files_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    world = World(tmp_path, "*.log")
    banner = block(0, 4 * generations.PREFIX // len(block(0, 1)))
    for name in ("a.log", "b.log"):
        append(banner, name)(tmp_path)
    world.settle()
    world.after(append(block(200), "a.log"))
    world.die()
    world.after(append(block(300), "b.log"))
    assert sorted(world.rows) == once(world, banner + block(200), banner + block(300))


@pytest.mark.parametrize("packed", [False, True])
def test_files_that_came_and_were_rotated_while_nobody_looked_are_read(tmp_path: Path, packed: bool) -> None:
    world = World(tmp_path)
    for text, name in ((block(20), "app.log.3"), (block(30), "app-other.log.1")):
        append(text, name)(tmp_path)  # older than what is followed; of another service
    world.after(append(block(0)))
    world.die()
    rotations = [rename("app.log", "app.log.2"), append(block(4)), MOVED]
    world.after(append(block(2)), *rotations, *([compress("app.log.1")] if packed else []), append(block(6)))
    expected = once(world, block(0, 4), block(4), block(6))
    assert sorted(world.rows) == expected
    world.die()
    world.after(append(block(8)))
    assert sorted(world.rows) == once(world, block(0, 4), block(4), block(6, 4))


def test_one_name_again_and_again(tmp_path: Path) -> None:
    """Each generation begins with the lines of the one before."""
    world = World(tmp_path)
    steps: list[Step] = []
    for number in range(1, 4):
        steps += [append(block(0) + block(2 * number)), rename("app.log", f"app.log.{number}")]
    world.play([*steps, append(block(0) + block(8))])
    assert sorted(world.rows) == once(world, *(block(0) + block(2 * number) for number in range(1, 5)))


def test_what_was_destroyed_before_it_was_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(follow, "TURN_BYTES", len(block(0)))
    world = World(tmp_path)
    append(block(0) + block(2))(tmp_path)
    world.turn()
    world.after(truncate(), append(block(4)))
    lost = len(block(2))
    assert [(one.line, one.offset, one.size) for one in world.gaps] == [(9, len(block(0)), lost)]
    assert sorted(world.rows) == once(world, block(0), block(4))


def test_a_file_that_is_gone_when_it_goes_on_is_told_once(tmp_path: Path) -> None:
    world = World(tmp_path, **BY_ID)
    world.after(append(sessions([1, 2], [0, 1])))
    world.die()
    (tmp_path / "app.log").unlink()
    world.settle()
    world.die()
    world.settle()
    assert [(one.line, one.size) for one in world.gaps] == [(1, 0)], "its lines still waited for others"
    assert world.rows == []
    assert len([one for one in world.said if "followed when it appears" in one]) == 2  # by each process


@pytest.mark.parametrize("lost", [False, True])
def test_a_file_that_was_read_and_is_removed_while_nobody_looks_is_no_gap(tmp_path: Path, lost: bool) -> None:
    """Unless a line without its end was in it, which nobody has read."""
    world = World(tmp_path)
    world.after(append(block(0)), append(trace(9)), append("torn" if lost else ""))
    world.die()
    (tmp_path / "app.log").unlink()
    world.settle()
    assert [one.size for one in world.gaps] == ([4] if lost else [])
    world.after(append(block(2)))
    world.die()
    world.after(append(block(4)))
    assert sorted(world.rows) == once(world, block(0), trace(9), block(2, 4))
    assert len(world.gaps) == lost


def test_a_file_that_is_compressed_while_it_is_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, "app.log*", patience=0.0)
    world.after(append(block(0)))
    world.die()
    append(block(2))(tmp_path)
    MOVED(tmp_path)
    given, packed = follow.opened, [compress("app.log.1")]

    def late(path: str) -> Content:
        if packed:
            packed.pop()(tmp_path)
        return given(path)

    monkeypatch.setattr(follow, "opened", late)
    world.settle()
    assert not packed
    assert not world.gaps
    assert sorted(world.rows) == once(world, block(0, 4))


def test_a_copy_that_is_there_from_the_beginning_is_read_once(tmp_path: Path) -> None:
    world = World(tmp_path, "app.log*")
    append(block(0))(tmp_path)
    (tmp_path / "app.log.1").write_bytes((tmp_path / "app.log").read_bytes())
    world.turn()
    world.after(truncate(), append(block(2)))
    assert not world.gaps
    assert sorted(world.rows) == once(world, block(0), block(2))


def test_a_file_that_is_cut_off_while_its_copy_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(follow, "TURN_BYTES", len(block(0)))
    world = World(tmp_path, "app.log*")
    append(block(0) + block(2))(tmp_path)
    world.turn()
    assert [state.offset for state in world.states.values()] == [len(block(0))]
    given, cuts = follow.is_of, [copy_truncate("app.log", "app.log.1")]

    def late(content: Content, state: FileState) -> bool:
        found = given(content, state)
        if found and cuts and state.offset < content.size():
            cuts.pop()(tmp_path)
        return found

    (tmp_path / "app.log.1").write_bytes((tmp_path / "app.log").read_bytes())
    monkeypatch.setattr(follow, "is_of", late)
    world.now += 1  # it looks at all files before it reads on
    world.settle()
    assert not cuts
    assert not world.gaps
    assert sorted(world.rows) == once(world, block(0, 4))


def test_a_file_that_is_cut_off_while_a_new_process_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, "app.log*")
    world.after(append(block(0) + block(2)[:20]))
    world.die()
    append(block(2)[20:])(tmp_path)
    given, cuts = generations.Generation._given_again, [copy_truncate("app.log", "app.log.1")]

    def late(self: generations.Generation, content: Content, fed: generations.Fed) -> Iterator[Record]:
        if cuts:
            cuts.pop()(tmp_path)
        return given(self, content, fed)

    monkeypatch.setattr(generations.Generation, "_given_again", late)
    world.settle()
    world.after(append(block(4)))
    assert not cuts
    assert not world.gaps
    assert sorted(world.rows) == once(world, block(0, 4), block(4))


def test_what_was_read_before_a_file_was_cut_off_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world = World(tmp_path, patience=0.0)
    append(block(0))(tmp_path)
    world.turn()
    assert not world.rows, "they wait for a pause"
    MOVED(tmp_path)
    given = generations.Generation.read

    def late(self: generations.Generation, most: int, now: float, *, final: bool = False) -> list[Record]:
        if final:
            (tmp_path / "app.log.1").write_bytes(b"")
        return given(self, most, now, final=final)

    monkeypatch.setattr(generations.Generation, "read", late)
    world.now += 1  # a pause, and the end, in one turn
    world.settle()
    assert sorted(world.rows) == once(world, block(0))


def test_patience_begins_with_the_first_look(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.after(append(block(0)))
    world.die()
    append(block(2))(tmp_path)
    rename("app.log", "elsewhere")(tmp_path)
    world.start()
    world.now += 100  # a machine that is busy with other things
    world.turn()
    world.after(rename("elsewhere", "app.log.1"))
    assert not world.gaps
    assert sorted(world.rows) == once(world, block(0, 4))


def test_a_file_that_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.after(append(block(0)))
    world.die()
    append(block(2))(tmp_path)
    with monkeypatch.context() as patched:

        def refuse(path: str) -> object:
            raise PermissionError(errno.EACCES, "Permission denied", path)

        patched.setattr(follow, "opened", refuse)
        patched.setattr(os, "access", lambda path, mode: False)
        world.settle(100)
    assert [one for one in world.said if "cannot be read (Permission denied)" in one] == world.said
    assert len(world.said) == 1
    world.settle()
    assert sorted(world.rows) == once(world, block(0, 4))
    assert not world.gaps


def test_a_pipe_is_refused_and_nothing_waits_for_it(tmp_path: Path) -> None:
    world = World(tmp_path, "*.log")
    os.mkfifo(tmp_path / "pipe.log")
    world.after(append(block(0), "a.log"))
    assert [one for one in world.said if "cannot be read twice" in one and "pipe.log" in one] == world.said
    assert len(world.said) == 1
    assert sorted(world.rows) == once(world, block(0))


def test_a_file_that_is_still_being_compressed_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, "app.log*")
    packed = gzip.compress(block(0, 40).encode())
    (tmp_path / "app.log.1.gz").write_bytes(packed[: len(packed) // 2])
    world.settle(5)
    assert len(world.rows) < len(once(world, block(0, 40)))
    (tmp_path / "app.log.1.gz").write_bytes(packed)
    world.settle()
    assert sorted(world.rows) == once(world, block(0, 40))


def test_a_damaged_file_is_remembered_only_while_it_is_there(tmp_path: Path) -> None:
    pattern, clock = str(tmp_path / "app.log*"), count()
    follower = Follower([pattern], lambda source: iter(()), tick=0.1, clock=lambda: next(clock))
    (tmp_path / "app.log").write_text(block(0))
    cut = gzip.compress(block(2).encode())[:-20]
    for number in range(3):
        (tmp_path / f"app.log.{number}.gz").write_bytes(cut)
    follower.turn()
    assert len(follower._damaged) == 3
    (tmp_path / "app.log.0.gz").unlink()
    (tmp_path / "app.log.1.gz").write_bytes(cut[:-1])  # it is written to: another state of the same file
    follower.turn()
    assert len(follower._damaged) == 2
    for number in (1, 2):
        (tmp_path / f"app.log.{number}.gz").unlink()
    follower.turn()
    assert not follower._damaged
    follower.close()


def test_clocks_that_go_back_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    append(block(4))(tmp_path)
    os.utime(tmp_path / "app.log", (2e9, 2e9))
    world.settle()
    world.die()
    append(block(0))(tmp_path)  # times of lines go back, and that of the file
    os.utime(tmp_path / "app.log", (1e9, 1e9))
    world.settle()
    assert sorted(world.rows) == once(world, block(4), block(0))


def test_a_backlog_is_cut_like_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut at a pause while there is more to read; killed in the middle, it goes on there."""
    monkeypatch.setattr(follow, "FILE_BYTES", 10_000)
    text = block(0, 3000)
    expected: list[Row] = []
    for death in (None, 20, 60):
        world = World(tmp_path / str(death), window=50, session="none")
        append(text)(world.folder)
        expected = expected or once(world, text)
        for turn in range(120):
            world.turn(commit=turn != death)
            if turn == death:
                world.die()
        world.settle()
        assert sorted(world.rows) == expected
        begin = world.states[1].begin
        assert begin > 0.9 * len(text), "a new reader would begin near the end"


def test_what_was_read_and_what_waits_is_counted_also_after_a_death(tmp_path: Path) -> None:
    world = World(tmp_path, "*.log")
    append("one\ntwo\nthr")(tmp_path)
    append("1\n2\n3\n", "b.log")(tmp_path)
    assert world.start().unread == 0  # nothing was met yet
    for _ in range(3):
        world.turn()
    assert (world.start().lines, world.start().bytes, world.start().unread) == (5, 14, 0)
    append("ee\nfour\n")(tmp_path)  # the line that waits for its end has it now
    assert world.start().unread == 8
    world.turn()
    world.after(MOVED, append("new\n"))
    assert (world.start().lines, world.start().bytes, world.start().unread) == (8, 29, 0)
    world.die()
    append("after\n")(tmp_path)
    assert (world.start().lines, world.start().bytes) == (8, 29)
    world.settle()
    assert (world.start().lines, world.start().bytes, world.start().unread) == (9, 35, 0)
    assert (world.start().idle, world.start().has_changes) == (True, False)

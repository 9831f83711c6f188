"""Files that are followed: each line once, whatever is done to the files and whenever the process dies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from followed import Step, World, append, compress, copy_truncate, once, rename

WINDOW = 4


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


LATER = "2024-03-05 10:40:00 INFO job=j1 job=j7 again\n"
"""After a pause that ends sessions."""

BY_ID = {"session": r"job=(j\d+)", "session_gap": "30m"}
ROLL = [rename("app.log", "app.log.9")]

CASES: dict[str, tuple[list[Step], list[str], dict[str, object]]] = {
    "append": ([append(block(n)) for n in (0, 2, 4)], [block(0, 6)], {}),
    "rename": (
        [
            append(block(0)),
            append(block(2)),
            rename("app.log", "app.log.1"),
            append(block(4)),
            append(block(6)),
        ],
        [block(0, 4), block(4, 4)],
        {},
    ),
    "late writer": (
        [append(block(0)), rename("app.log", "app.log.1"), append(block(2), "app.log.1"), append(block(4))],
        [block(0, 4), block(4)],
        {},
    ),
    "copy and truncate": (
        [
            append(block(0)),
            append(block(2)),
            copy_truncate("app.log", "app.log.1"),
            append(block(4)),
            append(block(6)),
        ],
        [block(0, 4), block(4, 4)],
        {},
    ),
    "compressed": (
        [
            append(block(0)),
            append(block(2)),
            rename("app.log", "app.log.1"),
            compress("app.log.1"),
            append(block(4)),
        ],
        [block(0, 4), block(4)],
        {},
    ),
    "partial lines": (
        # A pause cuts a window, so that what is torn here is the first line of one.
        [
            append(block(0) + block(2)[:20]),
            append(block(2)[20:] + block(4)[:39]),
            append(block(4)[39:]),
            append(block(6)[:1]),
            append(block(6)[1:5]),
            append(block(6)[5:]),
        ],
        [block(0, 8)],
        {},
    ),
    "several lines": (
        [append(trace(0)), append(trace(1) + trace(2)), rename("app.log", "app.log.1"), append(trace(3))],
        [trace(0) + trace(1) + trace(2), trace(3)],
        {},
    ),
    "sessions": (
        [
            append(sessions([1, 2], [0, 1])),
            append(sessions([2, 3], [2])),
            append(sessions([1, 3], [3])),
            *ROLL,
        ],
        [sessions([1, 2], [0, 1]) + sessions([2, 3], [2]) + sessions([1, 3], [3])],
        BY_ID,
    ),
    "sessions that share lines": (
        [
            append(sessions([1], [0], " job=j7")),
            append(sessions([2, 1], [1, 2])),
            append(sessions([7], [40])),
            append(LATER),
            append(LATER.replace("j1", "j8") + LATER),
            *ROLL,
        ],
        [
            sessions([1], [0], " job=j7")
            + sessions([2, 1], [1, 2])
            + sessions([7], [40])
            + LATER
            + LATER.replace("j1", "j8")
            + LATER
        ],
        BY_ID,
    ),
}


def _world(folder: Path, pattern: str, options: dict[str, object]) -> World:
    folder.mkdir()
    return World(folder, pattern, **(options or {"window": WINDOW, "session": "none"}))


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
@pytest.mark.parametrize("name", CASES)
def test_whenever_it_dies_each_line_is_read_once(tmp_path: Path, name: str, pattern: str) -> None:
    steps, contents, options = CASES[name]
    whole = _world(tmp_path / "whole", pattern, options)
    whole.play(steps)
    expected = once(whole, *contents)
    assert sorted(whole.rows) == expected
    assert len(set(expected)) == len(expected) > 1
    last = whole.TURNS * len(steps)
    for death in range(last):
        for after_commit, down in (
            ((False, 0), (True, 0)) if pattern == "app.log" else ((True, 1), (False, 2))
        ):
            world = _world(tmp_path / f"{death}-{after_commit}-{down}", pattern, options)
            assert world.play(steps, death=death, after_commit=after_commit, down=down)
            assert sorted(world.rows) == expected, (death, after_commit, down)
            assert not world.gaps

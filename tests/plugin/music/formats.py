"""Tunes from files: `# name`, then lines of notes such as `C4 Fs4 G4`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_NOTE = re.compile("([A-G])(s?)([0-8])")
_SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


def pitch(note: str) -> int | None:
    """Semitones above C0, or None for what is no note.

    >>> pitch("C4"), pitch("Fs4"), pitch("H2")
    (48, 54, None)
    """
    found = _NOTE.fullmatch(note)
    return None if found is None else 12 * int(found[3]) + _SEMITONES[found[1]] + bool(found[2])


def read_tunes(path: str | Path, problems: Problems) -> Iterator[Record]:
    """Read tunes; one with something that is no note is handed to `problems`.

    Args:
        path: the file.
        problems: receives tunes that cannot be read.
    """
    source = str(path)
    name, first, notes = "", 0, list[str]()
    for number, text in [*lines(source, problems), (0, "#")]:
        if not text.startswith("#"):
            notes += text.split()
            continue
        wrong = next((note for note in notes if pitch(note) is None), None)
        if wrong is not None:
            problems.bad(DataError(f"{wrong!r} is no note", source=source, line=first, remedy="correct it"))
        elif notes:
            yield Record(id=name, raw=" ".join(notes), source=source, line=first)
        name, first, notes = text.removeprefix("#").strip(), number, []

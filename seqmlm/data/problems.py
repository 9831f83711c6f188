"""Handle bad input: raise, skip, or quarantine (skip and save to a file), counted by reason and place."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from seqmlm.data.counts import Things, with_things
from seqmlm.engine.durable import DISK, refuse_irregular
from seqmlm.errors import DataError, SeqmlmError, StateError, UsageError
from seqmlm.privacy import sensitive_data

OnError = Literal["raise", "skip", "quarantine"]

_COUNTS = ("bad", "notes", "places", "remedies")
_DISTINCT_REASONS = 1000  # bounds memory if every bad record has its own reason
_RAW_KEPT = 1 << 20  # characters of a bad record that are saved to the quarantine file


@dataclass
class ProblemCounts:
    """Counts of problems in this or another process (`Problems.for_worker`), and lines to quarantine."""

    bad: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)
    remedies: dict[str, str] = field(default_factory=dict)
    first: DataError | None = None
    quarantine_lines: list[str] = field(default_factory=list)
    things: set[str] = field(default_factory=set)  # reasons that do not count people
    warnings: list[str] = field(default_factory=list)


class Problems:
    """Collects the problems of an input. One object serves all files of a command and all threads.

    Args:
        on_error: "raise" stops at the first bad record. "skip" counts it and continues. "quarantine" also
            appends it to the quarantine file.
        quarantine: the quarantine file (JSON lines `source, line, field, reason, remedy, raw`).
        sensitive: whether errors and the quarantine file must not contain any character of the data. None:
            whether the process handles sensitive data now.

    Attributes:
        places: the first place of each reason, as "file:line".
        remedies: the remedy for each reason, from its first error.
        met: number of bad records so far, including input that is read again (`replaying`).
        listener: receives each warning at once, and only once.

    Raises:
        UsageError: "quarantine" is requested without a file, or `on_error` is unknown.
    """

    def __init__(
        self, on_error: OnError = "raise", quarantine: Path | None = None, sensitive: bool | None = None
    ) -> None:
        if on_error not in get_args(OnError):
            raise UsageError(f"on_error must be one of {', '.join(get_args(OnError))}; got {on_error!r}")
        if on_error == "quarantine" and quarantine is None:
            raise UsageError("on_error 'quarantine' needs a file for the quarantined records")
        self.on_error, self.quarantine = on_error, quarantine
        self.sensitive = sensitive_data() if sensitive is None else sensitive
        self.met = 0
        self.listener: Callable[[str], object] | None = None
        self._warned = set[str]()
        self._met = ProblemCounts()
        self._sink: TextIO | None = None
        self._replayed = self._in_worker = False
        self._one_at_a_time = threading.RLock()

    def bad(self, error: DataError, raw: str | None = None) -> None:
        """Handle a bad record or file according to `on_error`. With "raise", raise `error`.

        Raises:
            StateError: the quarantine file is not a regular file, or cannot be written.
        """
        self.met += 1
        if self._replayed:
            return
        if self.on_error == "raise":
            error.skippable = error.line is not None  # skipping a whole file would hide a wrong format
            raise error
        with self._one_at_a_time:
            self._met.first = self._met.first or error
            reason = _count(self._met.bad, error.reason, 1)
            self._note_place(reason, error.source, error.line)
            if error.remedy:
                field = f"field {error.field!r}: " if error.field else ""
                self.remedies.setdefault(reason, field + error.remedy)
            if self.on_error == "quarantine":
                self._put_aside(error, raw)

    def located(self, error: SeqmlmError, record: Any) -> DataError:
        """An error about a record, with its file and line.

        For sensitive data, the reason is left out, because it may quote the data.
        """
        hides = self.sensitive and isinstance(error, DataError)
        return DataError(
            "content that the model cannot process" if hides else getattr(error, "reason", str(error)),
            source=record.source,
            line=record.line,
            remedy=getattr(error, "remedy", None) or "correct it, or leave it out",
        )

    def quoted(self, text: str, otherwise: str = "") -> str:
        """A part of a message that quotes the data. For sensitive data, `otherwise` is returned."""
        return otherwise if self.sensitive else text

    def note(self, reason: str, n: int = 1, *, source: str | None = None, line: int | None = None) -> None:
        """Count an irregularity that leaves the record usable, such as a repeated id or a dropped line.

        Args:
            reason: a constant sentence.
            n: number of times. `Things` if it counts files, tables or columns instead of records.
            source, line: the place, if it is known.
        """
        if isinstance(n, Things):
            self._met.things.add(reason)
        if n and not self._replayed:
            with self._one_at_a_time:
                self._note_place(_count(self._met.notes, reason, n), source, line)

    def warn(self, reason: str, *, source: str | None = None) -> None:
        """Note a warning that the user should see before all input is read.

        The `listener` receives it once.
        """
        self.note(reason, Things(1), source=source)
        with self._one_at_a_time:
            if reason in self._warned or self._replayed:
                return
            self._warned.add(reason)
            if self._in_worker:
                self._met.warnings.append(reason)
            elif self.listener is not None:
                self.listener(f"warning: {reason}")

    def _note_place(self, reason: str, source: str | None, line: int | None) -> None:
        if source is not None:
            self.places.setdefault(reason, source if line is None else f"{source}:{line}")

    def for_worker(self) -> Problems:
        """Create problems with the same settings for another process.

        Its counts return with `take_counts` and `add`.
        """
        problems = Problems(self.on_error, self.quarantine, self.sensitive)
        problems._in_worker = True
        return problems

    def take_counts(self) -> ProblemCounts:
        """Take out the counts since the last call."""
        counted, self._met = self._met, ProblemCounts()
        return counted

    def add(self, counted: ProblemCounts) -> None:
        """Add the counts of another process."""
        with self._one_at_a_time:
            for counts, new_counts in ((self._met.bad, counted.bad), (self._met.notes, counted.notes)):
                for reason, n in new_counts.items():
                    _count(counts, reason, n)
            self.met += counted.bad.total()
            self._met.things |= counted.things
            self._met.places, self._met.remedies = (
                counted.places | self.places,
                counted.remedies | self.remedies,
            )
            self._met.first = self._met.first or counted.first
            for line in counted.quarantine_lines:
                self._append(line)
            for reason in counted.warnings:
                if self.listener is not None:
                    self.listener(f"warning: {reason}")

    @property
    def places(self) -> dict[str, str]:
        return self._met.places

    @property
    def remedies(self) -> dict[str, str]:
        return self._met.remedies

    def nothing(self) -> DataError:
        """The error for an input without usable records. It reports the first problem."""
        with self._one_at_a_time:
            first, left_out = self._met.first, next(iter(self._met.notes), None)
        remedy = "check the files, their format and its options"
        if first is not None:
            return DataError(
                f"no record could be read; the first problem is: {first.reason}",
                source=first.source,
                line=first.line,
                field=first.field,
                remedy=first.remedy or remedy,
            )
        if left_out is not None:
            return DataError(
                f"no record is left: {left_out}", source=self.places.get(left_out), remedy=remedy
            )
        return DataError("no record was found", remedy=remedy)

    @property
    def bad_count(self) -> int:
        """Number of bad records and files so far."""
        with self._one_at_a_time:
            return self._met.bad.total()

    @property
    def counts(self) -> dict[str, int]:
        """Number of occurrences of each reason for bad records and notes.

        `Things` for reasons that do not count people.
        """
        with self._one_at_a_time:
            return with_things(dict(sorted((self._met.bad + self._met.notes).items())), self._met.things)

    @property
    def things(self) -> list[str]:
        """Reasons that do not count people."""
        with self._one_at_a_time:
            return sorted(self._met.things)

    def snapshot(self) -> dict[str, Any]:
        """All counts so far and the synced size of the quarantine file, as JSON values."""
        with self._one_at_a_time:
            if self._sink is not None:
                self._sink.flush()
                assert self.quarantine is not None
                DISK.sync(self.quarantine)
            counts = {name: dict(getattr(self._met, name)) for name in _COUNTS}
            return {**counts, "quarantined": self.quarantined}

    @property
    def quarantined(self) -> int:
        """Size of the quarantine file in bytes. 0 if there is none."""
        file = self.quarantine
        return file.stat().st_size if file is not None and file.is_file() else 0

    def cut_quarantine(self, size: int) -> None:
        """Truncate the quarantine file to `size` bytes."""
        self.close()
        if self.quarantined > size:
            assert self.quarantine is not None
            os.truncate(self.quarantine, size)

    @contextmanager
    def replaying(self, earlier: Mapping[str, Any]) -> Iterator[None]:
        """Context in which input is read again that was handled before.

        Nothing is raised, counted or quarantined a second time. Afterwards, counting continues from
        `earlier`, the `snapshot` taken at that point.
        """
        self._replayed = True
        try:
            yield
        finally:
            self._replayed = False
        for name in _COUNTS:
            getattr(self._met, name).clear()
            getattr(self._met, name).update(earlier[name])

    def close(self) -> None:
        """Close the quarantine file. The next bad record opens it again."""
        with self._one_at_a_time:
            if self._sink is not None:
                self._sink.close()
                self._sink = None

    def __enter__(self) -> Problems:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _put_aside(self, error: DataError, raw: str | None) -> None:
        line = {name: getattr(error, name) for name in ("source", "line", "field", "reason", "remedy")}
        if raw is not None and not self.sensitive:
            line["raw"] = raw[:_RAW_KEPT]
        self._append(json.dumps(line) + "\n")  # in ASCII, so that nothing in it affects a terminal

    def _append(self, line: str) -> None:
        if self._in_worker:
            self._met.quarantine_lines.append(line)
            return
        if self._sink is None:
            assert self.quarantine is not None
            self._sink = _appending(self.quarantine)
        self._sink.write(line)
        self._sink.flush()  # so that a killed process loses no quarantined record


def names_hint(names: Iterable[object]) -> str:
    """The names in a table, as an addition to a remedy: "; there are: a, b".

    It is "" for sensitive data, because in a table without a header the names are values.
    """
    return "" if sensitive_data() else f"; there are: {', '.join(map(str, names))}"


def _appending(path: Path) -> TextIO:
    """Open the quarantine file, which only its owner can read.

    Links are not followed, and pipes are not waited for. Otherwise bad records could be written anywhere.

    Raises:
        StateError: the file is not regular, or cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_irregular(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        raise StateError(
            f"bad records cannot be written to {path}: {error.strerror}; name another file"
        ) from None
    os.fchmod(handle, 0o600)  # open does not change the mode of an existing file
    return os.fdopen(handle, "a", encoding="ascii")


def _count(counts: Counter[str], reason: str, n: int) -> str:
    """Count a reason, and return its name. Beyond the limit, new reasons share a common name."""
    name = reason if reason in counts or len(counts) < _DISTINCT_REASONS else "other reasons"
    counts[name] += n
    return name

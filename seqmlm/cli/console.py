"""Progress on stderr: a live display on a terminal, and a plain line every 10 s elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from seqmlm.cli.output import tell
from seqmlm.errors import number_of, per_second, printable

if TYPE_CHECKING:
    from seqmlm.training.observers import StepReport


SECONDS_BETWEEN_LINES = 10.0
SHARES = {"training": (0.0, 0.8), "evaluation": (0.8, 0.85), "counts": (0.85, 0.9), "calibration": (0.9, 1.0)}
"""Begin and end of each part of a training on the progress bar. All other parts take the whole bar."""
_REFRESH = 0.1  # seconds between two updates of the live line


class _Stderr(RichConsole):
    """Standard error. If its reader has closed it, output is dropped and the work continues."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True


class _Console:
    """A progress display on stderr. It is a context manager. Messages are printed above it."""

    def __init__(self, *columns: ProgressColumn, auto_refresh: bool = True) -> None:
        self._rich = _Stderr()
        self._live = self._rich.is_terminal
        self._progress = Progress(
            *(*columns, TimeElapsedColumn(), TimeRemainingColumn()),
            console=self._rich,
            disable=not self._live,
            redirect_stdout=sys.stdout.isatty(),  # otherwise rows for a file would go to the terminal
            auto_refresh=auto_refresh,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def message(self, text: str) -> None:
        """Print one line above the progress display."""
        with suppress(OSError):
            self._rich.print(printable(text, lines=True), markup=False, soft_wrap=True)


class TrainingConsole(_Console):
    """The progress display of a training; implements `seqmlm.training.observers.Console`."""

    def __init__(self, began: float | None = None) -> None:
        text, name_column = TextColumn("{task.fields[text]}"), TextColumn("[bold]{task.description}")
        self.began = began
        super().__init__(name_column, BarColumn(), text)
        self._last_line = 0.0
        self._task: TaskID | None = None

    def step(self, report: StepReport, total: float | None) -> None:
        """Show the current step. `total` is the expected number of steps, or None if unknown."""
        of = f"/{total:.0f}" if total else ""
        text = f"step {report.step}{of}  loss {report.loss:.3f}  {report.tokens_per_second:,.0f} tokens/s"
        share = report.step / total if total else None
        self._show("training", share, text, f"{text}  {_eta(report, total)}")

    def phase(self, name: str, share: float) -> None:
        """Show the completed share of a part of the run without steps, such as evaluation."""
        self._show(name, share, f"{share:.0%}", f"{name}: {share:.0%}")

    def calibration(self, mode: str, share: float, rows: int) -> None:
        """Show the completed share of the calibration of a mode, and its number of rows."""
        self._show(
            f"calibration {mode}", share, f"{rows:,} rows", f"calibrating {mode}: {share:.0%}, {rows:,} rows"
        )

    def _show(self, name: str, share: float | None, text: str, line: str) -> None:
        """Show a part of the run on the bar. Without a terminal, print a line from time to time."""
        if not self._live:
            if self._due():
                tell(line)
            return
        if self._task is None:
            self._task = self._progress.add_task(name, total=1.0, text=text)
        begin, end = SHARES.get(name.partition(" ")[0], (0.0, 1.0))
        total = None if share is None else 1.0
        done = begin + (end - begin) * min(share or 0.0, 1.0)
        self._progress.update(self._task, description=name, completed=done, total=total, text=text)

    def _due(self) -> bool:
        """Whether it is time for the next plain line."""
        now = time.monotonic()
        if now - self._last_line < SECONDS_BETWEEN_LINES:
            return False
        self._last_line = now
        return True


def _eta(report: StepReport, total: float | None) -> str:
    if not total or not report.step:
        return ""
    seconds = (total - report.step) * report.seconds / report.step
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"


LINE_SECONDS = 10.0
"""Seconds between two plain lines about a task. A shorter run prints none."""


class ScoringConsole(_Console):
    """The progress display of a task; implements `seqmlm.reports.summary.Progress`.

    Args:
        lines: whether to print a line from time to time if stderr is not a terminal.
    """

    def __init__(self, *, lines: bool = True) -> None:
        suffixes = ("[records]:,.0f} records", "[rate]} records/s", "[alarms]}")
        texts = (TextColumn(f"{{task.fields{suffix}") for suffix in suffixes)
        # Without auto_refresh there is no thread: the process may fork.
        super().__init__(SpinnerColumn(), BarColumn(), *texts, auto_refresh=False)
        self._task = self._progress.add_task("scoring", total=None, records=0, rate="0", alarms="")
        self._began: tuple[float, int] | None = None
        self._shown = 0.0
        self._lines, self._start, self._said = lines, time.monotonic(), time.monotonic()
        self._first_share: tuple[float, float] | None = None

    def progress(self, records: int, alarms: int = 0, share: float | None = None) -> None:
        """Show the completed records and share, and the alarms. The rate is the mean since the first call."""
        now = time.monotonic()
        if not self._live:
            self._line(now, records, alarms, share)
            return
        if self._began is None:
            self._began = now, records
        seconds, done = now - self._began[0], records - self._began[1]
        alarm_text = number_of(alarms, "alarm") if alarms else ""
        rate = per_second(done / seconds if seconds else 0.0)
        total = None if share is None else 1.0
        self._progress.update(
            self._task, completed=share or 0.0, total=total, records=records, rate=rate, alarms=alarm_text
        )
        if now - self._shown >= _REFRESH:
            self._shown = now
            self._progress.refresh()

    def _line(self, now: float, records: int, alarms: int, share: float | None) -> None:
        """Print the progress and the remaining time, at most once in `LINE_SECONDS`."""
        if share is not None and self._first_share is None:
            self._first_share = now, share
        if not self._lines or now - self._said < LINE_SECONDS:
            return
        self._said = now
        parts = [f"{records:,} done"] if records else []
        parts += [number_of(alarms, "alarm")] if alarms else []
        if share is not None and self._first_share is not None:
            began, first_share = self._first_share
            parts.append(f"{share:.0%}")
            if share > first_share:
                parts.append(f"{_duration_text((now - began) * (1 - share) / (share - first_share))} left")
        tell(", ".join(parts) or f"working for {_duration_text(now - self._start)}")


def _duration_text(seconds: float) -> str:
    """A duration in words.

    >>> _duration_text(70), _duration_text(400)
    ('about 70 s', 'about 7 min')
    """
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"

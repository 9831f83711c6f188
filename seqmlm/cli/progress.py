"""Progress of a scoring on stderr: a live line on a terminal, nothing but messages elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console as RichConsole
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_REFRESH = 0.1  # seconds between two pictures


class ScoringConsole:
    """Tells a person how scoring goes; satisfies `seqmlm.tasks.score.Console`."""

    def __init__(self) -> None:
        self._rich = RichConsole(stderr=True, highlight=False)
        self._live = self._rich.is_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:,.0f} records"),
            TextColumn("{task.fields[rate]:,.0f} records/s"),
            TextColumn("{task.fields[alarms]}"),
            TimeElapsedColumn(),
            console=self._rich,
            disable=not self._live,
            auto_refresh=False,  # no thread: reading ahead forks
        )
        self._task = self._progress.add_task("scoring", total=None, rate=0.0, alarms="")
        self._began: tuple[float, int] | None = None
        self._shown = 0.0

    def __enter__(self) -> ScoringConsole:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def message(self, text: str) -> None:
        """Print one line above the live one."""
        self._rich.print(text, markup=False, soft_wrap=True)

    def progress(self, records: int, rows: int, alarms: int) -> None:
        """Show how far it is; the rate is that since the first call."""
        if not self._live:
            return
        now = time.monotonic()
        if self._began is None:
            self._began = now, records
        seconds, done = now - self._began[0], records - self._began[1]
        shown = f"{alarms:,} alarms" if alarms else ""
        rate = done / seconds if seconds else 0.0
        self._progress.update(self._task, completed=records, rate=rate, alarms=shown)
        if now - self._shown >= _REFRESH:
            self._shown = now
            self._progress.refresh()

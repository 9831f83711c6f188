"""Estimate the progress and the duration of a run from the forward tokens of its items.

The trade-off: in a long run, up to some thousand items are read twice, the first time for the estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from seqmlm.data.counts import People
from seqmlm.data.files import metered
from seqmlm.data.problems import Problems
from seqmlm.errors import SeqmlmError, duration_text
from seqmlm.inference.record_batches import BATCH_RECORDS, input_bytes, tokens_per_second
from seqmlm.rows.file import Rows
from seqmlm.tasks import shards
from seqmlm.tasks.task import Live, Task

SHORT = 10.0
"""Shorter runs, in estimated seconds, get no message."""

LONG = 60.0
"""Items that take at least this many estimated seconds get a message before they are computed."""

LOOK = 4096
"""Maximum number of items for the estimate. The other items are assumed to be similar."""


class Pace:
    """Shows in a progress display how much of a task is done.

    Args:
        task: a `seqmlm.tasks.task.Task`.
        rows: the rows of the run.
        progress: the display.
    """

    def __init__(self, task: Task[Any, Any], rows: Rows, progress: Any) -> None:
        self._task, self._rows, self._progress = task, rows, progress
        self._total: float | None = None  # forward tokens of the whole input
        self._done = self._part = 0.0
        self._has_begun = False
        self._tokens_at_start = 0  # forward tokens of the session when the part began

    def begin(self, items: Sequence[Any]) -> None:
        """Register the next part. Before the first part, show how long the whole run takes."""
        if self._task.config.latency is not None:
            return
        session = self._task.session
        session.conditionals().on_forward = self.tell  # a part may take long
        with suppress(SeqmlmError):  # a bad item is reported when its row is computed
            self._part = sum(map(self._task.cost, items))
        self._tokens_at_start = session.forward_tokens
        if self._has_begun:
            return
        self._has_begun = True
        speed = tokens_per_second(session.model)
        if len(items) < BATCH_RECORDS and self._part < SHORT / 2 * speed:
            return  # a part that is not full contains the whole input
        self._estimate()
        if self._total is not None and (seconds_left := (self._total - self._done) / speed) >= SHORT:
            self._progress.message(f"estimated time: {duration_text(seconds_left)}")

    def _estimate(self) -> None:
        """Estimate the forward tokens of the whole input, or of a share of it."""
        task, count, cost, scale = self._task, 0, 0.0, 1.0
        size = input_bytes(task.config.sources)
        if size is None:
            return
        with metered() as meter, suppress(SeqmlmError):  # the run itself reports problems of its input
            for item_cost in islice(_costs(task), LOOK):
                count, cost = count + 1, cost + item_cost
            if count == LOOK:
                scale = max(1.0, size / max(1, meter.bytes))
        if not count:
            return
        if task.config.shard is not None:
            scale /= shards.parse(task.config.shard)[1]
        self._total = cost * scale
        self._done = self._total * min(1.0, self._rows.done / (count * scale))

    def tell(self) -> None:
        """Show how much is done."""
        items = People(self._rows.asked).progress
        alarms = self._task.alarms if isinstance(self._task, Live) else 0
        self._progress.progress(items, alarms, self._share())

    def _share(self) -> float | None:
        """The completed share of all forward tokens, including the current part. None if it is unknown."""
        done = self._task.done if isinstance(self._task, Live) else None
        if done is not None or not self._total:
            return done
        part_tokens = self._task.session.forward_tokens - self._tokens_at_start
        return min(1.0, float(self._done + min(self._part, part_tokens)) / self._total)

    def end(self) -> None:
        """Count the part as done, after its rows are written."""
        self._done += self._part
        self._part = 0.0
        self.tell()


def _costs(task: Task[Any, Any]) -> Iterable[float]:
    """The cost of each item, without running the model."""
    problems = Problems("skip")
    if task.output.costs is not None:
        return task.output.costs(problems)
    fresh_task = type(task)(task.config, task.session)
    return map(fresh_task.cost, fresh_task.items(fresh_task.records(problems), problems))

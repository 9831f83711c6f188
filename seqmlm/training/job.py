"""The steps that pretraining and fine-tuning share: clock, tracked runs, registered model and page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cached_property
from typing import TypeVar

from seqmlm.engine.distributed import Processes
from seqmlm.reports.page import Page
from seqmlm.tasks.deadline import CUTS, Cuts, Deadline, Start, seconds
from seqmlm.tracking import DESCRIPTION, TrackedRun
from seqmlm.training.observers import complete_console
from seqmlm.training.page import PAGE, description
from seqmlm.training.run import TrainingRun
from seqmlm.workspace import Workspace

R = TypeVar("R")


class TrainingJob:
    """A training with a run, in each of the processes that share it."""

    run: TrainingRun

    def __init__(self, console: object) -> None:
        self.workspace, self.processes = Workspace.locate(), Processes()
        self.console = complete_console(console)
        self.deadline = Deadline(self.console.began)

    def limit(self, max_time: str | float | None) -> None:
        """Set the time limit, such as "10m". None removes it."""
        self.deadline.limit = None if max_time is None else seconds(max_time)

    def say(self, text: str) -> None:
        """Show a message, unless it is empty. Only the main process shows messages."""
        if text and self.processes.is_main:
            self.console.message(text)

    def load_data(self, reader: Callable[[], R]) -> R:
        """Read the data. If reading takes more than its share of the time, the deadline is extended."""
        began = self.deadline.wall()
        data = reader()
        self.say(self.deadline.extend(self.deadline.wall() - began))
        return data

    @cached_property
    def cuts(self) -> Cuts | None:
        """The record of the parts that the time limit cut.

        None without a limit, and in all processes except the main process.
        """
        limit = self.deadline.limit
        if limit is None or not self.processes.is_main:
            return None
        return Cuts(self.run.directory / CUTS, {"limit": limit})

    def recorded_start(self, key: str) -> Start | None:
        """How an earlier process divided the time for a training. None if no process did."""
        saved = None if self.cuts is None else self.cuts.get(key)
        return None if saved is None else Start(**saved)

    def start(self, key: str, trainings: int = 1) -> Start | None:
        """The division of the time for a training. None without a limit.

        The first main process of the training decides it, and resumed processes use the same division.

        Args:
            key: name of the training in the record of cuts.
            trainings: number of trainings that share the remaining time.
        """
        if self.deadline.limit is None:
            return None
        text = ""
        if self.cuts is not None:
            if (start := self.recorded_start(key)) is None:
                start = self.deadline.start(trainings)
                self.cuts.write(key, **asdict(start))
            else:
                self.deadline.carry(start.elapsed)
            text = json.dumps(asdict(start))
        return Start(**json.loads(self.processes.text_from_main(text)))

    def publish(self, tracked: TrackedRun, page: Page, sentences: Iterable[str]) -> None:
        """Write the page as the main artifact of the run, and the sentences as its description."""
        file = self.run.directory / PAGE
        page.write(file)
        tracked.set_tag(DESCRIPTION, description(sentences))
        tracked.artifact(file)

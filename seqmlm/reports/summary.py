"""The progress display and the final summary of a command.

A summary leaves the process, so it withholds facts about single people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from seqmlm.data.counts import Cell, People, released
from seqmlm.data.problems import Problems
from seqmlm.privacy import sensitive_data

if TYPE_CHECKING:
    from seqmlm.reports.page import Cell as TableCell

Figures = Mapping[str, Any]
"""The results of finished rows: numbers, texts, lists and mappings by name, ready for JSON."""

RESUME = "with --resume to complete"


class Table(NamedTuple):
    """Figures as a table for the console and the report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]


class Progress(Protocol):
    """A display for the progress of a run."""

    def message(self, text: str) -> None:
        """Show a message to the user."""

    def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None:
        """Show the number of completed items and alarms, and the completed `share` if it is known."""


class NoProgress:
    """A display that shows nothing."""

    def message(self, text: str) -> None: ...

    def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary at the end of a command.

    If it is made while the process handles sensitive data, counts of 1 to 10 people become "<11", and there
    are no examples. Counts of `seqmlm.data.counts.Things` stay.

    Args:
        task: name of the command.
        items: number of processed records.
        bad: number of records that were left out.
        notes: counts of problems, by reason.
        places: the first place of each problem, if known.
        quarantine: file with the records that were left out, or None.
        figures: the results of the rows.
        answer: the results in a sentence.
        tables: the results as tables.
        streamed: whether rows went to standard output.
        stopped: the signal that ended the command early, or None. With a signal there are no figures.
        seconds: duration of the command.
        go_on: option that resumes the command if it was stopped, "" if it cannot be resumed.
        hint: a sentence about the next step for the user.
        failure: why the answer is useless, and what to do. "" for a useful answer.
        examples: lines about single rows.
    """

    task: str
    items: Cell
    bad: Cell
    notes: Mapping[str, Any]
    places: Mapping[str, str] = field(default_factory=dict)
    quarantine: Path | None = None
    figures: Figures = field(default_factory=dict)
    answer: str = ""
    tables: Sequence[Table] = ()
    streamed: bool = False
    stopped: int | None = None
    seconds: float = 0.0
    go_on: str = RESUME
    hint: str = ""
    failure: str = ""
    examples: Sequence[str] = ()

    def __post_init__(self) -> None:
        counts = released({"items": self.items, "bad": self.bad})
        counts = {name: int(count) if isinstance(count, People) else count for name, count in counts.items()}
        vars(self).update(counts, notes=released(self.notes), figures=released(self.figures))
        if sensitive_data():
            vars(self)["examples"] = ()

    def to_dict(self) -> dict[str, Any]:
        """The figures and the counts that every run has, for JSON output."""
        return {**self.figures, **{key: getattr(self, key) for key in ("task", "items", "bad", "notes")}}

    def description(self, lead: str, command: str) -> str:
        """The text for a tracked run: a sentence and the command. For sensitive data, only the answer."""
        return self.answer if sensitive_data() else f"{lead}\n\n`{command}`"


def problem_counts(problems: Problems, items: int, quarantine: Path) -> dict[str, Any]:
    """Fields of a `Summary` about problems: counts, first places and the quarantine file.

    Args:
        problems: the problems of the run.
        items: number of processed records.
        quarantine: the file for bad records.
    """
    return {
        "items": People(items),
        "bad": People(problems.bad_count),
        "notes": problems.counts,
        "places": problems.places,
        "quarantine": quarantine if problems.quarantined and problems.bad_count else None,
    }

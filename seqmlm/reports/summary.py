"""What a person is told of a command: its progress, and the summary at its end.

A summary is an exit of the process: it withholds what is about single people.
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
"""What finished rows come to: numbers, texts, lists and mappings by name, as JSON has them."""

RESUME = "with --resume to complete"


class Table(NamedTuple):
    """Figures as people read them: on the console, and in the report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]


class Progress(Protocol):
    """A display that is told what happens during a run."""

    def message(self, text: str) -> None:
        """A sentence for a person."""

    def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None:
        """Show that `items` are done, with `alarms` among them; `share` is of the whole, if that is known."""


class NoProgress:
    """A display that shows nothing."""

    def message(self, text: str) -> None: ...

    def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a command ended.

    When it is made while the process handles sensitive data, counts of 1 to 10 people become "<11" (those of
    `seqmlm.data.counts.Things` do not), and there are no examples.

    Args:
        items: records that the model answered about; `bad`: records that were left out.
        notes: counts of irregularities, by their names; `places`: where each was met first, if that is known.
        quarantine: file of the records that were left out, or None.
        figures: what the rows come to; `answer`: the same in a sentence; `tables`: the same as tables.
        streamed: whether rows went to standard output.
        stopped: the signal that ended the command early, or None; then there are no figures.
        seconds: that it took.
        go_on: option with which the same command resumes, where it was stopped; "" where it cannot.
        hint: the next step for a person, as a sentence.
        failure: why the answer is of no use, and what to do; "" if it is.
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
        """The figures, and the counts that every run has, as JSON prints them."""
        return {**self.figures, **{key: getattr(self, key) for key in ("task", "items", "bad", "notes")}}

    def description(self, lead: str, command: str) -> str:
        """Text for a tracked run: a sentence and the command; of sensitive data only the answer."""
        return self.answer if sensitive_data() else f"{lead}\n\n`{command}`"


def problem_counts(problems: Problems, items: int, quarantine: Path) -> dict[str, Any]:
    """Fields of a `Summary`: counts, first places and quarantine file of the records that were left out.

    Args:
        items: records that the model answered about.
        quarantine: the file that bad records go to, if there are any.
    """
    return {
        "items": People(items),
        "bad": People(problems.bad_count),
        "notes": problems.counts,
        "places": problems.places,
        "quarantine": quarantine if problems.quarantined and problems.bad_count else None,
    }

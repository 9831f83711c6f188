"""Summarize a collection of patient histories in counts that can be shown to others.

Counts from 1 to 10 are withheld. Other counts from which they could be computed are withheld too (see
`seqmlm.privacy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from seqmlm.data.counts import SMALLEST, redacted_count, redacted_counts
from seqmlm.data.duplicates import SeenHashes, hash128
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.history import History, is_birth, is_death, iso

OTHERS = "vocabularies of few subjects"

_DAY = 86_400.0

_PLAIN = ("subjects", "subjects_without_birth", "subjects_who_died", "visits", "events", "static_events")


def audit(records: Iterable[Record], problems: Problems | None = None) -> dict[str, Any]:
    """Count the subjects, visits, events and codes of a stream of histories.

    Memory holds the distinct codes. Counts from 1 to 10 are shown as "<11". If exactly one part of a total is
    withheld, it could be computed from the total. The next larger part is then "withheld" too.

    Args:
        records: the histories.
        problems: its counts are included. They are read after the last record.

    Returns:
        Counts by name: subjects, subjects_without_birth, subjects_who_died, visits, events, static_events,
        codes (distinct), codes_in_10_subjects_or_fewer, splits, vocabularies, subjects_by_year and problems.
        "vocabularies" has the events of each vocabulary. Vocabularies of 10 subjects or fewer are added
        together. "years" has the first and the last year with at least 11 subjects.
    """
    tally = _Tally()
    for record in records:
        tally.add(record)
    return tally.finish({} if problems is None else problems.counts)


class _Tally:
    """The running counts of `audit`."""

    def __init__(self) -> None:
        self.seen = SeenHashes()
        self.plain: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.vocabularies: Counter[str] = Counter()
        self.subjects_with: Counter[str] = Counter()
        self.subjects_of: Counter[str] = Counter()
        self.years: Counter[int] = Counter()

    def add(self, record: Record) -> None:
        history = record.raw
        assert isinstance(history, History)
        dated = [event for event in history.events if event.time is not None]
        self.plain["events"] += len(dated)
        self.plain["static_events"] += len(history.events) - len(dated)
        self.plain["visits"] += len(set(_visits(history)))
        vocabularies = [event.code.partition("//")[0] for event in history.events]
        self.vocabularies.update(vocabularies)
        # If a subject has several records, only the first counts. Too low a number of subjects is safe for
        # privacy; too high a number is not.
        if not self.seen.add(hash128(history.subject)):
            return
        self.plain["subjects"] += 1
        self.plain["subjects_without_birth"] += history.birth is None
        self.plain["subjects_who_died"] += any(is_death(event.code) for event in dated)
        self.splits[str(record.meta.get("split", "not given"))] += 1
        self.subjects_with.update(set(vocabularies))
        self.subjects_of.update({event.code for event in history.events})
        self.years.update(
            {
                int(iso(event.time)[:4])
                for event in dated
                if event.time is not None and not is_birth(event.code)
            }
        )

    def _vocabulary_events(self) -> Counter[str]:
        """The number of events of each vocabulary.

        Vocabularies that few people have are added together: their names can be errors or names of people.
        """
        events_by_name: Counter[str] = Counter()
        for name, events in self.vocabularies.items():
            events_by_name[name if self.subjects_with[name] >= SMALLEST else OTHERS] += events
        return events_by_name

    def finish(self, problems: dict[str, int]) -> dict[str, Any]:
        many = sorted(year for year, subjects in self.years.items() if subjects >= SMALLEST)
        return {
            **{name: redacted_count(self.plain[name]) for name in _PLAIN},
            "codes": len(self.subjects_of),
            "codes_in_10_subjects_or_fewer": sum(n < SMALLEST for n in self.subjects_of.values()),
            "splits": redacted_counts(self.splits, parts=True),
            "vocabularies": redacted_counts(self._vocabulary_events(), parts=True),
            "years": [many[0], many[-1]] if many else [],
            "subjects_by_year": {str(year): self.years[year] for year in many},
            "problems": redacted_counts(Counter(problems)),
        }


def _visits(history: History) -> Iterator[str]:
    """The name of the visit of each event: its visit in the source or, without one, its day."""
    for event in history.events:
        if event.visit is not None:
            yield f"visit {event.visit}"
        elif event.time is not None and not is_birth(event.code) and not is_death(event.code):
            yield f"day {event.time // _DAY}"

"""What is in a collection of patient histories, in figures that can be shown: no count of few people.

Counts from 1 to 10 are withheld, together with what they could be computed from; see `seqmlm.privacy`.
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
    """Count subjects, visits, events and codes while histories stream by; memory holds the codes met.

    Counts from 1 to 10 are "<11". Where a single one of the cells that add up to a total is withheld, so is
    the next larger one ("withheld"): the total would give it away. `problems` is asked after the last record.

    Returns:
        subjects, subjects_without_birth, subjects_who_died, visits, events, static_events, codes (distinct),
        codes_in_10_subjects_or_fewer, splits, vocabularies (events each; those of 10 subjects or fewer
        together), years (first and last with at least 11 subjects), subjects_by_year, problems.
    """
    tally = _Tally()
    for record in records:
        tally.add(record)
    return tally.finish({} if problems is None else problems.counts)


class _Tally:
    """Counts kept while records stream by."""

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
        # Of a subject in several records the first one counts: too few subjects is safe, too many is not.
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
        """Events of each vocabulary; one that few people's codes have may be a slip, or a name."""
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
    """Names of the visits: the source's, or the day of an event that has none."""
    for event in history.events:
        if event.visit is not None:
            yield f"visit {event.visit}"
        elif event.time is not None and not is_birth(event.code) and not is_death(event.code):
            yield f"day {event.time // _DAY}"

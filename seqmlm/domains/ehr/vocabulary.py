"""The vocabulary of patient histories: names and families of codes, and what `events.v1` learns from
histories.

Kept are codes frequent enough, families for the others, and value bins. A token stands for at least
`min_subjects` people. Nothing else of the data is kept: no rare code, no single value (the edges of value
bins are between observed values and rounded), no free text.
"""

from __future__ import annotations

import random
import re
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from seqmlm.domains.ehr.history import History, is_birth
from seqmlm.domains.ehr.units import SAME, Conversion, conversion, unit
from seqmlm.errors import DataError, UsageError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[VS]", "[VE]")
# CEHR-BERT's artificial time tokens (Pang et al. 2021): weeks, months, "long term" since the last visit.
INTERVALS = (*(f"W{n}" for n in range(4)), *(f"M{n}" for n in range(1, 12)), "LT")

# Vocabularies whose codes begin with their category; a code with a dot ("E11.9") is treated alike.
_HIERARCHICAL = re.compile(r"(?:^|[/_ ])(?:ICD|ATC|ICPC|READ|OPCS)", re.IGNORECASE)
_DOTTED = re.compile(r"[A-Z]?\d[0-9A-Z]{1,2}\.[0-9A-Z]{1,4}|[A-Z]?\d[0-9A-Z]{1,2}")
_PREFIX = 3  # characters of a category


def vocabulary_of(code: str) -> str:
    """The vocabulary that a code is from: all up to its last "//"; "" if it has none."""
    return code.rpartition("//")[0]


@lru_cache(maxsize=1 << 16)
def family(code: str) -> str:
    """The family of a code: its first three characters in a hierarchical vocabulary, else the code itself.

    >>> family("ICD10//I50.9"), family("LAB//2345-7")
    ('ICD10//I50', 'LAB//2345-7')
    """
    vocabulary, _, name = code.rpartition("//")
    if _HIERARCHICAL.search(vocabulary) or _DOTTED.fullmatch(name):
        return f"{vocabulary}//{name[:_PREFIX]}"
    return code


def spell(name: str) -> str:
    """A code as a token without white space, escaped so that it cannot equal a special token."""
    text = re.sub(r"[%\s]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
    text = re.sub(r"//Q(?=\d+$)", "//%51", text).replace("//=", "//%3D")
    return f"%5B{text[1:]}" if text.startswith("[") else text


_SAMPLED = 1024  # values of a code used for its bins
_LONGEST_TEXT = 64
_FAMILY_SHARE = 10  # at most one id of ten is a family if the vocabulary size is limited
_DISTINCT = 5_000_000  # beyond this many codes, those seen in one subject so far are dropped


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A learnt vocabulary.

    Args:
        codes: kept codes, sorted.
        texts: code to its kept values in words, sorted.
        families: those with a token of their own, sorted.
        kinds: kept visit classes, sorted.
        edges: code to the ascending upper edges between its value bins (n edges make n + 1 bins), of values
            that have no unit.
        units: code to the units (`ehr.units.unit`) that its values were seen in and that cannot be
            converted into each other, each with edges as those of `edges`.
        meanings: code to its description, where the data had one.
        frame: codes that are no clinical events: background, and those that open visits.
    """

    codes: tuple[str, ...]
    texts: Mapping[str, tuple[str, ...]]
    families: tuple[str, ...]
    kinds: tuple[str, ...]
    edges: Mapping[str, tuple[float, ...]]
    units: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    frame: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The vocabulary as JSON values."""
        return asdict(self)

    def bins(self, code: str) -> list[tuple[str, tuple[float, ...]]]:
        """(unit, edges) of each set of bins of a code, "" for values without unit; sorted."""
        measures = dict(self.units.get(code, {}))
        if code in self.edges:
            measures[""] = self.edges[code]
        return sorted((unit, edges) for unit, edges in measures.items() if edges)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary that `to_dict` described; a KeyError or TypeError for anything else."""
        return cls(
            codes=tuple(values["codes"]),
            texts={code: tuple(texts) for code, texts in values["texts"].items()},
            families=tuple(values["families"]),
            kinds=tuple(values["kinds"]),
            edges={code: tuple(edges) for code, edges in values["edges"].items()},
            units={
                code: {unit: tuple(edges) for unit, edges in measures.items()}
                for code, measures in values["units"].items()
            },
            meanings=dict(values["meanings"]),
            frame=tuple(values["frame"]),
        )


class Learning(NamedTuple):
    """Fewest subjects that a token may stand for, most bins of a code's values, of equal counts, and the most
    ids there may be (None for no limit)."""

    min_subjects: int
    bins: int
    size: int | None


def learn(histories: Iterable[History], how: Learning) -> Vocabulary:
    """Learn a vocabulary from histories, read once; several of one subject count once.

    Memory grows with the distinct codes alone: a code keeps a count, up to `min_subjects` - 1 hashes of
    subjects and at most 1,024 of its values. A DataError where no code is frequent enough, a UsageError where
    `size` leaves no room.
    """
    counts = _Counts(how.min_subjects)
    for history in histories:
        counts.add(history)
    kinds = tuple(sorted(kind for kind, _ in counts.kinds.enough()))
    room = sys.maxsize if how.size is None else how.size - len(SPECIAL) - len(INTERVALS) - len(kinds)
    if room < 2:
        raise UsageError(f"vocabulary_size = {how.size} leaves no room for codes; raise it")
    values, texts = _values(counts, how)
    codes, used = _codes(counts, values, texts, room - room // _FAMILY_SHARE, how)
    if not codes:
        raise DataError(
            f"no code was seen in {how.min_subjects} subjects",
            remedy="give more subjects, or, if the data are synthetic, lower tokenizer.options.min_subjects",
        )
    return Vocabulary(
        codes=tuple(sorted(codes)),
        texts={code: texts[code] for code in sorted(codes & texts.keys())},
        families=tuple(sorted(_families(counts, codes, how)[: room - used])),
        kinds=kinds,
        edges={code: values[code].edges for code in sorted(codes & values.keys()) if values[code].edges},
        units={code: values[code].units for code in sorted(codes & values.keys()) if values[code].units},
        meanings={code: counts.meanings[code] for code in sorted(codes & counts.meanings.keys())},
        frame=tuple(sorted(codes & counts.opening | codes - counts.timed)),
    )


class _People:
    """Number of subjects in which each item was seen.

    A subject may come in several records (yearly extracts, scattered shards): up to `enough`, subjects are
    distinguished. Beyond it records are counted, which affects only the order of frequent items.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self.counts: Counter[Any] = Counter()
        self.few: dict[Any, list[int]] = {}  # item -> its subjects, while fewer than enough

    def add(self, things: Iterable[Any], subject: int) -> None:
        """Count the items of one record of a subject, each once."""
        for thing in things:
            if thing not in self.few and thing in self.counts:
                self.counts[thing] += 1
                continue
            subjects = self.few.setdefault(thing, [])
            if subject in subjects:
                continue
            subjects.append(subject)
            self.counts[thing] += 1
            if len(subjects) >= self._enough:
                del self.few[thing]

    def enough(self) -> Iterator[tuple[Any, int]]:
        """Items that enough subjects have, with counts."""
        return ((thing, n) for thing, n in self.counts.items() if n >= self._enough)

    def forget(self) -> None:
        """Drop items seen in one subject so far."""
        self.counts = Counter({thing: n for thing, n in self.counts.items() if n > 1})
        self.few = {thing: subjects for thing, subjects in self.few.items() if thing in self.counts}


class _Counts:
    """Subject counts of codes, families, visit classes and values."""

    def __init__(self, enough: int) -> None:
        self.codes, self.texts, self.kinds = _People(enough), _People(enough), _People(enough)
        self.units = _People(enough)
        self.values: dict[str, _Sample] = {}
        self.meanings: dict[str, str] = {}
        self.timed, self.opening = set[str](), set[str]()
        self._random = random.Random(0)

    def add(self, history: History) -> None:
        subject = hash(history.subject)
        codes, texts, kinds, units, timed = set(), set(), set(), set(), set()
        for event in history.events:
            code, value, text = event.code, event.value, event.text
            codes.add(code)
            if text and len(text) <= _LONGEST_TEXT:
                texts.add((code, text))
            if value is not None:
                sample = self.values.get(code)
                if sample is None:
                    sample = self.values[code] = _Sample(self._random)
                measure = unit(event.unit)
                if measure:
                    units.add((code, measure))
                sample.add(value, subject, measure)
            if event.time is not None:
                timed.add(code)
            if event.kind:
                kinds.add(event.kind)
                self.opening.add(code)
        self.timed |= timed
        self.codes.add((code for code in codes if not is_birth(code)), subject)
        self.texts.add(texts, subject)
        self.kinds.add(kinds, subject)
        self.units.add(units, subject)
        if history.meanings:
            self.meanings |= {code: history.meanings[code] for code in codes if code in history.meanings}
        if len(self.codes.counts) > _DISTINCT or len(self.texts.counts) > _DISTINCT:
            self._forget()

    def _forget(self) -> None:
        """Drop the codes, texts and units of a single subject so far."""
        for people in (self.codes, self.texts, self.units):
            people.forget()
        self.timed &= self.codes.counts.keys()
        self.opening &= self.codes.counts.keys()
        self.meanings = {code: text for code, text in self.meanings.items() if code in self.codes.counts}
        self.values = {code: sample for code, sample in self.values.items() if code in self.codes.counts}


class _Sample:
    """A uniform sample of a code's values (Vitter 1985), with their subjects and units."""

    __slots__ = ("_random", "_seen", "_subjects", "_units", "_values")

    def __init__(self, source: random.Random) -> None:
        self._random, self._seen = source, 0
        self._values, self._subjects = array("d"), array("q")
        self._units: list[str] = []

    def add(self, value: float, subject: int, unit: str) -> None:
        if value - value != 0.0:  # NaN or infinite
            return
        self._seen += 1
        if len(self._values) < _SAMPLED:
            self._values.append(value)
            self._subjects.append(subject)
            self._units.append(unit)
        elif (place := int(self._random.random() * self._seen)) < _SAMPLED:
            self._values[place], self._subjects[place] = value, subject
            self._units[place] = unit

    def value_bins(self, code: str, frequent: Collection[str], how: Learning) -> ValueBins:
        """The bins of the values in each of the `frequent` units, those that enough subjects have."""
        values, subjects = np.array(self._values), np.array(self._subjects)
        units = np.array(self._units, dtype=np.str_)
        grouped = unit_groups(code, Counter(measure for measure in self._units if measure in frequent))
        for measure, (group, (scale, offset)) in grouped.items():
            if group != measure:
                values[units == measure] = values[units == measure] * scale + offset
                units[units == measure] = group
        groups = [measure for measure, (group, _) in grouped.items() if group == measure]
        if len(groups) == 1:
            units[units == ""] = groups[0]
        edges = {
            measure: _edges(values[units == measure], subjects[units == measure], how)
            for measure in sorted({"", *groups})
        }
        return ValueBins(edges=edges.pop("") if len(groups) != 1 else (), units={u: edges[u] for u in groups})


class ValueBins(NamedTuple):
    """Edges between the bins of a code's values: those without unit, and those of each unit."""

    edges: tuple[float, ...]
    units: dict[str, tuple[float, ...]]

    @property
    def bins(self) -> int:
        """Number of bins of all units together."""
        return sum(len(edges) + 1 for edges in (self.edges, *self.units.values()) if edges)


def conversion_target(code: str, source: str, groups: Iterable[str]) -> tuple[str, Conversion] | None:
    """The first of `groups`, units of a code, that its values in another unit can be converted into."""
    factors = ((group, conversion(code, source, group)) for group in groups)
    return next(((group, factor) for group, factor in factors if factor is not None), None)


def unit_groups(code: str, counts: Mapping[str, int]) -> dict[str, tuple[str, Conversion]]:
    """Units of a code, the most frequent first: each, or one before it that it is converted into."""
    groups: dict[str, tuple[str, Conversion]] = {}
    for measure in sorted(counts, key=lambda measure: (-counts[measure], measure)):
        targets = [group for member, (group, _) in groups.items() if member == group]
        groups[measure] = conversion_target(code, measure, targets) or (measure, SAME)
    return groups


def _edges(values: Any, subjects: Any, how: Learning) -> tuple[float, ...]:
    """Edges between bins of enough subjects each; none if that leaves a single bin."""
    if len(np.unique(subjects)) < how.min_subjects or len(values) < 2:
        return ()
    order = np.argsort(values, kind="stable")
    values, subjects = values[order], subjects[order]
    edges: list[float] = []
    start = 0
    cuts = np.linspace(0, len(values), how.bins + 1)[1:-1].round().astype(int)
    for cut in np.unique(cuts.clip(1, len(values) - 1)).tolist():
        edge = _between(values, cut)
        stop = 0 if edge is None else int(np.searchsorted(values, edge, side="right"))
        inside, beyond = np.unique(subjects[start:stop]), np.unique(subjects[stop:])
        if edge is not None and min(len(inside), len(beyond)) >= how.min_subjects:
            edges.append(edge)
            start = stop
    return tuple(edges)


def _between(values: Any, cut: int) -> float | None:
    """A rounded number between the values before and from `cut` on, or before a run of equal ones there."""
    high = float(values[cut])
    first = int(np.searchsorted(values, high))
    if first == 0:
        return None
    low = float(values[first - 1])
    middle = low / 2 + high / 2
    for digits in range(2, 6):
        edge = float(f"{middle:.{digits}g}")
        if low < edge < high:
            return edge
    return middle if low < middle < high else None


def _values(counts: _Counts, how: Learning) -> tuple[dict[str, ValueBins], dict[str, tuple[str, ...]]]:
    """Bins of numbers, and values in words, by code."""
    measures: dict[str, set[str]] = {}
    for (code, measure), _ in counts.units.enough():
        measures.setdefault(code, set()).add(measure)
    values = {
        code: sample.value_bins(code, measures.get(code, ()), how) for code, sample in counts.values.items()
    }
    texts: dict[str, list[str]] = {}
    for (code, text), _ in counts.texts.enough():
        texts.setdefault(code, []).append(text)
    return values, {code: tuple(sorted(words)) for code, words in texts.items()}


def _codes(
    counts: _Counts,
    values: Mapping[str, ValueBins],
    texts: Mapping[str, tuple[str, ...]],
    room: int,
    how: Learning,
) -> tuple[set[str], int]:
    """Codes of enough subjects, the most frequent ones if not all fit; and the number of ids they take."""
    codes, used = set(), 0
    for _, code in sorted((-n, code) for code, n in counts.codes.enough()):
        bins = values[code].bins if code in values else 0
        needed = 1 + bins + len(texts.get(code, ()))
        if used + needed > room:
            break
        codes.add(code)
        used += needed
    return codes, used


def _families(counts: _Counts, codes: set[str], how: Learning) -> list[str]:
    """Families of codes that are not kept whose token stands for enough subjects, the largest first."""
    people: Counter[str] = Counter()
    subjects: dict[str, set[int]] = {}
    for code, n in counts.codes.counts.items():
        name = family(code)
        if name == code:
            continue
        if n < how.min_subjects:
            subjects.setdefault(name, set()).update(counts.codes.few[code])
        elif code not in codes:
            people[name] = max(people[name], n)
    for name, members in subjects.items():
        people[name] = max(people[name], len(members))
    enough = [(-n, name) for name, n in people.items() if n >= how.min_subjects]
    return [name for _, name in sorted(enough)]

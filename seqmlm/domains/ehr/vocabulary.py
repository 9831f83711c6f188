"""The vocabulary of patient histories: codes and their families, and how `events.v1` is trained on histories.

The vocabulary has frequent codes, families for other codes, and bins of values. At least `min_subjects`
people have each token. No other data are kept: no rare codes, no free text, and no single values. The edges
of value bins are rounded numbers between observed values.
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

# Vocabularies whose codes begin with their category. A code with a dot ("E11.9") is treated in the same way.
_HIERARCHICAL = re.compile(r"(?:^|[/_ ])(?:ICD|ATC|ICPC|READ|OPCS)", re.IGNORECASE)
_DOTTED = re.compile(r"[A-Z]?\d[0-9A-Z]{1,2}\.[0-9A-Z]{1,4}|[A-Z]?\d[0-9A-Z]{1,2}")
_PREFIX = 3  # characters of a category


def vocabulary_of(code: str) -> str:
    """The vocabulary of a code, which is the part before its last "//"; "" if it has none."""
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
    """A code as a token: without white space, and escaped so that it cannot equal a special token or a token
    with a value."""
    text = re.sub(r"[%\s]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
    text = re.sub(r"//Q(?=\d+$)", "//%51", text).replace("//=", "//%3D")
    return f"%5B{text[1:]}" if text.startswith("[") else text


_SAMPLED = 1024  # values of a code used for its bins
_LONGEST_TEXT = 64
_FAMILY_SHARE = 10  # if the vocabulary size is limited, one tenth of the ids is reserved for families
_DISTINCT = 5_000_000  # maximum distinct codes; if there are more, codes of a single subject are dropped


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A trained vocabulary.

    Args:
        codes: the codes, sorted.
        texts: code -> its values in words, sorted.
        families: the families with a token, sorted.
        kinds: the visit classes, sorted.
        edges: code -> the ascending edges between the bins of its values without unit. n edges make n + 1
            bins.
        units: code -> unit -> edges as in `edges`. Units of a code that can be converted into each other are
            one unit (`ehr.units.unit`).
        meanings: code -> its description, if the data have one.
        frame: codes that are not clinical events: background, and codes that open visits.
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
        """The unit and edges of each set of bins of a code, sorted. The unit "" is for values without
        unit."""
        measures = dict(self.units.get(code, {}))
        if code in self.edges:
            measures[""] = self.edges[code]
        return sorted((unit, edges) for unit, edges in measures.items() if edges)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary from the result of `to_dict`.

        Raises:
            KeyError, TypeError: the values are not from `to_dict`.
        """
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
    """The options of training.

    Attributes:
        min_subjects: minimum number of subjects for a token.
        bins: maximum number of bins for the values of a code. Bins have equal counts.
        size: maximum number of token ids; None for no limit.
    """

    min_subjects: int
    bins: int
    size: int | None


def learn(histories: Iterable[History], how: Learning) -> Vocabulary:
    """Train a vocabulary on histories, which are read once. Several histories of one subject count once.

    Memory grows only with the number of distinct codes. Each code needs a count, at most `min_subjects` - 1
    hashes of subjects, and at most 1,024 of its values.

    Raises:
        DataError: no code is frequent enough.
        UsageError: `size` is too small.
    """
    counts = _Counts(how.min_subjects)
    for history in histories:
        counts.add(history)
    kinds = tuple(sorted(kind for kind, _ in counts.kinds.enough()))
    room = sys.maxsize if how.size is None else how.size - len(SPECIAL) - len(INTERVALS) - len(kinds)
    if room < 2:
        raise UsageError(f"vocabulary_size = {how.size} leaves no room for codes: increase it")
    values, texts = _values(counts, how)
    codes, used = _codes(counts, values, texts, room - room // _FAMILY_SHARE, how)
    if not codes:
        raise DataError(
            f"no code occurs in {how.min_subjects} subjects",
            remedy="give more subjects, or, if the data are synthetic, reduce tokenizer.options.min_subjects",
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
    """The number of subjects who have each item.

    A subject can have several records (yearly extracts, scattered shards). Until an item has `enough`
    subjects, its distinct subjects are counted. After that, records are counted, which changes only the order
    of frequent items.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self.counts: Counter[Any] = Counter()
        self.few: dict[Any, list[int]] = {}  # item -> its subjects, while fewer than enough

    def add(self, things: Iterable[Any], subject: int) -> None:
        """Count each item of one record of a subject once."""
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
        """The items that enough subjects have, with their counts."""
        return ((thing, n) for thing, n in self.counts.items() if n >= self._enough)

    def forget(self) -> None:
        """Drop the items that only one subject has so far."""
        self.counts = Counter({thing: n for thing, n in self.counts.items() if n > 1})
        self.few = {thing: subjects for thing, subjects in self.few.items() if thing in self.counts}


class _Counts:
    """The numbers of subjects with each code, text, visit class and unit, and samples of values."""

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
        """Drop the codes, texts and units that only one subject has so far."""
        for people in (self.codes, self.texts, self.units):
            people.forget()
        self.timed &= self.codes.counts.keys()
        self.opening &= self.codes.counts.keys()
        self.meanings = {code: text for code, text in self.meanings.items() if code in self.codes.counts}
        self.values = {code: sample for code, sample in self.values.items() if code in self.codes.counts}


class _Sample:
    """A uniform sample of a code's values, with subjects and units (reservoir sampling, Vitter 1985)."""

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
        """The bins of the values without unit, and of the values in each `frequent` unit.

        A unit is frequent if enough subjects have it.
        """
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
    """The edges between the bins of a code's values: of values without unit, and of values in each unit."""

    edges: tuple[float, ...]
    units: dict[str, tuple[float, ...]]

    @property
    def bins(self) -> int:
        """The number of bins, over all units."""
        return sum(len(edges) + 1 for edges in (self.edges, *self.units.values()) if edges)


def conversion_target(code: str, source: str, groups: Iterable[str]) -> tuple[str, Conversion] | None:
    """The first unit in `groups` to which values in the unit `source` can be converted, or None.

    Returns:
        The unit, and the conversion for values of this code.
    """
    factors = ((group, conversion(code, source, group)) for group in groups)
    return next(((group, factor) for group, factor in factors if factor is not None), None)


def unit_groups(code: str, counts: Mapping[str, int]) -> dict[str, tuple[str, Conversion]]:
    """Unit -> the unit to which its values are converted, and the conversion.

    Units are considered in order of frequency, and each is converted to a more frequent unit if possible.
    Other units are not converted.
    """
    groups: dict[str, tuple[str, Conversion]] = {}
    for measure in sorted(counts, key=lambda measure: (-counts[measure], measure)):
        targets = [group for member, (group, _) in groups.items() if member == group]
        groups[measure] = conversion_target(code, measure, targets) or (measure, SAME)
    return groups


def _edges(values: Any, subjects: Any, how: Learning) -> tuple[float, ...]:
    """The edges between bins that have enough subjects each; none if there is only one such bin."""
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
    """A rounded number that separates the sorted values before `cut` from the others.

    Equal values at `cut` are kept together. The result is None if there is no number to separate them.
    """
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
    """The bins of numbers, and the values in words, by code."""
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
    """The codes that enough subjects have, and the number of ids that they need. If there is not enough room,
    only the most frequent codes are selected."""
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
    """The families of codes outside the vocabulary, the most frequent first.

    A family is included only if enough subjects have its token.
    """
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

"""Which statistics judge: those that find most of the faults planted in normal rows.

Fusing dilutes: a statistic that says nothing of a fault takes from those that do, so a fused score can find
less than one of its parts. Labels would tell, and nobody has them; faults of the field's own kinds, planted
in copies of normal records, are the next best. A choice is worth

    mean over kinds of (AUROC + share found at a false positive rate of `RATE`) / 2

beside normal rows. From what the level declares, and from all statistics, the one that adds least is left
out, again and again. Of the choices on this way, the one with most statistics is taken that the best is not
clearly worth more than (by `WORTH`, and by two standard errors): a statistic that costs little stays, for
there are kinds of faults that nobody thought of. Of a kind that took no part in a choice, such choices found
more than the best ones did, which keep few statistics.

The rows that the fused statistic is ranked among may not take part in the choice: p-values are valid because
those rows are like any new ones. So only the rows that estimate the marginals do (`teaching_part`), one half
of them giving ranks to the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqmlm.evaluation.conformal import FUSIONS, Choice, Doubles, Statistics
from seqmlm.evaluation.ranks import Longs, Marginals, length_edges

RATE, WORTH = 0.05, 0.01
FEWEST, FEWEST_FAULTY = 100, 20
"""Normal rows, and rows of one kind of fault, below which nothing is chosen."""

_FEWEST_OF_LENGTH = 50


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A choice, and what it rests on.

    Args:
        choice: which statistics are fused, and how.
        normal: rows without a fault that it was compared on.
        kinds: of faults, by name: rows, auroc, found (the share at a false positive rate of `RATE`).
        parts: the mean AUROC over kinds of each statistic alone.
    """

    choice: Choice
    normal: int
    kinds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def judges(self) -> str:
        """The statistics that judge, for people."""
        return "all statistics" if self.choice.used is None else ", ".join(self.choice.used)

    @property
    def found(self) -> float:
        """The share of planted faults that is found at a rate of `RATE`, the mean over kinds."""
        return float(np.mean([one["found"] for one in self.kinds.values()]))

    def to_state(self) -> dict[str, Any]:
        """JSON values."""
        kinds = {kind: dict(found) for kind, found in self.kinds.items()}
        return {
            "choice": self.choice.to_state(),
            "normal": self.normal,
            "kinds": kinds,
            "parts": dict(self.parts),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Evidence:
        """Restore what `to_state` gave."""
        return cls(
            choice=Choice.from_state(state["choice"]),
            normal=int(state["normal"]),
            kinds={str(kind): dict(found) for kind, found in state["kinds"].items()},
            parts={str(name): float(value) for name, value in state["parts"].items()},
        )


def choose(
    declared: Choice,
    normal: Statistics,
    lengths: Longs,
    faulty: Mapping[str, tuple[Statistics, Longs]],
    *,
    always: tuple[str, ...] = (),
    seed: int,
) -> Evidence | None:
    """The best choice among the statistics, or None where rows are too few to tell.

    Args:
        declared: what a level says.
        normal: statistic -> (N,) of normal rows, higher = more unusual.
        lengths: (N,) units of the rows.
        faulty: kind of fault -> the same of (M,) rows that have one, and their lengths.
        always: statistics that every choice has.
        seed: of the division of the normal rows.
    """
    kinds = {kind: rows for kind, rows in faulty.items() if len(rows[1]) >= FEWEST_FAULTY}
    if len(lengths) < FEWEST or not kinds:
        return None
    ranks = np.zeros(len(lengths), dtype=np.bool_)
    ranks[np.random.default_rng(seed).permutation(len(lengths))[: len(lengths) // 2]] = True
    marginals = Marginals.fit(
        {name: values[ranks] for name, values in normal.items()},
        lengths[ranks],
        length_edges(lengths[ranks], _FEWEST_OF_LENGTH),
    )
    beside = marginals.p_values({n: v[~ranks] for n, v in normal.items()}, lengths[~ranks])[1]
    faults = {kind: marginals.p_values(*rows)[1] for kind, rows in kinds.items()}
    contest = _Contest(beside, faults, always)
    found = contest.winner(declared)
    places = contest.places(found)
    return Evidence(
        choice=found,
        normal=int(np.count_nonzero(~ranks)),
        kinds={
            kind: {
                "rows": len(above),
                "auroc": float(above.mean()),
                "found": float(places.found[kind].mean()),
            }
            for kind, above in places.above.items()
        },
        parts={name: contest.places(Choice(used=(name,))).auroc for name in normal},
    )


class _Contest:
    """Choices compared on normal rows and rows with faults.

    Args:
        normal: statistic -> (N,) p-values of normal rows.
        faulty: kind -> statistic -> (M,) those of rows with that fault.
        always: statistics that every choice has.
    """

    def __init__(
        self,
        normal: Mapping[str, Doubles],
        faulty: Mapping[str, Mapping[str, Doubles]],
        always: tuple[str, ...],
    ) -> None:
        self._normal, self._faulty, self._always = normal, faulty, always
        self._known: dict[Choice, _Places] = {}

    def places(self, choice: Choice) -> _Places:
        """Where faulty rows rank among normal ones."""
        if choice not in self._known:
            normal = np.sort(choice.fused(self._normal))
            threshold = normal[len(normal) - 1 - int(RATE * len(normal))]
            above, found, below = {}, {}, np.zeros(len(normal))
            for kind, p_values in self._faulty.items():
                faulty = np.sort(choice.fused(p_values))
                above[kind] = _share_below(normal, choice.fused(p_values))
                found[kind] = (choice.fused(p_values) > threshold).astype(np.float64)
                below += 1 - _share_below(faulty, choice.fused(self._normal))
            self._known[choice] = _Places(above, found, below / len(self._faulty))
        return self._known[choice]

    def winner(self, declared: Choice) -> Choice:
        """A part of `declared`, or all of it, unless a part of all statistics is clearly better."""
        best = self._pruned(declared)
        other = max((self._pruned(Choice(fusion=fusion)) for fusion in FUSIONS), key=self._worth)
        return other if self._is_better(other, best) else best

    def _worth(self, choice: Choice) -> float:
        return self.places(choice).worth

    def _is_better(self, one: Choice, other: Choice) -> bool:
        return self.places(one).clearly_above(self.places(other))

    def _pruned(self, whole: Choice) -> Choice:
        """The choice with most statistics, of those on the way to few, that the best is not better than."""
        way = [whole]
        while fewer := list(self._without_one(way[-1])):
            way.append(max(fewer, key=self._worth))
        best = max(way, key=self._worth)
        return next(one for one in way if not self._is_better(best, one))

    def _without_one(self, choice: Choice) -> Iterable[Choice]:
        """Those that have all statistics but one; none where that would leave no other than `always`."""
        used = tuple(self._normal) if choice.used is None else choice.used
        if sum(name not in self._always for name in used) > 1:
            for name in used:
                if name not in self._always:
                    yield replace(choice, used=tuple(one for one in used if one != name))


@dataclass(frozen=True, eq=False)
class _Places:
    """Where rows with faults rank among normal rows, and these among them.

    Args:
        above: kind -> (M,) share of normal rows below each faulty one, a tie being half.
        found: kind -> (M,) 1 above all but `RATE` of the normal rows, else 0.
        below: (N,) share of faulty rows above each normal one, the mean over kinds.
    """

    above: Mapping[str, Doubles]
    found: Mapping[str, Doubles]
    below: Doubles

    @property
    def auroc(self) -> float:
        return float(np.mean([one.mean() for one in self.above.values()]))

    @property
    def worth(self) -> float:
        """What choices are compared by."""
        return (self.auroc + float(np.mean([one.mean() for one in self.found.values()]))) / 2

    def clearly_above(self, other: _Places) -> bool:
        """By more than `WORTH`, and than two standard errors of the difference (as DeLong et al. 1988)."""
        found = {kind: own - other.found[kind] for kind, own in self.found.items()}
        above = {kind: own - other.above[kind] for kind, own in self.above.items()}
        spread = 2 * _standard_error(above, found, self.below - other.below)
        return self.worth - other.worth > max(WORTH, spread)


def _standard_error(above: Mapping[str, Doubles], found: Mapping[str, Doubles], below: Doubles) -> float:
    """Of a worth, or of a difference of two, from its parts row by row."""
    variance = float(np.var(below / 2)) / len(below)
    for kind, own in above.items():
        variance += float(np.var((own + found[kind]) / 2)) / len(own) / len(above) ** 2
    return math.sqrt(variance)


def _share_below(reference: Doubles, values: Doubles) -> Doubles:
    """(M,) share of a sorted (N,) reference that is below each value, ties being half."""
    first, last = (np.searchsorted(reference, values, side=side) for side in ("left", "right"))
    return np.asarray((first + last) / 2 / len(reference))

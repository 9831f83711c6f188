"""Every single substitution of one wild type: a picture, and suggestions for the next test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.reports.scales import colour_scale
from seqmlm.tasks.measurements import Measurements

if TYPE_CHECKING:
    from seqmlm.reports.page import Page


@dataclass(frozen=True, eq=False)
class Grid:
    """Every single substitution of one wild type.

    values: (L, A) the model's log-ratios of A letters at L places, with the convention `masked`. NaN at gaps.
    numbers: (L,) numbers of the units in names such as A5G.
    """

    wildtype: str
    letters: str
    values: NDArray[np.float64]
    numbers: Sequence[int]

    def name(self, place: int, letter: int) -> str:
        """The name of a substitution, such as A5G."""
        return f"{self.wildtype[place]}{self.numbers[place]}{self.letters[letter]}"

    def _units(self) -> list[tuple[int, str]]:
        """(place, letter) of all places with a unit, without gaps."""
        there = np.flatnonzero(np.isfinite(self.values).any(axis=1))
        return [(place, self.wildtype[place]) for place in there.tolist()]

    def suggestions(self, count: int, measured: Measurements | None) -> list[dict[str, Any]]:
        """The `count` substitutions to test next: the fittest ones that were not measured.

        The choice is greedy: the best substitution of each place comes first, ranked by effect. Then follows
        the second best of each place, and so on.
        """
        tested = set() if measured is None else measured.substitutions()
        turns = []
        for place, native in self._units():
            free = [
                n for n, unit in enumerate(self.letters) if unit != native and (place, unit) not in tested
            ]
            free.sort(key=lambda n: -self.values[place, n])
            turns += [(turn, -float(self.values[place, n]), place, n) for turn, n in enumerate(free)]
        best = sorted(turns, key=lambda candidate: candidate[:3])[:count]
        return [{"variant": self.name(place, n), "effect": -worth} for _, worth, place, n in best]

    def draw(self, page: Page) -> None:
        """Add the picture to a report."""
        units = self._units()
        is_wildtype = np.array(list(self.letters)) == np.array([letter for _, letter in units])[:, None]
        values = np.where(is_wildtype, np.nan, self.values[[place for place, _ in units]])
        cells = [
            f"{self.name(place, letter)}: {self.values[place, letter]:+.2f} nats"
            for place, _ in units
            for letter in range(len(self.letters))
        ]
        labels = [f"{letter}{self.numbers[place]}" for place, letter in units]
        scale = colour_scale(values)
        beyond = float(np.mean(np.abs(values[np.isfinite(values)]) > scale))
        note = (
            "effects as in the rows: orange is less fit than the wild type's letter (shaded), blue fitter. "
            f"The strongest colours mean {scale:g} nats or more ({beyond:.1%} of the effects)"
        )
        page.grid("Every substitution", -values, self.letters, labels, cells, scale=scale, note=note)

"""Queries about the gaps of a sequence (`seqmlm.engine.holes`), in terms of its units."""

from __future__ import annotations

import numpy as np

from seqmlm.engine.holes import Gapped
from seqmlm.engine.query import Query
from seqmlm.engine.units import Units
from seqmlm.engine.windows import window_around


def gap_window(rule: Units, gapped: Gapped, gap: int, max_length: int) -> Gapped:
    """The window around one of the gaps, which is in its middle; other gaps may be outside the window.

    Args:
        rule: defines what a unit is.
        gapped: the sequence with gaps.
        gap: number of the gap, from 0.
        max_length: largest number of tokens of the window.
    """
    encoding = gapped.encoding
    if len(encoding) <= max_length:
        return gapped
    tokens, numbers = rule.places(encoding)[gapped.gaps[gap]], rule.numbers(encoding)
    window = window_around(encoding, rule.space, max_length, int(tokens.min()), int(tokens.max()) + 1)
    places = {number: place for place, number in enumerate(rule.numbers(window).tolist())}
    gaps = [
        [places[number] for number in numbers[units].tolist() if number in places] for units in gapped.gaps
    ]
    return Gapped(encoding=window, gaps=tuple(np.array(units, dtype=np.int64) for units in gaps))


def gaps_query(rule: Units, gapped: Gapped) -> Query:
    """The query for the units in all gaps, each predicted while all gaps are hidden."""
    return rule.ask(gapped.encoding, gapped.units, np.unique(gapped.units))


def chain_query(rule: Units, gapped: Gapped, gap: int) -> Query:
    """The query for the probability of the content of one gap while the content of the other gaps is unknown.

    Its units are predicted from left to right, each with itself and the later units hidden. The sum of the
    answers is a log-probability, by the chain rule. Kauf and Ivanova (2023) do the same within words.

    Args:
        rule: defines what a unit is.
        gapped: the sequence with gaps.
        gap: number of the gap, from 0.
    """
    units = gapped.gaps[gap]
    other_gaps = [part for number, part in enumerate(gapped.gaps) if number != gap]
    other_units = np.setdiff1d(np.concatenate(other_gaps or [units]), units)
    variants = np.arange(len(units))
    hidden = [np.concatenate([units[first:], other_units]) for first in variants]
    return rule.ask(
        gapped.encoding,
        np.concatenate(hidden),
        units,
        hidden_in=np.repeat(variants, [len(part) for part in hidden]),
        asked_in=variants,
    )

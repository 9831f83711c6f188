"""Questions about the gaps of a sequence (`seqmlm.engine.holes`), in the terms of its units."""

from __future__ import annotations

import numpy as np

from seqmlm.engine.holes import Gapped
from seqmlm.engine.query import Query
from seqmlm.engine.units import Units
from seqmlm.engine.windows import window_around


def gap_window(rule: Units, gapped: Gapped, gap: int, max_length: int) -> Gapped:
    """The window in whose middle one of the gaps stands; others may lie outside."""
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
    """The question what stands in all gaps, each unit asked while all of them are hidden."""
    return rule.ask(gapped.encoding, gapped.units, np.unique(gapped.units))


def chain_query(rule: Units, gapped: Gapped, gap: int) -> Query:
    """The question how probable what stands in a gap is, while nothing is known of the other gaps.

    Its units are asked from left to right, each with itself and the later ones hidden: the sum of the
    answers is a log-probability (the chain rule), within words as of Kauf and Ivanova (2023).
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

"""A pair of places: the query about each of them given the other, and the log-probabilities in its answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Rows
from seqmlm.engine.types import Ids
from seqmlm.structure.base import Places, copy_query
from seqmlm.structure.maps import Doubles


class Conditional(NamedTuple):
    """Log-probabilities at both places of a pair.

    Args:
        first, second: (A,), (B,) while both are hidden.
        given_first: (K, B) of the second for symbols at the first. given_second: (K', A) likewise.
        scale_first, scale_second: (K,), (K') log of the sum of exponentials that each of these rows was
            divided by: added to a row it is logits again.
    """

    first: Doubles
    second: Doubles
    given_first: Doubles
    given_second: Doubles
    scale_first: Doubles = np.zeros(1)
    scale_second: Doubles = np.zeros(1)


def pair_query(places: Places, i: int, j: int, at_first: Ids, at_second: Ids, allowed: Ids) -> Query:
    """A query about both places while both are hidden; then about one of them for each symbol to try at the
    other. Answers are about the allowed token ids (A,)."""
    first_ids, second_ids = at_first.tolist(), at_second.tolist()
    second_copy = 1 + len(first_ids)
    hidden = [
        (0, i),
        (0, j),
        *((1 + n, j) for n in range(len(first_ids))),
        *((second_copy + n, i) for n in range(len(second_ids))),
    ]
    substituted = [
        *((1 + n, i, a) for n, a in enumerate(first_ids)),
        *((second_copy + n, j, b) for n, b in enumerate(second_ids)),
    ]
    return copy_query(places, hidden, hidden, substituted, allowed)


def read_pair(answer: Answer, at_first: int, at_second: int) -> Conditional:
    """The conditionals in an answer to `pair_query`, with so many symbols tried at either place."""
    rows = answer.values[Rows.name].astype(np.float64)
    return Conditional(rows[0], rows[1], rows[2 : 2 + at_first], rows[2 + at_first :])

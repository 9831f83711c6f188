"""A pair of places: the query for each place given the other, and the log-probabilities in its answer."""

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
        first, second: (A,) and (B,) log-probabilities while both are hidden.
        given_first: (K, B) log-probabilities of the second place for symbols at the first.
        given_second: (K', A) log-probabilities of the first place for symbols at the second.
        scale_first, scale_second: (K,) and (K',) log of the sum of exponentials of each of these rows; a row
            plus this number gives logits.
    """

    first: Doubles
    second: Doubles
    given_first: Doubles
    given_second: Doubles
    scale_first: Doubles = np.zeros(1)
    scale_second: Doubles = np.zeros(1)


def pair_query(places: Places, i: int, j: int, at_first: Ids, at_second: Ids, allowed: Ids) -> Query:
    """A query for both places while both are hidden, and for each place given symbols at the other.

    Args:
        places: places of the sequence.
        i, j: positions of the two places.
        at_first, at_second: token ids to try at the first and at the second place.
        allowed: (A,) token ids that the answers are restricted to.
    """
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
    """The conditionals in an answer to `pair_query`.

    Args:
        answer: the answer.
        at_first, at_second: number of symbols that were tried at each place.
    """
    rows = answer.values[Rows.name].astype(np.float64)
    return Conditional(rows[0], rows[1], rows[2 : 2 + at_first], rows[2 + at_first :])

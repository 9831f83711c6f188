"""Use the training data as normal rows for statistics that need no model.

The scores of its training data do not show how high the scores of new records are, and few records are held
out. Therefore the scores of a model can be calibrated with only dozens of rows. Statistics of counts are
different: a part of the training data can be compared with counts of the other parts. All training data then
become normal rows of these statistics, thousands instead of dozens. A part is a contiguous stretch of the
data, because neighbours in time are similar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from seqmlm.anomaly.levels import Level
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.splits import nested
from seqmlm.engine.types import Sequences
from seqmlm.inference.record_batches import batches, encoded
from seqmlm.inference.session import Session
from seqmlm.scoring.sampling import CountedRows, Subset
from seqmlm.tasks.deadline import Phase
from seqmlm.training.corpus import Corpus

PARTS, _TOKENS_COUNTED = 20, 40_000_000
"""Largest number of parts, and the limit of counted tokens for all parts together.

More training tokens lead to fewer parts.
"""
MOST_RECORDS = 10_000
"""Largest number of training records that become normal rows. They are evenly spread."""


def counted_rows(
    level: Level, session: Session, corpus: Corpus, seed: int, phase: Phase
) -> CountedRows | None:
    """Normal rows from training records. None if the level counts nothing, or there are too few records.

    Args:
        level: the level of the rows.
        session: the session of the trained model.
        corpus: the training data.
        seed: seed of the backgrounds, and of how records are cut (`Sampling.parts`).
        phase: the phase of the clock. Its units are the parts.
    """
    pairs = list(corpus.training(MOST_RECORDS)) if level.background and level.counting else []
    if not pairs or level.counting is None:
        return None
    owners = corpus.train.records(range(len(corpus.train)))
    parts = int(np.clip(_TOKENS_COUNTED // max(1, int(corpus.train.lengths.sum())), 2, PARTS))
    edges = np.quantile(owners, np.arange(1, parts) / parts, method="higher")
    part = np.searchsorted(edges, owners, side="right")
    of_part = [int(np.searchsorted(edges, number, side="right")) for number, _ in pairs]
    values = [level.counting.known_values(record, session.tokenizer) for _, record in pairs]
    records = Counter(chain.from_iterable(values))
    of_parts: dict[int, list[CountedRows]] = {}
    for done, number in enumerate(nested(parts), start=1):
        judged = [pair for pair, its_part in enumerate(of_part) if its_part == number]
        other_windows = np.flatnonzero(part != number)
        if judged and len(other_windows):
            times = Counter(chain.from_iterable(values[pair] for pair in judged))
            never = frozenset(value for value, count in times.items() if records[value] == count)
            chosen = Subset(corpus.train, other_windows)
            own_pairs = [pairs[pair] for pair in judged]
            of_parts[number] = [*_part_rows(level, session, own_pairs, chosen, seed, never)]
        if phase.ends_after(done / parts):
            break
    phase.settle("the training records that calibrate the counted statistics")
    tables = [table for _, rows in sorted(of_parts.items()) for table in rows]
    if not tables:
        return None
    names = level.statistics.counted
    statistics = {name: np.concatenate([table.statistics[name] for table in tables]) for name in names}
    return CountedRows(statistics, *(np.concatenate([table[n] for table in tables]) for n in (1, 2)))


def _part_rows(
    level: Level,
    session: Session,
    pairs: Iterable[tuple[int, Record]],
    other_windows: Sequences,
    seed: int,
    never: frozenset[str],
) -> Iterator[CountedRows]:
    """Normal rows of numbered records, from counts of the other sequences.

    `never` are values that do not occur in the other sequences.
    """
    assert level.background is not None
    assert level.counting is not None
    background = level.background.fit(other_windows, session.tokenizer, seed=seed)
    random, numbers = np.random.default_rng(seed), list[int]()

    def parts() -> Iterator[Record]:
        for number, record in pairs:
            cut = level.sampling.parts(record, random)
            numbers.extend([number] * len(cut))
            yield from cut

    done = 0
    for batch in batches(parts()):
        encodings = encoded(session.domain, session.tokenizer, batch, Problems())
        records, done = np.array(numbers[done : done + len(batch)], dtype=np.int64), done + len(batch)
        yield CountedRows(*level.counting.columns(encodings, background, never), records)

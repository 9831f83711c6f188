"""Training data as normal rows of statistics that no model is asked for: each part is judged by the others.

What a model was trained on cannot say how high its scores of new records are, and few records are held out.
What is counted can be counted without the part that is judged, so all training data are normal rows of it:
thousands, where a model has dozens. A part is a stretch of the data, for neighbours in time are alike.
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
"""Parts of the training data, and tokens that are counted for all of them: of more there are fewer parts."""
MOST_RECORDS = 10_000
"""Training records that are judged, at most, spread evenly."""


def counted_rows(
    level: Level, session: Session, corpus: Corpus, seed: int, phase: Phase
) -> CountedRows | None:
    """Rows of training records, or None where a level counts nothing, or there are too few to be divided.

    Args:
        seed: of backgrounds, and of what records may come as (`Sampling.parts`).
        phase: its units are the parts that are judged.
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
    phase.settle("the training records that judge what is counted")
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
    """Rows of numbered records by what is counted in other sequences, which never have some values."""
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

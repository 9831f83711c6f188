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
from seqmlm.inference.batches import batches, encoded
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
        mine = [at for at, own in enumerate(of_part) if own == number]
        others = np.flatnonzero(part != number)
        if mine and len(others):
            own = Counter(chain.from_iterable(values[at] for at in mine))
            never = frozenset(value for value, times in own.items() if records[value] == times)
            chosen = Subset(corpus.train, others)
            of_parts[number] = [*_judged(level, session, [pairs[at] for at in mine], chosen, seed, never)]
        if phase.ends_after(done / parts):
            break
    phase.settle("the training records that judge what is counted")
    found = [one for _, rows in sorted(of_parts.items()) for one in rows]
    if not found:
        return None
    statistics = {
        name: np.concatenate([one.statistics[name] for one in found]) for name in level.statistics.counted
    }
    return CountedRows(statistics, *(np.concatenate([one[at] for one in found]) for at in (1, 2)))


def _judged(
    level: Level,
    session: Session,
    pairs: Iterable[tuple[int, Record]],
    others: Sequences,
    seed: int,
    never: frozenset[str],
) -> Iterator[CountedRows]:
    """Rows of numbered records by what is counted in other sequences, which never have some values."""
    assert level.background is not None
    assert level.counting is not None
    background = level.background.fit(others, session.tokenizer, seed=seed)
    random, numbers = np.random.default_rng(seed), list[int]()

    def parts() -> Iterator[Record]:
        for number, record in pairs:
            cut = level.sampling.parts(record, random)
            numbers.extend([number] * len(cut))
            yield from cut

    done = 0
    for batch in batches(parts()):
        some = encoded(session.domain, session.tokenizer, batch, Problems())
        own, done = numbers[done : done + len(batch)], done + len(batch)
        yield CountedRows(*level.counting.columns(some, background, never), np.array(own, dtype=np.int64))

"""Mix several corpora: small corpora are drawn more often, and large corpora less often, by q_i ~ p_i^alpha.

p_i is the share of a corpus in the whole. An alpha of 1 keeps the shares, and 0 makes them equal.
Multilingual models use 0.3 (Lample & Conneau 2019; Conneau et al. 2020). The same rule applies to the
training text of a tokenizer (`resample`, on streams) and to the training data of the model (`Mixture`, on
indices).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.splits import hash64
from seqmlm.engine.types import Encoding, Ids, MovingWindows
from seqmlm.errors import UsageError

T = TypeVar("T")

ALPHA = 0.3
_CORPUS = 48  # bits of a record's number in its data set


def shares(amounts: Sequence[float], alpha: float = ALPHA) -> NDArray[np.float64]:
    """(C,) the share of each corpus, from its size (tokens or characters, above 0).

    Raises:
        UsageError: alpha is not in [0, 1], or a corpus is empty.
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha of a mixture must be between 0 and 1, not {alpha}")
    sizes = np.asarray(amounts, dtype=np.float64)
    if not len(sizes) or not (sizes > 0).all():
        raise UsageError("a mixture needs at least one corpus, and none may be empty")
    powers = (sizes / sizes.sum()) ** alpha
    return np.asarray(powers / powers.sum(), dtype=np.float64)


def rates(amounts: Sequence[float], alpha: float = ALPHA) -> NDArray[np.float64]:
    """(C,) how often each corpus's records are taken on average, with an unchanged total."""
    return np.asarray(shares(amounts, alpha) * np.sum(amounts) / np.asarray(amounts), dtype=np.float64)


def resample(items: Iterable[T], rate: float, *, seed: int = 0) -> Iterator[T]:
    """Yield each item of a stream `rate` times on average. A keyed draw decides about the fraction.

    >>> list(resample("ab", 2.0))
    ['a', 'a', 'b', 'b']
    """
    copies = int(rate)
    threshold = int((rate - copies) * 2**64) - 2**63
    for number, item in enumerate(items):
        for _ in range(copies + (hash64(str(number), seed) < threshold)):
            yield item


class Mixture:
    """Several data sets as one (`seqmlm.engine.types.MovingWindows`), in which some items are repeated.

    Nothing is copied: each index refers to an item of a data set. All items of a data set occur equally
    often, with a difference of at most one. If an epoch has less than a whole data set, it has an even sample
    of it.

    Args:
        datasets: the corpora.
        alpha: see `shares`. The shares are of tokens.
        epoch_size: number of sequences in an epoch. None is the smallest number with which every item occurs.
        seed: seed of the samples.

    Raises:
        UsageError: `epoch_size` is too small for a sequence of each data set.
    """

    def __init__(
        self,
        datasets: Sequence[MovingWindows],
        *,
        alpha: float = ALPHA,
        epoch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self._datasets = tuple(datasets)
        tokens = [float(np.sum(d.lengths, dtype=np.int64)) for d in datasets]
        sizes = np.array([len(d) for d in datasets], dtype=np.float64)
        # Tokens of each data set divided by its mean length are its sequences, up to a common factor.
        rates = shares(tokens, alpha) * sizes / np.asarray(tokens)
        if epoch_size is None:
            self._counts = np.rint(rates * (sizes / rates).max()).astype(np.int64)
        else:
            self._counts = np.rint(rates / rates.sum() * epoch_size).astype(np.int64)
        if (self._counts < 1).any():
            raise UsageError(f"an epoch of {epoch_size} sequences is too small for {len(sizes)} corpora")
        self._starts: list[int] = [0, *np.cumsum(self._counts).tolist()]
        self._offsets = [hash64(str(c), seed) % len(d) for c, d in enumerate(datasets)]
        self._lengths = np.concatenate(
            [
                np.asarray(dataset.lengths)[self._items(corpus, np.arange(self._counts[corpus]))[0]]
                for corpus, dataset in enumerate(datasets)
            ]
        )

    @property
    def lengths(self) -> Ids:
        """(N,) tokens of each sequence, including special tokens."""
        return self._lengths

    @property
    def counts(self) -> NDArray[np.int64]:
        """(C,) sequences of each data set in an epoch."""
        return np.asarray(self._counts)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Encoding:
        corpus, item = self.locate(index)
        return self._datasets[corpus][item]

    @property
    def longest(self) -> int:
        """Number of tokens of the longest window in any epoch."""
        return max(dataset.longest for dataset in self._datasets)

    def lengths_at(self, epoch: int, indices: NDArray[np.int64]) -> Ids:
        """(M,) number of tokens of windows in an epoch."""
        lengths = self._lengths[indices]
        for corpus, dataset in enumerate(self._datasets):
            here = np.flatnonzero((indices >= self._starts[corpus]) & (indices < self._starts[corpus + 1]))
            items, times = self._items(corpus, indices[here] - self._starts[corpus])
            for time in np.unique(times).tolist():
                same_time = times == time
                lengths[here[same_time]] = dataset.lengths_at(
                    self._turn(corpus, epoch, time), items[same_time]
                )
        return lengths

    def at(self, epoch: int, index: int) -> Encoding:
        """A window as it is cut in an epoch. A repeated item is cut differently each time."""
        corpus, place = self._place(index)
        item, time = (int(number) for number in self._items(corpus, np.array(place)))
        return self._datasets[corpus].at(self._turn(corpus, epoch, time), item)

    def locate(self, index: int) -> tuple[int, int]:
        """The data set of an index, and the item in it."""
        corpus, place = self._place(index)
        return corpus, int(self._items(corpus, np.array(place))[0])

    def _place(self, index: int) -> tuple[int, int]:
        """The data set of an index, and the position among its indices."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        corpus = bisect_right(self._starts, index) - 1
        return corpus, index - self._starts[corpus]

    def _items(self, corpus: int, place: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(M,) the items at positions of a data set, and how often each occurred before.

        Whole rounds come first, then evenly spaced items.
        """
        size = len(self._datasets[corpus])
        rounds, remainder = divmod(int(self._counts[corpus]), size)
        spaced = self._offsets[corpus] + (place - rounds * size) * size // max(remainder, 1)
        times = place // size
        return np.where(times < rounds, place, spaced) % size, times

    def _turn(self, corpus: int, epoch: int, time: int) -> int:
        """The epoch of a data set for a repetition of its items."""
        return epoch * -(-int(self._counts[corpus]) // len(self._datasets[corpus])) + time

    def records(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """(M,) a number that identifies the record of each window."""
        places = map(self.locate, indices)
        numbers = [int(self._datasets[at].records([item])[0]) + (at << _CORPUS) for at, item in places]
        return np.array(numbers, dtype=np.int64)

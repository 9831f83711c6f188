"""Counter-based random numbers: a function of the sample they are for, not of the process or the time.

Masks depend on (seed, epoch, sample) and the order of samples on (seed, epoch). They are therefore the same
for any number of loader workers and ranks, and nothing has to be stored to resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.errors import UsageError

# Streams of `rng`, one for each purpose.
MASKING, EVALUATION, AUGMENTATION = 0, 1, 2

_WORD = 2**64
_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15  # odd: multiplying by it maps the 64-bit words one to one (SplitMix64)


class KeyedGenerator:
    """A generator that can be set to the start of any (epoch, sample, stream).

    Resetting it is 7 times faster than creating a new generator. Philox 4x64 (Salmon et al. 2011) maps a
    counter to random words. The upper three of its four counter words are the stream, epoch and sample, and
    only the lowest one runs. Therefore no two streams overlap before 2^64 draws. Threads must not share the
    generator.

    Args:
        seed: any integer; taken modulo 2^64.
    """

    def __init__(self, seed: int) -> None:
        bits = np.random.Philox(key=np.array([seed % _WORD, 0], dtype=np.uint64))
        self._generator = np.random.Generator(bits)
        self._start: Any = bits.state

    def at(self, epoch: int, sample: int, stream: int = MASKING) -> np.random.Generator:
        """The shared generator at the start of the given stream; valid until the next call of `at`."""
        self._start["state"]["counter"][1:] = stream % _WORD, epoch % _WORD, sample % _WORD
        self._generator.bit_generator.state = self._start
        return self._generator


def rng(seed: int, epoch: int, sample: int, stream: int = MASKING) -> np.random.Generator:
    """A new generator at the start of the stream of (seed, epoch, sample).

    >>> bool((rng(1, 0, 7).random(3) == rng(1, 0, 7).random(3)).all())
    True
    """
    return KeyedGenerator(seed).at(epoch, sample, stream)


def uniform(seed: int, stream: NDArray[np.int64], counter: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N,) numbers in (0, 1), each a function only of (seed, stream, counter).

    They have 40 bits, so that none rounds to 1 when it is multiplied by a sum of probabilities.

    >>> a, b = uniform(0, np.array([3, 3]), np.array([0, 1]))
    >>> bool(0 < a < 1 and a != b and [a] == uniform(0, np.array([3]), np.array([0])))
    True
    """
    key, odd = np.random.SeedSequence(seed % _WORD).generate_state(2, np.uint64)
    words = splitmix64(stream.astype(np.uint64) * np.uint64(_GOLDEN) + key)
    words = splitmix64(words + counter.astype(np.uint64) * np.uint64(_GOLDEN) + odd)
    return (words >> np.uint64(24)).astype(np.float64) * 2.0**-40 + 2.0**-41


class Permutation:
    """A keyed permutation of range(n), computed on request in O(1) memory.

    It is an alternating Feistel network on the next power of two, cycle-walked back into range(n) (Black and
    Rogaway 2002, "Ciphers with arbitrary finite domains").

    Args:
        n: size of the range, at least 0 and below 2^62.
        key: numbers that determine the order, such as (seed, epoch).

    Raises:
        UsageError: `n` is out of range.

    >>> sorted(Permutation(10, (3, 0))(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, n: int, key: Sequence[int]) -> None:
        if not 0 <= n < 2**62:
            raise UsageError(f"a permutation needs 0 <= n < 2^62, not n = {n}")
        self.n = n
        bits = max(n - 1, 1).bit_length()
        self._low = np.uint64(bits - bits // 2)
        self._low_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits // 2)) - 1)
        entropy = np.random.SeedSequence([word % _WORD for word in key])
        self._keys = entropy.generate_state(_ROUNDS, np.uint64)

    def __call__(self, index: NDArray[np.integer]) -> NDArray[np.int64]:
        """The images of numbers in range(n).

        Raises:
            IndexError: a number is outside range(n).
        """
        if index.size and (index.min() < 0 or index.max() >= self.n):
            raise IndexError(f"index outside range({self.n})")
        out = self._network(index.astype(np.uint64))
        outside = np.flatnonzero(out >= self.n)
        while outside.size:  # the walk always ends in range(n); each step succeeds with p > 1/2
            out[outside] = walked = self._network(out[outside])
            outside = outside[walked >= self.n]
        return out.astype(np.int64)

    def _network(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = x >> self._low, x & self._low_mask
        for number, key in enumerate(self._keys):
            if number % 2:
                low ^= splitmix64(high + key) & self._low_mask
            else:
                high ^= splitmix64(low + key) & self._high_mask
        return (high << self._low) | low


def splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele et al. 2014); every output bit depends on every input bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

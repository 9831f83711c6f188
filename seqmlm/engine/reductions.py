"""Reductions: the values that `Conditionals.ask` computes from each predicted distribution.

A reduction turns a block of logits into one array, on the device of the model. The code between the engine
and the printed row passes these arrays on by name, without knowing them. A new reduction therefore needs
only a class, here or anywhere else, and an entry in a list of requested reductions.

Everything is computed a few rows at a time, so that no temporary array is much larger than `CHUNK` elements.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.randomness import uniform
from seqmlm.engine.types import Longs
from seqmlm.errors import UsageError

if TYPE_CHECKING:  # domains declare reductions, and must not load torch for that
    import torch
    from torch import Tensor

# Number of elements of a temporary array: 64 MiB of fp32, or 1 MiB to stay in the cache of a CPU.
CHUNK = 1 << 24
CACHED = 1 << 18


@dataclass(frozen=True, eq=False)
class Block:
    """Rows that share one softmax of width W, and pairs of a row and a target.

    Args:
        logits: (K, W), -inf for tokens outside the probability space.
        ids: (W,) token id of each column, or None if the column is the id.
        row: (P,) row in `logits` of each pair.
        column: (P,) column of the target of each pair, -1 if the target is not in the block.
        draw: (P, 2) int64, stream and counter of the random number of each pair; None without random
            numbers.
    """

    logits: Tensor
    ids: Tensor | None
    row: Tensor
    column: Tensor
    draw: Longs | None = None

    @cached_property
    def normaliser(self) -> Tensor:
        """(K,) log of the sum of the exponentials of the logits.

        On a CPU it is computed in pieces that fit into the cache, which is twice as fast.
        """
        if self.logits.device.type != "cpu":
            return self.logits.logsumexp(-1)
        import torch

        step = max(1, CACHED // self.logits.shape[1])
        return torch.cat([part.logsumexp(-1) for part in torch.split(self.logits, step)])

    @cached_property
    def targets(self) -> Tensor:
        """(P,) logits of the targets."""
        logits = self.logits[self.row, self.column.clamp(min=0)]
        return logits.masked_fill(self.column < 0, -math.inf)

    @cached_property
    def _tops(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """(K, min(k, W)) logits and columns of the most probable tokens; computed once for each k."""
        if k not in self._tops:
            values, columns = self.logits.topk(min(k, self.logits.shape[1]), -1)
            self._tops[k] = values, columns
        return self._tops[k]

    def token_ids(self, columns: Tensor) -> Tensor:
        """The token ids of the given columns."""
        return columns if self.ids is None else self.ids[columns]

    def pieces(self) -> Iterable[slice]:
        """Slices of the pairs; the rows of each slice have about `CHUNK` elements."""
        step = max(1, CHUNK // self.logits.shape[1])
        return (slice(first, first + step) for first in range(0, len(self.row), step))


class Reduction(ABC):
    """One kind of value computed from distributions; subclasses are frozen dataclasses.

    Two reductions are equal if their settings are equal.

    Attributes:
        name: name of its array in `Answer.values` and everywhere after that.
        per: "row" if the value is the same for all queries about one position of one input. "target" if it
            also depends on the target token.
        is_random: whether the value is drawn. Equal queries then get separate values. Only with `per` =
            "target".
        over_unit: value for a unit of several tokens: the sum (of nats, which become bits), the largest
            value, or the value of its first token.
    """

    name: ClassVar[str]
    per: ClassVar[Literal["row", "target"]] = "row"
    is_random: ClassVar[bool] = False
    over_unit: ClassVar[Literal["sum", "max", "first"]] = "first"

    @abstractmethod
    def apply(self, block: Block) -> Tensor:
        """(K, ...) values for the rows of a block, or (P, ...) for its pairs."""

    def width(self, vocabulary: int) -> int:
        """Number of values for each queried position."""
        return 1

    def covers(self, reduction: Reduction) -> bool:
        """Whether this reduction contains the values of another reduction."""
        return self == reduction


@dataclass(frozen=True)
class TargetLogProb(Reduction):
    """(A,) natural log-probability of the target; -inf if it is outside the probability space."""

    name = "log_prob"
    per = "target"
    over_unit = "sum"

    def apply(self, block: Block) -> Tensor:
        log_probs: Tensor = block.targets - block.normaliser[block.row]
        return log_probs


@dataclass(frozen=True)
class Entropy(Reduction):
    """(A,) entropy of the distribution, in nats."""

    name = "entropy"
    over_unit = "sum"

    def apply(self, block: Block) -> Tensor:
        from torch.special import entr

        entropy: Tensor = entr(block.logits.softmax(-1)).sum(-1)
        return entropy


@dataclass(frozen=True)
class Rank(Reduction):
    """(A,) int64, number of tokens that are strictly more probable than the target."""

    name = "rank"
    per = "target"
    over_unit = "max"

    def apply(self, block: Block) -> Tensor:
        # Counting instead of sorting takes O(W) per pair, and ties do not depend on the order of a sort.
        ranks = block.row.new_empty(len(block.row))
        for piece in block.pieces():
            ranks[piece] = (block.logits[block.row[piece]] > block.targets[piece, None]).sum(-1)
        return ranks


@dataclass(frozen=True)
class _Top(Reduction):
    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UsageError(f"the k of a top-k must be at least 1, not {self.k}")

    def width(self, vocabulary: int) -> int:
        return self.k

    def covers(self, reduction: Reduction) -> bool:
        return isinstance(reduction, type(self)) and self.k >= reduction.k

    def _pad(self, unpadded: Tensor, value: float) -> Tensor:
        from torch.nn.functional import pad

        return pad(unpadded, (0, self.k - unpadded.shape[1]), value=value)


@dataclass(frozen=True)
class TopIds(_Top):
    """(A, k) int64 ids of the k most probable tokens, descending; -1 after the last possible token."""

    name = "top_ids"

    def apply(self, block: Block) -> Tensor:
        values, columns = block.top(self.k)
        return self._pad(block.token_ids(columns).masked_fill(values == -math.inf, -1), -1)


@dataclass(frozen=True)
class TopLogProbs(_Top):
    """(A, k) natural log-probabilities of the k most probable tokens, descending; -inf after the last."""

    name = "top_log_probs"

    def apply(self, block: Block) -> Tensor:
        values, _ = block.top(self.k)
        return self._pad(values - block.normaliser[:, None], -math.inf)


def top(k: int) -> tuple[Reduction, ...]:
    """Reductions for the ids and log-probabilities of the k most probable tokens; none for k = 0."""
    return (TopIds(k), TopLogProbs(k)) if k else ()


@dataclass(frozen=True)
class Candidates(Reduction):
    """(A, K) natural log-probabilities of given tokens; -inf for tokens outside the probability space.

    Args:
        ids: K token ids, the same for all queries.
    """

    name = "candidates"
    ids: tuple[int, ...]

    def width(self, vocabulary: int) -> int:
        return len(self.ids)

    def apply(self, block: Block) -> Tensor:
        ids = block.row.new_tensor(self.ids)
        if block.ids is None:
            if self.ids and not 0 <= min(self.ids) <= max(self.ids) < block.logits.shape[1]:
                raise UsageError(f"candidates: an id outside the vocabulary of {block.logits.shape[1]}")
            return block.logits[:, ids] - block.normaliser[:, None]
        same = block.ids[None] == ids[:, None]
        logits = block.logits[:, same.int().argmax(-1)].masked_fill(~same.any(-1), -math.inf)
        return logits - block.normaliser[:, None]


@dataclass(frozen=True)
class Sample(Reduction):
    """(A,) int64, a token drawn from each distribution.

    The draw depends only on `seed`, the stream of the query (see `Query.stream`) and the index among its
    queried positions. It does not depend on the other queries, except for rounding of the probabilities.
    Equal queries with different streams draw independently.

    Args:
        seed: any integer.
    """

    name = "sample"
    per = "target"
    is_random = True
    seed: int

    def apply(self, block: Block) -> Tensor:
        import torch

        assert block.draw is not None
        logits_device = block.logits.device
        # Computed in fp64, which Apple's devices do not have. In fp32, rounding in the sums over a large
        # vocabulary would be larger than the probabilities of rare tokens.
        device = torch.device("cpu") if logits_device.type == "mps" else logits_device
        numbers = torch.from_numpy(uniform(self.seed, block.draw[:, 0], block.draw[:, 1])).to(device)
        tokens = block.row.new_empty(len(block.row))
        for piece in block.pieces():
            sums = block.logits[block.row[piece]].to(device).double().softmax(-1).cumsum(-1)
            column = torch.searchsorted(sums, numbers[piece, None] * sums[:, -1:], right=True)[:, 0]
            tokens[piece] = block.token_ids(column.to(logits_device))
        return tokens


@dataclass(frozen=True)
class Rows(Reduction):
    """Natural log-probabilities of all tokens.

    They are (A, V), or (A, K) in the order of `Query.allowed` if it is set.
    """

    name = "rows"

    def width(self, vocabulary: int) -> int:
        return vocabulary

    def apply(self, block: Block) -> Tensor:
        return block.logits - block.normaliser[:, None]


@dataclass(frozen=True)
class Normaliser(Reduction):
    """(A,) log of the sum of exponentials of the logits; `Rows` plus this gives the logits."""

    name = "normaliser"

    def apply(self, block: Block) -> Tensor:
        return block.normaliser


def union(*wishes: Iterable[Reduction]) -> tuple[Reduction, ...]:
    """All requested reductions, each once, sorted by name.

    If two have the same name, the one that covers the other is kept.

    Raises:
        UsageError: two different reductions have the same name, and neither covers the other.
    """
    by_name: dict[str, Reduction] = {}
    for later in (reduction for wish in wishes for reduction in wish):
        earlier = by_name.get(later.name, later)
        if not (earlier.covers(later) or later.covers(earlier)):
            raise UsageError(f"{earlier} and {later} cannot be requested together: both are {later.name!r}")
        by_name[later.name] = earlier if earlier.covers(later) else later
    return tuple(by_name[name] for name in sorted(by_name))


class Reduced(NamedTuple):
    """The values computed from a block.

    Args:
        rows: (K,) index of its rows among all rows.
        pairs: (P,) index of its pairs among all pairs.
        values: name -> (K, ...) or (P, ...), on the device of the model.
        sound: (K,) bool on the device of the model, False if the output of the model is NaN or infinite.
    """

    rows: Longs
    pairs: Longs
    values: dict[str, Tensor]
    sound: Tensor


def reduce_logits(
    logits: Tensor,
    group: Longs,
    row: Longs,
    column: Longs,
    allowed: Mapping[int, Tensor | None],
    want: Sequence[Reduction],
    draw: Longs | None = None,
) -> list[Reduced]:
    """The reductions of the logits of one forward pass: one `Reduced` for each slice of rows and each group.

    Args:
        logits: (Q, V) fp32.
        group: (Q,) key in `allowed` of the set that each row is restricted to.
        row: (P,) row of each pair, ascending.
        column: (P,) column of the target, -1 if it is not in the set.
        allowed: group -> (K,) token ids on the device of the model, or None for all ids.
        want: the reductions.
        draw: (P, 2) as in `Block`.
    """
    total, width = logits.shape
    step = max(1, CHUNK // max(1, width))
    reduced = []
    for first in range(0, total, step):
        last = min(first + step, total)
        a, b = np.searchsorted(row, [first, last])
        for number, ids in allowed.items():
            rows = first + np.flatnonzero(group[first:last] == number)
            if not len(rows):
                continue
            all_rows = len(rows) == last - first
            pairs = np.arange(a, b) if all_rows else a + np.flatnonzero(group[row[a:b]] == number)
            group_logits = logits[first:last] if all_rows else logits[_to_device(rows, logits.device)]
            block_row = row[pairs] - first if all_rows else np.searchsorted(rows, row[pairs])
            block = Block(
                logits=group_logits if ids is None else group_logits[:, ids],
                ids=ids,
                row=_to_device(block_row, logits.device),
                column=_to_device(column[pairs], logits.device),
                draw=None if draw is None else draw[pairs],
            )
            values = {reduction.name: reduction.apply(block) for reduction in want}
            # A NaN or infinity in the logits of a row makes its normaliser NaN or infinite. Most reductions
            # need the normaliser anyway.
            reduced.append(Reduced(rows, pairs, values, block.normaliser.isfinite()))
    return reduced


def reduce_shares(
    want: Iterable[Reduction], shares: NDArray[np.float64], target: Longs, draw: Longs | None
) -> dict[str, NDArray[Any]]:
    """The same reductions for distributions that were computed elsewhere, over another alphabet.

    Args:
        want: the reductions.
        shares: (E, K) probabilities.
        target: (E,) index of the target.
        draw: (E, 2) as in `Block`.

    Returns:
        name -> (E, ...).
    """
    import torch

    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(shares))
    block = Block(logits, None, torch.arange(len(shares)), torch.from_numpy(target), draw)
    return {reduction.name: reduction.apply(block).numpy() for reduction in want}


def _to_device(array: Longs, device: torch.device) -> Tensor:
    """Copy to the device without waiting; a copy from pageable memory would wait for the forward pass."""
    import torch

    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)

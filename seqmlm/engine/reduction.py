"""Logits to answers: what is kept of a (Q, V) block before it is thrown away.

Everything is computed a few rows at a time, so that no temporary is much larger than `CHUNK` elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Elements of a temporary: 64 MiB of fp32; of one that stays in a CPU's cache: 1 MiB.
CHUNK = 1 << 24
CACHED = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of every row beside the target's log-probability; see `Answer`."""

    entropy: bool = False
    ranks: bool = False
    top: int = 0
    full: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """Kept of one block, on the model's device.

    Args:
        log_probs: (P,) natural log-probability of each pair's target.
        ranks: (P,) or None. entropy: (Q,) or None. top_ids, top_log_probs: (Q, k) or None.
        rows: places (K,) in the block and their (K, W) log-probabilities, one entry a softmax space and
            chunk.
    """

    log_probs: Tensor
    ranks: Tensor | None = None
    entropy: Tensor | None = None
    top_ids: Tensor | None = None
    top_log_probs: Tensor | None = None
    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows that share one softmax space of width W, and the pairs that read them.

    Args:
        logits: (K, W) fp32, -inf where a token is outside the space.
        ids: (W,) token id of each column, or None where the column is the id.
        places: (K,) where the rows stand among all rows. pairs: (P',) where the pairs stand among all pairs.
        row: (P',) row in `logits` of each pair. column: (P',) its target's column, -1 where that is outside.
    """

    logits: Tensor
    ids: Tensor | None
    places: Tensor
    pairs: Tensor
    row: Tensor
    column: Tensor


def reduce(
    logits: Tensor,
    group: Tensor,
    row: Tensor,
    column: Tensor,
    allowed: Mapping[int, Tensor | None],
    wanted: Wanted,
) -> Reduced:
    """Reduce one forward pass.

    Args:
        logits: (Q, V) fp32.
        group: (Q,) which entry of `allowed` each row is restricted to, on the CPU.
        row: (P,) row of each pair, ascending, on the CPU. column: (P,) the target's column, -1 outside.
        allowed: (K,) token ids of each group on the model's device, or None for the whole space.
    """
    total, width = logits.shape
    reduced = _room(len(row), total, wanted, logits.device)
    step = max(1, CHUNK // max(1, width))
    for first in range(0, total, step):
        last = min(first + step, total)
        a, b = torch.searchsorted(row, torch.tensor([first, last])).tolist()
        for name, ids in allowed.items():
            places = first + torch.nonzero(group[first:last] == name)[:, 0]
            if not len(places):
                continue
            whole = len(places) == last - first
            pairs = torch.arange(a, b) if whole else a + torch.nonzero(group[row[a:b]] == name)[:, 0]
            local = row[pairs] - first if whole else torch.searchsorted(places, row[pairs])
            sent = [_send(t, logits.device) for t in (places, pairs, local, column[pairs])]
            rows = logits[first:last] if whole else logits[sent[0]]
            _reduce(Block(rows if ids is None else rows[:, ids], ids, *sent), reduced, wanted)
    return reduced


def _room(pairs: int, rows: int, wanted: Wanted, device: torch.device) -> Reduced:
    """Room for the results; top-k starts as -1 and -inf."""
    return Reduced(
        log_probs=torch.empty(pairs, device=device),
        ranks=torch.empty(pairs, dtype=torch.int64, device=device) if wanted.ranks else None,
        entropy=torch.empty(rows, device=device) if wanted.entropy else None,
        top_ids=torch.full((rows, wanted.top), -1, device=device) if wanted.top else None,
        top_log_probs=torch.full((rows, wanted.top), -torch.inf, device=device) if wanted.top else None,
    )


def _reduce(block: Block, into: Reduced, wanted: Wanted) -> None:
    logits = block.logits
    normaliser = _normaliser(logits)
    targets = logits[block.row, block.column.clamp(min=0)].masked_fill(block.column < 0, -torch.inf)
    into.log_probs[block.pairs] = targets - normaliser[block.row]
    if into.ranks is not None:
        # Counting instead of sorting: O(W) a pair, and ties do not depend on the order of a sort.
        step = max(1, CHUNK // logits.shape[1])
        for first in range(0, len(targets), step):
            some = slice(first, first + step)
            larger = logits[block.row[some]] > targets[some, None]
            into.ranks[block.pairs[some]] = larger.sum(-1)
    if into.entropy is not None:
        into.entropy[block.places] = torch.special.entr(torch.softmax(logits, -1)).sum(-1)
    if into.top_ids is not None and into.top_log_probs is not None:
        values, columns = logits.topk(min(wanted.top, logits.shape[1]), -1)
        named = columns if block.ids is None else block.ids[columns]
        kept = values.shape[1]
        into.top_ids[block.places, :kept] = named.masked_fill(values == -torch.inf, -1)
        into.top_log_probs[block.places, :kept] = values - normaliser[:, None]
    if wanted.full:
        into.rows.append((block.places, logits - normaliser[:, None]))


def _normaliser(logits: Tensor) -> Tensor:
    """(K,) log of the sum of exponentials; on a CPU in pieces that fit the cache, twice as fast."""
    if logits.device.type != "cpu":
        return torch.logsumexp(logits, -1)
    step = max(1, CACHED // logits.shape[1])
    return torch.cat([torch.logsumexp(logits[i : i + step], -1) for i in range(0, len(logits), step)])


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting (a copy from pageable memory would wait for the forward pass)."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)

"""How the documents of a packed row are grouped into attention calls; index tensors built once per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

# What one more SDPA call costs, in the unit of `_tokens_cost`, for a width (heads x head size) of 256.
_CALL_COST = 5_000


@dataclass(frozen=True, eq=False)
class Group:
    """N documents attended to in one call, each padded to `width` tokens.

    Args:
        documents: N.
        width: M, tokens of the longest of them.
        mask: (N, 1, 1 or M, M) True where a query may look, or None where nothing is padded or out of window.
    """

    documents: int
    width: int
    mask: Tensor | None

    @cached_property
    def bias(self) -> Tensor | None:
        """The mask as fp32 terms to add to the scores: 0 where a query may look, else -inf."""
        if self.mask is None:
            return None
        return torch.zeros(self.mask.shape, device=self.mask.device).masked_fill_(~self.mask, float("-inf"))


@dataclass(frozen=True, eq=False)
class Plan:
    """How the tokens of a row are laid out for grouped calls; P = sum of N x M over the groups.

    Args:
        groups: the calls.
        gather: (P,) row index read by each padded slot, or None where slots and tokens coincide.
        scatter: (T,) slot that holds each token's result.
        padding: (P - T,) slots that hold no token.
    """

    groups: tuple[Group, ...]
    gather: Tensor | None
    scatter: Tensor
    padding: Tensor


def _tokens_cost(width: int) -> int:
    """Cost of one document of `width` tokens: linear work plus the square of attention (measured on CPU)."""
    return width * (40 + width)


def group(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Split documents into groups of similar length: a group grows while its padding is cheaper than a call.

    Args:
        lengths: tokens of each document.
        width: heads x head size.

    Returns:
        Lists of document indices.
    """
    budget = _CALL_COST * 256 // max(width, 1)
    groups: list[list[int]] = []
    longest = waste = 0
    for document in sorted(range(len(lengths)), key=lambda d: (-lengths[d], d)):
        extra = _tokens_cost(longest) - _tokens_cost(lengths[document])
        if not groups or waste + extra > budget:
            groups.append([])
            longest, waste, extra = lengths[document], 0, 0
        groups[-1].append(document)
        waste += extra
    # One document a call: in row order the slots are the tokens, and nothing has to be gathered.
    return groups if len(groups) < len(lengths) else sorted(groups)


def _plan(lengths: Sequence[int], groups: list[list[int]], window: int | None, device: torch.device) -> Plan:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    scatter = np.empty(int(starts[-1]), dtype=np.int64)
    gathers: list[np.ndarray[Any, Any]] = []
    parts: list[Group] = []
    slot = 0
    for group in groups:
        sizes = np.array([lengths[d] for d in group])
        width = int(sizes.max())
        offsets = np.arange(width)
        valid = offsets < sizes[:, None]
        # A padded slot reads its document's first token: finite values, and no effect on any result.
        index = starts[group][:, None] + np.where(valid, offsets, 0)
        slots = slot + np.arange(index.size).reshape(index.shape)
        scatter[index[valid]] = slots[valid]
        gathers.append(index.ravel())
        parts.append(Group(len(group), width, _mask(valid, window, device)))
        slot += index.size
    gather = np.concatenate(gathers)
    held = np.zeros(slot, dtype=np.bool_)
    held[scatter] = True
    identity = slot == len(scatter) and bool((gather == np.arange(slot)).all())

    def tensor(values: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(values).to(device)

    return Plan(
        tuple(parts), None if identity else tensor(gather), tensor(scatter), tensor(np.flatnonzero(~held))
    )


def _mask(valid: np.ndarray[Any, Any], window: int | None, device: torch.device) -> Tensor | None:
    """(N, 1, 1 or M, M) from `valid` (N, M); None where every query may look everywhere."""
    width = valid.shape[1]
    if window is None or width - 1 <= window:
        return None if valid.all() else torch.from_numpy(valid[:, None, None, :]).to(device)
    offsets = np.arange(width)
    near = np.abs(offsets[:, None] - offsets) <= window
    # A padded query far from every real key would see nothing and yield NaN: it sees the first token.
    allowed = near & valid[:, None, :]
    allowed[:, :, 0] |= ~valid
    return torch.from_numpy(allowed[:, None]).to(device)


@dataclass(eq=False)
class Layout:
    """Where the documents of one packed row are; index tensors are built once and shared by all layers.

    Args:
        cu_seq_lens: (D + 1,) int32 offsets of the documents, on the model's device.
        lengths: D document lengths in tokens, each at least 1.
    """

    cu_seq_lens: Tensor
    lengths: tuple[int, ...]
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict, repr=False)

    @property
    def max_length(self) -> int:
        return max(self.lengths)

    def plan(self, width: int, window: int | None) -> Plan:
        """Grouped calls for `width` (heads x head size) and `window` tokens to each side (None: all)."""
        if window is not None and self.max_length - 1 <= window:
            window = None
        key = (width, -1 if window is None else window)
        if key not in self._plans:
            groups = group(self.lengths, width)
            self._plans[key] = _plan(self.lengths, groups, window, self.cu_seq_lens.device)
        return self._plans[key]

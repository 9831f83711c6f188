"""Potts models whose couplings form paths: exact marginals, exact information, exact independent draws.

A Potts model gives a sequence x the probability exp(sum_i h_i(x_i) + sum_ij J_ij(x_i, x_j)) / Z. In general
it can only be drawn from by a Markov chain. Where the coupled pairs form disjoint paths (positions across the
strands of a sheet do), sums of products along each path give everything exactly, so what a sample plants is
known and not estimated.

    A  alphabet size    L  positions    N  sequences
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

# Tables are rounded, so that the last digits of exp() on another machine do not change what is drawn.
_DIGITS = 9


@dataclass(frozen=True, eq=False)
class PathPotts:
    """A Potts model on disjoint paths.

    Args:
        fields: (L, A) h, natural logarithms.
        coupling: (A, A) symmetric J, the same for every coupled pair.
        paths: positions in the order in which they are coupled; every position is in exactly one path
            (alone, where it is coupled to nothing).
    """

    fields: Doubles
    coupling: Doubles
    paths: tuple[tuple[int, ...], ...]

    @property
    def contacts(self) -> list[tuple[int, int]]:
        """The coupled pairs (i, j), i < j, ascending, 0-based."""
        pairs = [pair for path in self.paths for pair in pairwise(path)]
        return sorted((min(pair), max(pair)) for pair in pairs)

    def backward(self, path: Sequence[int]) -> list[Doubles]:
        """Messages from the far end: entry k is (A,), the weight of all continuations after position k."""
        messages = [np.ones(self.fields.shape[1])]
        for position in reversed(path[1:]):
            weight = np.exp(self.coupling) @ (np.exp(self.fields[position]) * messages[0])
            messages.insert(0, weight / weight.sum())
        return messages

    def tables(self, path: Sequence[int]) -> tuple[Doubles, list[Doubles]]:
        """p(first) as (A,), and p(next | this) as (A, A) rows for every step along the path."""
        messages = self.backward(path)
        first = _normalized(np.exp(self.fields[path[0]]) * messages[0])
        steps = [
            _normalized(np.exp(self.coupling + self.fields[position]) * message)
            for position, message in zip(path[1:], messages[1:], strict=True)
        ]
        return first, steps

    def marginals(self) -> Doubles:
        """(L, A) exact p(x_i)."""
        out = np.empty_like(self.fields)
        for path in self.paths:
            current, steps = self.tables(path)
            out[path[0]] = current
            for position, step in zip(path[1:], steps, strict=True):
                current = current @ step
                out[position] = current
        return out

    def contact_joints(self) -> dict[tuple[int, int], Doubles]:
        """Exact p(x_i, x_j) as (A, A) for every contact (i, j), i < j."""
        joints = {}
        for path in self.paths:
            current, steps = self.tables(path)
            for i, j, step in zip(path, path[1:], steps, strict=False):
                joint = current[:, None] * step
                joints[min(i, j), max(i, j)] = joint if i < j else joint.T
                current = current @ step
        return joints

    def entropy(self) -> float:
        """Exact entropy of a whole sequence, bits."""
        total = float(sum(_entropy(p) for p in self.marginals()))
        return total - sum(information(joint) for joint in self.contact_joints().values())

    def conditional_entropies(self) -> Doubles:
        """(L,) exact H(x_i | all the others), bits: what no masked model of one position can undercut."""
        out = np.empty(len(self.fields))
        for path in self.paths:
            current, steps = self.tables(path)
            before: Doubles | None = None  # p(x_{k-1}, x_k)
            for k, position in enumerate(path):
                joint = current[None, :] if before is None else before
                after = steps[k] if k < len(steps) else np.ones((len(current), 1))
                triple = joint[:, :, None] * after[None, :, :]  # (previous, this, next)
                out[position] = _entropy(triple) - _entropy(triple.sum(axis=1))
                if k < len(steps):
                    before = current[:, None] * steps[k]
                    current = current @ steps[k]
        return out

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(N, L) independent exact draws."""
        out = np.empty((n, len(self.fields)), dtype=np.int64)
        for path in self.paths:
            first, steps = self.tables(path)
            out[:, path[0]] = _choose(np.broadcast_to(first, (n, len(first))), rng)
            for i, j, step in zip(path, path[1:], steps, strict=False):
                out[:, j] = _choose(step[out[:, i]], rng)
        return out


def information(joint: Doubles) -> float:
    """Mutual information of a joint distribution (A, A), bits."""
    return _entropy(joint.sum(axis=0)) + _entropy(joint.sum(axis=1)) - _entropy(joint)


def _entropy(p: Doubles) -> float:
    positive = p[p > 0]
    return float(-(positive * np.log2(positive)).sum())


def _normalized(weights: Doubles) -> Doubles:
    rounded: Doubles = np.round(weights / weights.sum(axis=-1, keepdims=True), _DIGITS)
    normalized: Doubles = rounded / rounded.sum(axis=-1, keepdims=True)
    return normalized


def _choose(p: Doubles, rng: np.random.Generator) -> NDArray[np.int64]:
    """(N,) draws from (N, A) rows."""
    above = p.cumsum(axis=1) < rng.random(len(p))[:, None]
    chosen: NDArray[np.int64] = np.minimum(above.sum(axis=1), p.shape[1] - 1)
    return chosen

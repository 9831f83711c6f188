"""The built-in protein sample: three families whose strands pair into sheets, with their contacts.

Every family is a Potts model: a sequence x has the probability exp(sum_i h_i(x_i) + sum_ij J_ij(x_i, x_j)) /
Z. Positions that face each other in neighbouring strands are coupled by the same rule. In this rule, opposite
charges attract, similar sizes and similar hydrophobicity prefer each other, and each residue has a favourite
partner. All other positions vary independently.

In general, a Potts model can only be sampled with a Markov chain. Here, the coupled pairs form disjoint
paths. Sums of products along each path then give exact marginals, information and independent draws. The
planted facts are therefore known exactly and not estimated. They depend only on constants and one fixed seed.

    A  alphabet size    L  positions    N  sequences
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.samples import Sample, checked_count, heading, write_sample

Doubles = NDArray[np.float64]

# Tables are rounded, so that the last digits of exp() on another machine do not change the draws.
_DIGITS = 9


@dataclass(frozen=True, eq=False)
class PathPotts:
    """A Potts model on disjoint paths of positions.

    Args:
        fields: (L, A) h, natural logarithms.
        coupling: (A, A) symmetric J, the same for every coupled pair.
        paths: positions in the order of their coupling. Every position is in exactly one path. An uncoupled
            position is a path by itself.
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
        """Messages from the far end. Entry k is (A,), the weight of all continuations after position k."""
        messages = [np.ones(self.fields.shape[1])]
        for position in reversed(path[1:]):
            weight = np.exp(self.coupling) @ (np.exp(self.fields[position]) * messages[0])
            messages.insert(0, weight / weight.sum())
        return messages

    def tables(self, path: Sequence[int]) -> tuple[Doubles, list[Doubles]]:
        """p(first) as (A,), and p(next | this) as (A, A) rows for every step along the path."""
        messages = self.backward(path)
        first = _normalize(np.exp(self.fields[path[0]]) * messages[0])
        steps = [
            _normalize(np.exp(self.coupling + self.fields[position]) * message)
            for position, message in zip(path[1:], messages[1:], strict=True)
        ]
        return first, steps

    def marginals(self) -> Doubles:
        """(L, A) exact p(x_i)."""
        frequencies = np.empty_like(self.fields)
        for path in self.paths:
            current, steps = self.tables(path)
            frequencies[path[0]] = current
            for position, step in zip(path[1:], steps, strict=True):
                current = current @ step
                frequencies[position] = current
        return frequencies

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
        """Exact entropy of a whole sequence, in bits."""
        total = float(sum(_entropy(p) for p in self.marginals()))
        return total - sum(information(joint) for joint in self.contact_joints().values())

    def conditional_entropies(self) -> Doubles:
        """(L,) exact H(x_i | all the others), in bits.

        This is the lowest mean surprisal that a masked model can reach.
        """
        entropies = np.empty(len(self.fields))
        for path in self.paths:
            current, steps = self.tables(path)
            incoming: Doubles | None = None  # p(x_{k-1}, x_k)
            for k, position in enumerate(path):
                joint = current[None, :] if incoming is None else incoming
                outgoing = steps[k] if k < len(steps) else np.ones((len(current), 1))
                triple = joint[:, :, None] * outgoing[None, :, :]  # (previous, this, next)
                entropies[position] = _entropy(triple) - _entropy(triple.sum(axis=1))
                if k < len(steps):
                    incoming = current[:, None] * steps[k]
                    current = current @ steps[k]
        return entropies

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(N, L) independent exact draws."""
        states = np.empty((n, len(self.fields)), dtype=np.int64)
        for path in self.paths:
            first, steps = self.tables(path)
            states[:, path[0]] = _choose(np.broadcast_to(first, (n, len(first))), rng)
            for i, j, step in zip(path, path[1:], steps, strict=False):
                states[:, j] = _choose(step[states[:, i]], rng)
        return states


def information(joint: Doubles) -> float:
    """Mutual information of a joint distribution (A, A), in bits."""
    return _entropy(joint.sum(axis=0)) + _entropy(joint.sum(axis=1)) - _entropy(joint)


def _entropy(p: Doubles) -> float:
    """Entropy of a distribution of any shape, in bits."""
    positive = p[p > 0]
    return float(-(positive * np.log2(positive)).sum())


def _normalize(weights: Doubles) -> Doubles:
    """Probabilities in proportion to weights along the last axis, rounded so that all machines agree."""
    rounded: Doubles = np.round(weights / weights.sum(axis=-1, keepdims=True), _DIGITS)
    normalized: Doubles = rounded / rounded.sum(axis=-1, keepdims=True)
    return normalized


def _choose(p: Doubles, rng: np.random.Generator) -> NDArray[np.int64]:
    """(N,) draws from (N, A) rows."""
    above = p.cumsum(axis=1) < rng.random(len(p))[:, None]
    chosen: NDArray[np.int64] = np.minimum(above.sum(axis=1), p.shape[1] - 1)
    return chosen


# Families

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
DEFAULT_COUNT = 3000
_PLANTED = 20260101  # seed of the fields; it does not depend on the user's seed
_WIDTH = 60

# Frequencies in UniProtKB/Swiss-Prot in percent, in the order of LETTERS.
_BACKGROUND = (
    8.3, 1.4, 5.5, 6.7, 3.9, 7.1, 2.3, 5.9, 5.8, 9.7,
    2.4, 4.1, 4.7, 3.9, 5.5, 6.6, 5.4, 6.9, 1.1, 2.9,
)  # fmt: skip
_GROUPS = ("AGST", "ILMV", "FWY", "KRH", "DE", "NQ", "C", "P")
# Each residue's favourite partner across two strands.
_PARTNERS = dict(zip("ADEIFYNQGHC", "LKRVMWTSPHC", strict=True))
_TURN = "GNDPS"


@dataclass(frozen=True, kw_only=True)
class Fold:
    """The course of a family's chain: strands of equal length joined by turns, side by side in `order`.

    Neighbours run in opposite directions if there is an odd number of turns between them.
    """

    name: str
    tail: int
    strand: int
    turns: tuple[int, ...]
    order: tuple[int, ...]
    share: float

    @property
    def starts(self) -> list[int]:
        """First position of every strand."""
        return [*accumulate(self.turns, lambda start, turn: start + self.strand + turn, initial=self.tail)]

    @property
    def length(self) -> int:
        return self.starts[-1] + self.strand + self.tail

    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Positions across the sheet, strand after strand, and every other position by itself."""
        starts, last = self.starts, self.strand - 1
        crossed = [
            tuple(starts[s] + (last - row if s % 2 else row) for s in self.order)
            for row in range(self.strand)
        ]
        inside = {position for path in crossed for position in path}
        return (*crossed, *((i,) for i in range(self.length) if i not in inside))


FOLDS = (
    Fold(name="meander", tail=2, strand=7, turns=(3, 3, 3), order=(0, 1, 2, 3), share=0.4),
    Fold(name="greek", tail=3, strand=8, turns=(4, 5, 4), order=(1, 0, 3, 2), share=0.35),
    Fold(name="parallel", tail=2, strand=7, turns=(4, 6, 4, 5), order=(0, 2, 1, 4, 3), share=0.25),
)


@dataclass(frozen=True, eq=False)
class Family:
    """A fold and the Potts model planted on it."""

    fold: Fold
    model: PathPotts


def coupling() -> Doubles:
    """(A, A) the single coupling rule in natural logarithms; rows and columns sum to zero."""
    group = {letter: number for number, letters in enumerate(_GROUPS) for letter in letters}
    rule = np.zeros((len(LETTERS), len(LETTERS)))
    for i, a in enumerate(LETTERS):
        for j, b in enumerate(LETTERS):
            charges = {group[a], group[b]}
            if charges == {3, 4}:
                rule[i, j] = 1.5
            elif group[a] == group[b]:
                rule[i, j] = -1.0 if group[a] in (3, 4) else 0.7
            if _PARTNERS.get(a) == b or _PARTNERS.get(b) == a:
                rule[i, j] = 3.0
    centred: Doubles = rule - rule.mean(0, keepdims=True) - rule.mean(1, keepdims=True) + rule.mean()
    return centred


@cache
def families() -> tuple[Family, ...]:
    """The planted families, which are always the same."""
    rng = np.random.Generator(np.random.Philox(_PLANTED))
    rule = coupling()
    background = np.log(np.array(_BACKGROUND) / sum(_BACKGROUND))
    planted = []
    for fold in FOLDS:
        paths = fold.paths()
        fields = background + rng.normal(0.0, 0.8, (fold.length, len(LETTERS)))
        for path in paths:
            if len(path) == 1:
                # Turns and tails are conserved: one or two residues stand out.
                for letter in rng.choice(list(_TURN), 2, replace=False):
                    fields[path[0], LETTERS.index(letter)] += 3.0
        planted.append(Family(fold, PathPotts(fields, rule, paths)))
    return tuple(planted)


def draw(n: int, seed: int) -> list[tuple[str, str]]:
    """(id, sequence) of `n` records, families mixed; ids are "<family>-<number>"."""
    rng = np.random.Generator(np.random.Philox(seed))
    shares = np.array([family.fold.share for family in families()])
    family_of_row = np.searchsorted(shares.cumsum(), rng.random(n), side="right").clip(max=len(shares) - 1)
    alphabet = np.frombuffer(LETTERS.encode(), dtype=np.uint8)
    records: list[tuple[str, str]] = [("", "")] * n
    for number, family in enumerate(families()):
        rows = np.flatnonzero(family_of_row == number)
        for row, states in zip(rows.tolist(), family.model.draw(len(rows), rng), strict=True):
            records[row] = (f"{family.fold.name}-{row + 1:06d}", alphabet[states].tobytes().decode())
    return records


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write `protein.fasta` and `truth.json` (docs/reference/samples.md) into `out`."""
    count = checked_count(n, DEFAULT_COUNT)
    truth = {
        **heading("protein", count, seed, "protein.fasta", "0-based residues of a record's sequence"),
        "families": [_describe(family) for family in families()],
        "anomalies": [],
    }
    lines: list[str] = []
    for name, sequence in draw(count, seed):
        lines.append(f">{name} family={name.rpartition('-')[0]}")
        lines += [sequence[start : start + _WIDTH] for start in range(0, len(sequence), _WIDTH)]
    return write_sample(out, "protein.fasta", lines, truth)


def _describe(family: Family) -> dict[str, Any]:
    """The exact facts of a family, as written to `truth.json`."""
    model = family.model
    marginals = model.marginals()
    joints = model.contact_joints()
    fold, positive = family.fold, np.where(marginals > 0, marginals, 1.0)
    return {
        "name": fold.name,
        "share": fold.share,
        "length": fold.length,
        "consensus": "".join(LETTERS[state] for state in marginals.argmax(axis=1)),
        "contacts": [list(pair) for pair in model.contacts],
        "contact_information_bits": [round(information(joints[pair]), 4) for pair in model.contacts],
        "site_entropy_bits": _four_digits(-(positive * np.log2(positive)).sum(axis=1)),
        "conditional_entropy_bits": _four_digits(model.conditional_entropies()),
        "entropy_bits": round(model.entropy(), 4),
    }


def _four_digits(values: Doubles) -> list[float]:
    """The numbers rounded to four digits."""
    return [round(float(value), 4) for value in values]

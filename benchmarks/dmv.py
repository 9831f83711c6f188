"""The dependency model with valence (Klein and Manning 2004): EM learns trees from tags only.

It is the classic baseline for trees that are read from a language model. On each side, a head draws whether
it stops. This depends on whether it already has a dependent there. If it does not stop, it draws the tag of
its next dependent. The chart of split heads (Eisner 1996) sums over all projective trees. EM needs expected
counts. They are the gradient of the logarithm of that sum, so the code needs no outside pass. EM starts
from trees in which near words are linked: weights 1 / (1 + distance).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seqmlm.errors import UsageError
from seqmlm.structure.trees import Edge

LEFT, RIGHT = 0, 1
_LEAST = 1e-30  # a probability that EM made 0 stays a number
_BATCH = 512  # sentences of one length in one chart

Reduce = Callable[[list[Tensor]], Tensor]


@dataclass(frozen=True, eq=False)
class _Scores:
    """Log-probabilities at the places of B sentences of n words.

    Attributes:
        root: (B, n).
        arc: (B, n, n) of head and dependent.
        stop, go: (B, n, 2, 2) of head, side, and whether it has no dependent there yet (1) or has (0).
    """

    root: Tensor
    arc: Tensor
    stop: Tensor
    go: Tensor


def _log_sum(parts: list[Tensor]) -> Tensor:
    return torch.logsumexp(torch.stack(parts), dim=0)


def _log_best(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).max(dim=0).values  # with indices: the gradient goes to one of equals


def inside(scores: _Scores, reduce: Reduce = _log_sum) -> Tensor:
    """(B,) log-probability of all trees of each sentence; with `_log_best`, of the best tree."""
    size = scores.root.shape[1]
    opened: dict[tuple[int, int, int], Tensor] = {}  # head, end, side: dependents so far, not stopped
    closed: dict[tuple[int, int, int], Tensor] = {}
    linked: dict[tuple[int, int], Tensor] = {}  # head, dependent: the arc, and all between them
    for width in range(size):
        for low in range(size - width):
            high = low + width
            for head, end, side in ((low, high, RIGHT), (high, low, LEFT)):
                step = 1 if side == RIGHT else -1
                if width:
                    linked[head, end] = scores.arc[:, head, end] + reduce(
                        [
                            opened[head, last, side]
                            + scores.go[:, head, side, int(last == head)]
                            + closed[end, last + step, 1 - side]
                            for last in range(head, end, step)
                        ]
                    )
                    opened[head, end, side] = reduce(
                        [
                            linked[head, last] + closed[last, end, side]
                            for last in range(head + step, end + step, step)
                        ]
                    )
                else:
                    opened[head, end, side] = torch.zeros_like(scores.root[:, 0])
                closed[head, end, side] = (
                    opened[head, end, side] + scores.stop[:, head, side, int(end == head)]
                )
    whole = [
        scores.root[:, head] + closed[head, 0, LEFT] + closed[head, size - 1, RIGHT] for head in range(size)
    ]
    return reduce(whole)


class DependencyModel:
    """A dependency model with valence over a set of tags.

    Args:
        tags: the alphabet.

    Attributes:
        root: log-probabilities (T,) of the head of the sentence.
        attach: log-probabilities (T, 2, T) of head, side (0 left) and dependent.
        stop, go: log-probabilities (T, 2, 2) of head, side, and whether there is no dependent yet (1).
    """

    def __init__(self, tags: Sequence[Hashable]) -> None:
        self._number = {tag: number for number, tag in enumerate(dict.fromkeys(tags))}
        size = len(self._number)
        self.root = torch.full((size,), -np.log(size), dtype=torch.float64)
        self.attach = torch.full((size, 2, size), -np.log(size), dtype=torch.float64)
        self.stop = torch.full((size, 2, 2), -np.log(2), dtype=torch.float64)
        self.go = self.stop.clone()

    @classmethod
    def fit(
        cls, sentences: Sequence[Sequence[Hashable]], *, steps: int = 40
    ) -> tuple[DependencyModel, list[float]]:
        """Fit a model to sentences of tags.

        Args:
            sentences: each with at least one tag; the time grows with the cube of their length.
            steps: number of EM steps.

        Returns:
            The model, and the log-likelihood of the sentences, in nats, before each step.

        Raises:
            UsageError: there are no sentences, or a sentence is empty.
        """
        if not sentences or not all(sentences):
            raise UsageError("a dependency model is learnt from sentences of at least one tag")
        made = cls([tag for sentence in sentences for tag in sentence])
        groups = made._groups(sentences)
        made._step(groups, harmonic=True)
        return made, [made._step(groups) for _ in range(steps)]

    def log_likelihood(self, sentence: Sequence[Hashable]) -> float:
        """The log-likelihood of one sentence, in nats, over all its trees."""
        return float(inside(self._scores(*self._tables(), self._tags([sentence])))[0])

    def trees(self, sentences: Sequence[Sequence[Hashable]]) -> list[frozenset[Edge]]:
        """The most probable tree of each sentence, as pairs of words counted from 0."""
        found: list[frozenset[Edge]] = [frozenset()] * len(sentences)
        for places, tags in self._groups(sentences):
            scores = self._scores(*self._tables(), tags)
            arc = scores.arc.detach().requires_grad_()
            best = inside(_Scores(scores.root, arc, scores.stop, scores.go), _log_best)
            if tags.shape[1] < 2:
                continue
            (used,) = torch.autograd.grad(best.sum(), arc)
            for place, own in zip(places, used, strict=True):
                pairs = (own > 0.5).nonzero().tolist()
                found[place] = frozenset((min(pair), max(pair)) for pair in pairs)
        return found

    def _tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.root, self.attach, self.stop, self.go

    def _tags(self, sentences: Sequence[Sequence[Hashable]]) -> Tensor:
        try:
            return torch.tensor([[self._number[tag] for tag in own] for own in sentences])
        except KeyError as error:
            raise UsageError(f"the dependency model was learnt without the tag {error.args[0]!r}") from None

    def _groups(self, sentences: Sequence[Sequence[Hashable]]) -> list[tuple[list[int], Tensor]]:
        """Sentences of one length together: their places, and their tags (B, n)."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for place, sentence in enumerate(sentences):
            by_length[len(sentence)].append(place)
        return [
            (part, self._tags([sentences[place] for place in part]))
            for _, places in sorted(by_length.items())
            for part in (places[at : at + _BATCH] for at in range(0, len(places), _BATCH))
        ]

    def _scores(self, root: Tensor, attach: Tensor, stop: Tensor, go: Tensor, tags: Tensor) -> _Scores:
        size = tags.shape[1]
        places = torch.arange(size)
        side = (places[None, :] > places[:, None]).long()  # (head, dependent)
        arc = attach[tags[:, :, None], side[None], tags[:, None, :]]
        return _Scores(root[tags], arc, stop[tags], go[tags])

    def _step(self, groups: Sequence[tuple[list[int], Tensor]], *, harmonic: bool = False) -> float:
        """One step of EM; the log-likelihood before it."""
        tables = [table.clone().requires_grad_() for table in self._tables()]
        total = torch.zeros((), dtype=torch.float64)
        counts = [torch.zeros_like(table) for table in tables]
        for _, tags in groups:
            scores = self._scores(tables[0], tables[1], tables[2], tables[3], tags)
            if harmonic:
                places = torch.arange(tags.shape[1], dtype=torch.float64)
                near = -torch.log1p((places[:, None] - places[None, :]).abs())
                scores = _Scores(scores.root, scores.arc + near, scores.stop, scores.go)
            found = inside(scores).sum()
            total += found.detach()
            for count, own in zip(counts, torch.autograd.grad(found, tables, allow_unused=True), strict=True):
                if own is not None:  # a sentence of one word has no arc
                    count += own
        root, attach, stop, go = counts
        self.root, self.attach = _shares(root), _shares(attach)
        both = _shares(torch.stack([stop, go], dim=-1))
        self.stop, self.go = both[..., 0], both[..., 1]
        return float(total)


def _shares(counts: Tensor) -> Tensor:
    """Logs of the shares of counts over the last dimension; uniform if all counts are 0."""
    sums = counts.sum(dim=-1, keepdim=True)
    even = torch.full_like(counts, 1 / counts.shape[-1])
    return torch.where(sums > 0, counts / sums.clamp(min=_LEAST), even).clamp(min=_LEAST).log()

"""Heads: what labels teach, as another objective of the same loop.

One rule pools records, words and residues, by the weights of their tokens (`engine.labels`), and the loop
divides by the sum of weights as ever. An encoder's masked-LM head has no part in it and is frozen: DDP waits
for every trainable parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from seqmlm.engine.backbones import HEADS
from seqmlm.engine.labels import HeadConfig
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.types import Floats, Longs
from seqmlm.errors import UsageError


class LabelledRows(nn.Module):
    """An encoder with a head; called with a packed batch it returns the loss, as `Loop` wants it.

    What an architecture puts between its body and its classes (ModernBERT's dense layer, which its masked LM
    has trained) is kept, so that the whole is transformers' own class of that task.

    Args:
        rows: the encoder; its masked-LM head is frozen.
        config: of the head.
    """

    def __init__(self, rows: MaskedRows, config: HeadConfig) -> None:
        super().__init__()
        self.rows, self.config = rows, config
        self._neck_name = HEADS[rows.model.config.model_type].neck
        self.dropout = nn.Dropout(0.0 if config.cosine else config.dropout)
        width = 1 if config.cosine else int(rows.model.config.hidden_size) * (4 if config.pairs else 1)
        self.classifier = nn.Linear(width, config.outputs)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        self.crf = Crf(config.outputs) if config.crf else None
        used = {id(weight) for weight in (*rows.model.base_model.parameters(), *self.neck().parameters())}
        for parameter in rows.model.parameters():
            if id(parameter) not in used:
                parameter.requires_grad_(False)

    def neck(self) -> nn.Module:
        """The module between the body and the classes; the identity where there is none."""
        return nn.Identity() if self._neck_name is None else self.rows.model.get_submodule(self._neck_name)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Scalar fp32: the sum over labels of weight x loss (nats; squared errors of values).

        Raises:
            UsageError: a batch without targets.
        """
        if batch.targets is None or batch.weights is None:
            raise UsageError("this packed batch has no labels")
        first = batch.targets[:, 0] > 0
        targets = batch.targets[first, 1:]
        scores = self.scores(self.rows(batch, output="hidden"), first, batch.weights)
        weights = batch.weights.new_zeros(len(targets)).index_add_(0, first.cumsum(0) - 1, batch.weights)
        if self.config.pairs:
            targets, weights = targets[::2], weights[::2] + weights[1::2]
        if self.crf is not None:
            document = torch.searchsorted(batch.cu_seq_lens[1:].long(), batch.asked[first], right=True)
            joint: Tensor = self.crf(scores, targets[:, 0].long(), torch.bincount(document).tolist())
            return joint
        if self.config.kind == "value":
            losses = (scores - targets).square().mean(1)
        elif self.config.kind == "multilabel":
            losses = F.binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1)
        else:
            losses = F.cross_entropy(scores, targets[:, 0].long(), reduction="none")
        return (losses * weights).sum()

    def scores(self, hidden: Tensor, first: Tensor, weights: Tensor) -> Tensor:
        """(N, K) fp32 logits, or values, from (A, H) hidden states of the asked tokens; see `Labels`."""
        out: Tensor = self.classifier(self.dropout(self.pooled_states(hidden, first, weights)))
        return out.float()

    def pooled_states(self, hidden: Tensor, first: Tensor, weights: Tensor) -> Tensor:
        """(N, H) what the classes are read from, of pairs (N / 2, 4 H or 1); arguments as of `scores`."""
        label = first.cumsum(0) - 1
        count = int(first.sum())
        sums = weights.new_zeros(count).index_add_(0, label, weights)
        shares = (weights / sums[label])[:, None]
        pooled = hidden.new_zeros(count, hidden.shape[1]).index_add_(
            0, label, hidden * shares.to(hidden.dtype)
        )
        out: Tensor = self.neck()(pooled)
        if not self.config.pairs:
            return out
        u, v = out[::2], out[1::2]
        if self.config.cosine:
            return F.cosine_similarity(u.float(), v.float())[:, None]
        return torch.cat([u, v, (u - v).abs(), u * v], 1)


class Crf(nn.Module):
    """A linear chain: how well a class follows another one counts, too (Lafferty et al. 2001).

    Args:
        classes: K.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(classes, classes))
        self.begin, self.end = nn.Parameter(torch.zeros(classes)), nn.Parameter(torch.zeros(classes))

    def forward(self, scores: Tensor, classes: Tensor, lengths: Sequence[int]) -> Tensor:
        """Sum over chains of -ln p(classes).

        Args:
            scores: (N, K) of each unit, chain by chain.
            classes: (N,).
            lengths: units of each chain; 0 for none.
        """
        sizes = [length for length in lengths if length]
        if not sizes:
            return scores.sum() * 0.0
        chains = pad_sequence([*torch.split(scores, sizes)])  # (longest, D, K)
        paths = pad_sequence([*torch.split(classes, sizes)])
        ends = torch.tensor(sizes, device=scores.device)
        alpha = self.begin + chains[0]
        path = self.begin[paths[0]] + chains[0].gather(1, paths[0][:, None])[:, 0]
        for step in range(1, len(chains)):
            inside = step < ends
            next_alpha = (alpha[:, :, None] + self.transitions).logsumexp(1) + chains[step]
            alpha = torch.where(inside[:, None], next_alpha, alpha)
            step_scores = (
                self.transitions[paths[step - 1], paths[step]]
                + chains[step].gather(1, paths[step][:, None])[:, 0]
            )
            path = path + torch.where(inside, step_scores, 0.0)
        last = paths.gather(0, ends[None] - 1)[0]
        return ((alpha + self.end).logsumexp(1) - path - self.end[last]).sum()


def best_path(
    scores: Floats,
    transitions: NDArray[np.floating[Any]],
    begin: NDArray[np.floating[Any]],
    end: NDArray[np.floating[Any]],
) -> Longs:
    """The best chain of classes (Viterbi 1967).

    Args:
        scores: (N, K) of each unit, one at least.
        transitions: (K, K) of a class and the next; -inf forbids it.
        begin, end: (K,) of the first and the last class.

    Returns:
        (N,) classes.
    """
    best, pointers = begin + scores[0], []
    for unit_scores in scores[1:]:
        path_scores = best[:, None] + transitions
        pointers.append(path_scores.argmax(0))
        best = path_scores.max(0) + unit_scores
    path = [int((best + end).argmax())]
    for previous in reversed(pointers):
        path.append(int(previous[path[-1]]))
    return np.array(path[::-1], dtype=np.int64)


def freeze_all_but_last(rows: MaskedRows, layers: int) -> None:
    """Train the last layers of an encoder alone, and what comes behind them.

    Raises:
        UsageError: it has fewer layers.
    """
    body: Any = rows.model.base_model
    stack = body.get_submodule(HEADS[rows.model.config.model_type].layers)
    if not 0 < layers <= len(stack):
        raise UsageError(f"the model has {len(stack)} layers: --tune last:K takes 1 to {len(stack)} of them")
    first = next(stack[-layers].parameters())
    for parameter in body.parameters():  # in the order of the computation
        if parameter is first:
            break
        parameter.requires_grad_(False)

"""Heads: the parts of a model that predict labels, trained by the same loop as the masked language model.

Records, words and residues are pooled by the same rule, with the weights of their tokens (`engine.labels`).
The loop divides by the sum of weights, as in pretraining. The masked-LM head of the encoder is not used. It
is frozen, because DDP waits for a gradient of every trainable parameter.
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
    """An encoder with a head; called with a packed batch, it returns the loss that `Loop` needs.

    Some architectures have a module between body and classes, such as the dense layer of ModernBERT, which
    its masked LM has trained. This module is kept, so that the model is the class of transformers for this
    task.

    Args:
        rows: the encoder; its masked-LM head is frozen.
        config: settings of the head.
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
        """The module between the body and the classes; the identity if the architecture has none."""
        return nn.Identity() if self._neck_name is None else self.rows.model.get_submodule(self._neck_name)

    def forward(self, batch: PackedBatch) -> Tensor:
        """The sum over labels of weight x loss, a scalar in fp32 (in nats; squared errors for values).

        Raises:
            UsageError: the batch has no targets.
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
        """(N, K) fp32 logits, or values, of N labels.

        Args:
            hidden: (A, H) hidden states of the tokens that have a label.
            first, weights: (A,) as in `Labels`.
        """
        out: Tensor = self.classifier(self.dropout(self.pooled_states(hidden, first, weights)))
        return out.float()

    def pooled_states(self, hidden: Tensor, first: Tensor, weights: Tensor) -> Tensor:
        """(N, H) inputs of the classifier; for pairs (N / 2, 4 H), or (N / 2, 1) for values.

        The arguments are the arguments of `scores`.
        """
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
    """A linear-chain conditional random field, which also scores how well a class follows another one.

    Source: Lafferty et al. 2001.

    Args:
        classes: K, the number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(classes, classes))
        self.begin, self.end = nn.Parameter(torch.zeros(classes)), nn.Parameter(torch.zeros(classes))

    def forward(self, scores: Tensor, classes: Tensor, lengths: Sequence[int]) -> Tensor:
        """The sum over chains of -ln p(classes).

        Args:
            scores: (N, K) scores of the classes of each unit, chain after chain.
            classes: (N,) the true classes.
            lengths: number of units of each chain; 0 for an empty chain.
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
    """The most probable chain of classes (Viterbi 1967).

    Args:
        scores: (N, K) scores of the classes of each unit; at least one unit.
        transitions: (K, K) score of a class (row) followed by another (column); -inf forbids it.
        begin, end: (K,) score of the first and of the last class.

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
    """Freeze the encoder except its last layers and everything after them.

    Args:
        rows: the encoder.
        layers: number of layers that are trained.

    Raises:
        UsageError: the encoder has fewer layers.
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

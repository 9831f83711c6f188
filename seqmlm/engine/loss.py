"""Negative log-likelihood of asked tokens over the softmax of the ordinary ids, with one buffer of the
logits' size."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class _MaskedNll(torch.autograd.Function):
    """Sum of weighted -log p, computed in the memory of the logits.

    `F.cross_entropy` over masked logits keeps four tensors of (Q, V): logits, masked logits,
    log-probabilities and their gradient. At V = 16k they, not the matrix products, fill the time and memory
    of the head. Here the logits become exp(logits - max) in place, and in the backward pass the gradient,
    in place again.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, weights: Tensor | None, excluded: Tensor
    ) -> Tensor:
        logits.index_fill_(1, excluded, float("-inf"))
        logits.sub_(logits.amax(1, keepdim=True))
        chosen = logits.gather(1, targets[:, None])
        total = logits.exp_().sum(1, keepdim=True)
        nll = total.log() - chosen
        ctx.save_for_backward(logits, targets, total, weights)
        return (nll if weights is None else nll * weights[:, None]).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        exps, targets, total, weights = ctx.saved_tensors
        scale = grad.expand(total.shape) if weights is None else grad * weights[:, None]
        exps.mul_(scale / total)
        exps.scatter_add_(1, targets[:, None], -scale)
        return exps, None, None, None


def masked_nll(logits: Tensor, targets: Tensor, weights: Tensor | None, excluded: Tensor) -> Tensor:
    """Sum over asked rows of weight x -ln p(target), p being the softmax without the excluded ids.

    Args:
        logits: (Q, V) fp32; overwritten, so they must belong to the caller.
        targets: (Q,) int64 ids, none of them excluded.
        weights: (Q,) or None for all 1.
        excluded: (E,) ids that leave the softmax.

    Returns:
        Scalar fp32 in nats; 0, with gradients of 0, where nothing is asked.
    """
    if torch.compiler.is_compiling():
        masked = logits.index_fill(1, excluded, float("-inf"))
        nll = F.cross_entropy(masked, targets, reduction="none")
        return (nll if weights is None else nll * weights).sum()
    out: Tensor = _MaskedNll.apply(  # type: ignore[no-untyped-call]
        logits, targets, weights, excluded
    )
    return out

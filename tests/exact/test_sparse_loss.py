"""The head at asked rows alone gives the loss and gradients of the dense head, in both probability spaces."""

from __future__ import annotations

import copy
import math
from typing import Literal

import encoders
import pytest
import torch
from torch import Tensor

from seqmlm.engine.model import MaskedRows, masked_nll
from seqmlm.engine.packing import PackedBatch, pack
from seqmlm.engine.types import TokenSpace


def dense_loss(logits: Tensor, batch: PackedBatch, space: TokenSpace, ordinary: bool) -> Tensor:
    """Weighted cross-entropy over a full (T, V) table, unasked tokens ignored."""
    allowed = torch.ones(logits.shape[1], dtype=torch.bool)
    allowed[space.size :] = False
    if ordinary:
        allowed[list(space.special)] = False
    log_probs = logits.masked_fill(~allowed, float("-inf")).log_softmax(-1)
    labels = torch.full((logits.shape[0],), -100)
    labels[batch.asked] = batch.targets
    nll = torch.nn.functional.nll_loss(log_probs, labels, reduction="none")
    return nll.sum() if batch.weights is None else (nll[batch.asked] * batch.weights).sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("space", ["ordinary", "full"])
@pytest.mark.parametrize("name", ["modernbert", "bert", "esm-rotary", "albert"])
def test_equals_the_dense_head(name: str, space: Literal["ordinary", "full"], weighted: bool) -> None:
    sparse = encoders.encoder(name)
    dense = copy.deepcopy(sparse)
    documents = encoders.documents((12,), weighted=weighted)
    batch = pack(documents)
    loss = MaskedRows(sparse, encoders.SPACE, probability=space)(batch)
    expected = dense_loss(
        dense(input_ids=batch.input_ids).logits[0], batch, encoders.SPACE, space == "ordinary"
    )
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    grads = dict(dense.named_parameters())
    for path, parameter in sparse.named_parameters():
        if grads[path].grad is not None:
            assert torch.allclose(parameter.grad, grads[path].grad, atol=1e-4, rtol=1e-4), path


def test_special_tokens_leave_the_softmax() -> None:
    """Logits (0, 4, 1, 2, 0) over [PAD], [CLS], A, B, C give p(B) = e^2 / (e + e^2 + 1)."""
    logits = torch.tensor([[0.0, 4.0, 1.0, 2.0, 0.0]])
    loss = masked_nll(logits, torch.tensor([3]), None, torch.tensor([0, 1]))
    assert math.exp(-loss.item()) == pytest.approx(math.e**2 / (math.e + math.e**2 + 1), rel=1e-6)


def test_padded_vocabulary_leaves_the_softmax_in_both_spaces() -> None:
    """A model with 40 rows for a vocabulary of 30: ids 30..39 do not exist."""
    model = encoders.encoder("bert")
    smaller = TokenSpace(size=30, pad=0, mask=3, unk=None, start=1, end=2, special=(0, 1, 2, 3))
    batch = pack(encoders.documents((9,)))
    for space, present in (("full", range(30)), ("ordinary", range(4, 30))):
        rows = MaskedRows(copy.deepcopy(model), smaller, probability=space)  # type: ignore[arg-type]
        probabilities = rows(batch, output="logits").softmax(-1)
        assert probabilities.shape == (len(batch.asked), 30)
        assert probabilities[:, list(present)].sum(1).allclose(torch.ones(len(batch.asked)))
        target = torch.full_like(batch.targets, 17)
        table = probabilities.log()[:, 17].sum()
        asked = PackedBatch(**{**vars(batch), "targets": target})
        assert rows(asked).item() == pytest.approx(-table.item(), rel=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_of_the_loss_in_place(weighted: bool) -> None:
    """Against autograd through log_softmax, in double precision, excluded ids included."""
    torch.manual_seed(0)
    table = torch.randn(7, 11, dtype=torch.double, requires_grad=True)
    targets, excluded = torch.randint(3, 11, (7,)), torch.tensor([0, 2])
    weights = torch.rand(7, dtype=torch.double) if weighted else None
    reference = table.index_fill(1, excluded, float("-inf")).log_softmax(-1)
    nll = -reference.gather(1, targets[:, None])[:, 0]
    expected = (nll if weights is None else nll * weights).sum() / 3
    (wanted,) = torch.autograd.grad(expected, table)
    loss = masked_nll(table * 1.0, targets, weights, excluded) / 3
    (found,) = torch.autograd.grad(loss, table)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert (found - wanted).abs().max() < 1e-12


def test_backward_twice_is_an_error_not_a_wrong_gradient() -> None:
    table = torch.randn(3, 5, requires_grad=True)
    loss = masked_nll(table * 1.0, torch.tensor([1, 2, 3]), None, torch.tensor([0]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()

"""bfloat16 products of a fused layer against float32 ones of the same, rounded, numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seqmlm.engine import fused_layer
from seqmlm.engine.attention import RowLayout
from seqmlm.engine.fused_layer import add_product, attend, attention, rotate, rotate_exactly

# bfloat16 has 8 significant bits: rounding changes a number by at most 2 ** -8 of it.
ROUNDING = 2.0**-8
HEADS, HIDDEN = 4, 64


def rounded(*shape: int) -> torch.Tensor:
    """Numbers that bfloat16 has, as it has them."""
    return torch.randn(*shape).bfloat16()


@pytest.mark.parametrize("scores", [1 << 20, 3_000, 500], ids=["whole", "by-blocks", "by-queries"])
@pytest.mark.parametrize("window", [None, 5], ids=["global", "window"])
@pytest.mark.parametrize("lengths", [(40, 39, 40, 9, 3), (70,)], ids=["padded", "one"])
def test_attention_is_float32s_but_for_rounding(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], window: int | None, scores: int
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(fused_layer, "_SCORES", scores)
    offsets = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))
    plan = RowLayout(offsets, lengths).plan(HIDDEN, window)
    queries, keys = rounded(sum(lengths), HIDDEN), rounded(sum(lengths), 2 * HIDDEN)
    if plan.queries is not None:
        queries = queries[plan.queries]
    if plan.keys is not None:
        keys = keys[plan.keys]
    expected = plan.to_rows(attend(queries.float(), keys.float(), plan.groups, HEADS)[0])
    found = plan.to_rows(attention(queries, keys, plan.groups, HEADS))
    assert found.dtype == torch.bfloat16
    # Scores, of up to 8, are rounded, then shares, then sums; shares add up to 1.
    torch.testing.assert_close(found.float(), expected, rtol=2 * ROUNDING, atol=8 * ROUNDING)
    assert expected.abs().max() > 1


def test_rotations_round_once() -> None:
    torch.manual_seed(0)
    parts, angles = rounded(30, 3 * HIDDEN), 100 * torch.randn(30, HIDDEN // HEADS // 2)
    rotation, exact = torch.polar(torch.ones_like(angles), angles), parts.float()
    rotate(exact, rotation, HEADS, 2)
    values = parts[:, 2 * HIDDEN :].clone()
    rotate_exactly(parts, rotation, HEADS, 2)
    assert torch.equal(parts, exact.bfloat16())
    assert torch.equal(parts[:, 2 * HIDDEN :], values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_residual_stream_stays_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, rows, weight = torch.randn(20, 8) * 1e3, rounded(20, 16).to(dtype), rounded(8, 16).to(dtype)
    expected = x + rows.float() @ weight.float().t()
    product = (expected - x).abs().max()
    found = add_product(x, rows, weight)
    assert found is x
    # Rounding the stream itself would be wrong by 1e3 times this.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=float(product) * ROUNDING)

"""What the fused encoder leaves out or computes once without gradients changes none of its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from encoders import SPACE, asked_logits, documents, encoder
from peft import LoraConfig, inject_adapter_in_model
from peft.utils.warning import PeftWarning
from torch import Tensor

from seqmlm.engine.attention import RowLayout
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack

LENGTHS = (9, 40, 23, 40)


def agree(rows: MaskedRows, documents: list[Document]) -> None:
    """Answers without gradients are those with them, which keep every row."""
    batch = pack(documents)
    each = rows(batch, output="hidden")
    with torch.no_grad():
        once = rows(batch, output="hidden")
    assert each.requires_grad
    assert not once.requires_grad
    torch.testing.assert_close(once, each.detach(), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("step", [2, 3, 40], ids=["many-asked", "some-asked", "one-asked"])
@pytest.mark.parametrize("alike", [True, False], ids=["few-tokens", "many-tokens"])
@pytest.mark.parametrize("name", ["modernbert", "modernbert-global"])
def test_answers_without_gradients_are_those_with_them(name: str, alike: bool, step: int) -> None:
    rows = MaskedRows(encoder(name), SPACE).eval()
    assert rows._fused is not None
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 20, 40)
    documents = [
        Document(
            ids=ids[:length] if alike else rng.integers(4, 20, length),
            asked=np.arange(length // 3, length, step),
        )
        for length in LENGTHS
    ]
    agree(rows, documents)


def test_sorted_documents_of_few_lengths_are_not_gathered() -> None:
    sorted_lengths, mixed = (40,) * 30 + (39,) * 30, (39,) * 30 + (40,) * 30
    for lengths, gathered in ((sorted_lengths, False), (mixed, True)):
        offsets = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))
        plan = RowLayout(offsets, lengths).plan(256, None)
        assert (plan.queries is not None) == gathered
        assert gathered or [group.queries for group in plan.groups] == [40, 39]
        rows = torch.arange(sum(lengths), dtype=torch.float32)[:, None]
        slots = rows if plan.queries is None else rows[plan.queries]
        torch.testing.assert_close(plan.to_rows(slots), rows)


def _hidden(rows: MaskedRows, packed: list[Document]) -> torch.Tensor:
    with torch.no_grad():
        return rows(pack(packed), output="hidden")


@pytest.mark.parametrize("alike", [True, False], ids=["few-tokens", "many-tokens"])
@pytest.mark.parametrize("name", ["modernbert", "modernbert-global"])
def test_bfloat16_is_as_near_to_float32_as_transformers_own(
    name: str, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both round the operands of the same products: errors are alike, though not equal."""
    rows = MaskedRows(encoder(name), SPACE).eval()
    ids = np.random.default_rng(0).integers(4, 20, 60)
    packed = [
        Document(ids=ids[: len(one.ids)] if alike else one.ids, asked=np.arange(2, len(one.ids), step))
        for one, step in zip(documents(), (1, 40, 40, 40, 40, 3, 40, 40, 40), strict=True)
    ]
    exact = _hidden(rows, packed)
    with torch.autocast("cpu", torch.bfloat16):
        found = _hidden(rows, packed)
        monkeypatch.setattr(type(rows._fused), "applies", lambda self: False)
        theirs = _hidden(rows, packed)
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs().max() < 0.1
    assert not torch.equal(found, theirs)
    assert (found - exact).square().mean() < 2 * (theirs - exact).square().mean()


def test_bfloat16_logits_are_those_of_transformers_under_autocast() -> None:
    model, packed = encoder("modernbert"), documents()
    rows = MaskedRows(model, SPACE, probability="full").eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = rows(pack(packed), output="logits")
        # sdpa: the oracle asks each document alone, without this package's attention.
        model.set_attn_implementation("sdpa")
        expected = asked_logits(model, packed).float()
    # Two ways of rounding: DESIGN's bound for bfloat16, of the largest logit.
    assert (found - expected).abs().max() < 2e-2 * expected.abs().max()


def test_which_calls_go_this_way() -> None:
    rows = MaskedRows(encoder("modernbert"), SPACE).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert rows._fused.applies()
        with torch.no_grad():
            assert rows._fused.applies()
    with torch.autocast("cpu", torch.float16):
        assert not rows._fused.applies()


def _gradients(rows: MaskedRows, packed: list[Document], dtype: torch.dtype) -> dict[str, Tensor]:
    rows.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = rows(pack(packed))
    loss.backward()
    return {name: one.grad.clone() for name, one in rows.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("name", ["modernbert", "modernbert-global"])
def test_gradients_in_bfloat16_are_no_rougher_than_those_of_autocast(name: str) -> None:
    rows, packed = MaskedRows(encoder(name), SPACE).train(), documents(weighted=True)
    exact = _gradients(rows, packed, torch.float32)
    ours = _gradients(rows, packed, torch.bfloat16)
    rows._fused = None
    theirs = _gradients(rows, packed, torch.bfloat16)
    assert ours.keys() == exact.keys() == theirs.keys()
    errors = torch.zeros(2)
    for key, expected in exact.items():
        assert ours[key].dtype == torch.float32
        apart = torch.stack([(found[key] - expected).norm() / expected.norm() for found in (ours, theirs)])
        assert apart[0] < 0.05, key
        errors += apart
    assert errors[0] < 1.3 * errors[1]


def test_changed_weights_are_rounded_anew() -> None:
    rows, packed = MaskedRows(encoder("modernbert"), SPACE).eval(), documents()
    with torch.autocast("cpu", torch.bfloat16):
        before = _hidden(rows, packed)
        with torch.no_grad():
            rows.model.model.layers[1].mlp.Wo.weight.zero_()
        after = _hidden(rows, packed)
    fresh = MaskedRows(encoder("modernbert"), SPACE).eval()
    with torch.no_grad():
        fresh.model.model.layers[1].mlp.Wo.weight.zero_()
    with torch.autocast("cpu", torch.bfloat16):
        expected = _hidden(fresh, packed)
    assert torch.equal(after, expected)
    assert not torch.equal(after, before)


def adapted(name: str, **settings: object) -> MaskedRows:
    """An encoder with low-rank adapters in its layers, which change its numbers."""
    model = encoder(name)
    config = LoraConfig(r=3, target_modules=["Wqkv", "Wo", "Wi"], init_lora_weights=False, **settings)
    inject_adapter_in_model(config, model)
    return MaskedRows(model, SPACE).train()


@pytest.mark.parametrize("name", ["modernbert", "modernbert-global"])
def test_adapters_are_part_of_the_weights(name: str) -> None:
    rows, packed = adapted(name), documents(weighted=True)
    assert rows._fused.applies()
    loss, ours = rows(pack(packed)), _gradients(rows, packed, torch.float32)
    with torch.no_grad():
        once = rows(pack(packed), output="logits")
    rows._fused = None
    torch.testing.assert_close(loss, rows(pack(packed)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(once, rows(pack(packed), output="logits"), rtol=1e-5, atol=1e-5)
    theirs = _gradients(rows, packed, torch.float32)
    assert ours.keys() == theirs.keys()
    assert sum("lora" in key for key in ours) == 2 * 4 * 3
    for key, expected in theirs.items():
        assert (ours[key] - expected).norm() < 1e-5 * expected.norm(), key
    bare = MaskedRows(encoder(name), SPACE)
    assert (bare(pack(packed)) - loss).abs() > 0.01


def test_adapters_that_are_more_than_a_product_go_the_plain_way() -> None:
    assert not adapted("modernbert", lora_dropout=0.1)._fused.applies()
    assert adapted("modernbert", lora_dropout=0.1).eval()._fused.applies()
    assert not adapted("modernbert", use_dora=True)._fused.applies()
    with pytest.warns(PeftWarning, match="lora_bias"):
        rows = adapted("modernbert", lora_bias=True)
    assert not rows._fused.applies()

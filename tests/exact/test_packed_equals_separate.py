"""Packed rows give what each sequence alone gives through plain transformers: values and gradients, fp32."""

from __future__ import annotations

import copy

import encoders
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack


@pytest.mark.parametrize("name", encoders.ARCHITECTURES)
def test_logits_of_a_packed_row(name: str) -> None:
    model, documents = encoders.encoder(name), encoders.documents()
    rows = MaskedRows(copy.deepcopy(model), encoders.SPACE, probability="full")
    assert encoders.leak(model, documents, lambda: rows(pack(documents), output="logits")) < 1e-5


@pytest.mark.parametrize("name", encoders.ARCHITECTURES)
def test_gradients_of_a_packed_row(name: str) -> None:
    plain, documents = encoders.encoder(name), encoders.documents()
    packed = copy.deepcopy(plain)
    targets = torch.from_numpy(np.concatenate([d.targets for d in documents]))
    plain.set_attn_implementation("eager")
    expected = torch.nn.functional.cross_entropy(
        encoders.asked_logits(plain, documents), targets, reduction="sum"
    )
    expected.backward()
    loss = MaskedRows(packed, encoders.SPACE, probability="full")(pack(documents))
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for (path, ours), (_, theirs) in zip(packed.named_parameters(), plain.named_parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, path
            continue
        scale = theirs.grad.abs().max().clamp_min(1.0)
        assert ((ours.grad - theirs.grad).abs().max() / scale).item() < 2e-5, path


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 62), min_size=1, max_size=12),
    name=st.sampled_from(["modernbert", "bert", "esm-rotary-token-dropout"]),
)
def test_any_lengths_in_any_order(lengths: list[int], name: str) -> None:
    model, documents = encoders.encoder(name), encoders.documents(lengths, seed=sum(lengths))
    rows = MaskedRows(copy.deepcopy(model), encoders.SPACE, probability="full")
    assert encoders.leak(model, documents, lambda: rows(pack(documents), output="logits")) < 1e-5


@pytest.mark.parametrize("name", ["modernbert", "bert", "distilbert", "esm-rotary"])
def test_positions_of_a_set_of_codes(name: str) -> None:
    """Codes of one visit share a position: the packed row must keep each document's own positions."""
    model = encoders.encoder(name)
    documents = [
        Document(ids=d.ids, asked=d.asked, targets=d.targets, positions=np.arange(len(d.ids)) // 3)
        for d in encoders.documents((9, 20, 9, 33))
    ]
    rows = MaskedRows(copy.deepcopy(model), encoders.SPACE, probability="full")
    answer = rows(pack(documents), output="logits")
    assert encoders.leak(model, documents, lambda: answer) < 1e-5
    shifted = rows(pack(encoders.documents((9, 20, 9, 33))), output="logits")
    assert (answer - shifted).abs().max() > 1e-2


def test_documents_do_not_depend_on_their_neighbours() -> None:
    rows = MaskedRows(encoders.encoder("modernbert"), encoders.SPACE)
    first, *others = encoders.documents()
    alone = rows(pack([first]), output="hidden")
    together = rows(pack([others[2], others[4], first, others[0]]), output="hidden")
    offset = len(others[2].asked) + len(others[4].asked)
    assert (alone - together[offset : offset + len(first.asked)]).abs().max() < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", encoders.ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_row_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    """fp32 through grouped calls within 1e-4 (TF32 is off by default), bf16 through varlen within 2e-2."""
    model, documents = encoders.encoder(name), encoders.documents()
    rows = MaskedRows(copy.deepcopy(model), encoders.SPACE, probability="full").cuda()
    batch = pack(documents).to("cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        answer = rows(batch, output="logits").cpu()
    separate = encoders.separate_logits(model, documents)
    bound = 1e-4 if dtype == torch.float32 else 2e-2 * float(separate.abs().max())
    assert (answer - separate).abs().max() < bound

"""`MaskedRows`: one root forward that stays right under DDP, FSDP2, autocast and inference mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import encoders
import numpy as np
import pytest
import torch
from fork_server import ForkServer
from safetensors.torch import load_file
from torch import Tensor

from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack
from seqmlm.engine.types import TokenSpace
from seqmlm.errors import UsageError

SUPPORT = Path(__file__).parents[1] / "support"


def rows_of(name: str = "modernbert", **settings: object) -> MaskedRows:
    return MaskedRows(encoders.encoder(name), encoders.SPACE, **settings)  # type: ignore[arg-type]


def gradients(rows: MaskedRows) -> dict[str, Tensor]:
    return {name: p.grad for name, p in rows.named_parameters() if p.grad is not None}


def test_shapes_of_the_outputs() -> None:
    batch = pack(encoders.documents())
    asked = len(batch.asked)
    rows = rows_of()
    assert rows(batch).shape == ()
    assert rows(batch, output="hidden").shape == (asked, 32)
    logits = rows(batch, output="logits")
    assert logits.shape == (asked, encoders.VOCABULARY)
    assert logits.dtype == torch.float32
    special = torch.from_numpy(encoders.SPACE.is_special)
    assert torch.isneginf(logits[:, special]).all()
    assert torch.isfinite(logits[:, ~special]).all()
    assert torch.isfinite(rows_of(probability="full")(batch, output="logits")).all()


def test_the_loss_is_the_weighted_sum_over_the_logits() -> None:
    batch = pack(encoders.documents(weighted=True))
    rows = rows_of()
    log_probs = rows(batch, output="logits").log_softmax(-1)
    assert batch.weights is not None
    expected = -(log_probs.gather(1, batch.targets[:, None])[:, 0] * batch.weights).sum()
    assert rows(batch).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", ["modernbert", "bert", "esm-learned-token-dropout", "albert"])
def test_nothing_asked_gives_zero_and_a_gradient_for_every_parameter(name: str) -> None:
    """A rank whose row has no mask must still take part in the reduction of gradients."""
    none = np.array([], dtype=np.int64)
    batch = pack([Document(ids=d.ids, asked=none, targets=none) for d in encoders.documents()])
    rows = rows_of(name).train()
    loss = rows(batch)
    loss.backward()
    assert loss.item() == 0
    for path, parameter in rows.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, path
            assert not parameter.grad.any(), path


@pytest.mark.parametrize("name", encoders.ARCHITECTURES)
def test_every_trainable_parameter_gets_a_gradient(name: str) -> None:
    rows = rows_of(name).train()
    rows(pack(encoders.documents())).backward()
    assert [path for path, p in rows.named_parameters() if p.requires_grad and p.grad is None] == []


def test_inference_mode_and_autocast() -> None:
    batch = pack(encoders.documents())
    rows = rows_of()
    exact = rows(batch, output="logits").detach()
    with torch.inference_mode():
        # Without gradients the layers work in place, in another order of additions.
        torch.testing.assert_close(rows(batch, output="logits"), exact, rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = rows(batch, output="logits")
        loss = rows(batch)
    assert half.dtype == loss.dtype == torch.float32
    finite = torch.isfinite(exact)
    assert 0 < (half - exact)[finite].abs().max() < 2e-2 * exact[finite].abs().max() + 2e-2
    loss.backward()
    assert all(grad.dtype == torch.float32 for grad in gradients(rows).values())


def test_logits_can_be_differentiated() -> None:
    rows = rows_of()
    logits = rows(pack(encoders.documents()), output="logits")
    logits[:, 10].sum().backward()
    assert gradients(rows)["model.decoder.bias"][10] == len(logits)


@pytest.mark.parametrize("dropout", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_honoured_in_training_only(dropout: str) -> None:
    model = encoders.encoder("bert")
    settings = {**model.config.to_dict(), dropout: 0.3}
    noisy = type(model)(type(model.config)(**settings))
    noisy.load_state_dict(model.state_dict())
    batch = pack(encoders.documents())
    rows = MaskedRows(noisy, encoders.SPACE)
    assert rows.eval()(batch).item() == pytest.approx(rows_of("bert")(batch).item(), rel=1e-6)
    torch.manual_seed(0)
    first, second = rows.train()(batch).item(), rows(batch).item()
    torch.manual_seed(0)
    assert rows(batch).item() == first != second


def test_gradient_checkpointing_changes_nothing() -> None:
    batch = pack(encoders.documents())
    plain, saving = rows_of().train(), rows_of().train()
    # The method's name since transformers 5.23, and before.
    enable = getattr(saving.model, "activation_checkpointing_enable", None)
    (enable or saving.model.gradient_checkpointing_enable)()
    plain(batch).backward()
    saving(batch).backward()
    for name, grad in gradients(plain).items():
        assert torch.allclose(gradients(saving)[name], grad, atol=1e-4, rtol=1e-4), name


def test_a_document_of_masks_alone_is_finite_under_token_dropout() -> None:
    everything = np.full(6, encoders.MASK)
    batch = pack([Document(ids=everything, asked=np.arange(6), targets=np.full(6, 9)), *encoders.documents()])
    assert torch.isfinite(rows_of("esm-learned-token-dropout")(batch))


def test_token_types_are_an_input_channel() -> None:
    documents, rows = encoders.documents((9, 12)), rows_of("bert")
    zeros, typed = (
        [replace(d, channels={"token_type_ids": np.full(len(d.ids), kind, np.float32)}) for d in documents]
        for kind in (0, 1)
    )
    assert rows(pack(zeros)).item() == rows(pack(documents)).item()
    assert rows(pack(typed)).item() != rows(pack(documents)).item()
    with pytest.raises(UsageError, match="cannot read the input channel 'token_type_ids'"):
        rows_of("modernbert")(pack(typed))


def test_wrong_requests() -> None:
    long = pack(encoders.documents((65,)))
    for name, capacity in (("bert", 64), ("roberta", 69), ("esm-learned", 69)):
        if capacity < 65:
            with pytest.raises(UsageError, match="longer than the 64 positions"):
                rows_of(name)(long)
        else:
            assert torch.isfinite(rows_of(name)(long))
    untargeted = pack([Document(ids=d.ids, asked=d.asked) for d in encoders.documents()])
    with pytest.raises(UsageError, match="no targets"):
        rows_of()(untargeted)
    larger = TokenSpace(size=41, pad=0, mask=3, unk=None, start=1, end=2, special=(0, 1, 2, 3))
    with pytest.raises(UsageError, match="41 ids"):
        MaskedRows(encoders.encoder("bert"), larger)
    with pytest.raises(UsageError, match="'ordinary' or 'full'"):
        rows_of(probability="half")


def test_shared_positions_may_be_longer_than_the_table() -> None:
    """Eighty tokens over forty positions fit a table of 64."""
    ids = np.full(80, 9)
    document = Document(ids=ids, asked=np.array([5]), targets=np.array([9]), positions=np.arange(80) // 2)
    assert torch.isfinite(rows_of("bert")(pack([document])))


def test_the_wrapped_model_says_what_it_is_set_to() -> None:
    rows = rows_of()
    ids = torch.full((1, 6), 9)
    with pytest.raises(UsageError, match="set_attn_implementation"):
        rows.model(input_ids=ids)
    rows.model.set_attn_implementation("sdpa")
    assert torch.isfinite(rows.model(input_ids=ids).logits).all()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    done = forks.run(folder, script=SUPPORT / "sharded_rows.py")
    assert done.code == 0, done.err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp2-layers"])
@pytest.mark.parametrize("name", ["modernbert", "esm-learned-token-dropout"])
def test_two_processes_average_the_gradients_of_one(two_processes: Path, name: str, kind: str) -> None:
    rows = rows_of(name).train()
    for rank, lengths in enumerate(([5, 30, 12], [41, 7, 12, 60])):
        (rows(pack(encoders.documents(lengths, seed=rank))) / 2).backward()
    found = load_file(two_processes / f"{name}-{kind}.safetensors")
    expected = gradients(rows)
    assert found.keys() == expected.keys()
    for path, grad in expected.items():
        assert torch.allclose(found[path], grad, atol=1e-4, rtol=1e-4), path

"""Input channels: what they add, that packing changes nothing, that models and data must agree."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import encoders
import numpy as np
import pytest
import torch

from seqmlm.engine.channels import WEIGHTS, Channel, InputChannels, channels_of
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.optimizer import adamw
from seqmlm.engine.packing import Document, pack
from seqmlm.errors import StateError, UsageError

KINDS = {
    "age": Channel(kind="time2vec", center=50, scale=100),
    "visit": Channel(kind="sinusoid"),
    "segment": Channel(kind="category", size=3),
}


def channels(width: int = 32) -> InputChannels:
    """Channels loud enough to be heard."""
    torch.manual_seed(1)
    made = InputChannels(KINDS, width)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("amplitude"):
                parameter.fill_(0.7)
    return made


def rows(name: str = "modernbert") -> MaskedRows:
    return MaskedRows(encoders.encoder(name), encoders.SPACE, channels=channels(_width(name)))


def _width(name: str) -> int:
    return 16 if name in ("electra", "albert") else 32


def documents(lengths=encoders.LENGTHS, seed: int = 0) -> list[Document]:
    """Documents with an age that is missing now and then, a visit and a segment."""
    rng = np.random.default_rng(seed)
    made = []
    for document in encoders.documents(lengths, seed):
        length = len(document.ids)
        age = rng.uniform(0, 90, length).astype(np.float32)
        age[rng.random(length) < 0.2] = np.nan
        visit = np.sort(rng.integers(0, 9, length)).astype(np.float32)
        values = {"age": age, "visit": visit, "segment": (visit % 3).astype(np.float32)}
        made.append(replace(document, channels=values))
    return made


def separate(name: str, packed: list[Document]) -> torch.Tensor:
    """(Q, V) logits of each document alone, through plain transformers."""
    plain, own = copy.deepcopy(encoders.encoder(name)), channels(_width(name))
    plain.set_attn_implementation("eager")
    answers = []
    for document in packed:
        ids = torch.from_numpy(np.asarray(document.ids, dtype=np.int64))[None]
        said = own({key: torch.from_numpy(value)[None] for key, value in document.channels.items()})
        out = plain(
            inputs_embeds=plain.get_input_embeddings()(ids) + said, attention_mask=torch.ones_like(ids)
        )
        answers.append(out.logits[0, torch.from_numpy(document.asked)])
    return torch.cat(answers)


@pytest.mark.parametrize("name", [n for n in encoders.ARCHITECTURES if not n.endswith("token-dropout")])
def test_packed_equals_separate(name: str) -> None:
    model = MaskedRows(
        encoders.encoder(name), encoders.SPACE, channels=channels(_width(name)), probability="full"
    )
    with torch.no_grad():
        answer = model(pack(documents()), output="logits")
        assert (answer - separate(name, documents())).abs().max() < 1e-5
        silent = [replace(d, channels={k: v * 0 + 1 for k, v in d.channels.items()}) for d in documents()]
        assert (model(pack(silent), output="logits") - answer).abs().max() > 1e-2


def test_what_each_kind_says() -> None:
    made = InputChannels({"t": Channel(kind="time2vec", center=10, scale=5)}, 4)
    part = made.parts["t"]
    with torch.no_grad():
        part.amplitude.fill_(2.0)
        said = made({"t": torch.tensor([[20.0, float("nan"), 1e9]])})
    line = 2 * (2 * part.frequency[0] + part.phase[0])
    waves = 2 * torch.cos(2 * part.frequency[1:] + part.phase[1:])
    assert torch.allclose(said[0, 0], torch.cat([line[None], waves]))
    assert (said[0, 1] == 0).all()
    assert said[0, 2, 0].abs() == 200
    category = InputChannels({"c": Channel(kind="category", size=3)}, 4)
    said = category({"c": torch.tensor([[2.0, 7.0, 0.0]])})
    assert torch.equal(said[0, 0], said[0, 1])
    assert not torch.equal(said[0, 0], said[0, 2])
    waves = InputChannels({"n": Channel(kind="sinusoid")}, 7)({"n": torch.tensor([[0.0, 3.0]])})
    assert waves.shape == (1, 2, 7)
    assert torch.allclose(waves[0, 1, 0] / 0.02, torch.tensor(3.0).sin())


def test_times_are_exact_under_autocast() -> None:
    made = channels()
    ages = {"age": torch.tensor([[60.0, 60.01]]), "visit": torch.zeros(1, 2), "segment": torch.zeros(1, 2)}
    exact = made(ages)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made(ages), exact)
    assert exact.dtype == torch.float32


def test_models_and_data_must_agree() -> None:
    plain = encoders.documents((9, 12))
    with pytest.raises(UsageError, match="reads the input channel 'age', which the data do not have"):
        rows()(pack(plain))
    with pytest.raises(UsageError, match="a modernbert model cannot read the input channel 'age'"):
        MaskedRows(encoders.encoder("modernbert"), encoders.SPACE)(pack(documents((9, 12))))
    with pytest.raises(UsageError, match="token dropout cannot read input channels"):
        rows("esm-rotary-token-dropout")


def test_wrong_descriptions() -> None:
    with pytest.raises(UsageError, match="one of category, time2vec, sinusoid, not 'number'"):
        channels_of({"age": {"kind": "number"}})
    with pytest.raises(UsageError, match="invalid description of an input channel"):
        channels_of({"age": {"kind": "sinusoid", "sclae": 3}})
    with pytest.raises(UsageError, match="needs a size"):
        Channel(kind="category")
    with pytest.raises(UsageError, match="above 0"):
        Channel(kind="sinusoid", scale=0)


def test_the_fused_way_steps_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    model = rows().train()
    assert model._fused.applies()
    monkeypatch.setattr(type(model._fused), "__call__", lambda *a, **k: pytest.fail("fused without channels"))
    assert torch.isfinite(model(pack(documents())))


def test_every_part_learns() -> None:
    model = rows().train()
    optimizer = adamw(model, learning_rate=1e-2, weight_decay=0.1, betas=(0.9, 0.98), epsilon=1e-8)
    before = {name: value.clone() for name, value in model.channels.named_parameters()}
    model(pack(documents())).backward()
    optimizer.step()
    for name, value in model.channels.named_parameters():
        assert not torch.equal(value, before[name]), name
    undecayed = {
        id(p) for group in optimizer.param_groups if not group["weight_decay"] for p in group["params"]
    }
    assert {id(p) for p in model.channels.parameters()} <= undecayed


def test_saved_and_loaded(tmp_path: Path) -> None:
    made = channels()
    made.save(tmp_path)
    again = InputChannels.load(tmp_path, made.description(), 32)
    assert again.channels == made.channels == KINDS
    for name, value in made.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    with pytest.raises(StateError, match="another model"):
        InputChannels.load(tmp_path, {"age": KINDS["age"].__dict__}, 32)
    large = {**made.description(), "segment": {"kind": "category", "size": 10**12}}
    with pytest.raises(StateError, match=r"cannot be read .*shape"):
        InputChannels.load(tmp_path, large, 32)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(StateError, match="cannot be read"):
        InputChannels.load(tmp_path, made.description(), 32)

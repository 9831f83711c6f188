"""From-scratch sizes as designed and deterministic; loading reads no pickle and refuses by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from encoders import ARCHITECTURES, encoder, modernbert
from throughput_arms import flops_per_token
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from seqmlm.engine.backbones import (
    body_parameter_count,
    build,
    load,
    never_predict,
    padded_vocabulary,
    parameter_count,
    position_capacity,
    widen_vocabulary,
)
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.types import TokenSpace
from seqmlm.errors import StateError, UsageError

SPACE = TokenSpace(size=33, pad=1, mask=32, unk=3, start=0, end=2, special=(0, 1, 2, 3, 32))
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL_BERT = {**SHAPE, "vocab_size": 40, "max_position_embeddings": 20}


@pytest.mark.parametrize(
    "overrides", [{}, {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}]
)
def test_the_body_is_counted_without_vocabulary_memory_or_chance(overrides: dict[str, int]) -> None:
    config, state = ModelConfig(size="tiny", overrides=overrides), torch.get_rng_state()
    more = TokenSpace(size=4000, pad=1, mask=32, unk=3, start=0, end=2, special=(0, 1, 2, 3, 32))
    found = {body_parameter_count(config, space) for space in (SPACE, more)}
    assert torch.equal(torch.get_rng_state(), state)
    body = build(config, SPACE).model
    layers = sum(parameter_count(layer) for layer in body.layers)
    assert found == {layers + parameter_count(body.embeddings.norm) + parameter_count(body.final_norm)}


def test_ids_and_padding_of_the_vocabulary() -> None:
    model = build(ModelConfig(size="tiny", max_length=77), SPACE)
    config = model.config
    assert (config.pad_token_id, config.cls_token_id, config.sep_token_id) == (1, 0, 2)
    assert (config.bos_token_id, config.eos_token_id) == (0, 2)
    assert config.vocab_size == model.get_input_embeddings().num_embeddings == 40
    assert config.max_position_embeddings == 77
    assert position_capacity(model) is None
    assert [padded_vocabulary(n) for n in (33, 40, 1024, 16001)] == [40, 40, 1024, 16064]


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("layers", "kinds", "window"),
    [
        ("nearby.v1", [FULL, SLIDING, SLIDING, SLIDING], 8),
        ("mixed.v1", [FULL, SLIDING, FULL, SLIDING], 32),
        ("everywhere.v1", [FULL] * 4, 128),
        ("modernbert.v1", [FULL, SLIDING, SLIDING, FULL], 128),
    ],
)
def test_patterns_of_layers(layers: str, kinds: list[str], window: int) -> None:
    config = build(ModelConfig(size="tiny", layers=layers), SPACE).config
    assert (config.layer_types, config.local_attention) == (kinds, window)


def test_one_layer_of_any_number_looks_everywhere() -> None:
    model = build(ModelConfig(size="tiny", layers="nearby.v1", overrides={"num_hidden_layers": 6}), SPACE)
    assert [layer.attn.sliding_window for layer in model.model.layers] == [None] + [5] * 5


def test_weights_scaled_by_the_width_and_a_bias_of_frequencies() -> None:
    torch.manual_seed(0)
    config = ModelConfig(size="tiny", initialization="scaled.v1")
    frequencies = np.arange(SPACE.size, dtype=np.float64)
    frequencies /= frequencies.sum()
    model = build(config, SPACE, frequencies)
    assert model.config.initializer_range == 128**-0.5
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(128**-0.5, rel=0.15)
    bias = model.decoder.bias.detach().numpy()
    np.testing.assert_allclose(bias[1 : SPACE.size], np.log(frequencies[1:]), rtol=1e-6)
    assert not bias[[0, *range(SPACE.size, len(bias))]].any()
    assert not build(config, SPACE).decoder.bias.any()
    plain = build(ModelConfig(size="tiny", initialization="unigram.v1"), SPACE, frequencies)
    assert plain.config.initializer_range == 0.02
    assert torch.equal(plain.decoder.bias, model.decoder.bias)
    assert not build(ModelConfig(size="tiny"), SPACE, frequencies).decoder.bias.any()


def test_dropout_reaches_every_place() -> None:
    model = build(ModelConfig(size="tiny", dropout=0.25), SPACE)
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.25}
    assert model.config.attention_dropout == 0.25
    fresh = build(ModelConfig(size="tiny"), SPACE)
    assert {m.p for m in fresh.modules() if isinstance(m, nn.Dropout)} <= {0.0}


def test_overrides() -> None:
    config = build(
        ModelConfig(size="tiny", overrides={"num_hidden_layers": 2, "local_attention": 32}), SPACE
    ).config
    assert (config.num_hidden_layers, config.local_attention, len(config.layer_types)) == (2, 32, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": "smal"}, "did you mean 'small'"),
        ({"dropout": 1.0}, "dropout"),
        ({"layers": "nearbye"}, "did you mean 'nearby.v1'"),
        ({"initialization": "scaled"}, "did you mean 'scaled.v1'"),
        ({"max_length": 2}, "max_length"),
    ],
)
def test_wrong_configs(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ModelConfig(**settings)  # type: ignore[arg-type]


def test_a_saved_model_is_plain_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = MaskedRows(build(ModelConfig(size="tiny"), SPACE), SPACE)
    rows.model.save_pretrained(tmp_path)
    assert "seqmlm" not in (tmp_path / "config.json").read_text()
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert plain.config._attn_implementation in ("sdpa", "eager")
    again = build(ModelConfig(init=str(tmp_path)), SPACE)
    for name, tensor in rows.model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert torch.equal(tensor, plain.state_dict()[name])


@pytest.mark.parametrize("name", [*ARCHITECTURES, "modernbert without a bias"])
def test_what_is_never_predicted_has_no_probability_in_plain_transformers(tmp_path: Path, name: str) -> None:
    model = encoder(name) if name in ARCHITECTURES else modernbert(decoder_bias=False)
    model.set_attn_implementation("eager")
    ids = torch.arange(1, 39)[None]
    never = torch.tensor([0, 2, 3, 39])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        expected = before.index_fill(-1, never, float("-inf")).log_softmax(-1)
        never_predict(model, never)
        model.save_pretrained(tmp_path)
        plain = AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
        found = plain(input_ids=ids).logits.log_softmax(-1)
        assert not found.exp()[..., never].any()
        left = np.setdiff1d(np.arange(40), never)
        assert torch.allclose(found[..., left], expected[..., left], atol=1e-5)
        assert torch.allclose(load(tmp_path)(input_ids=ids).logits[..., left], before[..., left], atol=1e-5)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    BertForMaskedLM(BertConfig(**SMALL_BERT)).config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(StateError, match="pickle"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"config\.json cannot be read"),
        ("{", r"config\.json cannot be read"),
        ("[" * 100_000, r"config\.json cannot be read: it is nested"),
        ("{}", "no model_type"),
        (json.dumps({"model_type": "bert"}), r"no model\.safetensors"),
    ],
)
def test_a_folder_that_is_no_model(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(StateError, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(StateError, match=message):
        load(tmp_path)


def test_architectures_without_the_hook_are_refused_by_name(tmp_path: Path) -> None:
    model = DebertaV2ForMaskedLM(DebertaV2Config(**SMALL_BERT))
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"deberta-v2.*supported: albert, bert, camembert, distilbert"):
        load(tmp_path)
    with pytest.raises(UsageError, match="deberta-v2"):
        MaskedRows(model, SPACE)


def test_a_body_without_its_head_is_refused(tmp_path: Path) -> None:
    BertModel(BertConfig(**SMALL_BERT), add_pooling_layer=False).save_pretrained(tmp_path)
    with pytest.raises(StateError, match="without a masked-LM head"):
        load(tmp_path)
    model = load(tmp_path, head="optional")
    body = BertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    for name, expected in body.named_parameters():
        assert torch.equal(model.base_model.get_parameter(name), expected)


def test_a_head_without_its_body_is_refused_in_any_case(tmp_path: Path) -> None:
    model = BertForMaskedLM(BertConfig(**SMALL_BERT))
    weights = {name: one for name, one in model.state_dict().items() if "layer.0" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(StateError, match=r"no weights for 'bert\.encoder\.layer\.0"):
        load(tmp_path, head="optional")


def test_a_vocabulary_that_does_not_fit(tmp_path: Path) -> None:
    BertForMaskedLM(BertConfig(**SMALL_BERT)).save_pretrained(tmp_path)
    larger = TokenSpace(size=41, pad=1, mask=2, unk=None, start=None, end=None, special=(1, 2))
    with pytest.raises(UsageError, match="41 ids"):
        load(tmp_path, larger)
    assert load(tmp_path, SPACE).config.vocab_size == 40


def test_position_capacity_counts_usable_positions() -> None:
    assert position_capacity(BertForMaskedLM(BertConfig(**SMALL_BERT))) == 20
    assert position_capacity(RobertaForMaskedLM(RobertaConfig(**SMALL_BERT, pad_token_id=1))) == 18


def test_parameters_and_operations() -> None:
    """By hand for one ModernBERT: 2 layers of 16, V = 40, documents of 10 tokens, all layers global."""
    overrides = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = build(ModelConfig(layers="everywhere.v1", overrides=overrides), SPACE)
    layer = 16 * 48 + 16 * 16 + 16 * 48 + 24 * 16
    norms = 16 + 3 * 16 + 16 + 16
    assert parameter_count(model) == 40 * 16 + 2 * layer + norms + 16 * 16 + 40
    expected = 6 * 2 * layer + 6 * 0.2 * (16 * 16 + 16 * 40) + 12 * 16 * 2 * 10
    assert flops_per_token(model, 10, 0.2) == pytest.approx(expected)
    local = build(ModelConfig(overrides={**overrides, "local_attention": 4}), SPACE)
    assert flops_per_token(local, 10, 0.2) == pytest.approx(expected - 12 * 16 * 5)


def test_a_table_that_is_in_no_file_is_not_larger_than_the_model(tmp_path):
    encoder("esm-rotary").save_pretrained(tmp_path)
    load(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "max_position_embeddings": 10**12}))
    with pytest.raises(StateError, match="its settings require 10000"):
        load(tmp_path)


@pytest.mark.parametrize("size", [36, 60])  # within the padding of the vocabulary, and beyond it
def test_new_ids_begin_as_another_one_and_take_no_more_than_its_probability(size: int) -> None:
    torch.manual_seed(0)
    model = build(ModelConfig(size="tiny"), SPACE)
    with torch.no_grad():
        model.decoder.bias.normal_()
    row = torch.tensor([[1, 5, 3, 7, 2]])
    old = {name: values.clone() for name, values in model.state_dict().items()}
    before = model(row).logits[0, 2]
    assert widen_vocabulary(model, 33, trained_ids=33, like=4) is model
    made = widen_vocabulary(model, size, trained_ids=33, like=4)
    for name, values in made.state_dict().items():
        same = values[: len(old[name])] if values.shape != old[name].shape else values
        rows = 33 if same.shape[0] == padded_vocabulary(33) else len(same)
        assert torch.equal(same[:rows], old[name][:rows]), name
    after = made(row).logits[0, 2]
    torch.testing.assert_close(after[:33], before[:33])
    assert made.config.vocab_size == len(after) == padded_vocabulary(size)
    new = torch.exp(after[33:size]).sum()
    torch.testing.assert_close(new, torch.exp(before[4]))

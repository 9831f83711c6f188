"""Hidden states of packed sequences equal those of plain transformers on each sequence alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AlbertConfig, AutoModelForMaskedLM, DistilBertConfig, ElectraConfig, PreTrainedModel

from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError
from tests.exact.test_pll_naive import CONFIGS, SHAPE, SPACE, sequences

WIDER = {**SHAPE, "embedding_size": 16}
MODELS = {
    **CONFIGS,
    "electra": lambda: ElectraConfig(**WIDER),
    "albert": lambda: AlbertConfig(**WIDER),
    "distilbert": lambda: DistilBertConfig(
        **{k: SHAPE[k] for k in ("vocab_size", "pad_token_id", "initializer_range")},
        dim=32,
        n_layers=3,
        n_heads=2,
        hidden_dim=48,
    ),
}
LAYERS = (0, 2, -1, 1)


def make(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForMaskedLM.from_config(MODELS[name]()).eval()


def alone(model: PreTrainedModel, encoding: Encoding) -> Iterator[np.ndarray[Any, Any]]:
    """(L, H) of each layer, by transformers."""
    ids = torch.from_numpy(encoding.ids.astype(np.int64))[None]
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    return (state[0].numpy() for state in out.hidden_states)


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_those_of_the_sequence_alone(name: str) -> None:
    ask = Conditionals(MaskedRows(make(name), SPACE), tokens_per_batch=60)
    asked = [*sequences(words=False), *sequences(words=True)]
    some = [np.unique([0, len(one) // 2, len(one) - 1]) for one in asked]
    everywhere = ask.hidden_states(asked, layers=LAYERS)
    chosen = ask.hidden_states(asked, layers=LAYERS, at=some)
    last = ask.hidden_states(asked)
    plain = make(name)
    for one, places, states, few, final in zip(asked, some, everywhere, chosen, last, strict=True):
        expected = np.stack(list(alone(plain, one)), axis=1)
        assert states.dtype == np.float32
        np.testing.assert_allclose(states, expected[:, LAYERS], rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(few, expected[places][:, LAYERS], rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(final, expected[:, -1:], rtol=1e-5, atol=2e-5)


def test_equal_sequences_are_computed_once_and_asking_goes_on_as_before() -> None:
    rows = MaskedRows(make("modernbert"), SPACE)
    ask, one = Conditionals(rows), sequences(words=False)[0]
    query = Query(encoding=one, masked=np.array([1]), asked=np.array([1]))
    [before] = ask.ask([query])
    assert ask.statistics.unique == 1
    found = list(ask.hidden_states([one] * 5, layers=[1]))
    assert ask.statistics.unique == 2
    assert all(np.array_equal(found[0], other) for other in found)
    [after] = ask.ask([query])
    assert after.values["log_prob"].tolist() == before.values["log_prob"].tolist()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in rows.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [4]}, "no layer 4 in a model of 3"),
        ({"layers": [-5]}, "no layer -5"),
        ({"at": [np.array([99])]}, "outside a sequence"),
        ({"at": [np.array([], dtype=np.int64)]}, "at least one position"),
    ],
)
def test_what_is_not_there_is_named(arguments: dict[str, Any], message: str) -> None:
    ask = Conditionals(MaskedRows(make("bert"), SPACE))
    with pytest.raises(UsageError, match=message):
        list(ask.hidden_states(sequences(words=False)[:1], **arguments))


def test_memory_that_runs_out_halves_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MaskedRows(make("modernbert"), SPACE)
    asked = [replace(one, ids=np.roll(one.ids, n)) for n, one in enumerate(sequences(words=False))]
    expected = list(Conditionals(rows).hidden_states(asked, layers=LAYERS))
    forward = rows.forward

    def small(batch: Any, **arguments: Any) -> torch.Tensor:
        if batch.tokens > 50:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(batch, **arguments)

    monkeypatch.setattr(rows, "forward", small)
    ask = Conditionals(rows, tokens_per_batch=400)
    for states, whole in zip(ask.hidden_states(asked, layers=LAYERS), expected, strict=True):
        np.testing.assert_allclose(states, whole, rtol=1e-5, atol=2e-5)
    assert ask.tokens_per_batch < 100

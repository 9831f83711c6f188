"""Maps of attention weights are the mean of those of transformers, over the units of one name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_maps import Attention, attentions
from checkpoints import checkpoint
from tiny_models import dna_model
from transformers import AutoModel

from seqmlm.engine.conditionals import Conditionals
from seqmlm.inference.session import Session
from seqmlm.structure.estimators import StructureSettings


def test_weights_are_those_of_transformers(tmp_path: Path) -> None:
    checkpoint("modernbert", tmp_path)
    session = Session.open(str(tmp_path), domain="text", expert="none")
    encoding = session.tokenizer.encode("the dog barks at a cat")
    rows = session.conditionals().rows
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        ids = torch.tensor(encoding.ids[None].astype(np.int64))
        weights = torch.cat(model(input_ids=ids, output_attentions=True).attentions)
    found = attentions(rows, encoding)
    np.testing.assert_allclose(found, weights.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("together", [False, True])
def test_maps_have_the_mean_of_both_directions_and_of_the_units_of_a_name(together: bool) -> None:
    model = dna_model()
    named = replace(model.tokenizer.encode("ACGA"), symbols=np.array([-1, 0, 1, 2, 0, -1], np.int32))
    estimate = Attention(
        StructureSettings(together=together), Conditionals(model.rows), model.tokenizer.units
    )
    [found] = estimate.maps([named])
    weights = attentions(model.rows, named).mean(axis=(0, 1))
    of = [[1, 4], [2], [3]] if together else [[1], [2], [3], [4]]
    for one in range(len(of)):
        for two in range(one):
            both = weights[np.ix_(of[one], of[two])].mean() + weights[np.ix_(of[two], of[one])].mean()
            assert found.values[one, two] == pytest.approx(both / 2)
    assert np.isfinite(found.values).sum() == len(of) * (len(of) - 1)

"""The head of a frozen encoder: what its features are worth, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seqmlm.inference.pieces import HeadCard
from seqmlm.inference.tuning import fit_frozen


@pytest.mark.parametrize("kind", ["value", "class"])
def test_rounding_errors_of_a_dead_feature_are_not_scaled_up(kind: Any) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 4)).astype(np.float32)
    features[:, 3] *= 1e-30
    truth = features[:, :1] - 2 * features[:, 1:2]
    targets = truth if kind == "value" else (truth > 0).astype(np.float32)
    names = ("y",) if kind == "value" else ("a", "b")
    rows: Any = SimpleNamespace(classifier=torch.nn.Linear(4, len(names)))
    fit_frozen(rows, HeadCard(kind=kind, label="y", names=names), features, targets, 0)
    weight = rows.classifier.weight.detach().numpy()[-1]
    assert weight[3] == 0
    assert weight[1] < 0 < weight[0]

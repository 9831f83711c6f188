"""What of an encoder is trained with a head: all of it, its last layers, low-rank adapters, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from seqmlm.engine.backbones import HEADS
from seqmlm.engine.heads import LabelledRows, freeze_all_but_last
from seqmlm.engine.types import Floats
from seqmlm.errors import UsageError
from seqmlm.inference.labeller import HeadCard


def tune(rows: LabelledRows, how: str) -> None:
    """Freeze what is not trained.

    Args:
        rows: changed in place.
        how: "all", "last:K" layers, "lora:R" (adapters of rank R beside the products of all layers, Hu et al.
            2022), or "none".

    Raises:
        UsageError: something else, or what the model does not have.
    """
    kind, _, number = how.partition(":")
    if kind == "all" and not number:
        return
    if kind == "none" and not number:
        rows.rows.requires_grad_(False)
        return
    if kind not in ("last", "lora") or not number.isdecimal() or int(number) < 1:
        raise UsageError(f"--tune takes all, none, last:K or lora:R with a number above 0, not {how!r}")
    if kind == "last":
        freeze_all_but_last(rows.rows, int(number))
        return
    from peft import LoraConfig, inject_adapter_in_model
    from torch import nn

    model: Any = rows.rows.model
    stack = f"{model.base_model_prefix}.{HEADS[model.config.model_type].layers}"
    targets = [
        f"{stack}.{name}"
        for name, one in model.get_submodule(stack).named_modules()
        if isinstance(one, nn.Linear)
    ]
    rank = int(number)
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets), model)
    rows.between().requires_grad_(True)


def merge(rows: LabelledRows) -> None:
    """Put adapters into the weights that they stand beside; without adapters nothing changes."""
    for name, module in list(rows.rows.model.named_modules()):
        if hasattr(module, "get_delta_weight"):
            module.merge()
            parent, _, own = name.rpartition(".")
            setattr(rows.rows.model.get_submodule(parent), own, module.get_base_layer())


UNITS = 100_000
"""Labels that a linear head on a frozen encoder is fitted to, at most: drawn."""


def fit_frozen(rows: LabelledRows, card: HeadCard, features: Floats, targets: Floats, seed: int) -> None:
    """Fit the head alone: logistic or ridge regression on standardized features, by scikit-learn.

    Args:
        rows: whose classifier is set.
        features: (N, H) what it reads (`Labeller.features`); rows of NaN are left out.
        targets: (N, K).
        seed: of which labels are drawn, where there are many.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    kept = np.flatnonzero(~np.isnan(features[:, 0]))
    if len(kept) > UNITS:
        kept = np.sort(np.random.default_rng(seed).choice(kept, UNITS, replace=False))
    scaler = StandardScaler().fit(features[kept])
    inputs, told = scaler.transform(features[kept]), targets[kept]
    weight, bias = np.zeros((len(card.names), features.shape[1])), np.zeros(len(card.names))
    if card.kind == "value":
        fitted = RidgeCV(alphas=np.logspace(-1, 4, 11)).fit(inputs, told)
        weight, bias = np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)
    elif card.kind == "multilabel":
        for column in range(len(card.names)):
            if 0 < told[:, column].sum() < len(told):
                (weight[column],), (bias[column],) = _logistic(inputs, told[:, column])
            else:
                bias[column] = 10.0 if told[0, column] else -10.0
    else:
        classes = np.unique(told[:, 0]).astype(int)
        bias[:] = -1e4
        coefficients, intercepts = _logistic(inputs, told[:, 0]) if len(classes) > 1 else ((), ())
        if len(classes) == 1:
            bias[classes] = 0.0
        elif len(classes) == 2:  # the second against the first
            weight[classes[1]], bias[classes] = coefficients[0], (0.0, intercepts[0])
        else:
            weight[classes], bias[classes] = coefficients, intercepts
    scaled = weight / scaler.scale_
    with torch.no_grad():
        rows.classifier.weight.copy_(torch.from_numpy(scaled))
        rows.classifier.bias.copy_(torch.from_numpy(bias - scaled @ scaler.mean_))


def _logistic(inputs: Floats, told: Floats) -> tuple[Sequence[Any], Sequence[float]]:
    """Coefficients (K, H) and intercepts (K,), one of each for two classes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    model = LogisticRegression(max_iter=1000)
    if np.unique(told, return_counts=True)[1].min() >= 3 and len(told) <= 20_000:
        search = GridSearchCV(model, {"C": [0.001, 0.01, 0.1, 1.0]}, cv=3).fit(inputs, told)
        model = search.best_estimator_
    else:
        model = LogisticRegression(max_iter=1000, C=0.1).fit(inputs, told)
    return model.coef_, model.intercept_

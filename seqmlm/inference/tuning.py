"""Select what is trained together with a head: all of the encoder, its last layers, adapters, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from seqmlm.engine.backbones import HEADS
from seqmlm.engine.heads import LabelledRows, freeze_all_but_last
from seqmlm.engine.types import Floats, Longs
from seqmlm.errors import UsageError
from seqmlm.evaluation.rivals import Doubles, tuned_model
from seqmlm.inference.pieces import HeadCard


def tune(rows: LabelledRows, how: str) -> None:
    """Freeze the parameters that are not trained.

    Args:
        rows: the model. It is changed in place.
        how: "all", "none", "last:K" (the last K layers), or "lora:R". The last adds adapters of rank R to the
            linear maps of all layers (Hu et al. 2022).

    Raises:
        UsageError: `how` has another form, or the model does not have these layers.
    """
    kind, _, number = how.partition(":")
    if how == "none":
        rows.rows.requires_grad_(False)
    if how in ("all", "none"):
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
    layers = model.get_submodule(stack).named_modules()
    targets = [f"{stack}.{name}" for name, module in layers if isinstance(module, nn.Linear)]
    rank = int(number)
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets), model)
    rows.neck().requires_grad_(True)


def merge(rows: LabelledRows) -> None:
    """Merge adapters into the weights that they modify. A model without adapters does not change."""
    for name, module in list(rows.rows.model.named_modules()):
        if hasattr(module, "get_delta_weight"):
            module.merge()
            parent, _, attribute = name.rpartition(".")
            setattr(rows.rows.model.get_submodule(parent), attribute, module.get_base_layer())


UNITS = 100_000
"""Largest number of labels for fitting a linear head on a frozen encoder. More labels are sampled."""


def fit_frozen(
    rows: LabelledRows, card: HeadCard, features: Floats, targets: Floats, seed: int, *, begins: bool = False
) -> None:
    """Fit only the head: logistic or ridge regression on standardized features, with scikit-learn.

    Args:
        rows: the model. Its classifier is set.
        card: the description of the head.
        features: (N, H) features of the head (`Labeller.features`). Rows with NaN are left out.
        targets: (N, K) labels.
        seed: seed for sampling labels, if there are many.
        begins: whether the encoder will be trained with this head. All features then have the same scale, so
            that features with little variance get small weights. The first steps would move such features by
            many deviations.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    complete = np.flatnonzero(~np.isnan(features[:, 0]))
    if len(complete) > UNITS:
        complete = np.sort(np.random.default_rng(seed).choice(complete, UNITS, replace=False))
    scaler = StandardScaler().fit(features[complete])
    # A feature without variance has only rounding errors, which would be scaled up.
    scaler.scale_[scaler.scale_ < 1e-6 * scaler.scale_.max()] = np.inf
    if begins:
        scaler.scale_[:] = np.sqrt(scaler.var_.mean()) or 1.0
    inputs, labels = scaler.transform(features[complete]), targets[complete]
    weight, bias = np.zeros((len(card.names), features.shape[1])), np.zeros(len(card.names))
    if card.kind == "value":
        fitted = RidgeCV(alphas=np.logspace(-1, 4, 11)).fit(inputs, labels)
        weight, bias = np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)
    elif card.kind == "multilabel":
        for number, column in enumerate(labels.T):
            classes, weights, biases = _logistic(inputs, column)
            weight[number] = weights[-1]
            bias[number] = biases[-1] if len(classes) > 1 else 10.0 if classes[0] else -10.0
    else:
        classes, weights, biases = _logistic(inputs, labels[:, 0])
        bias[:] = -1e4
        weight[classes], bias[classes] = weights, biases
    scaled = weight / scaler.scale_
    with torch.no_grad():
        rows.classifier.weight.copy_(torch.from_numpy(scaled))
        rows.classifier.bias.copy_(torch.from_numpy(bias - scaled @ scaler.mean_))


def _logistic(inputs: Floats, labels: Floats) -> tuple[Longs, Doubles, Doubles]:
    """The classes that occur (K,), their weights (K, H) and biases (K,).

    The first of two classes has zeros.
    """
    from sklearn.linear_model import LogisticRegression

    classes = np.unique(labels).astype(np.int64)
    if len(classes) == 1:
        return classes, np.zeros((1, inputs.shape[1])), np.zeros(1)
    model = LogisticRegression(max_iter=1000, C=0.1)
    if len(labels) <= 20_000:
        model = tuned_model("class", labels, model, {"C": [0.001, 0.01, 0.1, 1.0]})
    fitted = model.fit(inputs, labels)
    fitted = getattr(fitted, "best_estimator_", fitted)
    weights, biases = fitted.coef_, fitted.intercept_
    if len(classes) == 2:
        weights, biases = np.vstack([0 * weights, weights]), np.append(0.0, biases)
    return classes, weights, biases

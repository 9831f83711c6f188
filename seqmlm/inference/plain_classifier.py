"""Export a fine-tuned model to a transformers class, if that class computes the same numbers.

The temperature and the scale of values become part of the last layer. Models for which the class would
compute other numbers are refused, not approximated. `seqmlm predict` reads their folders directly.
"""

from __future__ import annotations

from copy import deepcopy
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    PreTrainedModel,
)

from seqmlm.engine.backbones import HEADS
from seqmlm.engine.conditionals import Conditionals
from seqmlm.errors import UsageError
from seqmlm.inference.labeller import Labeller
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.pieces import HeadCard

PROBLEMS = MappingProxyType(
    {
        "class": "single_label_classification",
        "multilabel": "multi_label_classification",
        "value": "regression",
    }
)
POOLING = MappingProxyType({"start": "cls", "mean": "mean"})
"""The names in transformers for the ways to pool a record."""


def plain_classifier(model: LoadedModel) -> PreTrainedModel:
    """A model for `AutoModelForSequenceClassification`, or `AutoModelForTokenClassification` for parts.

    For one window, its logits are `Labeller.outputs` divided by the temperature. Values are in their own
    units.

    Raises:
        UsageError: the model has no head, or the transformers class would compute other numbers.
        StateError: the head is damaged.
    """
    labeller = Labeller.load(model, Conditionals(model.rows, device="cpu"))
    card, rows = labeller.card, labeller.rows
    encoder: Any = rows.rows.model
    if (why := _obstacle(model, card, encoder.config.model_type)) is not None:
        raise UsageError(
            f"{model.path} cannot be exported to a plain transformers folder, because it would predict other "
            f"values there: {why}. seqmlm predict can use the folder itself"
        )
    config = deepcopy(encoder.config)
    config.id2label = dict(enumerate(card.names))
    config.label2id = {name: number for number, name in enumerate(card.names)}
    kinds: Any = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    if not card.of_parts:
        kinds = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        config.problem_type, config.classifier_pooling = PROBLEMS[card.kind], POOLING[card.pool]
    plain = kinds[type(config)](config)
    plain.base_model.load_state_dict(encoder.base_model.state_dict())
    if (between := HEADS[config.model_type].neck) is not None:
        plain.get_submodule(between).load_state_dict(rows.neck().state_dict())
    last, scale = rows.classifier, torch.full((len(card.names),), 1 / card.temperature)
    center = torch.zeros(len(card.names))
    if card.kind == "value":
        scale, center = torch.tensor(card.scale), torch.tensor(card.center)
    with torch.no_grad():
        plain.classifier.weight.copy_(last.weight * scale[:, None])
        plain.classifier.bias.copy_(last.bias * scale + center)
    classifier: PreTrainedModel = plain.eval()
    return classifier


def _obstacle(model: LoadedModel, card: HeadCard, architecture: str) -> str | None:
    """Why the transformers class would compute other numbers. None if it computes the same."""
    if card.crf:
        return "its tags form a chain (a CRF), which the transformers class does not support"
    if card.pairing == "bi":
        return "it embeds the sequences of a pair separately, and the transformers class joins them"
    if model.card.channels:
        inputs = ", ".join(sorted(model.card.channels))
        return f"it reads other inputs of each token ({inputs}), unlike the transformers class"
    if card.of_parts:
        return None if card.pool == "start" else "it reads the mean over the tokens of a part, not one token"
    if HEADS[architecture].neck is None:
        return (
            f"for labels of sequences, {architecture} in transformers has an additional layer, which was not "
            "trained (ModernBERT models and tags of any architecture can be exported)"
        )
    if card.pool not in POOLING:
        return "it reads the gap of a prompt, which the transformers class does not support"
    return None

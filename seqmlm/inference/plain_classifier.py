"""A fine-tuned model as one of transformers' own classes, where that class computes the same numbers.

Temperature, and the scale of values, go into the last layer. What the class computes otherwise is refused,
not approximated: `seqmlm predict` reads the folder as it is.
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
"""What transformers calls our ways of reading a record."""


def plain_classifier(model: LoadedModel) -> PreTrainedModel:
    """Model for `AutoModelForSequenceClassification`, or for parts `AutoModelForTokenClassification`.

    Its logits of one window are `Labeller.outputs` divided by the temperature; of values, in their own units.

    Raises:
        UsageError: a model without a head, or one that transformers' class would compute otherwise.
        StateError: its head is damaged.
    """
    labeller = Labeller.load(model, Conditionals(model.rows, device="cpu"))
    card, rows = labeller.card, labeller.rows
    encoder: Any = rows.rows.model
    if (why := _obstacle(model, card, encoder.config.model_type)) is not None:
        raise UsageError(
            f"{model.path} cannot become a plain transformers folder of equal numbers: {why}. The folder "
            "itself does its work with seqmlm predict"
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
    """Why transformers' class would compute other numbers; None where it would not."""
    if card.crf:
        return "its tags are one chain (a CRF), and transformers' class has none"
    if card.pairing == "bi":
        return "it embeds both sequences of a pair apart, and transformers' class reads them as one"
    if model.card.channels:
        inputs = ", ".join(sorted(model.card.channels))
        return f"it reads further inputs of each token ({inputs}), and transformers' class has none"
    if card.of_parts:
        return None if card.pool == "start" else "it reads a part from the mean over its tokens, not from one"
    if HEADS[architecture].neck is None:
        return (
            f"for a label of a sequence transformers' {architecture} has a further layer before the classes, "
            "which was not trained (a ModernBERT can be exported, and tags of any architecture)"
        )
    if card.pool not in POOLING:
        return "it reads the gap of a prompt, and transformers' class has none"
    return None

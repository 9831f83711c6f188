"""A fine-tuned model that is exported: transformers' own class gives its numbers, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from text_models import text_model
from tiny_models import protein_model
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.heads import LabelledRows
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.labeller import Labeller
from seqmlm.inference.pieces import HeadCard, pieces, pieces_of_pair
from seqmlm.management.models import export_model

LENGTHS = (3, 7, 12, 30)
NAMES = ("no", "yes", "perhaps")


def learnt(folder: Path, architecture: str, card: HeadCard, **facts: Any) -> Path:
    """A model folder of random weights with a head of random weights."""
    tokenizer = ResidueTokenizer()
    rows = MaskedRows(encoders.encoder(architecture), tokenizer.space)
    head = LabelledRows(rows, card.config)
    torch.nn.init.normal_(head.classifier.weight)
    torch.nn.init.normal_(head.classifier.bias)
    told = replace(protein_model().card, head=card.to_dict(), **facts)
    model_folder.write(folder, rows, tokenizer, told, Labeller(head, card).saved())
    return folder


def encodings() -> list[Encoding]:
    """Of other ids than the padding of `encoders`, each token a unit of one letter."""
    rng, found = np.random.default_rng(0), []
    for length in LENGTHS:
        ids = np.concatenate([[1], rng.integers(4, 33, length - 2), [2]]).astype(np.int32)
        groups = np.concatenate([[-1], np.arange(length - 2), [-1]]).astype(np.int32)
        ends = np.maximum(groups + 1, 0)
        spans = np.column_stack([np.maximum(ends - 1, 0), ends]).astype(np.int32)
        found.append(Encoding(ids=ids, groups=groups, spans=spans))
    return found


def outputs(folder: Path, own: Sequence[Encoding]) -> tuple[Labeller, list[np.ndarray]]:
    """What seqmlm says of each, before temperature and scale; of parts there are some of two letters."""
    model = model_folder.load(folder)
    labeller = Labeller.load(model, Conditionals(model.rows))
    read, counts = [], []
    for one in own:
        starts = np.arange(0, len(one) - 2, 2)
        bounds = np.column_stack([starts, starts + 2]) if labeller.card.of_parts else None
        read.append(pieces(one, model.tokenizer.space, labeller.card, bounds)[0])
        counts.append(1 if bounds is None else len(bounds))
    return labeller, list(labeller.outputs(read, counts))


@torch.no_grad()
def logits(kind: Any, folder: Path, one: Encoding) -> np.ndarray:
    model = kind.from_pretrained(folder).eval()
    ids = torch.from_numpy(one.ids.astype(np.int64))[None]
    found: np.ndarray = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].numpy()
    return found


HEADS = {
    "class": {"temperature": 2.5},
    "multilabel": {},
    "value": {"center": (3.0, -1.0, 70.0), "scale": (2.0, 0.5, 1.5)},
}
PROBLEMS = {
    "class": "single_label_classification",
    "multilabel": "multi_label_classification",
    "value": "regression",
}


@pytest.mark.parametrize("pool", ["start", "mean"])
@pytest.mark.parametrize("kind", HEADS)
def test_labels_of_sequences_are_those_of_transformers(kind: Any, pool: Any, tmp_path: Path) -> None:
    card = HeadCard(kind=kind, label="x", names=NAMES, pool=pool, **HEADS[kind])
    folder = learnt(tmp_path / "own", "modernbert", card)
    files = export_model(str(folder), tmp_path / "out")
    labeller, own = outputs(folder, encodings())
    for one, said in zip(encodings(), own, strict=True):
        found = logits(AutoModelForSequenceClassification, tmp_path / "out", one)
        told = labeller.probabilities(said)[0]
        np.testing.assert_allclose(
            found, told if kind == "value" else said[0] / card.temperature, rtol=1e-5, atol=1e-5
        )
        if kind != "value":
            squashed = softmax(found) if kind == "class" else expit(found)
            np.testing.assert_allclose(squashed, told, atol=1e-5)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == dict(zip("012", NAMES, strict=True))
    assert config["label2id"] == {name: number for number, name in enumerate(NAMES)}
    assert config["problem_type"] == PROBLEMS[kind]
    assert "seqmlm.json" not in {path.name for path in files}
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("MKTAYIAK")["input_ids"]
    assert ids == ResidueTokenizer().encode("MKTAYIAK").ids.tolist()


@pytest.mark.parametrize("architecture", encoders.ARCHITECTURES)
@pytest.mark.parametrize("kind", ["tags", "entities"])
def test_labels_of_parts_are_those_of_transformers(kind: Any, architecture: str, tmp_path: Path) -> None:
    warm = {"temperature": 0.4} if kind == "tags" else {}
    names = NAMES if kind == "tags" else ("B-A", "I-A", "O")
    card = HeadCard(kind=kind, label="x", names=names, pool="start", **warm)
    folder = learnt(tmp_path / "own", architecture, card)
    export_model(str(folder), tmp_path / "out")
    _, own = outputs(folder, encodings())
    for one, said in zip(encodings(), own, strict=True):
        found = logits(AutoModelForTokenClassification, tmp_path / "out", one)
        np.testing.assert_allclose(found[1:-1:2], said / card.temperature, rtol=1e-5, atol=1e-5)


def test_a_pair_is_one_sequence_to_transformers_too(tmp_path: Path) -> None:
    card = HeadCard(kind="class", label="x", names=("no", "yes"), pool="mean", pair="other", length=32)
    folder = text_model(tmp_path / "text", head=card.to_dict())
    export_model(str(folder), tmp_path / "out")
    model = model_folder.load(folder)
    space, texts = model.tokenizer.space, ("the cat sees", "a dog barks")
    first, second = (model.tokenizer.encode(one) for one in texts)
    read = pieces_of_pair(first, second, space, card, types=False)
    [both] = [one.encoding for one in read]
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(*texts)["input_ids"] == both.ids.tolist()
    labeller = Labeller.load(model, Conditionals(model.rows))
    [said] = labeller.outputs([read], [1])
    found = logits(AutoModelForSequenceClassification, tmp_path / "out", both)
    np.testing.assert_allclose(found, said[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "settings", "told"),
    [
        ("modernbert", {"pool": "prompt"}, "the gap of a prompt"),
        ("modernbert", {"pair": "other", "pairing": "bi"}, "the sequences of a pair separately"),
        ("bert", {"pool": "start"}, "bert in transformers has an additional layer"),
        ("roberta", {"pool": "mean"}, "roberta in transformers has an additional layer"),
        ("modernbert", {"kind": "tags", "pool": "mean"}, "the mean over the tokens of a part"),
        ("bert", {"kind": "entities", "pool": "start", "crf": True, "names": ("B-A", "O")}, "a CRF"),
    ],
)
def test_what_transformers_computes_otherwise_is_refused(
    architecture: str, settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    card = HeadCard(**{"kind": "class", "label": "x", "names": NAMES, **settings})
    folder = learnt(tmp_path / "own", architecture, card)
    with pytest.raises(UsageError, match=told) as caught:
        export_model(str(folder), tmp_path / "out")
    assert "seqmlm predict" in str(caught.value)
    assert not (tmp_path / "out").exists()

"""Heads: the numbers of transformers' own classes, a chain by counting all its paths, what is trained."""

from __future__ import annotations

from itertools import pairwise, product

import encoders
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchcrf import CRF
from transformers import ModernBertForSequenceClassification, ModernBertForTokenClassification

from seqmlm.engine.heads import Crf, LabelledRows, best_path, freeze_all_but_last
from seqmlm.engine.labels import HeadConfig, Labels
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import PackedBatch, pack, split
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError

LENGTHS = (7, 12, 5, 30)


def labelled(
    name: str = "modernbert", kind: str = "class", outputs: int = 3, **settings: object
) -> LabelledRows:
    torch.manual_seed(1)
    rows = MaskedRows(encoders.encoder(name), encoders.SPACE)
    return LabelledRows(rows, HeadConfig(kind=kind, outputs=outputs, **settings)).eval()


def encodings() -> list[Encoding]:
    rng = np.random.default_rng(0)
    ids = [np.concatenate([[1], rng.integers(4, 40, n - 2), [2]]).astype(np.int32) for n in LENGTHS]
    return [Encoding(ids=own, groups=np.arange(len(own), dtype=np.int32)) for own in ids]


def of_records(pool: str, targets: np.ndarray) -> PackedBatch:
    documents = []
    for number, encoding in enumerate(encodings()):
        asked = np.array([0]) if pool == "start" else np.arange(len(encoding))
        first, weights = asked == asked[0], np.full(len(asked), 1 / len(asked))
        label = Labels(asked, first, weights, targets[number : number + 1])
        documents.append(label.document(encoding, number))
    return pack(documents)


def of_words(targets: np.ndarray) -> PackedBatch:
    """Labels of words of two tokens each, read at both or at the first."""
    documents, at = [], 0
    for number, encoding in enumerate(encodings()):
        words = (len(encoding) - 2) // 2
        asked = np.arange(1, 1 + 2 * words)
        first, weights = asked % 2 == 1, np.where(asked % 2 == 1, 1.0, 1e-9)
        documents.append(Labels(asked, first, weights, targets[at : at + words]).document(encoding, number))
        at += words
    return pack(documents)


def theirs(kind: type, rows: LabelledRows, **settings: object) -> torch.nn.Module:
    """transformers' own class, with the same weights."""
    config = encoders.encoder("modernbert").config
    for name, value in {"num_labels": 3, "classifier_dropout": 0.0, **settings}.items():
        setattr(config, name, value)
    model = kind(config).eval()
    model.model.load_state_dict(rows.rows.model.model.state_dict())
    model.head.load_state_dict(rows.rows.model.head.state_dict())
    model.classifier.load_state_dict(rows.classifier.state_dict())
    return model


@pytest.mark.parametrize(("pool", "named"), [("start", "cls"), ("mean", "mean")])
def test_a_class_of_a_record_is_that_of_transformers(pool: str, named: str) -> None:
    rows, targets = labelled(), np.array([[0.0], [2.0], [1.0], [1.0]])
    model = theirs(ModernBertForSequenceClassification, rows, classifier_pooling=named)
    logits = torch.cat([model(input_ids=torch.tensor(one.ids[None]).long()).logits for one in encodings()])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 2, 1, 1]), reduction="sum")
    torch.testing.assert_close(rows(of_records(pool, targets)), expected, rtol=1e-5, atol=1e-5)


def test_tags_of_words_are_those_of_transformers() -> None:
    rows = labelled(kind="tags")
    model = theirs(ModernBertForTokenClassification, rows)
    words = [(length - 2) // 2 for length in LENGTHS]
    targets = np.random.default_rng(1).integers(0, 3, (sum(words), 1)).astype(float)
    logits = [model(input_ids=torch.tensor(one.ids[None]).long()).logits[0] for one in encodings()]
    read = torch.cat([own[1 : 1 + 2 * n : 2] for own, n in zip(logits, words, strict=True)])
    each = torch.nn.functional.cross_entropy(read, torch.tensor(targets[:, 0]).long(), reduction="none")
    torch.testing.assert_close(rows(of_words(targets)), each.sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["class", "multilabel", "value"])
def test_the_loss_of_a_row_is_that_of_its_parts(kind: str) -> None:
    rows = labelled(kind=kind)
    targets = np.random.default_rng(2).integers(0, 2, (4, 1 if kind == "class" else 3)).astype(float)
    batch = of_records("mean", targets)
    assert batch.weights.sum() == pytest.approx(4)
    parts = torch.stack([rows(part) for part in split(batch, 10)])
    torch.testing.assert_close(rows(batch), parts.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["class", "value"])
def test_of_a_pair_both_are_embedded_apart(kind: str) -> None:
    """The windows of a sequence are read as one; each of four encodings is a window, the first two of one."""
    rows = labelled(kind=kind, outputs=1 if kind == "value" else 3, pairs=True)
    rng = np.random.default_rng(3)
    documents, states = [], []
    for number, encoding in enumerate(encodings()):
        asked = np.arange(len(encoding))
        first = (asked == 0) & (number in (0, 2, 3))
        share = np.full(len(asked), (0.25, 0.25, 0.5, 0.5)[number] / len(asked))
        documents.append(Labels(asked, first, share, np.array([[2.0]])).document(encoding, 0))
        states.append(rows.rows(pack(documents[-1:]), output="hidden").mean(0))
    documents, states = documents[:3], [(states[0] + states[1]) / 2, states[2]]
    u, v = (rows.neck()(one) for one in states)
    if kind == "value":
        read = (u @ v / u.norm() / v.norm())[None]
    else:
        read = torch.cat([u, v, abs(u - v), u * v])
    scores = rows.classifier(read)[None]
    wanted = torch.tensor([2])
    expected = (
        (scores[0, 0] - 2) ** 2 if kind == "value" else torch.nn.functional.cross_entropy(scores, wanted)
    )
    batch = pack(documents)
    torch.testing.assert_close(rows(batch), expected, rtol=1e-4, atol=1e-4)
    other = [
        Labels(
            np.array([0]), np.array([True]), np.array([0.5]), np.array([[float(rng.integers(2))]])
        ).document(encoding, 1)
        for encoding in encodings()[:2]
    ]
    both = pack([*documents, *other])
    parts = torch.stack([rows(part) for part in split(both, 10)])
    assert len(parts) == 2
    torch.testing.assert_close(rows(both), parts.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", encoders.ARCHITECTURES)
@pytest.mark.parametrize("crf", [False, True])
def test_all_that_is_trained_has_a_gradient(name: str, crf: bool) -> None:
    rows = labelled(name, "entities", crf=crf)
    rows(of_words(np.zeros((24, 1)))).backward()
    assert not [n for n, one in rows.named_parameters() if one.requires_grad and one.grad is None]


@pytest.mark.parametrize("name", encoders.ARCHITECTURES)
def test_the_last_layer_alone_is_trained(name: str) -> None:
    rows = labelled(name)
    freeze_all_but_last(rows.rows, 1)
    trained = {n for n, one in rows.rows.model.base_model.named_parameters() if one.requires_grad}
    assert trained
    first = () if name == "albert" else ("layers.0", "layer.0")  # whose one layer serves as all
    assert not [n for n in trained for part in ("embedding", *first) if part in n]
    with pytest.raises(UsageError, match="last:K takes 1 to"):
        freeze_all_but_last(rows.rows, 9)


def paths(scores: Tensor, crf: Crf) -> dict[tuple[int, ...], Tensor]:
    """The score of every path through a chain."""
    found = {}
    for path in product(range(scores.shape[1]), repeat=len(scores)):
        steps = sum(crf.transitions[a, b] for a, b in pairwise(path))
        own = sum(scores[place, one] for place, one in enumerate(path))
        found[path] = own + steps + crf.begin[path[0]] + crf.end[path[-1]]
    return found


def test_a_chain_counts_all_of_its_paths() -> None:
    torch.manual_seed(0)
    crf, lengths = Crf(3), (4, 1, 0, 3)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    scores = torch.randn(8, 3, requires_grad=True)
    classes = torch.randint(0, 3, (8,))
    loss = crf(scores, classes, lengths)
    expected, at = torch.zeros(()), 0
    for length in filter(None, lengths):
        own, told = scores[at : at + length], tuple(classes[at : at + length].tolist())
        every = paths(own, crf)
        expected = expected + torch.stack([*every.values()]).logsumexp(0) - every[told]
        best = best_path(*(one.detach().numpy() for one in (own, crf.transitions, crf.begin, crf.end)))
        assert tuple(best.tolist()) == max(every, key=every.__getitem__)
        at += length
    torch.testing.assert_close(loss, expected)
    inputs = [scores, *crf.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(one, inputs) for one in (loss, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("seed", range(5))
def test_packed_chains_are_the_padded_ones_of_pytorch_crf(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, lengths = int(rng.integers(2, 9)), rng.integers(1, 20, 6).tolist()
    torch.manual_seed(seed)
    ours, theirs = Crf(classes), CRF(classes)
    same = [
        (ours.begin, theirs.start_transitions),
        (ours.transitions, theirs.transitions),
        (ours.end, theirs.end_transitions),
    ]
    for own, other in same:
        torch.nn.init.normal_(own)
        other.data.copy_(own)
    packed = torch.randn(sum(lengths), classes, requires_grad=True)
    told = torch.randint(0, classes, (sum(lengths),))
    padded, tags, inside = (
        pad_sequence([*torch.split(one, lengths)]) for one in (packed, told, torch.ones_like(told).bool())
    )
    loss, expected = ours(packed, told, lengths), -theirs(padded, tags, inside, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    own_inputs, other_inputs = zip((packed, packed), *same, strict=True)
    for own, other in zip(
        torch.autograd.grad(loss, own_inputs), torch.autograd.grad(expected, other_inputs), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    steps, begin, end = (one.detach().numpy() for one in (ours.transitions, ours.begin, ours.end))
    paths = [best_path(one.detach().numpy(), steps, begin, end) for one in torch.split(packed, lengths)]
    assert [one.tolist() for one in paths] == theirs.decode(padded.detach(), inside)


def test_a_forbidden_step_is_in_no_path() -> None:
    forbidden = np.array([[0.0, -np.inf], [0.0, 0.0]])
    path = best_path(np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 3.0]]), forbidden, np.zeros(2), np.zeros(2))
    assert path.tolist() == [1, 1, 1]


def test_heads_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="one output"):
        HeadConfig(kind="class", outputs=0)
    with pytest.raises(UsageError, match="CRF joins the tags of entities"):
        HeadConfig(kind="tags", outputs=2, crf=True)

"""What the domain of patients decides: siblings, order, what is shown, and that a visit is a set."""

from __future__ import annotations

from dataclasses import replace

import histories as patients
import numpy as np
import pytest
import torch

from seqmlm import plugins
from seqmlm.data.record import Record
from seqmlm.domains.ehr import EHR
from seqmlm.domains.ehr.history import Event, History
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.engine.backbones import build
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack
from seqmlm.engine.shapes import ModelConfig
from seqmlm.errors import UsageError
from seqmlm.inference.maskers import make_masker
from seqmlm.training.config import resolve_config


@pytest.fixture(scope="module")
def tokenizer() -> EventsTokenizer:
    return EventsTokenizer.train(patients.histories(100))


def record(history: History) -> Record:
    return Record(id=history.subject, raw=history, source="s", line=1, document=history.subject)


def test_it_comes_through_the_door() -> None:
    assert plugins.domain("ehr") is EHR
    config = resolve_config(EHR)
    assert config.data.sensitive
    assert config.model.layers == "everywhere.v1"
    with pytest.raises(UsageError, match="concern people"):
        resolve_config(EHR, {"data": {"sensitive": False}})


def test_subjects_are_divided_and_ordered_by_their_first_event() -> None:
    events = (
        Event(time=None, code="SEX//F"),
        Event(time=5.0, code="MEDS_BIRTH"),
        Event(time=90.0, code="A//b"),
    )
    known = record(History(subject="p1", birth=5.0, events=events))
    assert EHR.keys.split(known) == "p1"
    assert EHR.keys.order(known) == 90.0
    assert EHR.keys.order(record(History(subject="p", birth=None, events=events[:2]))) is None


def test_a_record_is_shown_as_its_tokens(tokenizer: EventsTokenizer) -> None:
    history = patients.history(1)
    encoding = tokenizer.encode(history)
    asked = np.flatnonzero(encoding.groups >= 0)[[0, 3]].astype(np.int32)
    lines = EHR.text.show(tokenizer, history, encoding, asked, encoding.ids[asked[::-1]]).splitlines()
    shown = {line.split()[0]: line.split()[1:] for line in lines}
    assert shown["true"] == [tokenizer.spelling.surface(int(i)) for i in encoding.ids[1:-1]]
    assert [place for place, word in enumerate(shown["masked"], 1) if word == "[MASK]"] == asked.tolist()
    swapped = [shown["predicted"][place - 1] for place in asked]
    assert swapped == [shown["true"][place - 1] for place in asked[::-1]]


def test_the_order_within_a_visit_means_nothing_to_the_model(tokenizer: EventsTokenizer) -> None:
    torch.manual_seed(0)
    small = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = ModelConfig(size="tiny", max_length=256, layers="everywhere.v1", overrides=small)
    rows = MaskedRows(build(config, tokenizer.space), tokenizer.space).eval()
    for parameter in rows.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    encoding = tokenizer.encode(patients.history(4))
    asked = np.flatnonzero(encoding.groups < 0)

    def answer(other) -> torch.Tensor:
        document = Document(ids=other.ids, asked=asked, positions=other.positions)
        with torch.no_grad():
            return rows(pack([document]), output="hidden")

    shuffled = tokenizer.units.facts.augment(encoding, np.random.default_rng(3))
    assert shuffled.ids.tolist() != encoding.ids.tolist()
    assert (answer(shuffled) - answer(encoding)).abs().max() < 1e-5
    moved = replace(encoding, ids=encoding.ids.copy())
    places = np.flatnonzero(encoding.groups >= 0)
    two = places[[0, int((encoding.ids[places] != encoding.ids[places[0]]).nonzero()[0][-1])]]
    assert encoding.positions[two[0]] != encoding.positions[two[1]]
    moved.ids[two] = encoding.ids[two[::-1]]
    assert (answer(moved) - answer(encoding)).abs().max() > 1e-3


def test_the_masker_knows_the_vocabularies(tokenizer: EventsTokenizer) -> None:
    masker = make_masker(EHR.defaults.masking, tokenizer)
    encoding = tokenizer.encode(patients.history(2))
    places = np.flatnonzero(encoding.groups >= 0)
    for seed in range(20):
        drawn = masker.replace(encoding, places, np.random.default_rng(seed))
        for old, new in zip(encoding.ids[places], drawn, strict=True):
            before, after = tokenizer.tokens[old], tokenizer.tokens[new]
            assert before.split("//")[0] == after.split("//")[0]

"""A vocabulary is learnt from the records that train, and from no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.field import Field, Keys
from seqmlm.domains.text import TEXT
from seqmlm.tokenizers.subword import BpeTokenizer
from seqmlm.training.config import resolve_config
from seqmlm.training.corpus import CorpusReader
from seqmlm.workspace import Workspace


def _number(record: Record) -> int:
    return int(record.raw.split()[0])


# Texts with a time in front; and whose data say which of them validate.
DATED = replace(TEXT, keys=Keys(order=_number))
MARKED = replace(
    TEXT, keys=Keys(data_split=lambda record: {0: "validation", 1: "test"}.get(_number(record) % 10))
)


def reader(tmp_path: Path, domain: Field, **data: Any) -> CorpusReader:
    lines = [f"{number} word{number % 7} of text" for number in range(200)]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines + lines[:50]) + "\n")
    config = resolve_config(plugins.domain("text"), {"data": {"paths": [str(path)], **data}})
    home = Workspace(root=tmp_path, tracking_uri="sqlite://", database_url="sqlite://")
    return CorpusReader(config, domain, home)


@pytest.mark.parametrize(
    ("domain", "data"),
    [
        (TEXT, {}),
        (TEXT, {"deduplicate": True, "validation": 0.3}),
        (TEXT, {"validation": 0.0001}),
        (DATED, {"split": "chronological", "validation": 0.2}),
        (DATED, {"split": "chronological", "validation": 0.2, "deduplicate": True}),
        (
            DATED,
            {"split": "chronological", "validation": 0.2, "calibration": 0.1, "calibrate_on": "spread"},
        ),
        (MARKED, {}),
    ],
)
def test_texts_are_those_of_the_training_split(tmp_path: Path, domain: Field, data: dict) -> None:
    corpus = reader(tmp_path, domain, **data)
    texts = list(corpus.texts())
    tokenizer = BpeTokenizer.train(texts)
    prepared = corpus.prepared("data", tokenizer, lambda records, tokens: None)
    lines = (tmp_path / "lines.txt").read_text().splitlines()
    for part, found in (("train", sorted(texts)), ("validation", None)):
        split = getattr(prepared, part)
        own = sorted(lines[split.origin(n).line - 1] for n in range(len(split)))
        assert own
        assert found is None or own == found
        assert found is not None or not set(own) & set(texts)


@pytest.mark.parametrize("on", ["latest", "spread"])
def test_what_calibrates_is_the_latest_or_spread(tmp_path: Path, on: str) -> None:
    corpus = reader(tmp_path, DATED, split="chronological", validation=0.2, calibration=0.1, calibrate_on=on)
    tokenizer = BpeTokenizer.train(list(corpus.texts()))
    prepared = corpus.prepared("data", tokenizer, lambda records, tokens: None)
    places = prepared.places("calibration", 1000)
    times = [corpus.domain.keys.order(one) for _, one in corpus.reread("data", places)]
    held = [prepared.validation.origin(n).line for n in range(len(prepared.validation))]
    assert len(times) >= 20
    assert held
    everything = sorted(corpus.domain.keys.order(one) for one in corpus.records("data", Problems()))
    latest = everything[-len(times) :]
    assert (sorted(times) == latest) == (on == "latest")
    if on == "spread":
        assert min(times) < everything[25] < everything[150] < max(times)


def test_another_split_gets_another_tokenizer(tmp_path: Path) -> None:
    first = reader(tmp_path, TEXT)
    other = reader(tmp_path, TEXT)
    other.config = replace(other.config, seed=5)
    for one in (first, first, other):
        one.corpus(lambda text: None)
    assert len(list((tmp_path / "runs/.cache/tokenizers").glob("*/tokenizer.json"))) == 2

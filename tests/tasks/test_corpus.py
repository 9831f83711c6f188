"""Corpora: what is read of them, and what is left out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.domains.field import Keys
from seqmlm.domains.text import TEXT
from seqmlm.errors import UsageError
from seqmlm.training.config import PretrainConfig, resolve_config
from seqmlm.training.corpus import CorpusReader, draw_sample
from seqmlm.workspace import Workspace


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_sample_is_not_written_through_what_is_no_file(tmp_path: Path, kind: str) -> None:
    (tmp_path / "precious").write_text("x")
    folder = tmp_path / "out"
    folder.mkdir()
    truth = folder / "truth.json"
    truth.symlink_to(tmp_path / "precious") if kind == "link" else os.mkfifo(truth)
    with pytest.raises(UsageError, match=rf"truth\.json is a .*{kind}, and only regular files"):
        draw_sample("protein", folder, n=3)
    (tmp_path / "linked").symlink_to(folder)
    with pytest.raises(UsageError, match="linked is a symbolic link"):
        draw_sample("protein", tmp_path / "linked", n=3)
    assert [path.name for path in folder.iterdir()] == ["truth.json"]
    assert (tmp_path / "precious").read_text() == "x"


# Texts whose first word names their split.
DATED = replace(TEXT, keys=Keys(data_split=lambda record: str(record.raw).split()[0]))


def _config(path: Path, **data: Any) -> PretrainConfig:
    asked = {"data": {"paths": [str(path)], **data}, "tokenizer": {"vocabulary_size": 300}}
    return resolve_config(TEXT, asked)


def test_the_split_the_data_names_is_kept_and_its_test_records_are_left_out(workspace: Path) -> None:
    file = workspace / "texts.txt"
    labels = ["train", "validation", "test", "train"]
    file.write_text("".join(f"{labels[i % 4]} sentence number {i}\n" for i in range(40)))
    corpus = CorpusReader(_config(file), DATED, Workspace.locate()).corpus(lambda text: None)
    facts = corpus.statistics["data"]
    assert facts["train"]["records"] == 20
    held_out = facts["validation"]["records"], facts["calibration"]["records"]
    assert min(held_out) > 1, "half of the validation records calibrate"
    assert sum(held_out) == 10
    assert not any("train" in record.raw or "test" in record.raw for record in corpus.calibrating(99))
    lines = file.read_text().splitlines()
    assert [line in corpus.trained_on for line in lines] == [line.startswith("train") for line in lines]
    assert facts["problems"] == {"a record of the test split, left out": 10}


def test_data_that_were_prepared_under_other_names_have_the_same_calibration_records(workspace: Path) -> None:
    folder = workspace / "first"
    folder.mkdir()
    for number in range(3):
        lines = (f"sentence number {number} {i}\n" for i in range(100))
        (folder / f"{number}.txt").write_text("".join(lines))

    def calibrating() -> list[str]:
        corpus = CorpusReader(_config(folder), TEXT, Workspace.locate()).corpus(str)
        return [record.raw for record in corpus.calibrating(20)]

    before = calibrating()
    (folder / "1.txt").rename(folder / "1b.txt")
    assert calibrating()  # what is left of those that were found before
    folder = folder.rename(workspace / "second")
    (folder / "1b.txt").rename(folder / "1.txt")
    assert calibrating() == before
    for number in range(3):
        (folder / f"{number}.txt").rename(folder / f"old-{number}.txt")
    assert calibrating() == before


def test_what_is_sensitive_by_nature_stays_so() -> None:
    people = replace(TEXT, sensitive=True)
    assert resolve_config(people).data.sensitive
    with pytest.raises(UsageError, match="concern people"):
        resolve_config(people, {"data": {"sensitive": False}})
    plain = resolve_config(TEXT)
    assert not plain.data.sensitive
    assert replace(plain.data, sensitive=True) == resolve_config(TEXT, {"data": {"sensitive": True}}).data


def test_the_console_tells_no_small_count_of_sensitive_data(workspace: Path) -> None:
    file = workspace / "texts.txt"
    labels = ["train"] * 20 + ["validation"] * 3 + ["test"] * 4
    file.write_text("".join(f"{label} sentence number {n}\n" for n, label in enumerate(labels)))
    said: list[str] = []
    for sensitive in (True, False):
        options = {"min_records": 1}
        config = _config(file, sensitive=sensitive)
        config = replace(config, tokenizer=replace(config.tokenizer, options=options))
        CorpusReader(config, DATED, Workspace.locate()).corpus(said.append)
    found = [line for line in said if line.startswith("data: ")]
    assert found == [
        "data: 92 words in 20 training and <11 validation records",
        "data: <11 records held out for calibration",
        "data: a record of the test split, left out: <11",
        "data: 92 words in 20 training and 1 validation records",
        "data: 2 records held out for calibration",
        "data: a record of the test split, left out: 4",
    ]


def test_the_vocabulary_of_sensitive_data_holds_nothing_of_few_records(workspace: Path) -> None:
    file = workspace / "notes.txt"
    few = [f"zanzibar zanzibar zanzibar {word}\n" for word in ("one", "two", "three")]
    file.write_text("".join(few + [f"the usual notes of many people, {n}\n" for n in range(30)]))
    config = _config(file, sensitive=True, deduplicate=False)
    corpus = CorpusReader(config, TEXT, Workspace.locate()).corpus(lambda text: None)
    assert any("usual" in token for token in corpus.tokenizer.tokens)
    assert not any("zan" in token for token in corpus.tokenizer.tokens)
    open_one = CorpusReader(_config(file), TEXT, Workspace.locate()).corpus(lambda text: None)
    assert any("zan" in token for token in open_one.tokenizer.tokens)


@pytest.mark.parametrize(
    ("domain", "tokenizer"), [("logs", "wordpiece"), ("text", "events"), ("logs", "residue")]
)
def test_a_tokenizer_of_another_field_is_refused(workspace: Path, domain: str, tokenizer: str) -> None:
    file = workspace / "lines.txt"
    file.write_text("".join(f"number {n} of many\n" for n in range(900)))
    found = plugins.domain(domain)
    config = resolve_config(found, {"data": {"paths": [str(file)]}, "tokenizer": {"name": tokenizer}})
    with pytest.raises(UsageError, match=f"{tokenizer}.v1 cannot read records of the {domain} domain"):
        CorpusReader(config, found, Workspace.locate()).corpus(lambda text: None)


@pytest.mark.parametrize("name", plugins.names("domains"))
def test_the_tokenizer_of_a_domain_reads_its_records(workspace: Path, name: str) -> None:
    found = plugins.domain(name)
    files = found.sample.draw(workspace / "sample", n=60).files
    kind = plugins.tokenizer_class(found.defaults.tokenizer)
    assert kind.traits.reads(next(found.read(files, Problems())).raw)

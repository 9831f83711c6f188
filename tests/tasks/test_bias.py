"""Bias: associations against transformers, pairs of Winogender, and requests without sense."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import checkpoint, log_probs
from fork_server import Run
from text_models import text_model

WORDS = ("--group", "cat,dog", "--attribute", "cats,terribly")
TEMPLATE = ("--template", "{group} sees the {attribute}.", *WORDS)


def test_associations_are_those_of_transformers(tmp_path: Path, seqmlm: Run):
    model, fast = checkpoint("bert", tmp_path / "bert")
    done = seqmlm("bias", tmp_path / "bert", "--set", "domain=text", *TEMPLATE, "--json").ok()
    mask = fast.mask_token_id

    def group(word: str, attribute: str, hidden: bool) -> float:
        """Log-probability of a group's word of one token, its attribute hidden or seen."""
        ids = fast(f"{word} sees the {attribute}.")["input_ids"]
        first, last = len(fast("cat sees the")["input_ids"]) - 1, len(ids) - 2
        asked = [mask if at == 1 or (hidden and first <= at < last) else one for at, one in enumerate(ids)]
        return float(log_probs(model, asked)[1, ids[1]])

    expected = {
        attribute: sum(
            sign * (group(word, attribute, False) - group(word, attribute, True))
            for word, sign in (("cat", 1), ("dog", -1))
        )
        for attribute in ("cats", "terribly")
    }
    found = {one["attribute"]: one["gap"] for one in done.json["associations"]}
    assert found == pytest.approx(expected, abs=1e-5)
    mean = done.json["means"]["cat - dog"]
    assert mean["gap"] == pytest.approx(np.mean(list(expected.values())), abs=1e-5)
    assert mean["low"] <= mean["gap"] <= mean["high"]
    out, pairs = tmp_path / "rows.jsonl", tmp_path / "pairs.csv"
    pairs.write_text("good,bad\ncats see,dogs see\n")
    one_by_one = [*TEMPLATE[:2], "--group", "cat", "--group", "dog", *TEMPLATE[4:]]
    both = seqmlm(
        "bias", tmp_path / "bert", pairs, "--set", "domain=text", *one_by_one, "--json", "--out", out
    ).ok()
    assert both.json["associations"] == done.json["associations"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows[:2]] == ["pairs.csv:2", "cat sees the cats."]
    gains = {(row["word"], row["attribute"]): row["gain"] for row in rows[1:]}
    assert {key: gains["cat", key] - gains["dog", key] for key in expected} == pytest.approx(found)


def test_sentences_of_winogender_are_paired_by_their_names(tmp_path: Path, seqmlm: Run):
    table = tmp_path / "sentences.tsv"
    rows = [
        ("a.b.0.male.txt", "the cat sees"),
        ("a.b.0.neutral.txt", "they see"),
        ("a.b.1.male.txt", "a dog"),
    ]
    rows += [("a.b.1.female.txt", "no dog"), ("a.b.0.female.txt", "the dog sees")]
    table.write_text("sentid\tsentence\n" + "".join(f"{name}\t{text}\n" for name, text in rows))
    model, own = text_model(tmp_path), tmp_path / "own.csv"
    own.write_text("good,bad,group\na dog,no dog,a\nthe cat sees,the dog sees,a\n")
    report = tmp_path / "bias.html"
    done = seqmlm("bias", model, table, "--json", "--report", report).ok()
    expected = seqmlm("pairs", model, own, "--metric", "shared", "--json").json
    for name in ("pairs", "accuracy", "ties", "margin"):
        assert done.json["pairs"][name] == pytest.approx(expected[name], abs=1e-5)
    assert "50 % is ideal" in report.read_text()
    table.write_text("sentid\tsentence\na.b.0.male.txt\tthe cat\n")
    seqmlm("bias", model, table).refused(3, "sentences.tsv:2: 'a.b.0' has no counterpart")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to compare"),
        (TEMPLATE[:4], "associations need"),
        (("--template", "{group} sees", *TEMPLATE[2:]), "must contain {group} and {attribute}"),
        ((*TEMPLATE[:2], "--group", "cat", *TEMPLATE[4:]), "at least two different words"),
        (
            (*TEMPLATE[:5], "猫"),
            "error: a word does not fit into the template '{group} sees the {attribute}.'",
        ),
    ],
)
def test_requests_without_sense(tmp_path: Path, seqmlm: Run, arguments: tuple[str, ...], said: str):
    seqmlm("bias", text_model(tmp_path, wordpiece=True), *arguments).refused(2, said)

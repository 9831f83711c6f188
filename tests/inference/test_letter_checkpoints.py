"""Checkpoints with a token for each letter: answers are those of transformers, with the same ids."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import checkpoint, log_probs
from fork_server import ForkServer, Run
from letter_checkpoints import BASES, BERT, LAYOUTS, Layout, letter_checkpoint
from transformers import AutoTokenizer

from seqmlm.domains.dna.bases import BaseLetters
from seqmlm.domains.protein.tokenizer import STANDARD, ResidueLetters, ResidueTokenizer
from seqmlm.errors import UsageError
from seqmlm.inference.model_folder import load_tokenizer
from seqmlm.tasks.task import open_model
from seqmlm.watch.config import WatchConfig

PROTEINS = ("MKTAYIAKQRNWDCGSPLEFVH", "GSHMAEEPLLWNDCQV", "MTEYKLVVVGAGGVGKSALT")


def _ids(vocabulary: dict[str, int], layout: Layout, sequence: str) -> list[int]:
    letters = [vocabulary.get(letter, vocabulary.get(letter.lower(), -1)) for letter in sequence]
    return [vocabulary[layout.special("CLS")], *letters, vocabulary[layout.special("SEP")]]


def _marginals(model: Any, ids: list[int], mask: int) -> np.ndarray[Any, Any]:
    """(L, V) log p of each place hidden alone, by a plain loop of transformers."""
    rows = []
    for place in range(1, len(ids) - 1):
        hidden = [*ids[:place], mask, *ids[place + 1 :]]
        rows.append(log_probs(model, hidden)[place])
    return np.array(rows)


@pytest.mark.parametrize("name", LAYOUTS)
def test_score_and_variants_are_those_of_a_plain_loop(name: str, tmp_path: Path, seqmlm: Run) -> None:
    layout = LAYOUTS[name]
    model, vocabulary = letter_checkpoint(layout, tmp_path / "checkpoint")
    wildtype = PROTEINS[0]
    ids = _ids(vocabulary, layout, wildtype)
    table = _marginals(model, ids, vocabulary[layout.special("MASK")])
    (tmp_path / "p.fasta").write_text(f">wt\n{wildtype}\n")
    options = ("--set", "domain=protein")
    scored = seqmlm(
        "score",
        tmp_path / "checkpoint",
        tmp_path / "p.fasta",
        *options,
        "--mode",
        "exact",
        "--set",
        "per_unit=true",
    ).ok()
    units = [unit["surprisal"] for unit in json.loads(scored.out.splitlines()[0])["per_unit"]]
    expected = [-table[place, token] / np.log(2) for place, token in enumerate(ids[1:-1])]
    assert units == pytest.approx(expected, abs=1e-4)
    changes = [f"{wildtype[at]}{at + 1}{new}" for at in (0, 7, 21) for new in STANDARD if new != wildtype[at]]
    (tmp_path / "v.csv").write_text("\n".join(["mutant", *changes]) + "\n")
    out = tmp_path / "v.out.csv"
    seqmlm(
        "variants", tmp_path / "checkpoint", tmp_path / "v.csv", "--wildtype", tmp_path / "p.fasta",
        "--set", "domain=protein", "--out", out,
    ).ok()  # fmt: skip
    with out.open() as file:
        effects = {row["id"]: float(row["effect"]) for row in csv.DictReader(file)}
    for change in changes:
        place, new = int(change[1:-1]) - 1, _ids(vocabulary, layout, change[-1])[1]
        assert effects[change] == pytest.approx(table[place, new] - table[place, ids[place + 1]], abs=1e-4)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_letter_tokenizer_has_the_ids_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    _, vocabulary = letter_checkpoint(layout, tmp_path / "checkpoint")
    tokenizer = load_tokenizer(tmp_path / "checkpoint", "protein")
    assert isinstance(tokenizer, ResidueLetters)
    for sequence in PROTEINS:
        encoding = tokenizer.encode(sequence)
        assert encoding.ids.tolist() == _ids(vocabulary, layout, sequence)
        assert encoding.groups.tolist() == [-1, *range(len(sequence)), -1]
    rare = tokenizer.encode("AXBUZOJA")
    assert len(set(rare.groups.tolist())) == (9 if "X" in " ".join(layout.vocabulary).upper().split() else 3)
    names = set(layout.vocabulary)
    stand_in = vocabulary.get("X", vocabulary.get("x", vocabulary[layout.special("UNK")]))
    own = names >= {"<mask>", "U"}
    expected = [vocabulary[letter] if own and letter != "J" else stand_in for letter in "XBUZOJ"]
    assert rare.ids.tolist()[2:-2] == expected
    asked = [place for query in tokenizer.units.questions(rare) for place in query.asked.tolist()]
    assert asked == [1, 8]  # the two residues A alone
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    auto = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for sequence in (*PROTEINS, "AXBUZOJA"):
        assert again.encode(sequence).ids.tolist() == tokenizer.encode(sequence).ids.tolist()
        assert auto(sequence)["input_ids"] == tokenizer.encode(sequence).ids.tolist()


def test_a_checkpoint_of_bases(tmp_path: Path, seqmlm: Run) -> None:
    layout = Layout(vocabulary=BASES)
    model, vocabulary = letter_checkpoint(layout, tmp_path / "checkpoint")
    tokenizer = load_tokenizer(tmp_path / "checkpoint", "dna")
    assert isinstance(tokenizer, BaseLetters)
    sequence = "ACGTTGCAACGGTTACGATC"
    ids = _ids(vocabulary, layout, sequence)
    mixed = tokenizer.encode(sequence[:5].lower() + sequence[5:] + "Nn")
    assert mixed.ids.tolist() == [*ids[:-1], *[vocabulary["N"]] * 2, ids[-1]]
    assert mixed.groups.tolist()[-4:] == [19, -1, -1, -1]
    (tmp_path / "g.fasta").write_text(f">a\n{sequence}\n")
    rows = seqmlm(
        *("score", tmp_path / "checkpoint", tmp_path / "g.fasta", "--set", "domain=dna"),
        *("--mode", "exact", "--level", "record", "--set", "per_unit=true"),
    ).ok().rows  # fmt: skip
    table = _marginals(model, ids, vocabulary["[MASK]"])
    expected = [-table[place, token] / np.log(2) for place, token in enumerate(ids[1:-1])]
    assert [unit["surprisal"] for unit in rows[0]["per_unit"]] == pytest.approx(expected, abs=1e-4)


def test_embed_finetune_and_train_take_such_a_checkpoint(tmp_path: Path, seqmlm: Run) -> None:
    model, vocabulary = letter_checkpoint(LAYOUTS["ProtBert"], tmp_path / "checkpoint")
    (tmp_path / "p.fasta").write_text("".join(f">{n}\n{text}\n" for n, text in enumerate(PROTEINS)))
    rows = seqmlm("embed", tmp_path / "checkpoint", tmp_path / "p.fasta", "--set", "domain=protein").ok().rows
    with torch.no_grad():
        ids = _ids(vocabulary, LAYOUTS["ProtBert"], PROTEINS[1])
        hidden = model.bert(torch.tensor([ids])).last_hidden_state[0, 1:-1].mean(0).numpy()
    assert rows[1]["vector"] == pytest.approx(hidden.tolist(), abs=1e-4)
    assert len({tuple(row["vector"]) for row in rows}) == 3
    rng = np.random.default_rng(0)
    lines = ["sequence,label"]
    for number in range(60):
        text = "".join(rng.choice(list(STANDARD), 12)) + ("WWW", "GGG")[number % 2]
        lines.append(f"{text},{('a', 'b')[number % 2]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    seqmlm(
        "finetune", tmp_path / "checkpoint", "--train", tmp_path / "labels.csv", "--label", "label",
        "--name", "taught",
        "--set", "domain=protein", "--set", "epochs=1",
    ).ok()  # fmt: skip
    seqmlm(
        "train", tmp_path / "labels.csv", "--domain", "protein", "--init", tmp_path / "checkpoint",
        "--name", "more", "--set", "train.max_steps=2", "--set", "data.calibration=0",
    ).ok()  # fmt: skip
    again = seqmlm("score", "more", tmp_path / "p.fasta").ok().rows
    assert all(row["score"] is not None for row in again)


TEXT, CODE = "the cat sees the dog and barks", "def second(first):\n    return first\n"
WORDS, LACKING = (
    Layout(vocabulary=(*BERT, "alpha", "beta")),
    Layout(vocabulary=(*BERT, *"ACDFGHIKLMNPQRSTVWY")),
)
UNREADABLE = {
    "two words, for proteins": (WORDS, "protein", PROTEINS[0]),
    "two words, for text": (WORDS, "text", TEXT),
    "two words, for dna": (WORDS, "dna", "ACGTTGCAACGGTTACGATC"),
    "letters, for text": (LAYOUTS["ProtBert"], "text", TEXT),
    "letters, for code": (LAYOUTS["ProtBert"], "code", CODE),
    "residues without E, for proteins": (LACKING, "protein", PROTEINS[0]),
}


def _data(folder: Path, domain: str, text: str) -> Path:
    ending = {"protein": "fasta", "dna": "fasta", "text": "txt", "code": "py"}[domain]
    data = folder / f"data.{ending}"
    data.write_text(f">a\n{text}\n" if ending == "fasta" else f"{text}\n")
    return data


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("command", ["score", "embed"])
def test_a_checkpoint_that_reads_nothing_is_refused(
    case: str, command: str, tmp_path: Path, seqmlm: Run
) -> None:
    """At once where there are many letters; else at the end of the input."""
    layout, domain, text = UNREADABLE[case]
    letter_checkpoint(layout, tmp_path / "checkpoint")
    asked = ("--set", f"domain={domain}")
    many = text * 40 if domain in ("protein", "dna") else f"{text}\n" * 40
    tried = seqmlm(command, tmp_path / "checkpoint", _data(tmp_path, domain, many), *asked)
    tried.refused(2, "made for another kind of data")
    assert not tried.out
    tried = seqmlm(command, tmp_path / "checkpoint", _data(tmp_path, domain, text), *asked)
    assert tried.code == (4 if (command, domain) == ("score", "code") else 3)  # it needs a calibration
    told = ("made for another kind of data", "all rows are unfamiliar", "needs statistics of normal code")
    assert any(words in tried.err for words in told)


READABLE = "\n".join(["A C D E F G H I K L"] * 90) + "\n"


def test_data_that_begin_with_unreadable_records_are_scored(
    tmp_path: Path, seqmlm: Run, forks: ForkServer
) -> None:
    """A few records, and with --max-latency any number of them, are no reason to end."""
    letter_checkpoint(LAYOUTS["ProtBert"], tmp_path / "checkpoint")
    command = ("score", tmp_path / "checkpoint")
    data = _data(tmp_path, "text", f"{TEXT}\n{READABLE}")
    tried = seqmlm(*command, data, "--set", "domain=text").ok()
    assert len(tried.rows) == 91
    live = forks.run(
        *(*command, "-", "--set", "domain=text", "--max-latency", "0.2s"),
        stdin=f"{TEXT}\n" * 40 + READABLE,
        environment={"SEQMLM_HOME": str(tmp_path)},
    ).ok()
    assert len(live.rows) == 130


@pytest.mark.parametrize("refuses", [True, False])
def test_many_unreadable_letters_end_what_does_not_follow(refuses: bool, tmp_path: Path) -> None:
    letter_checkpoint(LAYOUTS["ProtBert"], tmp_path / "checkpoint")
    tokenizer = load_tokenizer(tmp_path / "checkpoint", "text")
    tokenizer.refuses = refuses
    tokenizer.encode_batch([TEXT] * 10)
    if refuses:
        with pytest.raises(UsageError, match="made for another kind of data"):
            tokenizer.encode_batch([TEXT] * 30)
    else:
        assert len(tokenizer.encode_batch([TEXT] * 30)) == 30


@pytest.mark.parametrize(("latency", "refuses"), [(None, True), (1.0, False)])
def test_a_model_is_opened_as_the_input_is_read(latency: float | None, refuses: bool, tmp_path: Path) -> None:
    """A watching has a latency always, and a scoring of standard input with --max-latency."""
    letter_checkpoint(LAYOUTS["ProtBert"], tmp_path / "checkpoint")
    asked = {"tokens_per_batch": None, "precision": "fp32", "out": None, "outputs": {}, "latency": latency}
    config = SimpleNamespace(model=str(tmp_path / "checkpoint"), domain="text", **asked)
    assert open_model(config).tokenizer.refuses is refuses
    assert WatchConfig(model="m", paths=("a.log",)).latency


def test_vocabularies_of_words_and_of_esm_stay_what_they_were(tmp_path: Path) -> None:
    for kind in ("bert", "roberta"):
        checkpoint(kind, tmp_path / kind)
        assert load_tokenizer(tmp_path / kind, "protein").name == "huggingface.v1"
    checkpoint("esm", tmp_path / "esm")
    assert isinstance(load_tokenizer(tmp_path / "esm", "protein"), ResidueTokenizer)
    kmers = (*BERT, *(a + b for a in "ACGT" for b in "ACGT"), *"ACGTN")
    letter_checkpoint(Layout(vocabulary=kmers), tmp_path / "kmers")
    assert load_tokenizer(tmp_path / "kmers", "dna").name == "huggingface.v1"

"""The DNA domain: splits by place, what people see, trainings with every tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import TINY
from written import written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_fasta
from seqmlm.data.record import Record
from seqmlm.domains.dna import DNA, REGION
from seqmlm.domains.dna.tokenizer import reverse_complement

TRAIN = (
    *(*TINY, "--max-steps", 2, "--set", "model.max_length=64"),
    *("--set", "train.evaluation_records=5"),
)


def genome(path: Path, contigs: int = 2, bases: int = 70_000) -> Path:
    source = random.Random(0)
    text = "".join(f">c{i}\n{''.join(source.choices('ACGTa', k=bases))}\n" for i in range(contigs))
    path.write_text(text)
    return path


def test_neighbours_stay_together_and_contigs_are_in_order(tmp_path: Path):
    records = list(DNA.read([genome(tmp_path / "g.fa")], Problems()))
    assert sum(len(r.raw) for r in records) == 140_000
    keys = [DNA.keys.split(r) for r in records]
    assert keys == [f"{r.document}:{r.meta['start'] // REGION}" for r in records]
    assert len(set(keys)) == 2 * 3
    order = [DNA.keys.order(r) for r in records]
    assert order == sorted(order)
    assert len(set(order)) == len(order)
    [short] = DNA.read([genome(tmp_path / "s.fa", 1, 100)], Problems())
    letters = short.raw.upper()
    assert DNA.keys.split(short) in (letters, reverse_complement(letters))
    assert DNA.keys.order(short) is None


@given(st.text("ACGTNacgtn", min_size=1, max_size=30))
def test_both_strands_of_a_read_go_to_one_side(letters: str):
    keys = {
        DNA.keys.split(Record(id="r", raw=raw, source="r.fq", line=1))
        for raw in (letters, letters.lower(), reverse_complement(letters))
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("tokenizer", "masker"),
    [("base", "uniform"), ("kmer", "kmer_span"), ("kmer_block", "uniform"), ("dna_bpe", "uniform")],
)
def test_train_and_score(seqmlm, tmp_path: Path, tokenizer: str, masker: str):
    data = genome(tmp_path / "g.fa", bases=500, contigs=12)
    options = ("--set", "tokenizer.options.k=4") if tokenizer == "kmer" else ()
    named = ("--name", "m", "--set", f"tokenizer.name={tokenizer}", "--set", f"masking.masker={masker}")
    trained = seqmlm("train", "--domain", "dna", data, *TRAIN, *named, *options).ok()
    assert "bits per base" in trained.err
    assert "6,000 bases" in trained.err.replace("5,964", "6,000")  # 36 fewer 4-mers than bases
    shown = (tmp_path / "runs" / "m" / "predictions.txt").read_text().splitlines()
    assert [line.split()[0] for line in shown[:3]] == ["masked", "predicted", "true"]
    if tokenizer in ("base", "kmer"):  # a token of several bases is shown as one gap
        assert len({len(line) for line in shown[:3]}) == 1
    few = written(tmp_path / "few.fa", ">x\nACGTNNACGTTGCANACCAGGATTACATTTACAGGATACCAGG\n>y\nACGTACGGGT\n")
    scored = seqmlm("score", "m", few, "--set", "per_unit=true").ok()
    for line, record in zip(
        map(json.loads, scored.out.splitlines()), read_fasta(few, Problems()), strict=True
    ):
        bases = [i for i, base in enumerate(record.raw) if base != "N"]
        assert [u["start"] for u in line["per_unit"]] == bases
        assert all(u["unit"] == record.raw[u["start"] : u["end"]] for u in line["per_unit"])
        assert line["units"] == len(bases)
        total = sum(u["surprisal"] for u in line["per_unit"])
        assert line["bits_per_unit"] == pytest.approx(total / len(bases), rel=1e-4)

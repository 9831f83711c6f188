"""What truth.json says of the DNA sample is in its sequences."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.dna import DNA, rna
from seqmlm.domains.dna.sample import entropy, motif_matrix
from seqmlm.domains.dna.tokenizer import reverse_complement

PARTNER = {"A": "T", "C": "G", "G": "C", "T": "A"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory):
    made = DNA.sample.draw(tmp_path_factory.mktemp("dna"), seed=1)
    truth = json.loads(made.truth.read_text())
    raws = {r.id: r.raw for r in DNA.read(made.files, Problems())}
    assert len(raws) == len(truth["contigs"]) == 1500
    return truth, raws


def test_genes_pair_as_their_family_does_and_prefer_its_bases(tmp_path) -> None:
    made = DNA.sample.draw(tmp_path, n=1200, seed=3)
    truth = json.loads(made.truth.read_text())
    raws = {r.id: r.raw for r in DNA.read([tmp_path / rna.FILE], Problems())}
    folds = {one["name"]: one for one in truth["families"]}
    assert set(raws) == {gene["id"] for gene in truth["genes"]}
    assert len(raws) == 1200
    preferred, begins = {name: Counter[int]() for name in folds}, Counter[int]()
    for gene in truth["genes"]:
        raw, fold = raws[gene["id"]], folds[gene["family"]]
        assert len(raw) == gene["length"]
        assert all(PARTNER[raw[i]] == raw[j] for i, j in gene["pairs"] + gene["motif_pairs"])
        begin = gene["pairs"][0][0] - fold["structure"].index("(")
        begins[begin] += 1
        found = ["."] * len(fold["structure"])
        for marks, pairs in (("()", gene["pairs"]), ("Aa", gene["motif_pairs"])):
            for i, j in pairs:
                found[i - begin], found[j - begin] = marks
        assert "".join(found) == fold["structure"]
        preferred[gene["family"]] += Counter(
            place for place, base in enumerate(fold["consensus"]) if raw[begin + place] == base
        )
    assert set(begins) == {0, 1, 2, 3}
    for name, fold in folds.items():
        count = sum(gene["family"] == name for gene in truth["genes"])
        assert abs(count - 400) < 5 * math.sqrt(1200 * 2 / 9)
        for place, base in enumerate(fold["consensus"]):
            if base != "N" and fold["structure"][place] in "(A.":
                share = rna.PREFERRED if fold["structure"][place] == "." else rna.PREFERRED_PAIR
                share += (1 - share) / 4
                spread = 5 * math.sqrt(count * share * (1 - share))
                assert abs(preferred[name][place] - count * share) < spread


def on_strand(raw: str, start: int, end: int, strand: str) -> str:
    return raw[start:end] if strand == "+" else reverse_complement(raw[start:end])


def test_pairs_pair_around_the_loop(sample):
    truth, raws = sample
    for contig in truth["contigs"]:
        raw = raws[contig["id"]]
        assert len(raw) == contig["length"]
        assert all(PARTNER[raw[i]] == raw[j] for i, j in contig["pairs"])
        assert len(contig["pairs"]) in (9, 18)
        i, j = contig["pairs"][8]
        assert truth["loop"] in (raw[i + 1 : j], reverse_complement(raw[i + 1 : j]))
    bases = Counter(raws[c["id"]][i] for c in truth["contigs"] for i, _ in c["pairs"])
    total = sum(bases.values())
    assert all(abs(bases[b] - total / 4) < 5 * math.sqrt(total * 3 / 16) for b in "ACGT")


def test_motifs_follow_their_matrices_on_both_strands(sample):
    truth, raws = sample
    for motif in truth["motifs"]:
        matrix = np.array(motif["matrix"])
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-5)
        assert motif["entropy_bits"] == pytest.approx(
            sum(map(entropy, motif_matrix(motif["name"]))), abs=1e-5
        )
        counts, strands = np.zeros_like(matrix), Counter[str]()
        for contig in truth["contigs"]:
            for name, start, strand in contig["motifs"]:
                if name == motif["name"]:
                    site = on_strand(raws[contig["id"]], start, start + len(matrix), strand)
                    counts[range(len(matrix)), ["ACGT".index(base) for base in site]] += 1
                    strands[strand] += 1
        n = counts[0].sum()
        assert n > 500
        assert (abs(counts - n * matrix) < 5 * np.sqrt(n * matrix * (1 - matrix)) + 1).all()
        assert abs(strands["+"] - n / 2) < 5 * math.sqrt(n / 4)


def test_repeats_are_soft_masked_copies(sample):
    truth, raws = sample
    same = total = 0
    for contig in truth["contigs"]:
        lower = {i for i, base in enumerate(raws[contig["id"]]) if base.islower()}
        assert lower == {i for start, end, _ in contig["repeats"] for i in range(start, end)}
        for start, end, strand in contig["repeats"]:
            copy = on_strand(raws[contig["id"]], start, end, strand).upper()
            same += sum(a == b for a, b in zip(copy, truth["repeat"], strict=True))
            total += len(copy)
    assert total > 10_000
    assert abs(same / total - 0.9) < 5 * math.sqrt(0.09 / total)
    assert truth["repeat_entropy_bits"] == pytest.approx(-(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1 / 3)))


def test_foreign_inserts_are_the_anomalies(sample):
    truth, raws = sample
    inserts = [(c["id"], s, e) for c in truth["contigs"] for s, e in c["inserts"]]
    assert [(a["id"], a["start"], a["end"]) for a in truth["anomalies"]] == inserts
    text = "".join(raws[name][start:end] for name, start, end in inserts)
    assert len(inserts) > 40
    shares = np.array([text.count(base) for base in "ACGT"]) / len(text)
    np.testing.assert_allclose(shares, truth["foreign"], atol=5 * math.sqrt(0.24 / len(text)))
    assert truth["background_entropy_bits"] == pytest.approx(1.970951, abs=1e-6)

"""Stems of maps by hand, structures of files, and the planted pairs of contigs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from decoded import decoded as decoded_by
from decoded import planted_and_noise

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna import DNA
from seqmlm.domains.dna.rna import FOLDS
from seqmlm.domains.dna.structure import (
    StemsDecoder,
    brackets,
    longest_stem,
    pair_scores,
    pairing_matrix,
    parse_brackets,
    stem_evidence,
    stem_lengths,
)
from seqmlm.domains.dna.tokenizer import reverse_complement
from seqmlm.domains.structure import Decoded, Pair, Truth
from seqmlm.errors import DataError
from seqmlm.structure.maps import DependenceMap, apc

HAIRPIN = "AAACCGTTTTTCGGAAA"
STEM = {(3, 13), (4, 12), (5, 11)}  # CCG around TTTTT with CGG


def record(raw: str, id: str = "r") -> Record:
    return Record(id=id, raw=raw, source="-", line=1)


def dependence(
    size: int, pairs: dict[Pair, float], noise: float = 0.01, **layers: np.ndarray
) -> DependenceMap:
    values = noise * np.random.default_rng(0).random((size, size))
    values = np.triu(values, 1) + np.triu(values, 1).T
    for (i, j), value in pairs.items():
        values[i, j] = values[j, i] = value
    np.fill_diagonal(values, np.nan)
    return DependenceMap(values=values, method="test", **layers)


def decoded(raw: str, values: DependenceMap, truth: Truth | None, id: str = "r") -> Decoded:
    return decoded_by(StemsDecoder(), record(raw, id), list(raw), values, truth)


def test_bases_that_can_pair() -> None:
    can = pairing_matrix(list("gAcUNTTAA"))
    assert np.argwhere(can).tolist() == [[0, 5], [0, 6], [1, 5], [1, 6], [3, 7], [3, 8]], (
        "wobble, RNA, a loop of 3"
    )


def test_the_longest_stem_that_letters_allow() -> None:
    can = pairing_matrix(list(HAIRPIN))
    length = stem_lengths(can)
    assert [int(length[pair]) for pair in sorted(STEM)] == [3, 3, 3]
    # Of T, T, T and T with G, A, A and A one stem has four; (6, 15) is in one of three.
    assert longest_stem(can) == {(6, 16), (7, 15), (8, 14), (9, 13)}
    assert (length.max(), length[6, 15], length[3, 12]) == (4, 3, 1)
    assert longest_stem(pairing_matrix(list("AAAAAAAAAA"))) == frozenset()


def test_stems_that_stand_out_are_taken_with_their_weak_pair() -> None:
    values = dependence(17, {(3, 13): 1.0, (4, 12): 0.0, (5, 11): 1.0, (0, 16): 5.0, (6, 15): 2.0})
    found = StemsDecoder().decode(record(HAIRPIN), list(HAIRPIN), values)
    assert found == STEM, "A and A do not pair, and one strong pair of T and A is no stem"


def test_evidence_is_of_a_pair_and_those_stacked_on_it() -> None:
    random = np.random.default_rng(3)
    letters = random.choice(list("ACGT"), 30)
    can = pairing_matrix(letters.tolist())
    values = random.random((30, 30))
    values += values.T
    np.fill_diagonal(values, np.nan)
    corrected = apc(values)
    middle = np.median(corrected[np.triu_indices(30, 4)])
    found = stem_evidence(values, can)
    for i in range(30):
        for j in range(i + 4, 30):
            inner = [
                (i + k, j - k, weight) for k, weight in zip(range(-2, 3), (0.5, 1, 1, 1, 0.5), strict=True)
            ]
            told = [
                weight * (corrected[a, b] - middle)
                for a, b, weight in inner
                if 0 <= a < b < 30 and b - a > 3 and can[a, b]
            ]
            assert found[i, j] == pytest.approx(sum(told) / 4)
    assert not found[np.tril_indices(30, 3)].any()
    assert not stem_evidence(np.full((5, 5), np.nan), np.zeros((5, 5), dtype=bool)).any()


def test_pairs_of_stems_come_first_and_a_better_partner_counts_against_a_pair() -> None:
    random = np.random.default_rng(4)
    can = pairing_matrix(random.choice(list("ACGT"), 25).tolist())
    values = random.random((25, 25))
    values += values.T
    evidence = np.maximum(stem_evidence(values, can), 0)
    both = evidence + evidence.T
    taken = [tuple(pair) for pair in np.argwhere(can)[[3, 9]].tolist()]
    found = pair_scores(values, can, taken)
    others = list(zip(*(at.tolist() for at in np.triu_indices(25, 4)), strict=True))
    for i, j in others:
        own, one, other = both[i, j], np.delete(both[i], j).max(), np.delete(both[j], i).max()
        expected = own * own / (own + one) * own / (own + other) if own else 0
        if (i, j) not in taken:
            assert found[i, j] == pytest.approx(expected)
            assert found[i, j] < min(found[pair] for pair in taken)
    assert pair_scores(np.full((1, 1), np.nan), np.zeros((1, 1), dtype=bool), []).tolist() == [[0]]


def test_stacked_pairs_are_found_where_single_values_are_not_told_from_noise() -> None:
    random = np.random.default_rng(5)
    side = "".join(random.choice(list("ACGT"), 9))
    letters = "".join(random.choice(list("ACGT"), 25)) + side + "TTTT" + reverse_complement(side)
    stem = frozenset((25 + k, 46 - k) for k in range(9))
    truth, found, singles = Truth(edges=stem), [], 0
    for _ in range(10):
        values = random.exponential(1.0, (47, 47))
        for pair in stem:
            values[pair] += 2.0
        values = np.triu(values, 1) + np.triu(values, 1).T
        np.fill_diagonal(values, np.nan)
        found.append(decoded(letters, DependenceMap(values=values, method="test"), truth))
        strongest = np.argsort(-np.nan_to_num(np.triu(values, 4)).ravel())[:9]
        singles += len({divmod(int(at), 47) for at in strongest} & stem)
    assert singles < 30, "of 90: the strongest values are mostly noise"
    own = StemsDecoder().measures(found)
    assert own["pair_f1"] > 0.75, "0.55 by single values"
    assert own["auprc_of_stems"] > 2 * own["auprc"]


def test_maps_of_noise_have_hardly_a_pair() -> None:
    random = np.random.default_rng(1)
    letters = "".join(random.choice(list("ACGT"), 80))
    pairs = 0
    for _ in range(10):
        values = random.exponential(0.01, (80, 80))
        made = DependenceMap(values=values + values.T, method="test")
        pairs += len(StemsDecoder().decode(record(letters), list(letters), made))
    assert pairs <= 10 * 3


def test_a_null_model_decides_where_there_is_one() -> None:
    size = len(HAIRPIN)
    z = np.zeros((size, size))
    for i, j in STEM:
        z[i, j] = 5.0
    values = dependence(size, dict.fromkeys(STEM, 1.0), z=z)
    assert StemsDecoder().decode(record(HAIRPIN), list(HAIRPIN), values) == STEM
    weak = dependence(size, dict.fromkeys(STEM, 1.0), z=z / 2)
    assert StemsDecoder().decode(record(HAIRPIN), list(HAIRPIN), weak) == frozenset()


def test_brackets_there_and_back() -> None:
    assert brackets(17, STEM) == "...(((.....)))..."
    assert parse_brackets("...(((.....)))...") == STEM
    assert parse_brackets("<<..AA>>.aa") == {(0, 7), (1, 6), (4, 10), (5, 9)}
    for crossing in (*(fold.structure for fold in FOLDS.values()), "((B)A)ba", "(A).a"):
        assert brackets(len(crossing), parse_brackets(crossing)) == crossing
    for wrong in ("((..)", "(..))", "(..>"):
        with pytest.raises(ValueError, match="position"):
            parse_brackets(wrong)


def test_figures_by_hand() -> None:
    truth = Truth(edges=frozenset(STEM))
    good = decoded(HAIRPIN, dependence(17, dict.fromkeys(STEM, 1.0)), truth)
    none = decoded(HAIRPIN, dependence(17, {}, noise=0.0), truth, id="s")
    found = StemsDecoder().measures([good, none])
    assert next(iter(found)) == "pair_f1"
    assert found["pair_f1"] == pytest.approx(2 * 3 / (3 + 3 + 0 + 3))
    assert found["pair_f1_of_template"] == 1, "the other sequence has the same places"
    assert found["auprc_of_template"] == 1
    assert found["auprc"] == pytest.approx((1 + found["prevalence"]) / 2), "a map of zeros ranks nothing"
    alone = StemsDecoder().measures([good])
    assert (alone["pair_f1"], alone["pair_f1_of_template"]) == (1, 0)
    assert StemsDecoder().measures([]) == {}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory):
    made = DNA.sample.draw(tmp_path_factory.mktemp("dna"), n=40, seed=6)
    return made, json.loads(made.truth.read_text()), list(DNA.read(made.files, Problems()))


def test_planted_pairs_are_found_in_their_own_map_and_not_in_noise(sample) -> None:
    made, truth, records = sample
    planted = {contig["id"]: {tuple(pair) for pair in contig["pairs"]} for contig in truth["contigs"]}
    decoder = StemsDecoder()
    right, noise = planted_and_noise(decoder, made.truth, records[:8], lambda one: list(one.raw))
    for one in right:
        assert one.truth.edges == planted[one.record.id]
    found, floor = decoder.measures(right), decoder.measures(noise)
    assert found["pair_f1"] == found["auprc"] == 1
    assert found["pair_f1_of_longest_stem"] > 0.3, "nine pairs are the longest stem of most contigs"
    assert floor["pair_f1"] < 0.1
    assert floor["auprc"] < 0.02


def test_motifs_of_genes_pair_across_stems(sample) -> None:
    made, truth, _ = sample
    knows = StemsDecoder().truths(made.truth, Problems())
    genes = {gene["id"]: gene for gene in truth["genes"]}
    for one in DNA.read([made.truth.parent / "rna.genes"], Problems()):
        own, gene = knows(one, list(one.raw)), genes[one.id]
        assert own.edges == {tuple(pair) for pair in gene["pairs"] + gene["motif_pairs"]}
        ((i, j),) = gene["motif_pairs"]
        assert own.kinds[i, j] == "motif pair"
        assert any(a < i < b < j for a, b in gene["pairs"]), "it crosses a stem"
        assert own.covers is None or own.covers((i, j))


def test_bases_of_one_motif_are_unknown(sample) -> None:
    made, truth, records = sample
    knows = StemsDecoder().truths(made.truth.parent, Problems())
    one, contig = records[0], truth["contigs"][0]
    own = knows(one, list(one.raw))
    name, start, _ = contig["motifs"][0]
    width = next(len(motif["matrix"]) for motif in truth["motifs"] if motif["name"] == name)
    last = start + width - 1
    assert not own.covers((start, last))
    assert own.kinds[start, last] == "motif"
    assert own.covers((start, last + 30 if last + 30 < len(one.raw) else 0))
    assert all(own.covers(pair) and own.kinds[pair] == "stem" for pair in own.edges)


def test_a_block_of_a_contig_has_its_own_places(tmp_path: Path) -> None:
    made = DNA.sample.draw(tmp_path, n=5, seed=6)
    knows = StemsDecoder().truths(made.truth, Problems())
    whole = next(iter(DNA.read(made.files, Problems())))
    planted = knows(whole, list(whole.raw))
    first = min(i for i, _ in planted.edges)
    blocks = [one for one in DNA.read(made.files, Problems(), block=first + 40) if one.document == whole.id]
    assert len(blocks) > 1
    for one in blocks:
        start = int(one.meta["start"])
        own = knows(one, list(one.raw))
        assert {(i + start, j + start) for i, j in own.edges} == {
            (i, j) for i, j in planted.edges if start <= i and j < start + len(one.raw)
        }


def test_alignments_and_brackets_are_truths(tmp_path: Path) -> None:
    (tmp_path / "a.sto").write_text(
        "# STOCKHOLM 1.0\n\nx  AC-CGTTTTCGGA\ny  ACCCG-TTTCGGA\n#=GC SS_cons  ..<<<....>>>.\n//\n"
    )
    knows = StemsDecoder().truths(tmp_path / "a.sto", Problems())
    x, y = (
        knows(record("ACCGTTTTCGGA", "x"), "ACCGTTTTCGGA"),
        knows(record("ACCCGTTTCGGA", "y"), "ACCCGTTTCGGA"),
    )
    assert x.edges == {(2, 9), (3, 8)}, "of the pair with a gap nothing is left"
    assert y.edges == {(2, 10), (3, 9), (4, 8)}
    assert knows(record("ACGT", "z"), "ACGT") is None
    (tmp_path / "b.dbn").write_text(f">r and more\n{HAIRPIN}\n{brackets(17, STEM)} (-3.1)\n")
    own = StemsDecoder().truths(tmp_path / "b.dbn", Problems())(record(HAIRPIN), HAIRPIN)
    assert own.edges == STEM
    (tmp_path / "c.dbn").write_text(">r\nACGT\n((.)\n")
    with pytest.raises(DataError, match="brackets do not match"):
        StemsDecoder().truths(tmp_path / "c.dbn", Problems())
    (tmp_path / "d.dbn").write_text("no structure\n")
    with pytest.raises(DataError, match="the file has no structure"):
        StemsDecoder().truths(tmp_path / "d.dbn", Problems())


def test_real_rna_has_its_common_structure(real_data: Path) -> None:
    path = real_data / "dna/rna_structure/tRNA1415G.sto.gz"
    knows = StemsDecoder().truths(path, Problems())
    records = list(DNA.read([path], Problems()))[:200]
    right = total = 0
    for one in records:
        own = knows(one, list(one.raw))
        total += len(own.edges)
        right += sum(one.raw[i] + one.raw[j] in ("AT", "TA", "CG", "GC", "GT", "TG") for i, j in own.edges)
    assert total > 200 * 18
    assert right > 0.9 * total


def test_files_and_picture_are_readable_and_escaped() -> None:
    one = decoded(HAIRPIN, dependence(17, dict.fromkeys(STEM, 1.0)), Truth(edges=frozenset(STEM)))
    text = "".join(StemsDecoder().files([one])["structure.dbn"])
    assert text == f">r\n{HAIRPIN}\n...(((.....)))...\n"
    picture = StemsDecoder().picture(one)
    assert picture.splitlines() == [f"<pre>{HAIRPIN}", "...(((.....)))...", "...(((.....)))...  truth</pre>"]
    odd = Decoded(record=record("<&"), units=["<", "&"], dependence=dependence(2, {}), predicted=frozenset())
    assert "&lt;&amp;" in str(StemsDecoder().picture(odd))

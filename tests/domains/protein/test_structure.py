"""Contacts of maps against counts by hand, structures against geometry, and the planted families."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from decoded import decoded, map_of, planted_and_noise
from formats import pdb
from written import written

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.readers import places, read_pdb
from seqmlm.domains.protein.structure import ContactsDecoder, precision, strongest
from seqmlm.domains.structure import Truth
from seqmlm.errors import DataError
from seqmlm.structure.maps import DependenceMap


def record(raw: str, id: str = "r", source: str = "-", document: str | None = None) -> Record:
    return Record(id=id, raw=raw, source=source, line=1, document=document)


def test_the_strongest_pairs_are_contacts() -> None:
    values = np.full((9, 9), -1.0)
    values[0, 8], values[0, 7], values[1, 7], values[2, 8], values[0, 1] = 5.0, 4.0, 3.0, np.nan, 99.0
    values = np.triu(values) + np.triu(values, 1).T
    found = ContactsDecoder(PROTEIN).decode(
        record("A" * 9), "A" * 9, DependenceMap(values=values, method="x")
    )
    assert found == {(0, 8), (0, 7), (1, 7)}, "neither neighbours, nor without a value, nor below zero"
    assert strongest(np.array([1.0, np.nan, 3.0, 1.0])).tolist() == [2, 0, 3]


def test_precision_by_hand() -> None:
    labels = np.array([True, False, True, False])
    assert precision(labels, np.array([4.0, 3.0, 2.0, 1.0]), 1) == 1
    assert precision(labels, np.array([4.0, 3.0, 2.0, 1.0]), 3) == pytest.approx(2 / 3)
    assert precision(labels, np.array([np.nan, 3.0, 2.0, 1.0]), 4) == pytest.approx(1 / 3)
    assert np.isnan(precision(labels, np.full(4, np.nan), 2))


def test_figures_of_a_small_matrix() -> None:
    # Eight residues: of the pairs 0-6, 0-7 and 1-7 two are contacts; residue 5 has no place.
    edges = {(0, 6), (1, 7), (2, 4)}
    truth = Truth(edges=frozenset(edges), covers=lambda pair: 5 not in pair)
    made, decoder = map_of(8, {(0, 7): 6.0, (0, 6): 4.0, (1, 7): 2.0}), PROTEIN.structure()
    found = decoder.measures([decoded(decoder, record("ACDEFGHI"), "ACDEFGHI", made, truth)])
    assert next(iter(found)) == "p_at_l"
    assert [found[name] for name in ("p_at_l", "p_at_l2", "density")] == pytest.approx([2 / 3] * 3)
    assert found["p_at_l5"] == 0, "L is 7, and the strongest pair is none"
    assert found["p_at_l_short"] == found["p_at_l"]
    assert not [name for name in found if "medium" in name or "long" in name]
    assert np.isnan(found["p_at_l_low"]), "one sequence says nothing of others"


def test_the_true_map_has_a_precision_of_one(tmp_path: Path) -> None:
    sample = PROTEIN.sample.draw(tmp_path, n=60, seed=2)
    decoder, records = PROTEIN.structure(), PROTEIN.read(sample.files, Problems())
    right, noise = planted_and_noise(decoder, sample.truth, records, lambda one: list(one.raw))
    found, floor = decoder.measures(right), decoder.measures(noise)
    assert found["p_at_l5"] == found["auprc"] == found["auroc"] == 1
    # A chain of 41 has 21 contacts or so: fewer than L.
    assert found["p_at_l_low"] <= found["p_at_l"] <= found["p_at_l_high"] < 1
    assert floor["p_at_l"] == pytest.approx(floor["density"], abs=0.02), "maps of noise are null"
    assert floor["auroc"] == pytest.approx(0.5, abs=0.03)


def test_the_truth_of_the_sample_is_by_family(tmp_path: Path) -> None:
    sample = PROTEIN.sample.draw(tmp_path, n=30, seed=2)
    planted = {one["name"]: one for one in json.loads(sample.truth.read_text())["families"]}
    knows = PROTEIN.structure().truths(sample.truth, Problems())
    one = next(iter(PROTEIN.read(sample.files, Problems())))
    truth = knows(one, list(one.raw))
    family = planted[one.id.rpartition("-")[0]]
    assert truth.edges == {tuple(pair) for pair in family["contacts"]}
    indirect = {pair for pair, kind in truth.kinds.items() if kind == "indirect"}
    assert indirect
    assert not indirect & truth.edges
    assert knows(one, list(one.raw)[:-1]) is None
    assert knows(record("ACD", id="other-1"), list("ACD")) is None


def test_a_chain_is_found_where_it_begins_in_the_sequence(tmp_path: Path) -> None:
    path = written(tmp_path / "1abc.pdb", pdb("WWWW", chain="B") + pdb("MKVLAWDE") + "END\n")
    problems = Problems()
    knows = PROTEIN.structure().truths(path, problems)
    whole = "GGG" + "MKVLAWDE" + "SS"
    truth = knows(record(whole), list(whole))
    # 3.8 angstrom a residue: two steps are a contact, three are none.
    assert truth.edges == {(3 + i, 3 + j) for i in range(8) for j in range(i + 1, 8) if j - i <= 2}
    assert truth.covers((3, 10))
    assert not truth.covers((0, 3)), "not in the structure"
    told = (
        "a chain (1abc_A) that matches 100% of the residues of a sequence: residue 1 of the chain is "
        "residue 4 of the sequence"
    )
    assert problems.counts[told] == 1
    changed = "GGMKVLCWDES"  # one residue is another
    truth = knows(record(changed), list(changed))
    assert (2, 4) in truth.edges
    assert knows(record("PPPPPPPPPP"), list("PPPPPPPPPP")) is None


def test_a_missing_atom_is_put_where_the_others_have_it(real_data: Path) -> None:
    path = real_data / "protein/contacts_pfam40/pdb/PF00018_2O9S_A.pdb.gz"
    from io import StringIO

    from Bio.PDB.PDBParser import PDBParser

    with gzip.open(path, "rt") as file:
        structure = PDBParser(QUIET=True).get_structure("x", StringIO(file.read()))
    residues = [one for one in structure.get_residues() if "CB" in one and "N" in one and "C" in one]
    there = places(residues)
    for one in residues:
        one.detach_child("CB")
    errors = np.linalg.norm(places(residues) - there, axis=1)
    assert len(residues) > 40
    assert errors.max() < 0.4
    residues[0].detach_child("N")
    assert np.isnan(places(residues)[0]).all()


def test_contacts_of_a_real_structure_and_of_the_table_are_the_same(real_data: Path) -> None:
    folder = real_data / "protein/contacts_pfam40"
    decoder = PROTEIN.structure()
    structure = decoder.truths(folder / "pdb/PF00018_2O9S_A.pdb.gz", Problems())
    (chain,) = read_pdb(folder / "pdb/PF00018_2O9S_A.pdb.gz", Problems())
    with gzip.open(folder / "contacts_cb.tsv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["pfam"] == "PF00018"]
    near = {(int(row["pdb_i"]), int(row["pdb_j"])) for row in rows if float(row["cb_dist"]) < 8}
    truth = structure(chain, list(chain.raw))
    assert near
    assert near <= truth.edges
    table = decoder.truths(folder / "contacts_cb.tsv.gz", Problems())
    rows_read = PROTEIN.read([folder / "aln/PF00018.fasta.gz"], Problems())
    aligned = [one for _, one in zip(range(40), rows_read, strict=False)]
    columns = {int(row["col_i"]) for row in rows} | {int(row["col_j"]) for row in rows}
    known = [(one, table(one, list(one.raw))) for one in aligned]
    assert all(truth is not None and truth.covers is not None for _, truth in known)
    with gzip.open(folder / "aln/PF00018.fasta.gz", "rt") as file:
        lines = file.read().splitlines()
    row = lines[1]  # with gaps
    own, truth = known[0]
    assert truth is not None
    place = {column: len(row[:column].replace("-", "")) for column in columns if row[column] != "-"}
    expected = {
        (place[int(r["col_i"])], place[int(r["col_j"])])
        for r in rows
        if float(r["cb_dist"]) < 8 and int(r["col_i"]) in place and int(r["col_j"]) in place
    }
    assert truth.edges == expected
    assert table(record("ACDEF", source="unknown.fasta"), list("ACDEF")) is None
    assert own.raw == row.replace("-", "")


@pytest.mark.parametrize(
    "text", ["1 7\n2 8\n", "# by hand\ni\tj\n1\t7\n2\t8\n", "1,7\n2,8\n", "1 7 6.5\n2 8 7.9\n"]
)
def test_a_file_of_two_columns_counts_from_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.txt").write_text(text)
    truth = PROTEIN.structure().truths(tmp_path / "c.txt", Problems())(record("ACDEFGHI"), "ACDEFGHI")
    assert (truth.edges, truth.covers) == ({(0, 6), (1, 7)}, None)
    assert truth.kinds == {(0, 6): "short", (1, 7): "short"}


def test_distances_tell_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("1 7 6.5\n1 8 9.5\n3 30 4.0\n")
    truth = PROTEIN.structure().truths(tmp_path / "c.txt", Problems())(record("ACDEFGHI"), "ACDEFGHI")
    assert truth.edges == {(0, 6)}
    assert [truth.covers(pair) for pair in [(0, 6), (0, 7), (1, 7)]] == [True, True, False]


def test_what_is_no_truth_is_said(tmp_path: Path) -> None:
    decoder = PROTEIN.structure()
    (tmp_path / "c.txt").write_text("nothing here\n")
    (tmp_path / "t.json").write_text('{"schema": "seqmlm.sample.dna.v1"}')
    (tmp_path / "x.pdb").write_text("END\n")
    said = {"c.txt": "no contacts", "t.json": "not a truth file with the schema", "x.pdb": "no protein chain"}
    for name, reason in {**said, "absent.json": "the truth could not be read"}.items():
        with pytest.raises(DataError, match=reason):
            decoder.truths(tmp_path / name, Problems("skip"))

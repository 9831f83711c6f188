"""Clustal, Swiss-Prot, structures: sequences of chains, contacts against geometry and real distances."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
from formats import aligned, pdb, swissprot
from written import written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import read_stockholm
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.readers import (
    UNRESOLVED,
    WARNED,
    read_clustal,
    read_mmcif,
    read_pdb,
    read_swissprot,
)
from seqmlm.domains.variants import blosum62
from seqmlm.errors import DataError


def test_sequences_that_may_be_dna_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "x.fasta", f">a\n{'acgtn' * 8}\n>b\n{'ACGT' * 9}\n>c\n{'ACGW' * 20}\n")
    problems = Problems()
    assert len(list(PROTEIN.read([path], problems))) == 3
    told = "a protein with only the letters A, C, G, T, U and N: is it DNA?"
    assert problems.counts == {told: 1}  # of the short one nothing can be said
    assert problems.places[told] == f"{path}:1"


def test_clustal_rows_with_and_without_gaps(tmp_path: Path) -> None:
    (path,) = aligned(tmp_path, "clustal", "x.aln", ["MKVLW" * 20, "ACD" * 30])
    rows = [(r.id, r.raw) for r in read_clustal(path, Problems())]
    assert rows == [("row0", "MKVLW" * 20), ("row1", "ACD" * 30)]
    assert {len(r.raw) for r in read_clustal(path, Problems(), gaps="keep")} == {100}
    path.write_text("no header\n")
    with pytest.raises(DataError, match=r"x.aln:1: a Clustal alignment that cannot be read"):
        list(read_clustal(path, Problems()))


def test_swissprot_entries_and_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.dat.gz"
    text = swissprot(["P00001", "P00002", "P00003"], ["MKV", "ACDE", "WW"])
    bad = text.replace("SQ   SEQUENCE   4 AA", "SQ   SEQUENCE   many AA").rsplit("\n//", 1)[0]
    path.write_bytes(gzip.compress(text.encode()))
    found = list(read_swissprot(path, Problems()))
    wanted = [("P00001", "MKV", 1), ("P00002", "ACDE", 8), ("P00003", "WW", 15)]
    assert [(r.id, r.raw, r.line) for r in found] == wanted
    assert found[0].meta == {
        "name": "P00001_TEST",
        "description": "RecName: Full=Protein of P00001;",
        "organism": "Escherichia coli",
    }
    path.write_bytes(gzip.compress(bad.encode()))
    problems = Problems("skip")
    assert [r.id for r in read_swissprot(path, problems)] == ["P00001"]
    assert problems.places == {
        "a Swiss-Prot entry that cannot be read": f"{path}:8",
        "an entry without an end": f"{path}:15",
    }


def test_chains_numbers_and_contacts_of_a_structure(tmp_path: Path) -> None:
    path = tmp_path / "1abc.pdb.gz"
    path.write_bytes(gzip.compress((pdb("MGKVL") + pdb("AW", chain="B", step=8.0) + "END\n").encode()))
    first, second = read_pdb(path, Problems())
    assert (first.id, first.raw, first.document) == ("1abc_A", "MGKVL", "1abc")
    assert first.meta["numbers"] == ("1", "2", "3", "4", "5")
    # 3.8 angstrom apart: two steps are 7.6, three 11.4; of the glycine the C-alpha stands 1.5 aside.
    assert first.meta["contacts"] == ((0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4))
    assert second.meta["contacts"] == (), "8 angstrom is no contact"


def test_of_several_residues_at_a_place_the_one_seen_most_is_read(tmp_path: Path) -> None:
    atom = "ATOM  {n:>5}  CA {alternative}{name} A{number:>4}{code}   {n:8.3f}   6.134  -6.504{share:6.2f}"
    atom += "  0.00           C"
    given = [
        *((" ", "MET", 1, " ", 1.0), (" ", "LYS", 3, " ", 1.0), (" ", "TYR", 3, "A", 1.0)),
        *(("A", "ALA", 4, " ", 0.6), ("B", "SER", 4, " ", 0.4)),
        *(("A", "GLY", 5, " ", 0.3), ("B", "TRP", 5, " ", 0.7)),
    ]
    names = ("alternative", "name", "number", "code", "share")
    lines = [atom.format(n=n, **dict(zip(names, one, strict=True))) for n, one in enumerate(given, 1)]
    (tmp_path / "x.pdb").write_text("\n".join([*lines, "TER", "END", ""]))
    problems = Problems()
    [record] = read_pdb(tmp_path / "x.pdb", problems)
    assert (record.raw, record.meta["numbers"]) == ("MKYAW", ("1", "3", "3A", "4", "5"))
    assert problems.counts[UNRESOLVED] == 1


def test_what_is_no_residue_of_the_protein(tmp_path: Path) -> None:
    path = tmp_path / "x.pdb"
    lines = pdb("MKV").splitlines()
    selenium = [line.replace("ATOM  ", "HETATM").replace("VAL", "MSE") for line in lines if "VAL" in line]
    water = lines[0].replace("ATOM  ", "HETATM").replace("MET A   1", "HOH A 101")
    ligand = lines[0].replace("ATOM  ", "HETATM").replace("MET A   1", "GLY A 102")
    dna = lines[0].replace("MET A", " DA D")
    path.write_text("\n".join(["MODEL        1", *lines[:4], *selenium, "TER", water, ligand, dna, "ENDMDL"]))
    with path.open("a") as file:
        file.write("\n" + "\n".join(["MODEL        2", *lines, "ENDMDL", "END", ""]))
    problems = Problems()
    assert [(r.id, r.raw) for r in read_pdb(path, problems)] == [("x_A", "MKM")]
    counts = {name: count for name, count in problems.counts.items() if name != WARNED}
    left_out = ("a chain without amino acids", "another model of a structure")
    assert counts == {f"{one}, left out": 1 for one in left_out}


def test_bad_structures_are_named_and_warnings_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.pdb"
    atoms = pdb("MK").splitlines()
    torn = atoms[1].replace("   0.000", "   wrong", 1)
    cases = {
        r"x.pdb:2: a structure that cannot be read": f"{atoms[0]}\n{torn}",
        r"x.pdb:1: a structure that cannot be read \(Biopython says: nothing": "HEADER\n",
        "a structure without a protein chain": atoms[0].replace("MET", " DA") + "\n",
    }
    for said, text in cases.items():
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            list(read_pdb(path, Problems()))
    path.write_text("\n".join([atoms[0], *atoms]))
    problems = Problems()
    assert [r.raw for r in read_pdb(path, problems)] == ["MK"]
    assert problems.counts[WARNED] > 0
    with pytest.raises(DataError, match="a structure that cannot be read"):
        list(read_mmcif(path, Problems()))


def test_mmcif_is_read_as_the_same_pdb_file(tmp_path: Path) -> None:
    from Bio.PDB import MMCIFIO, PDBParser

    path, other = tmp_path / "x.pdb", tmp_path / "x.cif"
    path.write_text(pdb("MGKVLW") + "END\n")
    writer = MMCIFIO()
    writer.set_structure(PDBParser(QUIET=True).get_structure("x", path))
    writer.save(str(other))
    (one,), (two,) = read_pdb(path, Problems()), read_mmcif(other, Problems())
    assert (one.id, one.raw, one.meta) == (two.id, two.raw, two.meta)


def test_contacts_of_real_structures(real_data: Path) -> None:
    folder = real_data / "protein/contacts_pfam40"
    truth: dict[str, set[tuple[int, int]]] = {}
    with gzip.open(folder / "contacts_cb.tsv.gz", "rt") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if float(row["cb_dist"]) < 8:
                truth.setdefault(row["pfam"], set()).add((int(row["pdb_i"]), int(row["pdb_j"])))
    whole = 0
    for path in (folder / "pdb").glob("*.pdb.gz"):
        (record,) = read_pdb(path, Problems())
        whole += truth[path.name.split("_")[0]] <= set(record.meta["contacts"])
    assert len(truth) == 30
    assert whole >= 28, "two of the files were numbered otherwise when distances were taken"


def test_blosum_ranks_real_mutations_as_known(real_data: Path) -> None:
    from scipy.stats import spearmanr

    with gzip.open(real_data / "protein/dms/BLAT_ECOLX_Ranganathan2015_esm_labeled.csv.gz", "rt") as file:
        rows = [(row["mutant"], float(row["2500"])) for row in csv.DictReader(file)]
    scores = [blosum62()[name[0], name[-1]] for name, _ in rows]
    assert spearmanr(scores, [effect for _, effect in rows]).statistic == pytest.approx(0.346, abs=0.002)


def test_a_refused_line_takes_the_alignment(tmp_path: Path) -> None:
    path = tmp_path / "a.sto"
    one = b"# STOCKHOLM 1.0\na MKV\nb MKW\n//\n"
    path.write_bytes(one + one.replace(b"b M", b"\xff M") + one)
    problems = Problems("skip")
    assert [record.line for record in read_stockholm(path, problems)] == [1, 1, 9, 9]
    assert problems.bad_count == 1


def test_a_head_without_rows_has_an_end(tmp_path: Path) -> None:
    """Biopython's parser of Clustal reads the end of such a file for ever."""
    (tmp_path / "a.aln").write_text("CLUSTAL W (1.82) multiple sequence alignment\n\n")
    problems = Problems("skip")
    assert list(read_clustal(tmp_path / "a.aln", problems)) == []
    assert problems.bad_count == 1


def test_a_file_that_was_left_out_is_left_out_again_when_it_is_read_again(tmp_path: Path) -> None:
    """As by a scoring that is resumed, which passes over the records that are done."""
    (tmp_path / "a.aln").write_bytes(b"CLUSTAL W\n\na  MKV\nb  M\xffV\n")
    problems = Problems("skip")
    assert list(read_clustal(tmp_path / "a.aln", problems)) == []
    with problems.replaying(problems.snapshot()):
        assert list(read_clustal(tmp_path / "a.aln", problems)) == []

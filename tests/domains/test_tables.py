"""Tables of sequences: spelled as FASTA is, with the columns that are kept, and read where they are named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from written import written

from seqmlm import plugins
from seqmlm.data.examples import LabelSource, examples
from seqmlm.data.problems import Problems
from seqmlm.domains.protein import PROTEIN
from seqmlm.errors import DataError

CELLS = {"protein": ("mk-vl at*", "MKVLAT"), "dna": ("acgu-RN a", "acgtNNa")}


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("field", CELLS)
def test_a_cell_is_spelled_as_a_sequence_of_fasta(field: str, suffix: str, mark: str, tmp_path: Path) -> None:
    cell, raw = CELLS[field]
    domain = plugins.domain(field)
    fasta = written(tmp_path / "a.fasta", f">one\n{cell}\n")
    assert [one.raw for one in domain.read([fasta], Problems())] == [raw]
    table = written(tmp_path / f"a.{suffix}", f"y,id,sequence\n3,one,{cell}\n".replace(",", mark))
    (one,) = domain.read([table], Problems(), keep=("y",))
    assert (one.id, one.raw, one.line, one.meta["y"]) == ("one", raw, 2, "3")


@pytest.mark.parametrize("field", CELLS)
def test_a_table_in_a_folder_is_left_out(field: str, tmp_path: Path) -> None:
    domain, problems = plugins.domain(field), Problems()
    written(tmp_path / "a.fasta", ">one\nACGTACGT\n")
    table = written(tmp_path / "b.csv", "sequence\nACACACAC\n")
    assert [one.id for one in domain.read([tmp_path], problems)] == ["one"]
    assert problems.counts == {"a file of another kind in the folder, left out": 1}
    assert [one.raw for one in domain.read([tmp_path, table], problems)] == ["ACGTACGT", "ACACACAC"]
    (tmp_path / "a.fasta").unlink()
    with pytest.raises(DataError, match="file in this folder") as caught:
        list(domain.read([tmp_path], problems))
    assert ".csv" not in str(caught.value)
    assert [one.raw for one in domain.read([tmp_path], problems, format="csv")] == ["ACACACAC"]


@pytest.mark.parametrize("field", CELLS)
def test_what_is_said_of_a_table_that_is_read_as_fasta_is_true(field: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "name,bases\none,ACGTACGT\n")
    with pytest.raises(DataError, match="set its format, csv or tsv, and its column"):
        list(plugins.domain(field).read([path], Problems()))
    (one,) = plugins.domain(field).read([path], Problems(), format="csv", column="bases")
    assert one.raw == "ACGTACGT"


def test_a_table_without_the_column_says_which_there_are(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "name,chain\none,MKV\n")
    with pytest.raises(DataError, match=r"'sequence': no column of this name \(there are: name, chain"):
        list(PROTEIN.read([path], Problems()))


def test_the_tables_of_flip(real_data: Path) -> None:
    path, problems = real_data / "protein" / "flip_gb1" / "sampled.csv.gz", Problems()
    records = PROTEIN.read([path], problems, keep="target, set,validation")
    found = list(examples(records, problems, LabelSource(columns=["target"], numeric=True)))
    assert problems.counts == {}
    assert Counter(one.part for one in found) == {"train": 6289, "test": 1745, "validation": 699}
    assert (found[0].label, found[1].label) == ((1.0,), (1.4459050863,))

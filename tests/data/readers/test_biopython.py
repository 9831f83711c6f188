"""Entries that Biopython reads one at a time: bad ones are named by line and take no other with them."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import pytest
from formats import aligned
from written import refused, written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import entries, parse_entry, read_stockholm
from seqmlm.errors import DataError

PFAM = """# STOCKHOLM 1.0
#=GF ID   Kinase
#=GF AC   PF00069.1
a/1-4   MK.vL-
b/1-3   M--VL.
c       ..----
#=GC SS_cons HHHHHH
//
"""


def test_rows_with_and_without_gaps(tmp_path: Path) -> None:
    path = tmp_path / "p.sto.gz"
    path.write_bytes(gzip.compress(("\n" + PFAM + PFAM.replace("PF00069.1", "PF2")).encode()))
    problems = Problems()
    found = list(read_stockholm(path, problems))
    assert [(r.id, r.raw, r.line, r.document) for r in found] == [
        ("a/1-4", "MKVL", 2, "Kinase"),
        ("b/1-3", "MVL", 2, "Kinase"),
        ("a/1-4", "MKVL", 10, "Kinase"),
        ("b/1-3", "MVL", 10, "Kinase"),
    ]
    assert problems.counts == {"a row of gaps only, left out": 2}
    kept = [r.raw for r in read_stockholm(path, Problems(), gaps="keep")]
    assert kept[:2] == ["MK-VL-", "M--VL-"]


def test_what_biopython_writes_comes_back(tmp_path: Path) -> None:
    letters = ["MKVLW", "ACD", "WWWW"]
    (path,) = aligned(tmp_path, "stockholm", "x.sto", letters)
    assert [r.raw for r in read_stockholm(path, Problems())] == letters


def test_a_bad_alignment_is_named_and_the_next_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "p.sto", PFAM.replace("M--VL.", "M--VL.A") + PFAM + "# STOCKHOLM 1.0\na MK\n")
    said = r"a Stockholm alignment that cannot be read \(Biopython says: "
    problems = refused(read_stockholm, path, said, ["MKVL", "MVL"], line=1)
    assert problems.counts == {
        "a Stockholm alignment that cannot be read": 1,
        "a row of gaps only, left out": 1,
        "an alignment without an end": 1,
    }
    assert problems.places["an alignment without an end"] == f"{path}:17"


def test_an_entry_beyond_the_limit_is_refused_and_the_next_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "p.sto", "x" * 30 + "\n" + "y" * 30 + "\n//\nz\n//\n")
    problems = Problems("skip")
    assert [tuple(one) for one in entries(str(path), problems, 50, "entry")] == [(4, "z\n//\n")]
    assert problems.places == {"a entry longer than the limit of 50 bytes": f"{path}:1"}


def test_warnings_and_words_of_sensitive_data_do_not_leak(tmp_path: Path) -> None:
    path = written(tmp_path / "x", "secret\n//\n")
    (entry,) = entries(str(path), Problems(), 100, "entry")

    def warns(handle):
        warnings.warn("odd", UserWarning, stacklevel=1)
        return iter(handle)

    assert parse_entry(warns, entry, "an entry", "x", Problems()) == (["secret\n", "//\n"], ["odd"])

    def fails(handle):
        raise KeyError(f"line 2 of {handle.read()}")

    with pytest.raises(DataError) as caught:
        parse_entry(fails, entry, "an entry", "x", Problems(sensitive=True))
    assert "secret" not in str(caught.value)
    assert caught.value.line == 2, "the line that Biopython names"
    with pytest.raises(DataError, match="Biopython says: line 2 of secret //;"):
        parse_entry(fails, entry, "an entry", "x", Problems())

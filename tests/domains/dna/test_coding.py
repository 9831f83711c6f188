"""What variants do to proteins, beside whole sequences that Biopython cuts out and translates."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO
from Bio.Align import substitution_matrices
from Bio.Seq import Seq
from Bio.SeqFeature import CompoundLocation, SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.domains.dna.genes import SYNONYMOUS, WORST, CodingSequences, Effect
from seqmlm.errors import DataError

BASES = "".join(np.random.default_rng(3).choice(list("ACGT"), 400))
BLOSUM = substitution_matrices.load("BLOSUM62")
START, END = "ATG", "TAA"

# A gene of two parts on either strand, the places of its parts.
PARTS = {"forward": ((20, 51), (60, 89)), "reverse": ((120, 161), (180, 214), (230, 263))}


def genome() -> dict[str, str]:
    """With a start and an end of each gene."""
    letters = [*BASES]
    letters[20:23], letters[86:89] = START, END
    letters[260:263], letters[120:123] = (
        str(Seq(START).reverse_complement()),
        str(Seq(END).reverse_complement()),
    )
    return {"chr1": "".join(letters), "2": "ACGT" * 20}


GENOME = genome()


def gff(folder: Path, *lines: str) -> Path:
    path = folder / "genes.gff3"
    rows = ["##gff-version 3"]
    for name, strand in (("forward", "+"), ("reverse", "-")):
        rows.append(f"1\tx\tgene\t{PARTS[name][0][0] + 1}\t{PARTS[name][-1][1]}\t.\t{strand}\t.\tID={name}")
        rows += [
            f"1\tx\tCDS\t{start + 1}\t{end}\t.\t{strand}\t0\tID=cds-{name};gene={name};transl_table=11"
            for start, end in PARTS[name]
        ]
    path.write_text("\n".join([*rows, *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def coding(tmp_path_factory: pytest.TempPathFactory) -> CodingSequences:
    return CodingSequences(str(gff(tmp_path_factory.mktemp("genes"))), GENOME)


def cut(letters: str, name: str) -> str:
    """A gene's sequence."""
    parts = [SimpleLocation(*part, -1 if name == "reverse" else 1) for part in PARTS[name]]
    return str(CompoundLocation(parts[::-1] if name == "reverse" else parts).extract(Seq(letters)))


def by_hand(at: int, text: str) -> Effect | None:
    """Of single bases: the whole gene translated before and after."""
    own = next((n for n, parts in PARTS.items() if any(a <= at < b for a, b in parts)), None)
    if own is None:
        return None
    letters = GENOME["chr1"]
    old, new = cut(letters, own), cut(letters[:at] + text + letters[at + 1 :], own)
    was, now = (str(Seq(one).translate(11)) for one in (old, new))
    place = next((n for n in range(len(was)) if old[3 * n : 3 * n + 3] != new[3 * n : 3 * n + 3]), None)
    if place is None:  # nothing changes
        return Effect(own, "coding_sequence_variant")
    first, second = old[3 * place : 3 * place + 3], new[3 * place : 3 * place + 3]
    counts = Counter(
        one[n : n + 3] for k in PARTS for one in [cut(letters, k)] for n in range(0, len(one) - 3, 3)
    )
    residues = str(Seq(first).translate(11)), str(Seq(second).translate(11))
    bits = (BLOSUM[residues] - BLOSUM[residues[0], residues[0]]) / 2
    ratio = pytest.approx(math.log((counts[second] + 1) / (counts[first] + 1) * 2**bits))
    if place == 0:
        kept = second in ("ATG", "GTG", "TTG", "CTG", "ATT", "ATC", "ATA")
        return Effect(own, SYNONYMOUS if kept else "start_lost", "p.M1=" if kept else "p.M1?", ratio)
    kind = {(True, False): "stop_lost", (False, True): "stop_gained"}.get(
        (was[place] == "*", now[place] == "*")
    )
    kind = kind or ("synonymous_variant" if was[place] == now[place] else "missense_variant")
    return Effect(own, kind, f"p.{was[place]}{place + 1}{'=' if was == now else now[place]}", ratio)


def test_every_base_of_two_genes(coding: CodingSequences) -> None:
    kinds = set()
    for at in range(len(GENOME["chr1"])):
        for base in "ACGT":
            expected = by_hand(at, base) if base != GENOME["chr1"][at] else None
            if base != GENOME["chr1"][at]:
                assert coding.effect("chr1", at, at + 1, base) == expected, (at, base)
                kinds.add(expected and expected.consequence)
    assert kinds == {
        *("stop_gained", "stop_lost", "start_lost", "missense_variant", "synonymous_variant", None)
    }


@given(at=st.integers(61, 85), size=st.integers(0, 3), text=st.text("ACGT", max_size=4))
def test_lengths_that_change_shift_the_frame_or_not(
    coding: CodingSequences, at: int, size: int, text: str
) -> None:
    found = coding.effect("chr1", at, at + size, text)
    assert found is not None
    if len(text) != size:
        shifts = (len(text) - size) % 3 != 0
        assert found.consequence == ("frameshift_variant" if shifts else "inframe_indel")
        assert (found.change, found.codon) == ("", None)
    elif size > 1 and found.codon is not None:
        assert found.consequence in WORST


@pytest.mark.parametrize(
    ("start", "end", "text"), [(49, 54, "A"), (60, 60, "A"), (51, 51, "A"), (62, 63, "N")]
)
def test_what_is_partly_coding(start: int, end: int, text: str, coding: CodingSequences) -> None:
    found = coding.effect("chr1", start, end, text)
    assert found is None or found.consequence == "coding_sequence_variant"


def test_two_codons_changed_at_once(coding: CodingSequences) -> None:
    letters = GENOME["chr1"]
    text = "TAATAA" if letters[23:29] != "TAATAA" else "TAGTAG"
    found = coding.effect("chr1", 23, 29, text)
    assert found is not None
    assert (found.consequence, found.change) == ("stop_gained", "")


def test_the_worst_of_overlapping_genes_counts(tmp_path: Path) -> None:
    # The same bases as another gene, a base later.
    more = "chr1\tx\tCDS\t25\t50\t.\t+\t1\tParent=rna1"
    both = CodingSequences(str(gff(tmp_path, more)), GENOME)
    alone = CodingSequences(str(gff(tmp_path)), GENOME)
    genes = set()
    for at in range(26, 50):
        for base in set("ACGT") - {GENOME["chr1"][at]}:
            found, old = both.effect("chr1", at, at + 1, base), alone.effect("chr1", at, at + 1, base)
            assert found is not None
            assert old is not None
            genes.add(found.gene)
            assert WORST.index(found.consequence) <= WORST.index(old.consequence)
    assert genes == {"forward", "rna1"}


@pytest.mark.parametrize("form", ["genbank", "embl"])
def test_a_flat_file_says_the_same(form: str, coding: CodingSequences, tmp_path: Path) -> None:
    record = SeqRecord(Seq(GENOME["chr1"]), id="chr1", annotations={"molecule_type": "DNA"})
    for name, own in PARTS.items():
        parts = [SimpleLocation(*part, -1 if name == "reverse" else 1) for part in own]
        place = CompoundLocation(parts[::-1] if name == "reverse" else parts)
        told = {"gene": [name], "codon_start": ["1"], "transl_table": ["11"]}
        record.features += [SeqFeature(place, type="gene"), SeqFeature(place, type="CDS", qualifiers=told)]
    path = tmp_path / "genes.txt"
    SeqIO.write(record, path, form)
    found = CodingSequences(str(path), GENOME)
    for at in range(len(GENOME["chr1"])):
        assert found.effect("chr1", at, at + 1, "A") == coding.effect("chr1", at, at + 1, "A")
    path.write_text(path.read_text()[:600])
    with pytest.raises(DataError, match="ends with a line //"):
        CodingSequences(str(path), GENOME)


def test_other_genomes_and_files_are_refused(tmp_path: Path) -> None:
    path = gff(tmp_path)
    with pytest.raises(DataError, match="no coding sequence"):
        CodingSequences(str(path), {"7": "ACGT"})
    path.write_text("a\tb\n")
    with pytest.raises(DataError, match="nine columns"):
        CodingSequences(str(path), GENOME)
    assert CodingSequences(str(gff(tmp_path)), GENOME).effect("2", 3, 4, "A") is None

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
from written import written

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
    letters[260:263], letters[120:123] = (str(Seq(one).reverse_complement()) for one in (START, END))
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
        return Effect(own, "incomplete_terminal_codon_variant")
    first, second = old[3 * place : 3 * place + 3], new[3 * place : 3 * place + 3]
    counts = Counter(
        one[n : n + 3] for k in PARTS for one in [cut(letters, k)] for n in range(0, len(one) - 3, 3)
    )
    residues = str(Seq(first).translate(11)), str(Seq(second).translate(11))
    bits = (BLOSUM[residues] - BLOSUM[residues[0], residues[0]]) / 2
    ratio = pytest.approx(math.log((counts[second] + 1) / (counts[first] + 1) * 2**bits))
    ratio = None if residues[0] == "*" else ratio
    if place == 0:
        kept = second in ("GTG", "TTG")
        return Effect(
            own, SYNONYMOUS if kept else "start_lost", "p.M1=" if kept else "p.M1?", ratio if kept else None
        )
    kind = {(True, False): "stop_lost", (False, True): "stop_gained"}.get(
        (was[place] == "*", now[place] == "*")
    )
    kind = kind or ("synonymous_variant" if was[place] == now[place] else "missense_variant")
    return Effect(own, kind, f"p.{was[place]}{place + 1}{'=' if was == now else now[place]}", ratio)


def test_every_base_of_two_genes(coding: CodingSequences) -> None:
    kinds = set()
    for at in range(len(GENOME["chr1"])):
        for base in "ACGT":
            if base != GENOME["chr1"][at]:
                expected = by_hand(at, base)
                assert coding.effect("chr1", at, at + 1, base) == expected, (at, base)
                kinds.add(expected and expected.consequence)
    assert kinds == {"stop_gained", "stop_lost", "start_lost", "missense_variant", SYNONYMOUS, None}


@given(data=st.data(), name=st.sampled_from([*PARTS]), text=st.text("ACGT", max_size=4))
def test_deletions_and_insertions(coding: CodingSequences, data: st.DataObject, name: str, text: str) -> None:
    start, end = data.draw(st.sampled_from(PARTS[name]))
    begin = data.draw(st.integers(start + 1, end - 2))
    last = data.draw(st.integers(begin, min(begin + 3, end)))
    if len(text) == last - begin:
        return
    found = coding.effect("chr1", begin, last, text)
    whole, places = GENOME["chr1"], PARTS[name]
    changed = whole[start:begin] + text + whole[last:end]
    letters = "".join(changed if place == (start, end) else whole[slice(*place)] for place in places)
    new = Seq(letters) if name == "forward" else Seq(letters).reverse_complement()
    protein, old = (str(one[: len(one) // 3 * 3].translate(11)) for one in (new, Seq(cut(whole, name))))
    if (len(text) - (last - begin)) % 3:
        kind = "frameshift_variant"
    elif str(new[:3]) not in ("ATG", "GTG", "TTG"):
        kind = "start_lost"
    elif "*" in protein[:-1]:
        kind = "stop_gained"
    else:
        kind = "stop_lost" if old[-1] == "*" and protein[-1] != "*" else "inframe_indel"
    assert found == Effect(name, kind)


@pytest.mark.parametrize(("start", "end", "text"), [(49, 54, "A"), (60, 60, "A"), (15, 95, "")])
def test_what_reaches_over_the_end_of_a_part_is_partly_coding(
    start: int, end: int, text: str, coding: CodingSequences
) -> None:
    assert coding.effect("chr1", start, end, text) == Effect("forward", "coding_sequence_variant")


def test_what_is_put_in_front_of_a_gene_is_outside(coding: CodingSequences) -> None:
    assert coding.effect("chr1", 20, 20, "ATG") is None
    assert coding.effect("chr1", 89, 89, "ATG") is None


def test_an_unknown_base_says_nothing(coding: CodingSequences) -> None:
    found = coding.effect("chr1", 63, 64, "N")
    assert (found.consequence, found.codon) == ("incomplete_terminal_codon_variant", None)


@pytest.mark.parametrize("phase", [1, 2])
def test_a_gene_whose_begin_is_missing_has_its_first_whole_codon_later(phase: int, tmp_path: Path) -> None:
    path = written(tmp_path / "genes.gff3", f"chr1\tx\tCDS\t301\t330\t.\t+\t{phase}\tID=late\n")
    found = CodingSequences(str(path), GENOME)
    letters = GENOME["chr1"]
    for at in range(300, 330):
        effect = found.effect("chr1", at, at + 1, {"A": "C", "C": "G", "G": "T", "T": "A"}[letters[at]])
        number, place = divmod(at - 300 - phase, 3)
        if number < 0 or 300 + phase + 3 * number + 3 > 330:
            assert effect.consequence == "incomplete_terminal_codon_variant"
            continue
        codon = letters[300 + phase + 3 * number : 303 + phase + 3 * number]
        assert effect.change[2:].startswith(f"{Seq(codon).translate()}{number + 1}"), place
        assert effect.consequence != "start_lost"


def of_one(circle: str, lines: str, folder: Path) -> CodingSequences:
    path = written(folder / "circle.gff3", lines)
    return CodingSequences(str(path), {"c": circle})


@pytest.mark.parametrize("reverse", [False, True])
def test_a_gene_goes_on_behind_the_end_of_a_circle(reverse: bool, tmp_path: Path) -> None:
    gene = str(Seq(START + "GCT" * 8 + END))
    forward = str(Seq(gene).reverse_complement()) if reverse else gene
    circle = forward[10:] + "ACGTACGTAC" + forward[:10]
    strand, begin = "-" if reverse else "+", len(circle) - 10
    line = f"c\tx\tCDS\t{begin + 1}\t{begin + 30}\t.\t{strand}\t0\tID=a\n"
    found = of_one(circle, line, tmp_path)
    for number, at in [(1, 3), (4, 12), (8, 24)]:
        place = (begin + (len(gene) - 1 - at if reverse else at)) % len(circle)
        base = str(Seq("A").reverse_complement()) if reverse else "A"
        effect = found.effect("c", place, place + 1, base)
        assert (effect.consequence, effect.change) == ("missense_variant", f"p.A{number + 1}T")


def test_parts_with_an_id_each_are_one_gene_where_their_phases_go_on(tmp_path: Path) -> None:
    text = START + "GCT" * 3 + "G" + "TTTT" + "CT" + "GCT" + END
    first, second = (0, 13), (17, 25)
    rows = [
        f"c\tx\tCDS\t{a + 1}\t{b}\t.\t+\t{phase}\tID=p.{n};Parent=p\n"
        for n, ((a, b), phase) in enumerate([(first, 0), (second, 2)])
    ]
    effect = of_one(text, "".join(rows), tmp_path).effect("c", 12, 13, "A")
    assert (effect.consequence, effect.change) == ("missense_variant", "p.A5T")
    apart = of_one(text, "".join(rows).replace("\t2\tID", "\t0\tID"), tmp_path).effect("c", 12, 13, "A")
    assert apart.consequence == "incomplete_terminal_codon_variant"


def test_attributes_of_gtf_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is the file GTF"):
        of_one("ACGT" * 9, 'c\tx\tCDS\t1\t9\t.\t+\t0\tgene_id "a"; transcript_id "b";\n', tmp_path)


@pytest.mark.parametrize("at", [24, 62, 65, 130, 200])
def test_two_bases_changed_at_once(at: int, coding: CodingSequences) -> None:
    letters, text = GENOME["chr1"], "AA" if GENOME["chr1"][at : at + 2] != "AA" else "CC"
    name = "forward" if at < 100 else "reverse"
    old, new = (cut(one, name) for one in (letters, letters[:at] + text + letters[at + 2 :]))
    both = [str(Seq(one).translate(11)) for one in (old, new)]
    differ = [n for n in range(len(both[0])) if old[3 * n : 3 * n + 3] != new[3 * n : 3 * n + 3]]
    kinds = set()
    for was, now in ((both[0][n], both[1][n]) for n in differ):
        stop = {(True, False): "stop_lost", (False, True): "stop_gained"}.get((was == "*", now == "*"))
        kinds.add(stop or (SYNONYMOUS if was == now else "missense_variant"))
    found = coding.effect("chr1", at, at + 2, text)
    assert found.consequence == min(kinds, key=WORST.index)
    alone = f"p.{both[0][differ[0]]}{differ[0] + 1}{both[1][differ[0]]}" if len(differ) == 1 else ""
    assert found.change in (alone, f"{alone[:-1]}=")


def test_two_codons_changed_at_once(coding: CodingSequences) -> None:
    found = coding.effect("chr1", 23, 29, "TAATAA" if GENOME["chr1"][23:29] != "TAATAA" else "TAGTAG")
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


@pytest.mark.parametrize("form", ["genbank", "embl", "gff3"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recoded_stop_is_a_residue(form: str, reverse: bool, tmp_path: Path) -> None:
    """Of three TGA the second, which lies over two parts, is selenocysteine (U)."""
    gene = START + "GCT" * 2 + "TG" + "CCCC" + "A" + "GCT" * 3 + "TGA" + END  # an intron of four C
    size, path = len(gene), tmp_path / "genes.txt"
    letters = str(Seq(gene).reverse_complement()) if reverse else gene
    both = ((0, 11), (15, size))
    parts = [SimpleLocation(size - b, size - a, -1) if reverse else SimpleLocation(a, b, 1) for a, b in both]
    a, b, c = (size - one if reverse else one + 1 for one in (9, 10, 15))  # of the codon's bases, from 1
    told = f"(pos:{f'complement(join({c},{b}..{a}))' if reverse else f'join({a}..{b},{c})'},aa:Sec)"
    if form == "gff3":
        rows = [
            f"c\tx\tCDS\t{int(one.start) + 1}\t{int(one.end)}\t.\t{'-' if reverse else '+'}\t0\tID=a"
            f";transl_except={told.replace(',', '%2C')}\n"
            for one in parts
        ]
        path.write_text("".join(rows))
    else:
        record = SeqRecord(Seq(letters), id="c", annotations={"molecule_type": "DNA"})
        record.features = [
            SeqFeature(CompoundLocation(parts), type="CDS", qualifiers={"transl_except": [told]})
        ]
        SeqIO.write(record, path, form)
    found = CodingSequences(str(path), {"c": letters})
    assert found.counts == Counter({START: 1, "GCT": 5, "TGA": 1})

    def effect(start: int, end: int, text: str) -> tuple[str, str, bool]:
        """Of bases of the gene, in its direction."""
        other = size - end, size - start, str(Seq(text).reverse_complement())
        one = found.effect("c", *(other if reverse else (start, end, text)))
        return one.consequence, one.change, one.codon is None

    assert effect(15, 16, "T") == ("missense_variant", "p.U4C", True)
    assert effect(10, 11, "A") == ("stop_gained", "p.U4*", True), "TAA is none that is recoded"
    assert effect(27, 28, "C") == ("stop_lost", "p.*8C", True), "the other TGA is a stop"
    assert effect(6, 6, "AAA") == effect(16, 19, "") == ("stop_gained", "", True), "by the other TGA"


def test_without_another_stop_a_recoded_one_ends_nothing(tmp_path: Path) -> None:
    gene = START + "GCT" + "TGA" + "GCT" * 3 + END
    found = of_one(gene, "c\tx\tCDS\t1\t21\t.\t+\t0\tID=a;transl_except=(pos:7..9%2Caa:Sec)\n", tmp_path)
    changes = [(4, 4, "CTG"), (12, 15, ""), (6, 9, ""), (9, 9, "TGA")]
    kinds = [found.effect("c", *change).consequence for change in changes]
    assert kinds == [*["inframe_indel"] * 3, "stop_gained"]


@pytest.mark.parametrize("residue", ["Xle", "Sec", "Pyl"])
def test_what_blosum_does_not_have_gives_no_ratio(residue: str, tmp_path: Path) -> None:
    line = f"c\tx\tCDS\t1\t12\t.\t+\t0\tID=a;transl_except=(pos:4..6%2Caa:{residue})\n"
    found = of_one(START + "TGAGCT" + END, line, tmp_path).effect("c", 5, 6, "G")
    assert (found.consequence, found.codon) == ("missense_variant", None)


def test_a_first_codon_that_is_read_as_a_start_is_one(tmp_path: Path) -> None:
    line = "c\tx\tCDS\t1\t12\t.\t+\t0\tID=a;transl_except=(pos:1..3%2Caa:Met)\n"
    found = of_one("CTGGCTGCT" + END, line, tmp_path)
    effects = [
        found.effect("c", *change) for change in [(0, 1, "G"), (0, 1, "A"), (1, 1, "CTG"), (4, 4, "CTG")]
    ]
    assert [(one.consequence, one.change) for one in effects] == [
        ("start_lost", "p.M1?"), (SYNONYMOUS, "p.M1="), ("start_lost", ""), ("inframe_indel", ""),
    ]  # fmt: skip


def test_other_genomes_and_files_are_refused(tmp_path: Path) -> None:
    path = gff(tmp_path)
    with pytest.raises(DataError, match="no coding sequence"):
        CodingSequences(str(path), {"7": "ACGT"})
    path.write_text("a\tb\n")
    with pytest.raises(DataError, match="nine columns"):
        CodingSequences(str(path), GENOME)
    assert CodingSequences(str(gff(tmp_path)), GENOME).effect("2", 3, 4, "A") is None

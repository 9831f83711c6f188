"""Variants of proteins: all notations, numbering, what does not fit, and rivals without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.variants import UNSCORED, parse
from seqmlm.domains.variants import Variant, VariantTable
from seqmlm.errors import DataError, UsageError

WILDTYPE = "MKTAYIAKQRQISFVKSHFSRQ"


def read(folder: Path, rows: list[Any], **asked: Any) -> tuple[list[Variant], dict[str, int]]:
    """The variants of a table of some rows, and what was noted, how often."""
    (folder / "wt.fasta").write_text(f">wt\n{asked.pop('wildtype', WILDTYPE)}\n")
    table = folder / "v.jsonl"
    kept = [row if isinstance(row, dict) else {"mutant": row} for row in rows]
    table.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    problems = asked.pop("problems", None) or Problems()
    given = {"wildtype": str(folder / "wt.fasta"), **asked}
    found = list(PROTEIN.variants().table_variants(VariantTable(path=str(table), **given), problems))
    return found, problems.counts


@pytest.mark.parametrize(
    ("text", "mutant"),
    [
        ("A4W", "MKTWYIAKQRQISFVKSHFSRQ"),
        ("A4W:Y5C", "MKTWCIAKQRQISFVKSHFSRQ"),
        ("A4W,Y5C", "MKTWCIAKQRQISFVKSHFSRQ"),
        ("A4W/Y5C", "MKTWCIAKQRQISFVKSHFSRQ"),
        ("A4=/Y5W", "MKTAWIAKQRQISFVKSHFSRQ"),
        ("Y5C+A4W", "MKTWCIAKQRQISFVKSHFSRQ"),
        ("p.Ala4Trp", "MKTWYIAKQRQISFVKSHFSRQ"),
        ("p.(Ala4Trp)", "MKTWYIAKQRQISFVKSHFSRQ"),
        ("NP_000001.2:p.Ala4Trp", "MKTWYIAKQRQISFVKSHFSRQ"),
        ("p.[Ala4Trp;Tyr5Cys]", "MKTWCIAKQRQISFVKSHFSRQ"),
        ("p.Ala4=", WILDTYPE),
        ("A4A", WILDTYPE),
        ("p.=", WILDTYPE),
        ("WT", WILDTYPE),
        ("A4-", "MKTYIAKQRQISFVKSHFSRQ"),
        ("p.Ala4del", "MKTYIAKQRQISFVKSHFSRQ"),
        ("p.Thr3_Tyr5del", "MKIAKQRQISFVKSHFSRQ"),
        ("p.Ala4dup", "MKTAAYIAKQRQISFVKSHFSRQ"),
        ("T3_A4dup", "MKTATAYIAKQRQISFVKSHFSRQ"),
        ("p.Ala4_Tyr5insGlyTrp", "MKTAGWYIAKQRQISFVKSHFSRQ"),
        ("A4_Y5insGW", "MKTAGWYIAKQRQISFVKSHFSRQ"),
        ("p.Thr3_Tyr5delinsGly", "MKGIAKQRQISFVKSHFSRQ"),
        ("A4delinsGW", "MKTGWYIAKQRQISFVKSHFSRQ"),
        ("MKTWYIAKQRQISFVKSHFSRQ", "MKTWYIAKQRQISFVKSHFSRQ"),
        ("MKTWYIAKQRQISFVKSHFSR", "MKTWYIAKQRQISFVKSHFSR"),
    ],
)
def test_notations(tmp_path: Path, text: str, mutant: str):
    [found], _ = read(tmp_path, [text])
    assert found.mutant == mutant
    assert found.substitutions is (len(mutant) == len(WILDTYPE))


@pytest.mark.parametrize(
    "text",
    [
        *("A4", "4W", "A4WW", "p.Ala4fsW", "A4insG", "A4_Y5W", "A4delW", "c.", "A4W B", "p.Ala?4", "ext"),
        *(
            "p.Ala4Gly^",
            "p.Ala4Gly^Foo",
            "p.(Ala4_Tyr5)",
            "p.Ala[10]",
            "p.Ala4ins5",
            "[];[]",
            "p.Ala4_Tyr5ins",
        ),
        *("p.Ala4_?", "A4W/", "p.[Ala4Trp];[]", "#", "~"),
    ],
)
def test_what_is_no_variant(text: str):
    with pytest.raises(ValueError, match=r"not a |write delins"):
        parse(text)


FORMS = {
    "fs": [
        "p.Ala4fs",
        "p.Ala4GlyfsTer12",
        "p.Ala4Glyfs*12",
        "p.(Ala4fs*?)",
        "A4fs",
        "p.[Tyr5Cys;Ala4fs]",
        "p.Ala4=fs*?",
        "p.Ala4_Tyr5delinsGlyfsTer9",
    ],
    "ext": [
        "p.Met1ext-5",
        "p.Met1Valext-12",
        "p.Ter23GlnextTer17",
        "p.*23Glnext*?",
        "p.Ter23ext",
        "p.(Ter23TyrextAsnLysTer)",
    ],
    "unknown": ["p.Met1?", "p.(Met1?)", "p.?", "p.0", "p.0?", "NP_000001.2:p.?", "M1?"],
    "length": [
        *("p.Ala4_Tyr5ins*63", "p.Ala4_Tyr5ins23", "p.(Ala4_Tyr5ins(5))", "p.Ala4_Tyr5ins(10_20)"),
        *("p.Ala4_Tyr5ins?", "p.Ala4_Tyr5insXaa[20]", "p.Ala4delins7", "p.Ala4_Tyr5delinsTer63"),
        "p.Ala4_Tyr5ins[NP_000001.2:p.10_20]",
    ],
    "repeat": ["p.Ala4[10]", "p.(Ala4)[(70_80)]", "p.Thr3_Tyr5[12]", "p.Ala4[?]", "A4[3]"],
    "uncertain": [
        *("p.(Ala4_Lys8)Ter", "p.(Ala4_Lys8)del", "p.(Ala4_Tyr5)_(Lys8_Gln9)del", "p.(Ala4_Lys8)insGly"),
        *("p.(?_Ala4)del", "p.Ala4_?del", "p.(Ala4_Lys8)fs", "p.?_Ala4dup"),
    ],
    "alternatives": [
        *("p.Ala4Gly^Ser^Cys", "p.(Ala4Gly^Ser^Cys)", "p.Ala4Cys^Ala4Ser", "p.(Ala4Cys)^(Tyr5Ser)"),
        *("p.[Ala4Trp];[Ala4Trp]", "p.[Ala4Trp];[?]", "p.[Ala4Trp];[=]", "p.[Ala4Trp];[0]"),
        *("p.(Ala4Trp)(;)(Tyr5del)", "p.[Ala4[10]];[Ala4[11]]", "p.[Ala4Trp,Thr3_Tyr5del]"),
        *("p.Ala4=/Cys", "p.Ala4=//Cys", "p.[=/Ala4Cys]", "p.Ala4=/del", "p.Ala4_Tyr5insGly^Trp"),
        *("p.[Ala4Gly^Ser;Tyr5Cys]", "p.Ala4fs^Ala4Ser", "A4G^S"),
    ],
    "residue": ["p.Ala4Xaa", "p.Ala4Sec", "A4X", "p.Ala4_Tyr5insXaaXaa", "p.Ala4delinsGlyXaa"],
    "nucleotides": [
        "c.12A>G",
        "n.3_4del",
        "g.1234del",
        "m.8993T>G",
        "r.76a>u",
        "c.[1A>G;2T>C]",
        "NM_1.2:c.4+1G>A",
    ],
    "missing": ["NA", "n/a", "None", "-", "."],
    "stop": ["p.Ala4Ter", "p.Ala4*", "A4*", "p.Ter23Trp", "p.Ter23=", "p.Ala4_Tyr5insTer"],
}


def test_a_table_of_all_hgvs_forms_keeps_every_row(tmp_path: Path):
    """Forms that name no residues have a row without an effect, and are counted by kind."""
    scored = [
        "p.Ala4Trp",
        "_wt",
        "_sy",
        "p.=",
        "p.(=)",
        "p.Ala4=",
        "target:p.Ala4Trp",
        "p.Thr3_Tyr5delinsGly",
    ]
    unscored = [text for texts in FORMS.values() for text in texts]
    variants, notes = read(tmp_path, [{"hgvs_pro": text} for text in (*scored, *unscored)])
    assert [one.name for one in variants] == [*scored, *unscored]
    assert [one.scored for one in variants] == [True] * len(scored) + [False] * len(unscored)
    assert notes == {UNSCORED[kind]: len(texts) for kind, texts in FORMS.items()}
    assert all(not one.edits or "*" in one.mutant for one in variants[len(scored) :])


def test_a_form_without_an_effect_is_checked_against_the_wild_type(tmp_path: Path):
    for text in ("p.Tyr4fs", "p.Met2?", "p.[Tyr5Trp;Tyr4fs]", "p.Tyr4[3]", "p.Ala4Gly^Ala5Gly"):
        with pytest.raises(DataError, match=r"the wild type has \w at \d, not \w"):
            read(tmp_path, [text])
    rows = [f"p.{letter}{place + 23}fs" for place, letter in enumerate(WILDTYPE, start=1)]
    assert len(read(tmp_path, [*rows, "p.Ter46Trp"])[0]) == len(WILDTYPE) + 1  # numbering is inferred of them


def test_a_column_of_nucleotides_alone_is_refused(tmp_path: Path):
    with pytest.raises(
        DataError, match=r"this column has no change of the protein in 2 rows.*--set column=NAME"
    ):
        read(tmp_path, [{"hgvs": "c.12A>G"}, {"hgvs": "NA"}])


def test_columns(tmp_path: Path):
    triple = {"WT amino acid": "A", "Position": "4", "Mutation": "W"}
    for row in (triple, {"hgvs_pro": "p.Ala4Trp"}, {"mut_seq": WILDTYPE.replace("TAY", "TWY")}):
        assert read(tmp_path, [row])[0][0].mutant == "MKTWYIAKQRQISFVKSHFSRQ"
    own = [{"wt_seq": "ACDEF", "mut_seq": "ACDEG"}, {"wt_seq": "KLMNP", "mut_seq": "KLMP"}]
    found, _ = read(tmp_path, own, wildtype="ACDEF")
    found = list(PROTEIN.variants().table_variants(VariantTable(path=str(tmp_path / "v.jsonl")), Problems()))
    assert [(one.name, one.wildtype, one.mutant) for one in found] == [
        ("F5G", "ACDEF", "ACDEG"),
        ("4N>-", "KLMNP", "KLMP"),
    ]


def test_other_files(tmp_path: Path):
    (tmp_path / "wt.fasta").write_text(f">wt\n{WILDTYPE}\n")
    (tmp_path / "v.txt").write_text("A4W\n\nY5C\n")
    (tmp_path / "v.fasta").write_text(f">one\n{WILDTYPE.replace('TAY', 'TWY')}\n")
    found = {}
    for name in ("v.txt", "v.fasta"):
        table = VariantTable(path=str(tmp_path / name), wildtype=str(tmp_path / "wt.fasta"))
        found[name] = list(PROTEIN.variants().table_variants(table, Problems()))
    assert [(one.name, one.line) for one in found["v.txt"]] == [("A4W", 1), ("Y5C", 3)]
    assert [(one.name, one.edits) for one in found["v.fasta"]] == [("one", found["v.txt"][0].edits)]


@pytest.mark.parametrize("first", [24, 0, -3])
def test_numbering_is_inferred_and_said(tmp_path: Path, first: int):
    rows = [f"{letter}{i + first}W" for i, letter in enumerate(WILDTYPE) if i + first >= 0]
    found, said = read(tmp_path, rows)
    assert [one.edits[0].start for one in found] == list(range(len(WILDTYPE)))[-len(rows) :]
    told = f"the table numbers the first residue of the wild type {first}; of its {len(rows)} places fit"
    assert said == {told: len(rows)}


def test_numbering_of_a_part(tmp_path: Path):
    """A wild type that is a domain of what was changed: its places fit, and the others are outside."""
    rows = [f"{letter}{i + 24}W" for i, letter in enumerate(WILDTYPE)]
    problems = Problems("skip")
    found, said = read(tmp_path, rows, wildtype=WILDTYPE[3:18], problems=problems)
    assert said["the table numbers the first residue of the wild type 27; of its 22 places fit"] == 15
    assert (len(found), problems.bad_count) == (15, 7)


def test_numbering_is_not_guessed_from_few_places(tmp_path: Path):
    """One variant fits somewhere in almost any sequence; that is a wrong wild type, and no numbering."""
    with pytest.raises(DataError, match=r"v\.jsonl:1: Y4W: the wild type has A at 4, not Y") as error:
        read(tmp_path, ["Y4W"])
    assert error.value.exit_code == 3
    found, said = read(tmp_path, ["Y4W"], first=0)
    assert found[0].edits[0].start == 4
    assert not said


def test_numbering_of_another_protein(tmp_path: Path):
    rows = [f"{letter}{i + 1}W" for i, letter in enumerate("GGGGWWWWCCCCDDDD")]
    with pytest.raises(DataError, match=r"do not fit the wild type: at best .* of 16 places fit"):
        read(tmp_path, rows)


def test_what_does_not_fit_is_listed_with_its_line(tmp_path: Path):
    good = [f"{letter}{i + 1}W" for i, letter in enumerate(WILDTYPE)]
    rows = [*good, "A5W", "Q99W", "A4J", "A4W:A4C", "A4?"]
    with pytest.raises(
        DataError, match=r"v\.jsonl:23: A5W: the wild type has Y at 5, not A; line 24"
    ) as error:
        read(tmp_path, rows)
    told = {
        24: "Q99W: 99 is outside the wild type, which has residues 1 to 22",
        25: "A4J: J is not one of the 20 residues",
        26: "A4W:A4C: two changes at the same place",
        27: "'A4?' is not a variant such as A123G",
    }
    for line, reason in told.items():
        assert f"line {line}: {reason}" in str(error.value)
    problems = Problems("skip")
    assert len(read(tmp_path, rows, problems=problems)[0]) == 22
    assert problems.bad_count == 5


def test_stops_are_kept_without_a_score(tmp_path: Path):
    found, said = read(tmp_path, ["A4*", "p.Ala4Ter", "A4W"])
    assert [one.scored for one in found] == [False, False, True]
    assert said == {"a stop codon: not scored, because it is not a residue": 2}


def test_bad_tables(tmp_path: Path):
    rows: dict[str, tuple[list[Any], dict[str, str]]] = {
        "the file is empty": ([], {}),
        "no column with a known name": ([{"what": "A4W"}], {}),
        "no such field": (["A4W"], {"column": "nothing"}),
        "'1' at 4 is not a residue": ([{"mutated_sequence": "MKT1YI"}], {}),
    }
    for said, (given, asked) in rows.items():
        with pytest.raises(DataError, match=said):
            read(tmp_path, given, **asked)
    (tmp_path / "none.csv").write_text("mutant,score\n")
    (tmp_path / "w.txt").write_text("A4W\n")
    (tmp_path / "two.fasta").write_text(">a\nMKT\n>b\nMKT\n")
    tables: dict[str, tuple[str, str | None]] = {
        "no variants": ("none.csv", None),
        "--wildtype": ("w.txt", None),
        "2 sequences, but the wild type is one sequence": ("w.txt", str(tmp_path / "two.fasta")),
    }
    for said, (name, wildtype) in tables.items():
        table = VariantTable(path=str(tmp_path / name), wildtype=wildtype)
        with pytest.raises((DataError, UsageError), match=said):
            list(PROTEIN.variants().table_variants(table, Problems()))


def test_rivals(tmp_path: Path):
    """BLOSUM62 sums; the alignment's columns are found whatever gaps its rows have."""
    (tmp_path / "family.afa").write_text(
        f">a\n--{WILDTYPE[:8]}-{WILDTYPE[8:]}\n>b\n--MKTWYIAK-QRQISFVKSHFSRQ\n>c\nAAMKTAYIAKGQRQISFVKSHFSRC\n"
    )
    rivals = PROTEIN.variants().rivals([WILDTYPE], str(tmp_path / "family.afa"))
    found, _ = read(tmp_path, ["A4W", "A4C", "A4W:Q22C", "Q22C", "A4del", "Q22dup", "A4*"])
    assert [rivals["BLOSUM62"](one) for one in found] == [-3, 0, -6, -3, None, None, None]
    seen, unseen, both, last, *others = (rivals["site-independent"](one) for one in found)
    assert others == [None] * 3, "one is gone, one is put behind the last, one is a stop"
    assert both == pytest.approx(seen + (last or 0))
    assert 0 > seen > unseen


def test_alignments_that_are_none(tmp_path: Path):
    (tmp_path / "a.afa").write_text(">a\nMKT\n>b\nMKTA\n")
    with pytest.raises(DataError, match="differ in length"):
        PROTEIN.variants().rivals([WILDTYPE], str(tmp_path / "a.afa"))
    (tmp_path / "b.afa").write_text(">a\nGGGG\n>b\nGGGG\n")
    with pytest.raises(DataError, match="no row of the alignment is similar"):
        PROTEIN.variants().rivals([WILDTYPE], str(tmp_path / "b.afa"))

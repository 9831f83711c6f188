"""`--size linear` through the entry point: trained on an alignment, then scored and asked about variants."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from fork_server import Run
from written import written

from seqmlm.engine.linear import LinearRows
from seqmlm.inference import model_folder
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace

COLUMNS = 9
PARTNERS = {"A": "G", "C": "F", "D": "E", "E": "D", "F": "C", "G": "A"}
LINEAR = ("train", "--domain", "protein", "--size", "linear", "--set", "train.evaluation_records=20")


def rows(number: int, seed: int = 0) -> list[str]:
    """Rows of an alignment of palindromes, one letter to its partner; some with a gap in the middle."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        letters = rng.choice(list("ACDEFG"), COLUMNS)
        letters[:4] = [PARTNERS[one] for one in letters[:4:-1]]
        if rng.random() < 0.3:
            letters[4] = "-"
        found.append("".join(letters))
    return found


def fasta(path: Path, given: list[str]) -> Path:
    path.write_text("".join(f">r{number}\n{one}\n" for number, one in enumerate(given)))
    return path


@pytest.fixture
def alignment(tracked_workspace: Path) -> Path:
    return fasta(tracked_workspace / "family.fasta", rows(200))


def test_train_score_and_variants(seqmlm: Run, alignment: Path, tracked_workspace: Path) -> None:
    trained = seqmlm(
        *LINEAR, alignment, "--option", "gaps=keep", "--name", "fam", "--max-steps", 20, "--json"
    ).ok()
    result = trained.json
    assert result["steps"] == 20
    assert result["eval_bits_per_unit"] < result["unigram_bits_per_unit"]
    assert "linear: 9 columns with 6 states each" in trained.err
    [run] = Tracker(Workspace.locate()).runs()
    assert (run.params["size"], run.params["architecture"]) == ("linear", "seqmlm-linear")

    folder = tracked_workspace / "runs/fam/model"
    loaded = model_folder.load(folder)
    assert isinstance(loaded.rows, LinearRows)
    assert (loaded.card.max_length, loaded.card.reading, loaded.card.masking) == (11, {"gaps": "keep"}, {})
    assert "none: a linear model predicts each unit from all others" in seqmlm("models", "show", "fam").out

    # Scores are those of the formula, read with the gaps though nobody says so; one pass gives the same.
    given = ["ACDEFDEFG", "ACDE-DEFG", "ACDEFDEFA"]
    asked = fasta(tracked_workspace / "asked.fasta", given)
    scored = ("score", "fam", asked, "--set", "expert=none", "--mode")
    exact, single = (seqmlm(*scored, mode).rows for mode in ("exact", "one-pass"))
    assert [row["units"] for row in exact] == [9, 8, 9]
    assert [row["pll"] for row in exact] == pytest.approx([by_hand(loaded.rows, one) for one in given])
    assert [row["pll"] for row in single] == pytest.approx([row["pll"] for row in exact], rel=1e-5)
    assert exact[2]["score"] > exact[0]["score"] + 1  # the pair is broken

    wildtype = fasta(tracked_workspace / "wt.fasta", given[:1])
    variants = written(tracked_workspace / "variants.txt", "A1C\nA1C:G9F\nF5C\n")
    found = seqmlm("variants", "fam", variants, "--wildtype", wildtype, "--set", "convention=mutant").ok()
    one, both, other = (row["effect"] for row in found.rows)
    assert one < min(both, other)

    words = ("structure", "fam", asked, "--set")
    pairs = seqmlm(*words, "apc=false", "--set", "min_separation=1").ok().rows
    assert {row["method"] for row in pairs} == {"couplings"}
    assert {row["id"] for row in pairs} == {"r0"}  # one map of the family, in the numbering of the first row
    first = {(row["i"], row["j"]): row["value"] for row in pairs}
    assert sorted(first, key=lambda pair: -first[pair])[:4] == sorted(
        ((i, 8 - i) for i in range(4)), key=lambda pair: -first[pair]
    )
    seqmlm(*words, "family=true").refused(2, "leave it out")
    rows_of_one = seqmlm(*words, "apc=false", "--set", "min_separation=1", "--set", "query=r1").ok().rows
    assert {row["id"] for row in rows_of_one} == {"r1"}
    assert all("ACDEDEFG"[row["j"]] == row["unit_j"] for row in rows_of_one)  # counted without its gap
    seqmlm(*words, "query=r9").refused(3, "no sequence has the id r9")
    seqmlm(*words, "query=r1", "--set", "family=true").refused(2, "remove one of the two")
    counted = ("structure", "fam", asked, "--method", "pmi", "--set", "all=true")
    every, alone = (seqmlm(*counted, *more).ok().rows for more in ((), ("--set", "query=r1")))
    assert alone == [row for row in every if row["id"] == "r1"] != []  # counts are of all that is read


def by_hand(model: LinearRows, raw: str, names: Mapping[str, int] | None = None) -> float:
    """The sum of ln p of the letters of a row, from the parameters.

    Args:
        names: the states of letters, where all letters are states: nothing is kept for others.
    """
    weight = model.model.config.sequences
    unseen = math.log(weight / (weight + 1)) if names is None else 0.0
    letters = [model.model.config.symbols.index(one) for one in _ids("ACDEFG")] if names is None else []
    names = names or dict(zip("ACDEFG", letters, strict=True))
    fields = model.model.fields.detach().double().numpy()
    full = model.model.full_couplings().detach().double().numpy()
    total = 0.0
    for i, own in enumerate(raw):
        if own != "-":
            logits = fields[i] + sum(full[i, :, j, names[one]] for j, one in enumerate(raw) if one != "-")
            total += logits[names[own]] - np.log(np.exp(logits).sum())
            total += unseen
    return total


def _ids(letters: str) -> list[int]:
    from seqmlm.domains.protein.tokenizer import ResidueTokenizer

    return [int(one) for one in ResidueTokenizer().encode(letters).ids[1:-1]]


def test_a_training_goes_on(seqmlm: Run, alignment: Path, tracked_workspace: Path) -> None:
    given = (*LINEAR, alignment, "--option", "gaps=keep", "--name", "fam")
    assert seqmlm(*given, "--max-steps", 5).code == 0
    longer = seqmlm("train", "--resume", "fam", "--max-steps", 12, "--json").ok()
    assert (longer.json["resumed_from"], longer.json["steps"]) == (5, 12)
    lines = (tracked_workspace / "runs/fam/metrics.jsonl").read_text().splitlines()
    losses = [one["train/loss"] for one in map(json.loads, lines) if "train/loss" in one]
    assert losses == sorted(losses, reverse=True)


def test_rows_of_another_length_are_refused(seqmlm: Run, alignment: Path, tracked_workspace: Path) -> None:
    seqmlm(*LINEAR, alignment, "--name", "fam").refused(
        3, "family.fasta:", "but this linear model reads rows of", "--option gaps=keep"
    )
    seqmlm(*LINEAR, alignment, "--name", "fam", "--max-steps", 2, "--set", "data.on_error=skip").ok()
    other = fasta(tracked_workspace / "other.fasta", ["ACDEFDEFG", "ACDEFG"])
    scored = seqmlm("score", "fam", other)
    scored.refused(3, "other.fasta:3: a row has 6 units, but this linear model reads rows of 9 units")
    removed = written(tracked_workspace / "removed.txt", "A1del\n")
    gone = seqmlm("variants", "fam", removed, "--wildtype", fasta(tracked_workspace / "wt.fa", ["ACDEFDEFG"]))
    gone.refused(3, "a row has 8 units")


def test_variants_of_a_protein_are_those_of_its_row_of_the_family(
    seqmlm: Run, alignment: Path, tracked_workspace: Path
) -> None:
    """The protein has residues that no column has; it is numbered by all of them."""
    row, whole = "ACDEFDEFG", "MKACDEwwFDEFGLLL"
    family = written(
        tracked_workspace / "family.a2m", f">p53\nmk{row[:4]}ww{row[4:]}lll\n{alignment.read_text()}"
    )
    seqmlm(*LINEAR, family, "--option", "gaps=keep", "--name", "fam", "--max-steps", 10).ok()
    asked = written(tracked_workspace / "own.txt", "A3C\nA3C:G13F\nM1A\nW7A\nC4del\n")
    done = seqmlm("variants", "fam", asked, "--family", family, "--set", "query=p53").ok()
    found = done.rows
    in_row = written(tracked_workspace / "row.txt", "A1C\nA1C:G9F\n")
    wildtype = fasta(tracked_workspace / "wt.fasta", [row])
    effects = [row["effect"] for row in seqmlm("variants", "fam", in_row, "--wildtype", wildtype).ok().rows]
    assert [one["id"] for one in found] == ["A3C", "A3C:G13F", "M1A", "W7A", "C4del"]
    assert [one["effect"] for one in found[:2]] == pytest.approx(effects, abs=1e-6)
    assert [one["effect"] for one in found[2:]] == [None] * 3
    assert "3 × not in columns of the family, or of another length: not scored" in done.err
    first = seqmlm("variants", "fam", asked, "--family", family)  # the first row is the query
    own = written(tracked_workspace / "own.csv", f"mutant,wt_seq\nA1C,{row}\n")  # the table knows better
    assert seqmlm("variants", "fam", own, "--family", family).ok().json["effect"] == pytest.approx(effects[0])
    named = fasta(tracked_workspace / "whole.fasta", [whole.upper()])
    both = seqmlm("variants", "fam", asked, "--family", family, "--wildtype", named)
    assert first.out == done.out == both.out

    options = ("--family", family, "--next", 3, "--set", "first=101")
    offered = seqmlm("variants", "fam", written(asked, "A103C\n"), *options, "--json").json["next"]
    places = {101 + place: letter.upper() for place, letter in enumerate(whole) if letter.isupper()}
    assert all(places[int(one["variant"][1:-1])] == one["variant"][0] for one in offered)

    asked.write_text("A3C\n")
    seqmlm("variants", "fam", asked, "--wildtype", named).refused(2, "rows of 9 columns", "--family")
    seqmlm("variants", "fam", asked, "--wildtype", named, "--family", wildtype).ok()
    seqmlm("variants", "fam", asked, "--wildtype", named, "--family", named).refused(3, "not the alignment")
    asked = ("variants", "fam", asked)
    seqmlm(*asked, "--family", family, "--set", "query=p54").refused(3, "no row has the id p54")
    seqmlm(*asked, "--set", "query=p53", "--wildtype", named).refused(2, "remove --wildtype")


def test_what_makes_no_sense_is_refused(seqmlm: Run, alignment: Path, tracked_workspace: Path) -> None:
    for flags, message in (
        (("--set", "model.layers=nearby"), "model.layers cannot be set with --size linear"),
        (("--set", "model.overrides.penaltys=l1"), "no setting 'penaltys'; did you mean 'penalty'"),
        (("--dry-run",), "a linear model has no batches that --dry-run could measure"),
    ):
        seqmlm(*LINEAR, alignment, "--option", "gaps=keep", *flags).refused(2, message)
    assert seqmlm(*LINEAR, alignment, "--option", "gaps=keep", "--name", "fam", "--max-steps", 2).code == 0
    seqmlm("models", "export", "fam", "--out", tracked_workspace / "plain").refused(2, "is a linear model")
    seqmlm("joint", "fam", "ACD_FGA_A").refused(2, "structure --method couplings")
    further = seqmlm("train", "--domain", "protein", alignment, "--init", "fam", "--max-steps", 1)
    assert (further.code, "continued with --init" in further.err) == (2, True)


def test_an_aligned_rna_family_gives_its_stems(seqmlm: Run, tracked_workspace: Path) -> None:
    """The truth that the rows were drawn by, of rows with gaps, in every format that keeps them."""
    rng = np.random.default_rng(0)
    stems = "((((((....))))..((((...))))..))"
    rows = [row_of(stems, rng) for _ in range(300)]
    text = "".join(f"r{number} {row}\n" for number, row in enumerate(rows))
    stockholm = f"# STOCKHOLM 1.0\n{text}#=GC SS_cons {stems}\n//\n"
    family = written(tracked_workspace / "family.sto", stockholm)
    asked = ("train", "--domain", "dna", "--size", "linear", "--option", "gaps=keep", "--name", "rna")
    trained = seqmlm(*asked, family, "--max-steps", 40).ok()
    assert "linear: 31 columns with 4 states each" in trained.err

    # The same rows, a format each: A3M has columns that the others lack, in lower case.
    few = rows[:5]
    a3m = "".join(f">r{number}\n{row[:9]}acg{row[9:]}\n" for number, row in enumerate(few))
    plain = "".join(f">r{number}\n{row.replace('-', '.')}\n" for number, row in enumerate(few))
    given = {"few.a3m": a3m, "few.afa": plain}
    paths = [written(tracked_workspace / name, own) for name, own in given.items()]
    found = [seqmlm("structure", "rna", path, "--truth", family, "--json").ok().json for path in paths]
    assert found[0]["with_truth"] == 5
    assert found[0]["pair_f1"] > 0.85
    assert found[1]["measures"] == found[0]["measures"]
    one_of = ("--set", "query=r1", "--set", "min_separation=1")
    edges = seqmlm("structure", "rna", tracked_workspace / "few.a3m", *one_of).ok().rows
    letters = f"{few[1][:9]}acg{few[1][9:]}".replace("-", "").replace("U", "T")
    assert edges
    for edge in edges:  # numbers are those of the whole sequence, insertions counted
        at = edge["number_i"] - 1, edge["number_j"] - 1
        assert tuple(letters[n] for n in at) == (edge["unit_i"], edge["unit_j"])
        assert at[0] - edge["i"] in (0, 3)
    assert {edge[f"number_{x}"] - 1 - edge[x] for edge in edges for x in "ij"} == {0, 3}
    # A column is no place of the other strand: scores are those of the row as it is.
    one = written(tracked_workspace / "one.afa", f">r0\n{few[0]}\n")
    row = seqmlm("score", "rna", one, "--set", "expert=none", "--mode", "exact").ok().json
    assert row["units"] == len(few[0].replace("-", ""))
    loaded = model_folder.load(tracked_workspace / "runs/rna/model")
    assert isinstance(loaded.rows, LinearRows)
    assert loaded.tokenizer.units.facts.strands is None, "nor are counts beside the model of both strands"
    assert row["pll"] == pytest.approx(by_hand(loaded.rows, few[0], dict(zip("ACGU", range(4), strict=True))))
    long = seqmlm("score", "rna", written(tracked_workspace / "long.fa", ">a\nACGT\n"))
    long.refused(3, "a row has 4 units, but this linear model reads rows of 31 units")


def row_of(stems: str, rng: np.random.Generator) -> str:
    """A row whose paired letters are complementary; a tenth of the others, and of the pairs, are gaps."""
    letters = rng.choice(list("ACGU"), len(stems))
    waiting = list[int]()
    for place, mark in enumerate(stems):
        if mark == "(":
            waiting.append(place)
        elif mark == ")":
            first = waiting.pop()
            letters[place] = {"A": "U", "C": "G", "G": "C", "U": "A"}[str(letters[first])]
            if rng.random() < 0.1:
                letters[first] = letters[place] = "-"
        elif rng.random() < 0.1:
            letters[place] = "-"
    return "".join(letters)

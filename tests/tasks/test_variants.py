"""`seqmlm variants` through the entry point: rows, agreement with measurements, what to test next."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoints import checkpoint
from fork_server import Finished, Run
from stopped import stop_at
from text_models import text_model
from written import written

from seqmlm.domains.protein.tokenizer import STANDARD
from seqmlm.inference.session import Session
from seqmlm.inference.variants import MASKED, VariantScorer
from seqmlm.reports.page import Page
from seqmlm.tasks.substitutions import Grid

WILDTYPE = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.fixture(scope="module")
def esm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("esm")
    checkpoint("esm", folder)
    return folder


@pytest.fixture
def wildtype(tmp_path: Path) -> Path:
    return written(tmp_path / "wt.fasta", f">wt\n{WILDTYPE}\n")


@pytest.fixture
def measured(tmp_path: Path, esm: Path) -> Path:
    """All 418 substitutions but those of the last place; what was measured is the model's own effect."""
    effects = VariantScorer(Session.open(str(esm), domain="protein", expert="none"), STANDARD).map(WILDTYPE)
    rows = ["mutant,fitness,opposite,reported"]
    for place, old in enumerate(WILDTYPE[:-1]):
        for number, new in enumerate(STANDARD):
            if new != old:
                value = float(effects[place, number])
                rows.append(f"{old}{place + 1}{new},{value},{-value},{'' if place else value}")
    return written(tmp_path / "dms.csv", "\n".join(rows) + "\n")


@pytest.fixture
def variants(seqmlm: Run, esm: Path, wildtype: Path) -> Callable[..., Finished]:
    """`seqmlm variants` of the wild type."""
    return lambda *given: seqmlm("variants", esm, *given, "-d", "protein", "--wildtype", wildtype)


def table(folder: Path, *variants: str) -> Path:
    return written(folder / "variants.txt", "".join(f"{one}\n" for one in variants))


def test_rows(variants: Callable[..., Finished], tmp_path: Path):
    asked = table(tmp_path, "A4W", "p.Ala4Trp", "A4W:Y5C", "K2del", "A4*", "A4=")
    done = variants(asked).ok()
    one, hgvs, two, gone, stop, same = (json.loads(line) for line in done.out.splitlines())
    assert [row["line"] for row in (one, hgvs, two, gone, stop, same)] == [1, 2, 3, 4, 5, 6]
    assert one["effect"] == one["masked"] == hgvs["effect"]
    assert (one["id"], one["source"], one["convention"]) == ("A4W", str(asked), "masked")
    assert len({two[name] for name in MASKED}) == len(MASKED)
    assert gone["effect"] == gone["pll_excess"] not in (0, gone["pll_delta"])
    assert (gone["convention"], gone["masked"]) == ("pll_excess", None)
    assert stop["effect"] is stop["convention"] is None
    assert same["effect"] == 0
    assert (same["wildtype_bits"], gone["wildtype_bits"]) == (None, None)
    assert two["wildtype_bits"] > 0
    assert "scored 5 of 6 variants" in done.err
    assert "1 of 6 variants are deletions or insertions" in done.err
    assert "1 stop codon: not scored, because it is not a residue" in done.err
    assert "the model does not know this wild type (" in done.err


def test_one_place_says_little_of_a_model(variants: Callable[..., Finished], tmp_path: Path):
    """However many variants there are of it; of many places it is said, for the model is random."""
    one = [f"{WILDTYPE[3]}4{new}" for new in STANDARD if new != WILDTYPE[3]]
    every = [f"{old}{place}{'A' if old != 'A' else 'C'}" for place, old in enumerate(WILDTYPE, 1)]
    for listed, said in ((one, False), (every, True)):
        asked = table(tmp_path, *listed)
        assert ("the model does not know this wild type (" in variants(asked).ok().err) == said
        found = variants(asked, "--json").ok().json
        assert (found["wildtype_bits_low"] is None) == (not said)
        assert said == (found["wildtype_bits"] > (found["wildtype_bits_low"] or 0) > 4.4)


def test_conventions_and_formats(variants: Callable[..., Finished], tmp_path: Path):
    out = tmp_path / "rows.csv"
    given = (table(tmp_path, "A4W:Y5C", "K2del"), "--out", out)
    assert variants(*given, "--set", "convention=pll_delta").code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["effect"] == row["pll_delta"] != "" for row in rows] == [True, True]
    assert rows[0]["pll_delta"] != rows[0]["masked"]
    variants(*given, "--set", "convention=mask_fil").refused(2, "must be one of masked, wt, mask_fill")


def test_agreement(variants: Callable[..., Finished], measured: Path):
    given = (measured, "--measured", "fitness")
    found = variants(*given, "--set", "prediction=[opposite]", "--set", "cutoff=0", "--json").ok().json
    assert (found["variants"], found["measured"]) == (399, 399)
    assert set(found["agreement"]) == {"model", "opposite", "BLOSUM62"}
    for metric in ("spearman", "ndcg", "auc"):
        assert found["agreement"]["model"][metric]["value"] == pytest.approx(1, abs=1e-6)
    assert found["agreement"]["opposite"]["spearman"]["value"] == pytest.approx(-1, abs=1e-6)
    assert found["gain"]["against"] == "BLOSUM62"
    assert 0 < found["fit"] < 399
    part = variants(*given, "--set", "prediction=[reported]", "--json").json
    assert part["measured"] == 19
    told, *_, gain, header, first = variants(*given).out.splitlines()[:-1]
    assert told == "scored 399 of 399 variants"
    assert gain.startswith("Spearman of the model minus that of BLOSUM62: +")
    assert header.split("\t") == ["prediction", "Spearman", "NDCG@10%", "AUC", "MCC"]
    assert first.split("\t")[1].startswith("1.0000 (")


CLASSES = {
    "yes_no": ("yes", "no"),
    "bits": ("1", "0"),
    "rare_bits": ("1", "0"),
    "truth": ("True", "False"),
    "clinvar": ("Benign", "Likely_pathogenic"),
    "reviewed": ("Benign/Likely benign", "Uncertain significance"),
    "constant": ("0.5", "0.5"),
    "all_fit": ("yes", "yes"),
}


@pytest.fixture
def classes(measured: Path, tmp_path: Path) -> Path:
    """Columns of two classes, by the sign of what was measured; in one, few are fit."""
    with measured.open() as file:
        rows = list(csv.DictReader(file))[:40]
    table = tmp_path / "classes.csv"
    order = sorted(float(row["fitness"]) for row in rows)
    with table.open("w") as file:
        writer = csv.DictWriter(file, ["mutant", *CLASSES])
        writer.writeheader()
        for row in rows:
            first = {name: order[-8 if name == "rare_bits" else 20] for name in CLASSES}
            cells = {name: pair[float(row["fitness"]) < first[name]] for name, pair in CLASSES.items()}
            writer.writerow({"mutant": row["mutant"], **cells})
    return table


@pytest.mark.parametrize("column", CLASSES)
def test_columns_of_classes_have_figures_or_the_reason_why_not(
    variants: Callable[..., Finished], classes: Path, column: str
):
    found = variants(classes, "--measured", column, "--json").ok().json
    metrics, absent = found["agreement"]["model"], found.get("not_computed", {})
    assert set(metrics) | {name.lower().partition("@")[0] for name in absent} >= {
        "spearman",
        "auc",
        "mcc",
        "ndcg",
    }
    assert all(one["value"] is not None for own in found["agreement"].values() for one in own.values())
    constant = len(set(CLASSES[column])) == 1 or column == "reviewed"
    assert ({"auc", "mcc"} <= set(metrics)) != constant
    if not constant:
        assert metrics["auc"]["value"] == pytest.approx(1)
    shown = variants(classes, "--measured", column).out
    assert "nan" not in shown
    assert ("not computed: AUC, MCC (all variants count as fit)" in shown) == constant
    assert ("all measurements are equal" in shown) == constant


def test_next_is_fit_unmeasured_and_of_another_place(
    variants: Callable[..., Finished], esm: Path, measured: Path
):
    grid = VariantScorer(Session.open(str(esm), domain="protein", expert="none"), STANDARD).map(WILDTYPE)
    left = variants(measured, "--json", "--measured", "fitness", "--next", "30").json["next"]
    order = sorted((new for new in STANDARD if new != "Q"), key=lambda new: -grid[21, STANDARD.index(new)])
    assert [one["variant"] for one in left] == [f"Q22{new}" for new in order]
    free = variants(measured, "--json", "--next", "23").json["next"]
    assert len({one["variant"][:-1] for one in free[:22]}) == 22
    effects = [one["effect"] for one in free[:22]]
    assert effects == sorted(effects, reverse=True)
    assert effects[0] == pytest.approx(grid.max(), abs=1e-6)


def test_what_ranks_worse_than_others_says_so_beside_its_suggestions(
    variants: Callable[..., Finished], measured: Path, tmp_path: Path
):
    head, *lines = measured.read_text().splitlines()
    rows = [f"{line},{number * 7 % 11}" for number, line in enumerate(lines)]
    given = (written(tmp_path / "other.csv", "\n".join([f"{head},other", *rows]) + "\n"), "--next", "1")
    assert "do not choose" not in variants(*given, "--measured", "fitness").out
    bad = variants(*given, "--measured", "other", "--set", "prediction=[other]")
    assert "other is clearly better than this model on the measured variants: do not rely" in bad.out


def test_a_report_and_its_run(
    seqmlm: Run, variants: Callable[..., Finished], measured: Path, tmp_path: Path, tracked_workspace: Path
):
    report = tmp_path / "report.html"
    written_to = ("--report", report, "--out", tmp_path / "rows.jsonl")
    variants(measured, "--measured", "fitness", "--next", "3", *written_to).ok()
    html = report.read_text()
    assert html.count('class="band"') == len(WILDTYPE)  # the wild type's own letters
    assert html.count(" nats&#34;") + html.count(' nats"') == len(WILDTYPE) * 20
    assert "Suggested next tests" in html
    runs = seqmlm("runs", "list", "--json").json
    assert [one["name"].startswith("variants-") for one in runs] == [True]
    shown = seqmlm("runs", "show", runs[0]["name"], "--json").json
    assert shown["metrics"]["agreement/model/spearman/value"] == pytest.approx(1, abs=1e-6)
    assert float(shown["params"]["agreement/BLOSUM62/auc/value"]) > 0, "a rival is no curve of the run"


def test_what_is_made_of_all_rows_can_be_asked_for_later(
    variants: Callable[..., Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run goes on that was stopped in the middle of its batches, with the same bytes and figures."""
    random = np.random.default_rng(1)
    rows = ["mutant,fitness", "W1A,0"]
    for _ in range(600):
        first, second = sorted(random.choice(22, 2, replace=False))
        new = random.choice(list("DNEGPLW"), 2)
        changes = [f"{WILDTYPE[at]}{at + 1}{to}" for at, to in zip((first, second), new, strict=True)]
        rows.append(f"{':'.join(changes)},{random.normal()}")
    asked = written(tmp_path / "doubles.csv", "\n".join([*rows, "W1A,0"]) + "\n")
    given, out = (asked, "--on-error", "skip"), tmp_path / "rows.csv"
    compared = (*given, "--measured", "fitness", "--json", "--out")
    whole = variants(*compared, tmp_path / "whole.csv").ok()
    calls = stop_at(monkeypatch, VariantScorer, "effects", 3, SystemExit(9))
    assert variants(*given, "--out", out).code == 9
    variants(*given, "--out", out, "--resume", "--set", "convention=wt").refused(4, "cannot continue")
    done = variants(*compared, out, "--resume").ok()
    assert f"continuing {out} after 512 items" in done.err
    assert [len(asked_about) for (asked_about,) in calls[3:]] == [600 - 512]
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert done.json == whole.json


def test_bad_input(variants: Callable[..., Finished], measured: Path, tmp_path: Path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "sequences.csv").write_text("mutated_sequence\nMKTAYIAKQRQISFVKSHFSR1\n")
    outside, wrong = table(tmp_path, "A4W", "Q99W"), tmp_path / "wrong.csv"
    wrong.write_text("mutant\nA4W\nY4W\n")
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (3, "empty.csv: the file is empty", (tmp_path / "empty.csv",)),
        (3, "variants.txt:2: Q99W: 99 is outside the wild type", (outside,)),
        (
            3,
            "which has residues 1 to 22 (give the number of its first residue with --set first=NUMBER",
            (outside,),
        ),
        (3, "wrong.csv:3: Y4W: the wild type has A at 4, not Y", (wrong,)),
        (3, "'1' at 22 is not a residue", (tmp_path / "sequences.csv",)),
        (3, "no such field (did you mean 'fitness'", (measured, "--measured", "fitnes")),
        (3, "not a number", (measured, "--measured", "mutant")),
        (3, "no such field", (measured, "--set", "column=nothing")),
        (2, "--measured", (measured, "--set", "prediction=[opposite]")),
        (2, "give one file of variants", (measured, outside)),
        (3, "nowhere.csv", (tmp_path / "nowhere.csv",)),
    ]
    for code, told, given in cases:
        variants(*given).refused(code, told)
    done = variants(outside, "--on-error", "skip")
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert "1 × Q99W: 99 is outside the wild type, which has residues 1 to 22" in done.err


def test_a_model_of_another_field(seqmlm: Run, wildtype: Path, measured: Path, tmp_path: Path):
    done = seqmlm("variants", text_model(tmp_path / "text"), measured, "--wildtype", wildtype)
    assert (done.code, "domain text has no variants" in done.err) == (2, True)


def test_published_correlations(seqmlm: Run, esm: Path, tmp_path: Path, real_data: Path):
    """Columns of the BLAT file have the correlations that Meier et al. (2021) report, on as many variants."""
    folder = real_data / "protein" / "dms"
    labelled = folder / "BLAT_ECOLX_Ranganathan2015_esm_labeled.csv.gz"
    names = {"independent": 0.6142, "pairwise": 0.7177, "vae_ensemble": 0.7755}
    if not labelled.is_file():
        pytest.skip("this file is not here")
    import gzip

    with gzip.open(folder / "P62593_BLAT_variants_esm_example.fasta.gz", "rt") as lines:
        (tmp_path / "blat.fasta").write_text("".join([next(lines), next(lines)]))
    predictions = ",".join(f"mutation_effect_prediction_{name}" for name in names)
    done = seqmlm(
        "variants", esm, labelled, "-d", "protein", "--wildtype", tmp_path / "blat.fasta",
        "--measured", "2500", "--set", f"prediction=[{predictions}]", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (done.json["variants"], done.json["measured"]) == (4996, 4788)
    for name, published in names.items():
        found = done.json["agreement"][f"mutation_effect_prediction_{name}"]["spearman"]
        assert round(found["value"], 4) == published
        assert found["low"] < published < found["high"]


def test_the_family_of_a_domain(tmp_path: Path, real_data: Path):
    """PAB1 by the columns of PF00076: the row of C5DRV5_ZYGRC maps 33,956 variants."""
    from scipy.stats import spearmanr

    from seqmlm.data.problems import Problems
    from seqmlm.domains.protein import PROTEIN
    from seqmlm.domains.variants import VariantTable

    file = real_data / "protein" / "dms" / "pab1_Melamed2013.tsv.gz"
    family = real_data / "protein" / "contacts_pfam40" / "aln" / "PF00076.fasta.gz"
    if not file.is_file() or not family.is_file():
        pytest.skip("these files are not here")
    wildtype = "GNIFIKNLHPDIDNKALYDTFSVFGDILSSKIATDENGKSKGFGFVHFEEEGAAKEAIDALNGMLLNGQEIYVAP"
    (tmp_path / "wt.fasta").write_text(f">pab1\n{wildtype}\n")
    problems = Problems()
    asked = VariantTable(path=str(file), wildtype=str(tmp_path / "wt.fasta"))
    variants = list(PROTEIN.variants().table_variants(asked, problems))
    assert (
        problems.counts["the table numbers the first residue of the wild type 126; of its 75 places fit"]
        == 75
    )
    predict = PROTEIN.variants().rivals([wildtype], str(family))["site-independent"]
    pairs = [(float(one.fields["score"]), predict(one)) for one in variants if one.scored]
    known = [pair for pair in pairs if pair[1] is not None]
    assert len(known) == 33_956
    assert spearmanr(*zip(*known, strict=True))[0] == pytest.approx(0.507, abs=0.002)


@pytest.mark.parametrize("size", [0.3, 5.0, 40.0])
def test_colours_of_all_substitutions_fit_the_effects(size: float) -> None:
    values = np.random.default_rng(1).normal(scale=size, size=(len(WILDTYPE), len(STANDARD)))
    page = Page("variants", "")
    Grid(WILDTYPE, STANDARD, values, range(1, len(WILDTYPE) + 1)).draw(page)
    html = page.html()
    scale, beyond = re.findall(r"mean (\S+) nats or more \((\S+)% of the effects\)", html)[0]
    assert 1.9 * size < float(scale) < 3 * size
    assert 0.5 < float(beyond) < 4
    assert len(re.findall(r'<i class="[su]8" data-tip', html)) < 0.05 * values.size

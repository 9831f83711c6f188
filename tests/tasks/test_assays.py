"""`seqmlm assays`: the benchmark's own layout in and out, and means as it makes them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from checkpoints import checkpoint
from fork_server import Run
from scipy.stats import spearmanr
from stopped import stop_at

from seqmlm.domains.protein.tokenizer import STANDARD
from seqmlm.domains.variants import Assay, VariantTable
from seqmlm.inference.session import Session
from seqmlm.inference.variants import VariantScorer
from seqmlm.tasks.assays import benchmark_means

WILDTYPES = {"ONE": "MKTAYIAKQRQISFVKSHFSRQ", "TWO": "ACDEFGHIKLMNPQRSTVWY"}


@pytest.fixture(scope="module")
def esm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("esm") / "small"
    checkpoint("esm", folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reference file and tables of two assays; a third one is not there, as in a partial download."""
    random, root = np.random.default_rng(3), tmp_path / "gym"
    (root / "DMS").mkdir(parents=True)
    reference = ["DMS_id,DMS_filename,UniProt_ID,target_seq,coarse_selection_type"]
    for name, text in (*WILDTYPES.items(), ("GONE", "MKT")):
        reference.append(
            f"{name}_A_2020,{name}_A_2020.csv,{name},{text},{'Activity' if name == 'ONE' else 'Binding'}"
        )
        rows = ["mutant,mutated_sequence,DMS_score,DMS_score_bin"]
        for place, old in enumerate(text):
            for new in STANDARD.replace(old, "")[:4]:
                value = random.normal()
                rows.append(
                    f"{old}{place + 1}{new},{text[:place]}{new}{text[place + 1 :]},{value},{int(value > 0)}"
                )
        if name != "GONE":
            (root / "DMS" / f"{name}_A_2020.csv").write_text("\n".join(rows) + "\n")
    (root / "reference.csv").write_text("\n".join(reference) + "\n")
    return root


def test_scores_are_written_beside_the_columns_of_the_benchmark(
    seqmlm: Run, esm: Path, folder: Path, tmp_path: Path
):
    done = seqmlm("assays", esm, folder, "-d", "protein", "--scores", tmp_path / "scores", "--json").ok()
    assert set(done.json["assays"]) == {"ONE_A_2020", "TWO_A_2020"}
    scorer = VariantScorer(Session.open(str(esm), domain="protein", expert="none"), STANDARD)
    for name, text in WILDTYPES.items():
        rows = list(csv.DictReader((tmp_path / "scores" / f"{name}_A_2020.csv").read_text().splitlines()))
        assert list(rows[0]) == ["mutant", "mutated_sequence", "DMS_score", "DMS_score_bin", "small"]
        grid = scorer.map(text)
        own = [grid[int(row["mutant"][1:-1]) - 1, STANDARD.index(row["mutant"][-1])] for row in rows]
        assert [float(row["small"]) for row in rows] == pytest.approx(own, abs=1e-5)
        rho = spearmanr([float(row["DMS_score"]) for row in rows], own)[0]
        assert done.json["assays"][f"{name}_A_2020"]["model"]["spearman"] == pytest.approx(rho, abs=1e-6)
    both = [own["model"]["spearman"] for own in done.json["assays"].values()]
    assert done.json["overall"]["model"]["spearman"]["value"] == pytest.approx(np.mean(both))
    summary = list(csv.DictReader((tmp_path / "scores" / "summary.csv").read_text().splitlines()))
    assert [(row["DMS_id"], row["prediction"]) for row in summary][:2] == [
        ("ONE_A_2020", "model"),
        ("ONE_A_2020", "BLOSUM62"),
    ]


def test_an_interrupted_benchmark_is_resumed(
    seqmlm: Run, esm: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("seqmlm.tasks.reading.BATCH_RECORDS", 50)
    given = ("assays", esm, folder / "reference.csv", "-d", "protein", "--json")
    whole, out = seqmlm(*given, "--scores", tmp_path / "whole"), ("--out", tmp_path / "rows.jsonl")
    calls = stop_at(monkeypatch, VariantScorer, "effects", 3, KeyboardInterrupt())
    assert seqmlm(*given, *out).code == 130
    seqmlm(*given, *out, "--resume", "--convention", "wt").refused(4, "cannot continue")
    done = seqmlm(*given, *out, "--resume", "--scores", tmp_path / "scores").ok()
    assert [len(variants) for (variants,) in calls[3:]] == [50, 18]  # 168 of both assays together
    assert done.json == whole.json
    files = {path.name: path.read_bytes() for path in (tmp_path / "scores").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert files.keys() == {"summary.csv", "ONE_A_2020.csv", "TWO_A_2020.csv"}


def test_subjects_and_kinds_count_alike():
    """Two assays of one protein are one; three proteins of one kind weigh as much as one of another."""
    facts = [("a", "P", "x", 0.1), ("b", "P", "x", 0.3), ("c", "Q", "x", 0.4), ("d", "R", "y", 0.9)]
    assays = [
        Assay(name=name, table=VariantTable(path=""), measured="", subject=subject, kind=kind)
        for name, subject, kind, _ in facts
    ]
    found = {
        name: {"model": dict.fromkeys(("spearman", "ndcg", "auc", "mcc"), value)}
        for name, _, _, value in facts
    }
    overall = benchmark_means(assays, found)["model"]["spearman"]
    assert overall.value == pytest.approx((np.mean([0.2, 0.4]) + 0.9) / 2)
    assert overall.low < overall.value < overall.high


def test_requests_that_make_no_sense(seqmlm: Run, esm: Path, folder: Path, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "some.csv").write_text("mutant\nA1W\n")
    given = ("assays", esm, "-d", "protein")
    seqmlm(*given, tmp_path / "other").refused(3, "no reference file with DMS_id")
    seqmlm(*given, folder, folder).refused(2, "give exactly one path")
    seqmlm(*given, folder, "--scores", folder / "DMS").refused(2, "ONE_A_2020.csv", "one of the inputs")
    table = folder / "DMS" / "TWO_A_2020.csv"
    lines = table.read_text()
    table.write_text(lines.replace("DMS_score,", "small,"))
    seqmlm(*given, folder).refused(2, "already have a column 'small'")
    table.write_text(lines.replace("DMS_score,", "score,"))
    seqmlm(*given, folder).refused(3, "TWO_A_2020.csv", "no such field")
    for path in (folder / "DMS").glob("*"):
        path.unlink()
    seqmlm(*given, folder).refused(3, "no table for any assay")

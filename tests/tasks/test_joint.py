"""`seqmlm joint`: pairs of two gaps, evaluation, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from dnabert import KmerTokenizer
from fork_server import Run
from histories import histories
from text_models import text_model
from tiny_models import random_model, saved

from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.conditionals import Conditionals
from seqmlm.inference import model_folder
from seqmlm.structure import joints
from seqmlm.structure.joints import METHODS, Pair, pair_conditionals
from seqmlm.structure.pairs import Conditional
from seqmlm.tasks import joint as task
from seqmlm.tokenizers.base import Tokenizer

LETTERS = "ACDEFGHIKLMNPQRSTVWY"


def folder(tmp_path: Path, domain: str = "protein", tokenizer: Tokenizer | None = None) -> Path:
    return saved(random_model(domain, tokenizer or ResidueTokenizer(), spread=4), tmp_path / "model")


def asked(path: Path, text: str, i: int, j: int) -> Conditional:
    """The conditionals of two places of a protein, its letters alone."""
    model = model_folder.load(path)
    encoding = model.tokenizer.encode(text)
    ids = np.unique([model.tokenizer.encode(one).ids[1] for one in LETTERS]).astype(np.int32)
    [own] = pair_conditionals(Conditionals(model.rows), [Pair(encoding, i, j)], ids)
    return own


def test_the_best_pairs_are_those_of_each_joint(tmp_path: Path, seqmlm: Run) -> None:
    model = folder(tmp_path)
    done = seqmlm("joint", model, "MKT_YI_K", "--set", "top=3", "--json").ok().json
    own = asked(model, "MKTAYIAK", 4, 7)
    assert list(done["joints"]) == list(METHODS)
    for name, make in METHODS.items():
        expected = np.exp(make(own))
        found = [one["p"] for one in done["joints"][name]]
        assert found == pytest.approx(sorted(expected.ravel(), reverse=True)[:3], rel=1e-4)
    best = done["joints"]["ag"][0]
    assert done["filled"] == f"MKT{best['first']}YI{best['second']}K"
    assert done["deviation"] == pytest.approx(joints.deviation(own), rel=1e-3)
    told = seqmlm("joint", model, "MKT_YI_K", "--method", "hcb").ok().out
    assert "hcb" in told
    assert "mrf" not in told


def test_pairs_that_cannot_be_published_are_a_sentence(tmp_path: Path, seqmlm: Run) -> None:
    fasta, out = tmp_path / "p.fasta", tmp_path / "rows.jsonl"
    fasta.write_text(f">p\n{LETTERS}\n")
    arguments = ("joint", folder(tmp_path), "--evaluate", fasta, "--n", 1, "--out", out)
    done = seqmlm(*arguments, "--set", f"publish={tmp_path / 'none' / 'pairs.tsv'}")
    assert done.code == 4
    assert "cannot write" in done.err
    assert "Traceback" not in done.err


def test_an_evaluation_measures_what_stands_there(tmp_path: Path, seqmlm: Run) -> None:
    model, out, pairs = folder(tmp_path), tmp_path / "rows.jsonl", tmp_path / "pairs.tsv"
    fasta = tmp_path / "p.fasta"
    fasta.write_text("".join(f">p{n}\n{LETTERS[n:]}{LETTERS[:n]}\n" for n in range(6)))
    arguments = ("joint", model, "--evaluate", fasta, "--pairs", "contiguous", "--n", 4, "--out", out)
    figures = seqmlm(*arguments, "--set", f"publish={pairs}", "--json").ok().json
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 4
    for row, published in zip(
        rows, csv.DictReader(pairs.read_text().splitlines(), delimiter="\t"), strict=True
    ):
        text = LETTERS[int(row["id"][1:]) :] + LETTERS[: int(row["id"][1:])]
        assert (row["first"], row["second"]) == (text[row["i"] - 1], text[row["j"] - 1])
        assert row["j"] == row["i"] + 1 == int(published["j"])
        own = asked(model, text, row["i"], row["j"])
        a, b = (
            sorted(LETTERS, key=ResidueTokenizer().tokens.index).index(row[x]) for x in ("first", "second")
        )
        assert row["model_u"] == pytest.approx(joints.unary_perplexities(own, a, b)["u"], rel=1e-4)
        for name, make in METHODS.items():
            expected = joints.joint_measures(own, make(own), a, b)
            found = {key: row[f"{name}_{key}"] for key in expected}
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
            assert row[f"{name}_hit"] == (np.unravel_index(make(own).argmax(), (20, 20)) == (a, b))
    for name, one in figures["methods"].items():
        mean = np.exp(np.mean([row[f"{name}_u"] for row in rows]))
        assert one["u"]["value"] == pytest.approx(mean)
        assert one["u"]["low"] <= mean <= one["u"]["high"]
    assert figures["distances"]["1"]["pairs"] == 4


def test_random_pairs_are_drawn_for_each_sequence_alone(tmp_path: Path, seqmlm: Run) -> None:
    model, fasta = folder(tmp_path), tmp_path / "p.fasta"
    fasta.write_text("".join(f">p{n}\n{LETTERS}\n" for n in range(5)) + ">short\nM\n")
    found = []
    for n, seed in ((5, 0), (3, 0), (5, 1)):
        out = tmp_path / f"{n}.{seed}.jsonl"
        done = seqmlm(
            "joint", model, "--evaluate", fasta, "--n", n, "--seed", seed, "--method", "chain", "--out", out
        )
        assert "passed over" not in done.ok().err
        found.append([(row["i"], row["j"]) for row in map(json.loads, out.read_text().splitlines())])
    assert found[1] == found[0][:3]
    assert found[2] != found[0]
    assert len(set(found[0])) > 1
    done = seqmlm("joint", model, "--evaluate", fasta, "--n", 9, "--method", "chain", "--json").ok()
    assert done.json["items"] == 5
    assert "two places that can be compared, left out" in json.dumps(done.json["notes"])


def test_the_published_steps_are_said_not_to_have_settled(tmp_path: Path, seqmlm: Run) -> None:
    model, fasta = folder(tmp_path), tmp_path / "p.fasta"
    fasta.write_text(f">p\n{LETTERS}\n")
    arguments = ("joint", model, "--evaluate", fasta, "--method", "ag")
    assert "did not converge" in seqmlm(*arguments, "--set", "compat=2").ok().err
    assert "did not converge" not in seqmlm(*arguments).ok().err


def test_candidates_of_a_text_model(tmp_path: Path, seqmlm: Run) -> None:
    model = text_model(tmp_path)
    done = seqmlm("joint", model, "the [MASK] sees the [MASK]", "--set", "candidates=7", "--json").ok().json
    assert all(one["first"] and one["second"] and one["p"] < 1 for one in done["joints"]["ag"])
    file = tmp_path / "t.txt"
    file.write_text("the cat sees the dog\nno cats sleep here\n")
    arguments = ("joint", model, "--evaluate", file, "--method", "ag", "--json")
    full = seqmlm(*arguments).ok().json["methods"]["ag"]
    some = seqmlm(*arguments, "--set", "candidates=200").ok().json["methods"]["ag"]
    assert some["u"]["value"] == pytest.approx(full["u"]["value"], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MKT_YIAK",), "1 gap with 1 token"),
        (("M_T_YI_K",), "3 gaps with 3 tokens"),
        (("MKTAYIAK",), "has no gap"),
        (("M_T_YIAK", "--set", "candidates=1"), "must be at least 2"),
        (("M_T_YIAK", "--set", "compat=0"), "compat must be at least 1"),
        (("M_T_YIAK", "--set", "publish=x.tsv"), "add --evaluate FILE"),
        (("M_T_YIAK", "--evaluate", "p.fasta"), "remove the sequence"),
        ((), "nothing to read"),
        (("M_T_YIAK", "--method", "gibbs"), "gibbs"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path, seqmlm: Run
) -> None:
    seqmlm("joint", folder(tmp_path), *arguments).refused(2, message)


def test_a_file_with_other_gaps_is_a_bad_record(tmp_path: Path, seqmlm: Run) -> None:
    fasta = tmp_path / "gaps.fasta"
    fasta.write_text(">a\nM_TA\n>b\nM_T_\n")
    model = folder(tmp_path)
    seqmlm("joint", model, fasta).refused(3, "1 gap with 1 token", "--on-error skip")
    done = seqmlm("joint", model, fasta, "--on-error", "skip", "--json").ok()
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["b"]


def test_gaps_in_one_unit_are_refused(tmp_path: Path, seqmlm: Run) -> None:
    model = text_model(tmp_path)
    seqmlm("joint", model, "the [MASK:2] sees").refused(2, "1 gap with 2 tokens")
    seqmlm("joint", model, "the [MASK][MASK] sees").refused(2, "both gaps are in the same unit")


def test_models_whose_tokens_show_several_units_are_refused(tmp_path: Path, seqmlm: Run) -> None:
    model = folder(tmp_path, "dna", KmerTokenizer(k=3))
    seqmlm("joint", model, "ACGT_AC_T").refused(2, "covers several units")


def test_large_vocabularies_need_candidates(
    tmp_path: Path, seqmlm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "MOST_SYMBOLS", 19)
    model = folder(tmp_path)
    seqmlm("joint", model, "M_T_YIAK").refused(2, "--set candidates=256")
    seqmlm("joint", model, "M_T_YIAK", "--set", "candidates=5").ok()


def test_gaps_that_no_window_holds(tmp_path: Path, seqmlm: Run) -> None:
    model = folder(tmp_path, "dna", BaseTokenizer())
    seqmlm("joint", model, f"A_{'ACGT' * 40}_A").refused(2, "the model sees 64 tokens at a time")
    done = seqmlm("joint", model, f"{'ACGT' * 40}_A_{'ACGT' * 40}", "--json").ok().json
    assert len(done["filled"]) == 323


def test_pairs_of_patients_are_their_owners(tmp_path: Path, seqmlm: Run) -> None:
    tokenizer = EventsTokenizer.train(histories(40), min_subjects=1)
    model = saved(random_model("ehr", tokenizer), tmp_path / "model", sensitive=True)
    table, out, pairs = tmp_path / "events.csv", tmp_path / "rows.jsonl", tmp_path / "pairs.tsv"
    rows = ["subject_id,time,code", "p1,2020-01-01,DRUG//metformin"]
    table.write_text("\n".join([*rows, "p1,2021-01-01,[MASK]", "p1,2022-01-01,[MASK]"]) + "\n")
    assert "DRUG" not in (done := seqmlm("joint", model, table, "--out", out).ok()).out + done.err
    (row,) = map(json.loads, out.read_text().splitlines())
    assert {one["first"] for one in row["joints"]["ag"]} <= set(tokenizer.tokens)
    table.write_text(
        "\n".join([*rows, "p1,2021-01-01,DRUG//furosemide", "p1,2022-01-01,DRUG//metformin"]) + "\n"
    )
    arguments = ("joint", model, "--evaluate", table, "--out", out, "--set", f"publish={pairs}")
    assert "DRUG" not in (done := seqmlm(*arguments).ok()).out + done.err
    assert "DRUG" in pairs.read_text()
    assert {path.stat().st_mode & 0o077 for path in (out, pairs)} == {0}

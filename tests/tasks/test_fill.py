"""`seqmlm fill` in every field, on the command line and in files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dnabert import KmerTokenizer
from fork_server import Run
from histories import histories
from tiny_models import random_model, saved
from written import written

from seqmlm.domains.code.tokenizer import CodeTokenizer
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.bpe import DnaBpeTokenizer
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.domains.logs.words import LogWordTokenizer
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.tokenizers.base import Tokenizer

CODE = "def depth(stack):\n    return len(stack) + 1\n"
LOG = ("started", "ready in 5 ms", "request 7 done", "request 8 done", "stopped")


@pytest.mark.parametrize(
    ("domain", "make", "sequence", "filled"),
    [
        ("protein", ResidueTokenizer, "MKT_YIA[MASK]Q", r"MKT[A-Y]YIA[A-Y]Q"),
        ("dna", BaseTokenizer, "ACGT_ACGG<mask>T", r"ACGT[ACGT]ACGG[ACGT]T"),
        ("dna", lambda: KmerTokenizer(k=3), "ACGT_ACGG_T", r"ACGT[ACGT]ACGG[ACGT]T"),
        ("dna", lambda: DnaBpeTokenizer.train(["ACGTACGGT" * 9]), "ACGTACG_TAC", r"ACGTACG[ACGT]TAC"),
        ("code", lambda: CodeTokenizer.train([CODE] * 9), "x = [MASK](y)", r"(?s)x = .+\(y\)"),
        (
            "logs",
            lambda: TemplateTokenizer.train([LogLines(lines=LOG)] * 3),
            "started\n[MASK]\nstopped",
            r"started\n.+\nstopped",
        ),
    ],
    ids=["protein", "bases", "k-mers", "pairs", "code", "logs"],
)
def test_a_sequence_on_the_command_line(
    tmp_path: Path, seqmlm: Run, domain: str, make: Callable[[], Tokenizer], sequence: str, filled: str
):
    model = saved(random_model(domain, make()), tmp_path / "model")
    done = seqmlm("fill", model, sequence, "--json", "--top", 3).ok()
    assert re.fullmatch(filled, done.json["filled"])
    for mask in done.json["masks"]:
        assert len(mask["candidates"]) == 3
        shares = [one["p"] for one in mask["candidates"]]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-6
    shown = seqmlm("fill", model, sequence)
    assert shown.out.startswith(done.json["filled"].split("\n")[0])


@pytest.mark.parametrize(("domain", "make"), [("protein", ResidueTokenizer), ("dna", BaseTokenizer)])
def test_a_gap_of_several_letters(tmp_path: Path, seqmlm: Run, domain: str, make: Callable[[], Tokenizer]):
    model = saved(random_model(domain, make()), tmp_path / "model")
    done = seqmlm("fill", model, "ACGT[MASK:3]ACGGT", "--json").ok()
    assert re.fullmatch("ACGT[A-Y]{3}ACGGT", done.json["filled"])


def test_candidates_of_patients_are_codes_with_their_descriptions(tmp_path: Path, seqmlm: Run):
    people = [replace(one, meanings={"DRUG//metformin": "Metformin 500 MG"}) for one in histories(40)]
    model = random_model("ehr", EventsTokenizer.train(people, min_subjects=1))
    table, out = tmp_path / "events.csv", tmp_path / "filled.jsonl"
    table.write_text("subject_id,time,code\np1,2020-01-01,DRUG//metformin\np1,2021-01-01,[MASK]\n")
    folder = saved(model, tmp_path / "model", sensitive=True)
    done = seqmlm("fill", folder, table, "--out", out, "--top", 1000).ok()
    assert "metformin" not in done.out + done.err
    [row] = map(json.loads, out.read_text().splitlines())
    candidates = {one["text"]: one.get("description") for one in row["masks"][0]["candidates"]}
    assert not any(text.startswith("[") for text in candidates)
    assert candidates["DRUG//metformin"] == "Metformin 500 MG"
    assert candidates["DRUG//furosemide"] is None


def test_files_give_a_row_for_each_sequence_with_a_gap(tmp_path: Path, seqmlm: Run):
    model = saved(random_model("protein", ResidueTokenizer()), tmp_path / "model")
    fasta = written(tmp_path / "p.fasta", ">a\nMKT_Y\n>b\nMKTAY\n>c\nM<mask>TAY[MASK]\n")
    done = seqmlm("fill", model, fasta)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["id"] for row in rows] == ["a", "c"]
    assert [len(row["masks"]) for row in rows] == [1, 2]
    assert [len(row["filled"]) for row in rows] == [5, 6]
    alone = seqmlm("fill", model, "MKT_Y", "--json").json
    [mask], [other] = rows[0]["masks"], alone["masks"]
    assert [one["text"] for one in mask["candidates"]] == [one["text"] for one in other["candidates"]]
    fasta.write_text(">b\nMKTAY\n")
    seqmlm("fill", model, fasta).refused(3, "no sequence has a gap (write _ or <mask>")


def test_a_line_of_a_log_file(tmp_path: Path, seqmlm: Run):
    tokenizer = TemplateTokenizer.train([LogLines(lines=LOG)] * 3)
    model = saved(random_model("logs", tokenizer), tmp_path / "model")
    log = written(tmp_path / "app.log", "started\n[MASK]\nstopped\n")
    done = seqmlm("fill", model, log).ok()
    row = json.loads(done.out)
    assert re.fullmatch("started\n.+\nstopped", row["filled"])
    [mask] = row["masks"]
    assert row["filled"].split("\n")[1] == mask["text"] == mask["candidates"][0]["text"]


@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_line_of_a_session_stays_in_it(tmp_path: Path, seqmlm: Run, at: int):
    model = saved(
        random_model("logs", TemplateTokenizer.train([LogLines(lines=LOG)] * 3)), tmp_path / "model"
    )
    lines = [f"{text} request_id=r1" for text in LOG]
    lines.insert(at, "[MASK]")
    log = written(tmp_path / "app.log", "".join(f"{line}\n" for line in lines))
    [row] = map(json.loads, seqmlm("fill", model, log).ok().out.splitlines())
    filled = row["filled"].split("\n")
    assert (row["id"], len(filled)) == ("r1", len(LOG) + 1)
    assert filled[:at] + filled[at + 1 :] == lines[:at] + lines[at + 1 :]


def test_a_gap_within_a_line_needs_a_model_that_reads_words(tmp_path: Path, seqmlm: Run):
    lines = [LogLines(lines=LOG)] * 3
    templates = saved(random_model("logs", TemplateTokenizer.train(lines)), tmp_path / "templates")
    words = saved(random_model("logs", LogWordTokenizer.train(lines)), tmp_path / "words")
    for inside in ("request [MASK] done", "started\n[MASK] [MASK]", "started [MASK]\n[MASK]"):
        seqmlm("fill", templates, inside).refused(3, "a gap within a line")
        assert len(seqmlm("fill", words, inside, "--json").ok().json["masks"]) == inside.count("[MASK]")
    seqmlm("joint", templates, "started\n[MASK]\nready [MASK] ms").refused(3, "a gap within a line")
    assert len(seqmlm("fill", templates, "started\n [MASK] \nstopped", "--json").ok().json["masks"]) == 1


@pytest.mark.parametrize(
    ("sequence", "code", "said"),
    [
        ("MKT1_", 3, "'1' is not in the alphabet"),
        ("MKTA", 2, "'MKTA' has no gap"),
        ("missing_file.fasta", 3, "no such file"),
    ],
)
def test_what_is_no_sequence(tmp_path: Path, seqmlm: Run, sequence: str, code: int, said: str):
    done = seqmlm("fill", saved(random_model("protein", ResidueTokenizer()), tmp_path / "m"), sequence)
    done.refused(code, said)

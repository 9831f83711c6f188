"""Shares on Ray: the rows of one process, and only what is missing is asked again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fork_server import Run
from tiny_models import random_model, residues

from seqmlm.cli.ray import share
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.inference import model_folder


@pytest.fixture
def asked(tmp_path: Path, workspace: Path) -> tuple[str, ...]:
    """A scoring of 40 proteins."""
    model = tmp_path / "model"
    made = random_model("protein", ResidueTokenizer())
    model_folder.write(model, made.rows, made.tokenizer, made.card)
    data = tmp_path / "p.fasta"
    data.write_text("".join(f">p{number}\n{residues(5 + number)}\n" for number in range(40)))
    return ("score", str(model), str(data), "--mode", "exact")


def test_what_makes_no_sense_is_refused(seqmlm: Run, asked: tuple[str, ...], tmp_path: Path) -> None:
    out = ("ray", "--out", tmp_path / "parts", "--")
    seqmlm(*out, "scor", *asked[1:]).refused(2, "no command 'scor'")
    seqmlm(*out, *asked, "--shard=0/2").refused(2, "remove --shard from the command")


def test_without_ray_a_sentence_says_what_to_install(
    seqmlm: Run, asked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "ray.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "none"))
    monkeypatch.syspath_prepend(str(tmp_path / "none"))
    seqmlm("ray", "--out", tmp_path / "parts", "--", *asked).refused(2, "pip install 'seqmlm[ray]'")


def test_a_share_says_why_it_failed(asked: tuple[str, ...], tmp_path: Path) -> None:
    code, told = share([*asked, "--shard", "2/2", "--out", "x.jsonl"], str(tmp_path), {})
    assert code == 2
    assert "--shard must be I/N" in told


def test_a_killed_share_raises_what_ray_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program := tmp_path / "program").write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ChildProcessError, match="killed by signal 9"):
        share(["score"], str(tmp_path), {})


def test_shares_on_ray_are_the_rows_of_one_process(
    seqmlm: Run, asked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", exc_type=ImportError)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts"
    seqmlm(*asked, "--shard", "0/1", "--out", whole).ok()
    seqmlm("ray", "--shares", "2", "--out", parts, "--", *asked).ok()
    assert (parts / "rows.jsonl").read_bytes() == whole.read_bytes()
    begun = {path: path.stat().st_mtime_ns for path in parts.glob("part-*.jsonl")}
    gone, kept = sorted(begun)
    (parts / f"{gone.name}.shard.json").unlink()
    gone.unlink()
    told = seqmlm("ray", "--shares", "2", "--out", parts, "--", *asked).ok().err
    assert "1 of 2 shares are done" in told
    assert kept.stat().st_mtime_ns == begun[kept]
    assert (parts / "rows.jsonl").read_bytes() == whole.read_bytes()

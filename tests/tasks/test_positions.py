"""Positions: whatever shows people one counts from 1, and rows count from 0."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fork_server import Run
from text_models import text_model
from tiny_domain_models import MODULE, calibrated_code_model
from tiny_models import dna_model, random_model, saved
from written import rows as rows_of

from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.tasks.task import one_based_fields

PLANTED = {
    "protein": (">p\nMKTAYIAWQRLAGV\n", "W"),
    "dna": (">c\nACACACACACAGCACACACA\n", "G"),
    "text": ("the cat sees the dog loudly\n", "loudly"),
    "code": (MODULE, "import os"),
}
"""Of each field a file and a unit in it."""

FILES = {"protein": "p.fasta", "dna": "c.fasta", "text": "t.txt", "code": "m.py"}

CASES = [
    ("score", "protein", ("--level", "residue")),
    ("score", "dna", ("--level", "base")),
    ("score", "text", ("--level", "word")),
    ("score", "code", ("--level", "line")),
    ("predict", "labels", ("--level", "unit")),
    ("embed", "protein", ("--of", "unit")),
    ("embed", "text", ("--of", "unit")),
]


def model_of(field: str, folder: Path) -> Path:
    if field == "labels":
        return text_model(folder, head={"kind": "tags", "label": "pet", "names": ["cat", "dog"]})
    if field == "code":
        (folder / "made").mkdir()
        return calibrated_code_model(folder / "made")
    if field == "text":
        return text_model(folder)
    made = {
        "protein": lambda: random_model("protein", ResidueTokenizer()),
        "dna": dna_model,
    }
    return saved(made[field](), folder / "model")


def shown(start: int, length: int) -> str:
    """What a person counts, written down again and not by the code under test."""
    return str(start + 1) if length == 1 else f"{start + 1} to {start + length}"


@pytest.mark.parametrize(("task", "field", "options"), CASES, ids=lambda one: str(one))
def test_the_terminal_counts_the_planted_unit_from_one(
    task: str,
    field: str,
    options: tuple[str, ...],
    tmp_path: Path,
    seqmlm: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    kind = "text" if field == "labels" else field
    text, unit = PLANTED[kind]
    path = tmp_path / FILES[kind]
    path.write_text(text)
    asked = (task, model_of(field, tmp_path), path, *options)
    lines = seqmlm(*asked).ok().out.splitlines()
    seqmlm(*asked, "--out", tmp_path / "rows.jsonl").ok()
    sequence = text.partition("\n")[2] if kind in ("protein", "dna") else text
    first = sequence.index(unit)
    starts = [row["start"] for row in rows_of(tmp_path / "rows.jsonl")]
    # A unit of text may have the space in front of it.
    start = min((at for at in starts if at in (first, first - (kind == "text"))), key=lambda at: -at)
    place = shown(start, first + len(unit) - start)
    assert [line for line in lines if re.search(rf"  (position )?{place}(  |$)", line)], lines
    assert not [line for line in lines if re.search(r" (start|end) \d", line)]


def test_a_report_counts_the_planted_unit_from_one(tmp_path: Path, seqmlm: Run) -> None:
    for field, level in (("dna", "base"), ("text", "word")):
        text, unit = PLANTED[field]
        path, page = tmp_path / FILES[field], tmp_path / f"{field}.html"
        path.write_text(text)
        model = model_of(field, tmp_path / field)
        seqmlm("score", model, path, "--level", level, "--report", page, "--out", page.with_suffix(".jsonl"))
        sequence = text.partition("\n")[2] if field == "dna" else text
        rows = [row for row in rows_of(page.with_suffix(".jsonl")) if unit in str(row["top"][0]["unit"])]
        (start,) = (row["start"] for row in rows)
        html = unescape(page.read_text())
        assert f">{shown(start, sequence.index(unit) + len(unit) - start)}<" in html
        assert "Places count from 1 and include the end. Ids such as " in html


def test_a_pair_of_gaps_has_the_positions_of_its_units(tmp_path: Path, seqmlm: Run) -> None:
    text, _ = PLANTED["protein"]
    (tmp_path / "p.fasta").write_text(text)
    model = model_of("protein", tmp_path)
    asked = ("joint", model, "--evaluate", tmp_path / "p.fasta", "--set", "n=1")
    seqmlm(*asked, "--out", tmp_path / "rows.jsonl").ok()
    (row,) = rows_of(tmp_path / "rows.jsonl")
    sequence = text.split()[1]
    assert sequence[row["position_i"] - 1] == row["first"]
    assert sequence[row["position_j"] - 1] == row["second"]
    assert {"i", "j"}.isdisjoint(one_based_fields(row))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"start": 155, "end": 175}, {"position": "156 to 175"}),
        ({"start": 155, "end": 156, "unit": "W"}, {"position": "156", "unit": "W"}),
        ({"document_start": 9, "document_end": 12}, {"document_position": "10 to 12"}),
        ({"start": "2020-01-01", "end": "2020-01-02"}, {"start": "2020-01-01", "end": "2020-01-02"}),
        ({"end": 3}, {"end": 3}),
        ({"i": 0, "j": 4, "position_i": 1, "position_j": 5}, {"position_i": 1, "position_j": 5}),
    ],
)
def test_fields_for_people_count_from_one(row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert one_based_fields(row) == expected

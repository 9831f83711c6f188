"""Predictions of units as CoNLL and bedGraph: nothing but their rows says what is in the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_models import text_model
from tiny_models import dna_model, saved
from written import jsonl, written
from written import rows as rows_of

from seqmlm.rows.tracks import bedgraph, conll

Run = Callable[..., Any]
BRIEF = ("--rivals", "off", "--set", "epochs=1")


def values(text: str) -> dict[tuple[str, int], float]:
    """The value of each place of a bedGraph; none is there twice."""
    found: dict[tuple[str, int], float] = {}
    for line in text.splitlines()[1:]:
        name, start, end, value = line.split("\t")
        for at in range(int(start), int(end)):
            assert (name, at) not in found
            found[name, at] = float(value)
    return found


def test_a_bedgraph_says_every_place_once_and_joins_equal_neighbours() -> None:
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for record in range(20):
        p = [(one, 1 - one) for one in rng.choice([0.25, 0.2504, 0.9], 30).tolist()]
        place = {"id": f"s{record // 2}", "source": "f", "line": record}
        at = [{"document": f"s{record // 2}", "document_start": 30 * (record % 2) + n} for n in range(30)]
        more = [{**one, "document_end": one["document_start"] + 1, "start": 0, "end": 1} for one in at]
        own = [{**place, **one, "p": dict(zip("ab", q, strict=True))} for one, q in zip(more, p, strict=True)]
        rows += own[::-1] if record % 3 else own  # of the other strand
    text = "".join(bedgraph(rows, ["a"], "a"))
    expected = {(row["document"], row["document_start"]): round(row["p"]["a"], 3) for row in rows}
    assert values(text) == expected
    changes = sum(expected[at, n] != expected.get((at, n - 1)) for at, n in expected)
    assert len(text.splitlines()) - 1 == changes
    lines = "".join(bedgraph([*rows[::-1], *rows[:60]], ["a"], "a")).splitlines()[1:]
    assert sorted(lines) == sorted(text.splitlines()[1:])
    assert [*map(_start, lines)] == sorted(map(_start, lines), key=lambda one: (-int(one[0][1:]), one[1]))
    assert values("".join(bedgraph([*rows, *rows[:60]], ["a", "b"], "a"))) == dict.fromkeys(expected, 1.0)


def _start(line: str) -> tuple[str, int]:
    name, start, *_ = line.split("\t")
    return name, int(start)


def test_a_unit_of_white_space_is_one_line_of_conll() -> None:
    units = ["if", "\n    ", "a\tb", "\u2028", "\\"]
    rows = [{"id": "a", "source": "f", "line": 1, "unit": unit, "prediction": "O"} for unit in units]
    lines = "".join(conll(rows)).splitlines()
    assert lines.pop() == ""
    assert len(lines) == len(units)
    assert all(line.strip() and line.count("\t") == 1 and line.endswith("\tO") for line in lines)


@pytest.mark.parametrize("task", ["tags", "entities"])
def test_bases_of_a_contig_in_blocks_are_a_track(
    task: str, workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    model = saved(dna_model(), tmp_path / "dna")
    rng = np.random.default_rng(1)
    contigs = {f"c{n}": "".join(rng.choice(list("ACGT"), 150)) for n in range(4)}
    (tmp_path / "g.fa").write_text("".join(f">{name}\n{letters}\n" for name, letters in contigs.items()))
    (tmp_path / "f.bed").write_text("".join(f"c{n}\t{40 * n + 5}\t{40 * n + 30}\tpeak\n" for n in range(4)))
    asked = ("--train", tmp_path / "g.fa", "--label-file", tmp_path / "f.bed", "--option", "block=64")
    seqmlm("finetune", model, *asked, "--task", task, "--name", "peaks", *BRIEF).ok()
    predict = ("predict", "peaks", tmp_path / "g.fa", "--option", "block=64")
    seqmlm(*predict, "--out", tmp_path / "p.bedgraph").ok()
    seqmlm(*predict, "--level", "unit", "--out", tmp_path / "p.jsonl").ok()
    rows = rows_of(tmp_path / "p.jsonl")
    peak = ("peak",) if task == "tags" else ("B-peak", "I-peak")
    places = [(row["document"], row["document_start"]) for row in rows]
    assert sorted(places) == [(name, at) for name in sorted(contigs) for at in range(150)]
    assert all(contigs[name][at] == row["unit"] for (name, at), row in zip(places, rows, strict=True))
    told = [round(sum(row["p"][one] for one in peak), 3) for row in rows]
    assert values((tmp_path / "p.bedgraph").read_text()) == dict(zip(places, told, strict=True))
    seqmlm(*predict, "--out", tmp_path / "q.bg", "--set", "positive=x").refused(2, "positive=NAME, from peak")
    same = f">c0\n{contigs['c0']}\n>c0\n{contigs['c1'] * 10}\n"
    twice = written(tmp_path / "t.fa", same)
    seqmlm("predict", "peaks", twice, "--out", tmp_path / "q.bg").refused(
        3, f"{twice}:3: a name that two sequences"
    )
    blocks = ("predict", "peaks", twice, "--option", "block=64", "--on-error", "skip", "--json")
    done = seqmlm(*blocks, "--out", tmp_path / "q.bg").ok().json
    assert done["notes"]["a name that two sequences share, which a bedGraph cannot tell apart"] == 24
    assert len(values((tmp_path / "q.bg").read_text())) == 150
    spaced = written(tmp_path / "s.fa", f">c 0\tx\n{contigs['c0']}\n>d\te\n{contigs['c1']}\n")
    seqmlm("predict", "peaks", spaced, "--out", tmp_path / "q.bg").refused(
        3, f"{spaced}:3: a name with white"
    )


def test_words_and_their_tags_are_conll(workspace: Path, tmp_path: Path, seqmlm: Run) -> None:
    model = text_model(tmp_path / "text", wordpiece=True)  # which has no tokens for what is not visible
    sentences = ["the cat sees a dog", "dogs bark loudly", "so no cat"] * 10
    spans = [[[at, at + 3, "PET"]] if (at := text.find("cat")) >= 0 else [] for text in sentences]
    lines = [{"text": text, "spans": own} for text, own in zip(sentences, spans, strict=True)]
    train = tmp_path / "t.jsonl"
    jsonl(train, lines)
    seqmlm("finetune", model, "--train", train, "--name", "pets", *BRIEF).ok()
    seqmlm("predict", "pets", train, "--out", tmp_path / "p.conll").ok()
    seqmlm("predict", "pets", train, "--level", "unit", "--out", tmp_path / "p.jsonl").ok()
    told = [block.split("\n") for block in (tmp_path / "p.conll").read_text().strip().split("\n\n")]
    assert [[line.split("\t")[0] for line in block] for block in told] == [one.split() for one in sentences]
    tags = [line.split("\t")[1] for block in told for line in block]
    assert tags == [row["prediction"] for row in rows_of(tmp_path / "p.jsonl")]
    shown = seqmlm("predict", "pets", train, "--format-out", "conll").ok()
    assert shown.out == (tmp_path / "p.conll").read_text()
    seqmlm("predict", "pets", train, "--format-out", "xml").refused(2, "cannot be written as 'xml'")
    for format, name in (("conll", "a.csv"), ("jsonl", "a.conll"), ("csv", "a.tsv")):
        asked = ("--format-out", format, "--out", tmp_path / name)
        seqmlm("predict", "pets", train, *asked).refused(2, f"but --format-out is {format}")
    asked = ("--set", f"labels={train}")
    seqmlm("predict", "pets", train, *asked).refused(3, "name its column of true labels with --truth")
    invisible = written(tmp_path / "x.conll", "the\tO\ncat\tO\n\u200b\tO\nsees\tO\na\tO\ndog\tO\n")
    done = seqmlm("predict", "pets", invisible, "--out", tmp_path / "y.conll", "--json").ok().json
    told = [line.split("\t") for line in (tmp_path / "y.conll").read_text().strip().split("\n")]
    assert [word for word, _ in told] == ["the", "cat", "\u200b", "sees", "a", "dog"]
    assert [tag == "_" for _, tag in told] == [n == 2 for n in range(6)]
    assert done["notes"] == {"a unit without a token, which gets no prediction": 1}
    assert sum(done["predicted"].values()) == done["n"] == 5

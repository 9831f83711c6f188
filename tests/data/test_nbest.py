"""N-best lists of every form are the same lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from written import jsonl

from seqmlm.data.nbest import Hypothesis, NBest, read_nbest
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError, UsageError

TEXTS = {"u1": [("the cat", -1.0), ("a cat", -2.5)], "u2": [("dogs", -3.0)]}
REFERENCES = {"u1": "a cat", "u2": "dogs"}
HYPOTHESES = {name: tuple(Hypothesis(text=t, score=s) for t, s in own) for name, own in TEXTS.items()}
LISTS = [NBest(id=name, hypotheses=own, reference=REFERENCES[name]) for name, own in HYPOTHESES.items()]


def _write(folder: Path) -> None:
    espnet, numbered, rows = {}, {}, []
    for name, own in TEXTS.items():
        texts = [(f"▁{text.replace(' ', '▁')}<eos>", score) for text, score in own]
        espnet[name] = {"output": [{"rec_text": t, "score": s, "text": REFERENCES[name]} for t, s in texts]}
        hyps = [{"text": text, "score": score} for text, score in own]
        hyps_by_number = {f"hyp_{n}": one for n, one in reversed([*enumerate(hyps, start=1)])}
        numbered[name] = {"ref": REFERENCES[name], **hyps_by_number}
        rows.append({"id": name, "ref": REFERENCES[name], "hyps": hyps})
    (folder / "espnet.json").write_text(json.dumps({"utts": espnet}))
    (folder / "numbered.json").write_text(json.dumps(numbered))
    jsonl(folder / "lines.jsonl", rows)
    table = (f"{name}\t{score}\t{text}\n" for name, own in TEXTS.items() for text, score in own)
    (folder / "table.tsv").write_text("".join(table))
    (folder / "ref.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in REFERENCES.items()))
    jsonl(folder / "ref.jsonl", [{"id": name, "text": text} for name, text in REFERENCES.items()])


@pytest.mark.parametrize(
    ("name", "references"),
    [
        *((name, None) for name in ("espnet.json", "numbered.json", "lines.jsonl")),
        *(("table.tsv", references) for references in ("ref.tsv", "ref.jsonl")),
    ],
)
def test_forms_agree(tmp_path: Path, name: str, references: str | None) -> None:
    _write(tmp_path)
    found = read_nbest(str(tmp_path / name), None if references is None else str(tmp_path / references))
    assert found == LISTS


def test_ten_hypotheses_stay_in_their_order(tmp_path: Path) -> None:
    numbered = {f"hyp_{n}": {"text": f"t{n}", "score": -n} for n in (10, 2, 1)}
    (tmp_path / "a.json").write_text(json.dumps({"u": numbered}))
    [found] = read_nbest(str(tmp_path / "a.json"))
    assert [one.text for one in found.hypotheses] == ["t1", "t2", "t10"]
    assert found.reference is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[]", "not a JSON object of n-best lists"),
        ("a.json", '{"u": {"hyp_1": {"text": "\\ud800", "score": 1}}}', "half a character"),
        ("a.json", '{"u": 5}', "not a JSON object of n-best lists"),
        ("a.jsonl", '{"id": "u", "hyps": [{"text": "x", "score": 1e999}]}', "no finite score"),
        ("a.jsonl", f'{{"id": "u", "hyps": [{{"text": "x", "score": 1{"0" * 400}}}]}}', "no finite score"),
        ("a.json", '{"u": {"ref": "x"}}', "'u' has no hypotheses"),
        ("a.jsonl", '{"id": "u"}', "a.jsonl:1: field 'hyps': no such field"),
        ("a.jsonl", '{"id": "u", "hyps": ["x"]}', "not a list of objects"),
        ("a.tsv", "u\tx\ttext\n", "'x' is not a number"),
        ("a.tsv", "u\tnan\ttext\n", "has no text or no finite score"),
        ("a.tsv", "u\t1\n", "a row of 2 fields in a table of 3 columns"),
    ],
)
def test_broken_lists_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_nbest(str(tmp_path / name))


def test_lists_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    good = {"hyp_1": {"text": "the cat", "score": -1.0}}
    texts = {
        "a.json": json.dumps({"u": 5, "v": good, "w": {"hyp_x": good}}),
        "a.jsonl": '{"id": "u", "hyps": [5]}\n{\n{"id": "v", "hyps": [{"text": "the cat", "score": -1}]}\n',
        "a.tsv": "u\tx\tthe cat\nu\t-1\tcats\nv\t-1\tthe cat\nw\tnan\tthe cat\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        problems = Problems("skip")
        [found] = read_nbest(str(tmp_path / name), None, problems)
        assert (found.id, found.hypotheses[0].text, problems.bad_count) == ("v", "the cat", 2), name


def test_missing_references_are_counted(tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / "ref.tsv").write_text("u2\tdogs\n")
    with pytest.raises(DataError, match=r"no reference for 1 of the 2 lists of .*: u1"):
        read_nbest(str(tmp_path / "table.tsv"), str(tmp_path / "ref.tsv"))
    with pytest.raises(UsageError, match=r"\.json, \.jsonl and \.tsv"):
        read_nbest("a.txt")

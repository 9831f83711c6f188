"""JSON lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from written import refused, written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.tables import read_jsonl
from seqmlm.errors import DataError


def test_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "one", "k": 7, "doc": 3, "y": 1}\n\n{"text": "zwö\\u00e4", "k": "b", "doc": null}\n'
    )
    found = list(read_jsonl(path, Problems(), id_field="k", document_field="doc", keep="y, z"))
    assert [(r.id, r.raw, r.line, r.document, dict(r.meta)) for r in found] == [
        ("7", "one", 1, "3", {"y": 1}),
        ("b", "zwöä", 3, None, {}),
    ]
    assert [r.id for r in read_jsonl(path, Problems())] == ["a.jsonl:1", "a.jsonl:3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "cut', "not a JSON object"),
        ('["text"]', "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"sentence": "a", "label": 1}', "no field of this name"),
        ('{"text": null}', "no text in the field"),
        ('{"text": " "}', "no text in the field"),
        ('{"text": ["a"]}', "the field holds no text"),
        (r'{"text": "\ud800"}', "half a character (a lone surrogate)"),
    ],
)
def test_bad_lines_are_named_and_the_others_stay(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "first"}\n' + line + '\n{"text": "last"}\n')
    assert refused(read_jsonl, path, re.escape(message), ["first", "last"], line=2).counts == {message: 1}


def test_a_missing_field_lists_those_there_are(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"sentence": "a", "label": 1}\n')
    with pytest.raises(DataError, match="there are: sentence, label"):
        list(read_jsonl(path, Problems()))
    with pytest.raises(DataError, match="field 'id'"):
        list(read_jsonl(path, Problems(), field="sentence", id_field="id"))


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_as_lines_are(indent: int | None, tmp_path: Path) -> None:
    rows = [{"text": "one", "label": 0}, {"text": None}, {"text": "[two]"}]
    path = written(tmp_path / "a.json", json.dumps([*rows, 7], indent=indent))
    problems = Problems("skip")
    found = list(read_jsonl(path, problems))
    assert [record.raw for record in found] == ["one", "[two]"]
    assert problems.counts == {"no text in the field": 1, "not a JSON object": 1}
    lines = path.read_text().splitlines()
    assert all(record.raw in lines[record.line - 1 + bool(indent)] for record in found)

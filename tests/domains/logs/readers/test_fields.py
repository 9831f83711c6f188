"""Options that say which fields stand in templates, and objects without a message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from written import jsonl, written

from seqmlm.data.problems import Problems
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.readers import READERS
from seqmlm.errors import UsageError
from seqmlm.training.config import resolve_config

BETWEEN = "text between JSON objects, read as a separate event"


def tokenizer_options(**options):
    return dict(resolve_config(LOGS, {"data": {"options": options}}).tokenizer.options)


def test_objects_without_a_message_are_fields(tmp_path):
    rows = [{"time": f"2024-01-01T00:00:{i:02d}Z", "method": "GET", "status": 200} for i in range(8)]
    (record,) = READERS["auto"](jsonl(tmp_path / "access.jsonl", rows), Problems())
    assert [json.loads(line) for line in record.raw.lines] == rows
    assert record.raw.times[1] - record.raw.times[0] == 1.0


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        (["one", "two", "three"], {"not a JSON object": 3}),
        (["[1]", "2"], {"not a JSON object": 2}),
        (['{"msg": "a"}', "one", '{"msg": "b"}', "two"], {BETWEEN: 2}),
        (["one", '{"msg": "a"}'], {BETWEEN: 1}),
        (['{"templates": ["a", "b"]}', "one", '{"templates": ["a"]}'], {"not a JSON object": 1}),
        (['{"msg": "a"}', '{"msg": "b"}'], {}),
    ],
)
@pytest.mark.parametrize("ending", ["", "\n"])
def test_each_text_of_a_file_of_objects_is_counted_once(
    lines: list[str], counts: dict[str, int], ending: str, tmp_path: Path
) -> None:
    problems = Problems("skip")
    list(READERS["jsonl"](written(tmp_path / "a.jsonl", "\n".join(lines) + ending), problems))
    assert problems.counts == counts


def test_reader_options_reach_the_tokenizer(tmp_path):
    patterns = written(tmp_path / "kinds.txt", "# ours\nJOB job-[0-9a-f]+\n")
    found = tokenizer_options(keep="job, zone", mask="user", patterns=str(patterns))
    assert (list(found["keep"]), list(found["mask"])) == (["job", "zone"], ["user"])
    assert found["patterns"] == {"JOB": "job-[0-9a-f]+"}
    assert found["fields"] == "auto"
    assert tokenizer_options(fields="none")["fields"] == "none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": "some"}, "fields is auto or none"),
        ({"fields": "none", "keep": "a"}, "set fields=auto"),
        ({"keep": "a", "mask": "a"}, "in keep and in mask"),
        ({"patterns": "nowhere.txt"}, "patterns: nowhere.txt cannot be read"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        tokenizer_options(**options)


def test_a_line_of_a_patterns_file_without_expression_is_named(tmp_path):
    path = written(tmp_path / "kinds.txt", "\nJOB\n")
    with pytest.raises(UsageError, match=r"kinds.txt:2 has no expression; write a name"):
        tokenizer_options(patterns=str(path))

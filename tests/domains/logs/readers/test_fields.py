"""Options that say which fields stand in templates, and objects without a message."""

from __future__ import annotations

import json

import pytest
from written import jsonl, written

from seqmlm.data.problems import Problems
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.readers import READERS
from seqmlm.errors import UsageError
from seqmlm.tasks.config import resolve_config


def tokenizer_options(**options):
    return dict(resolve_config(LOGS, {"data": {"options": options}}).tokenizer.options)


def test_objects_without_a_message_are_fields(tmp_path):
    rows = [{"time": f"2024-01-01T00:00:{i:02d}Z", "method": "GET", "status": 200} for i in range(8)]
    (record,) = READERS["auto"](jsonl(tmp_path / "access.jsonl", rows), Problems())
    assert [json.loads(line) for line in record.raw.lines] == rows
    assert record.raw.times[1] - record.raw.times[0] == 1.0


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

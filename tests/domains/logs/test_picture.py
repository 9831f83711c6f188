"""Logs in a report: the odd line with its number, time and origin, and lines around it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reported import Reported

from seqmlm.anomaly.levels import record_row
from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs import LOGS, picture
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.inference.detector import JudgedRow


def test_a_long_window_opens_at_its_odd_lines():
    lines = tuple(f"line {number}" for number in range(64))
    raw = LogLines(lines=lines, times=tuple(60.0 * one for one in range(64)), windowed=True)
    meta = {"lines": tuple(range(101, 165)), "origins": (("", "web1", "sshd"),) * 64}
    ends = np.cumsum([len(one) + 1 for one in lines])
    spans = np.stack([ends - [len(one) + 1 for one in lines], ends - 1], axis=1)
    bits = np.zeros(64)
    bits[[30, 31, 33]] = 9.0, 8.0, 7.0
    tokenizer = ResidueTokenizer()
    encoding = tokenizer.encode("A" * 64)
    encoding = replace(encoding, spans=np.pad(spans, ((1, 1), (0, 0))))
    one = ScoredRecord(
        record=Record(id="w", raw=raw, source="a.log", line=101, meta=meta),
        encoding=encoding,
        rule=tokenizer.units,
        number=np.arange(64),
        surprisal=bits,
        values={},
    )
    report = Reported(tokenizer, pictures=LOGS.pictures(LOGS.levels[0])[:1], unit="line")
    report.add(
        JudgedRow(row=record_row(one, {"bits_per_unit": 1.0}), scored_record=one, p_value=0.01, alarm=True)
    )
    shown = re.sub("<[^>]*>", "", report.html().split('class="coloured"')[1].split("</div>")[0])
    told = shown.partition(">")[2].splitlines()
    assert told[0].strip() == "⋯"
    assert told[1].split() == ["125", "01-01", "00:24:00", "web1", "sshd", "│", "line", "24"]
    assert [line.split()[0] for line in told if "▶" in line] == ["131", "132", "134"]
    assert [line.split()[0] for line in told[1:]] == [str(one) for one in range(125, 141)]


@pytest.mark.parametrize("asked", ["", "www.example.org:80 "])
def test_who_sent_a_request_is_read_from_the_file(asked: str, tmp_path: Path):
    file = tmp_path / "access.log"
    request = asked + """{} - - [17/May/2015:10:05:{:02}{}] "GET /{} HTTP/1.1" 200 7 "-" "a browser"\n"""
    file.write_text("".join(request.format(f"10.0.0.{n}", n, " +0000", n) for n in range(30)))
    [record] = LOGS.read([str(file)], Problems())
    told = [head.split() for head in _heads_of(record)]
    assert told == [[str(n + 1), "05-17", f"10:05:{n:02}", f"10.0.0.{n}"] for n in range(30)]
    file.write_text("x\n" * 30)  # rotated since
    assert [len(head.split()) for head in _heads_of(record)] == [3] * 30
    file.unlink()
    assert [len(head.split()) for head in _heads_of(record)] == [3] * 30


def _heads_of(record: Record) -> list[str]:
    """What stands before the lines of a record."""
    return picture._line_heads(SimpleNamespace(record=record))  # type: ignore[arg-type]

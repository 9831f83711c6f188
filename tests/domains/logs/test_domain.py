"""The logs domain: what is held out is later, shares no line with training, and can be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqmlm.data.prepare import Plan, prepare
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.splits import VALIDATION, Chronological
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.errors import DataError


def split(records: list[Record], cache: Path) -> tuple[list[Record], list[Record]]:
    """The records of a chronological split, as `train` makes it: training, validation."""
    rule = Chronological(key=LOGS.keys.split, order=LOGS.keys.order, share=0.1)
    marks = np.array([rule.mark(record) for record in records])
    held_out = rule.parts(marks) == VALIDATION
    tokenizer = TemplateTokenizer.train([record.raw for record in records])
    plan = Plan(space=tokenizer.space, max_length=512, split=rule)
    prepared = prepare(iter(records), tokenizer, plan, cache=cache, fingerprint="f")
    assert prepared.statistics["validation"]["records"] == int(held_out.sum())
    parts: tuple[list[Record], list[Record]] = ([], [])
    for record, late in zip(records, held_out.tolist(), strict=True):
        parts[late].append(record)
    return parts


def lines_of(records: list[Record]) -> set[int]:
    return {number for record in records for number in record.meta["lines"]}


@pytest.mark.parametrize(
    "options", [{}, {"window": 20, "step": 10}, {"window": "3m", "step": "1m"}, {"session": r"job (\d+)"}]
)
@pytest.mark.parametrize("header", ["2024-01-02 {:02d}:{:02d}:00 ", ""])
def test_the_latest_tenth_is_held_out(options: dict[str, Any], header: str, tmp_path: Path):
    if not header and options.get("window") == "3m":
        pytest.skip("windows by time need times")
    path = tmp_path / "app.log"
    rows = [f"{header.format(i // 60, i % 60)}job {i // 8} step {i % 3}" for i in range(1400)]
    path.write_text("\n".join(rows))
    records = list(LOGS.read([path], Problems(), **options))
    train, held_out = split(records, tmp_path / "cache")
    assert lines_of(train) | lines_of(held_out) == set(range(1, 1401))
    assert not lines_of(train) & lines_of(held_out)
    assert max(lines_of(train)) < min(lines_of(held_out))
    assert 0.1 <= len(held_out) / len(records) < 0.25
    places = [LOGS.keys.order(record) for record in records]
    assert places == sorted(places)


def test_files_are_told_by_their_lines(tmp_path: Path):
    (tmp_path / "one.log").write_text("5 6 7\n")
    (tmp_path / "two.txt").write_text('{"msg": "a"}\n')
    (tmp_path / "three.csv").write_text("message,level\nb,info\n")
    (tmp_path / "README.md").write_text("nothing")
    records = list(LOGS.read([tmp_path], Problems()))
    assert [record.raw.lines for record in records] == [("5", "6", "7"), ("b",), ("a",)]
    with pytest.raises(DataError, match="not event ids"):
        list(LOGS.read([tmp_path / "two.txt"], Problems(), format="sessions"))


def test_a_window_as_people_see_it():
    raw = LogLines(lines=("up in 5", "down"), times=(1.0, 2.0))
    tokenizer = TemplateTokenizer.train([raw])
    guess = tokenizer.encode("up in 7").ids[1:2]
    shown = LOGS.text.show(tokenizer, raw, tokenizer.encode(raw), np.array([2], np.int32), guess)
    assert shown.splitlines() == [
        "masked    up in 5⏎[MASK]",
        "predicted up in 5⏎up in <NUM>",
        "true      up in 5⏎down",
    ]

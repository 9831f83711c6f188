"""Bad records raise, are skipped or put aside, and are counted."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from written import rows, written

from seqmlm.data.problems import Problems
from seqmlm.errors import DataError, StateError, UsageError

ERROR = DataError("it is odd", source="a.txt", line=3, field="text", remedy="make it even")


def test_skip_counts_by_reason() -> None:
    problems = Problems("skip")
    for _ in range(3):
        problems.bad(ERROR, "raw")
    problems.bad(DataError("it is blue"), None)
    problems.note("a repeat", 2)
    problems.note("never", 0)
    assert problems.counts == {"a repeat": 2, "it is blue": 1, "it is odd": 3}
    assert problems.bad_count == 4


def test_quarantine_is_on_disk_at_once(tmp_path: Path) -> None:
    aside = tmp_path / "new" / "aside.jsonl"
    problems = Problems("quarantine", aside)
    problems.bad(ERROR, "räw\nline")
    problems.bad(DataError("it is blue"), None)
    # Read before closing: what was refused is there even if the process is killed now.
    lines = rows(aside)
    names = ("source", "line", "field", "reason", "remedy")
    odd = ("a.txt", 3, "text", "it is odd", "make it even")
    blue = dict(zip(names, (None, None, None, "it is blue", None), strict=True))
    assert lines == [{**dict(zip(names, odd, strict=True)), "raw": "räw\nline"}, blue]
    problems.close()


def test_quarantine_appends_and_is_private(tmp_path: Path) -> None:
    aside = written(tmp_path / "aside.jsonl", '{"source": "earlier"}\n')
    aside.chmod(0o644)
    with Problems("quarantine", aside) as problems:
        problems.bad(ERROR, "x")
    with problems:
        problems.bad(ERROR, "y")  # opens the file again
    assert [line.get("raw") for line in rows(aside)] == [None, "x", "y"]
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600


def test_sensitive_leaves_the_raw_text_out(tmp_path: Path) -> None:
    aside = tmp_path / "aside.jsonl"
    with Problems("quarantine", aside, sensitive=True) as problems:
        problems.bad(ERROR, "Smith, 12.3.1950")
    assert "Smith" not in aside.read_text()
    assert json.loads(aside.read_text())["line"] == 3


def test_counts_stay_small_however_many_reasons() -> None:
    problems = Problems("skip")
    for i in range(5000):
        problems.bad(DataError(f"reason {i}"))
    assert len(problems.counts) == 1001
    assert problems.counts["other reasons"] == 4000
    assert problems.bad_count == 5000


def test_wrong_settings_are_named() -> None:
    with pytest.raises(UsageError, match="raise, skip, quarantine"):
        Problems("ignore")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a file"):
        Problems("quarantine")


def test_input_that_is_read_again_is_not_counted_or_put_aside_again(tmp_path: Path) -> None:
    aside = tmp_path / "aside.jsonl"
    with Problems("quarantine", quarantine=aside) as problems:
        problems.bad(DataError("bad", source="a", line=1), "x")
        problems.note("odd", 3)
        before = problems.snapshot()
        problems.bad(DataError("bad", source="a", line=2), "y")
    assert before["quarantined"] < aside.stat().st_size
    with Problems("quarantine", quarantine=aside) as again:
        again.cut_quarantine(before["quarantined"])
        with again.replaying(before):
            again.bad(DataError("bad", source="a", line=1), "x")
            again.note("odd", 3)
        again.bad(DataError("bad", source="a", line=2), "y")
        assert again.counts == {"bad": 2, "odd": 3}
        assert again.places == {"bad": "a:1"}
    assert [line["line"] for line in rows(aside)] == [1, 2]


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_the_quarantine_is_a_regular_file_or_nothing(kind: str, tmp_path: Path) -> None:
    aside, other = tmp_path / "aside.jsonl", tmp_path / "other"
    if kind == "link":
        other.write_text("keep me")
        aside.symlink_to(other)
    elif kind == "dangling":
        aside.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(aside)
    else:
        aside.mkdir()
    with pytest.raises(StateError, match="not a regular file"), Problems("quarantine", aside) as problems:
        problems.bad(ERROR, "x")
    assert not other.exists() or other.read_text() == "keep me"
    assert stat.S_IFMT(os.lstat(aside).st_mode) != stat.S_IFREG


def test_nothing_in_the_quarantine_acts_on_a_terminal(tmp_path: Path) -> None:
    aside, raw = tmp_path / "aside.jsonl", "\x1b[2J\x9b2J\u202e\ud800é"
    with Problems("quarantine", aside) as problems:
        problems.bad(ERROR, raw)
    assert aside.read_bytes().isascii()
    assert json.loads(aside.read_text())["raw"] == raw


def test_threads_lose_no_count(tmp_path: Path) -> None:
    aside = tmp_path / "aside.jsonl"
    with Problems("quarantine", aside) as problems:

        def work(number: int) -> None:
            for i in range(300):
                problems.bad(DataError(f"odd {i % 7}", line=i), str(number))
                problems.note("noted")
                _ = problems.counts, problems.snapshot()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems.bad_count == 1200
        assert problems.counts["noted"] == 1200
    assert len(rows(aside)) == 1200


def test_nothing_says_what_was_met_first() -> None:
    problems = Problems("skip")
    assert problems.nothing().reason == "no record was found"
    problems.note("a row of gaps only, left out", source="g.fasta", line=7)
    assert str(problems.nothing()).startswith("g.fasta:7: no record is left: a row of gaps")
    problems.bad(ERROR)
    problems.bad(DataError("an even odder one", source="b.txt", line=1))
    nothing = problems.nothing()
    assert str(nothing) == (
        "a.txt:3: field 'text': no record could be read; the first problem is: it is odd (make it even)"
    )

"""A file of rows: what comes back of them, and what is left after a stop at any commit."""

from __future__ import annotations

import csv
import io
import json
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from written import written

from seqmlm.data.files import UNDER_WAY
from seqmlm.data.problems import Problems
from seqmlm.data.rows import read_rows
from seqmlm.errors import StateError, UsageError
from seqmlm.privacy import handling_sensitive_data
from seqmlm.rows.file import Rows
from seqmlm.streams import sinks
from seqmlm.streams.cursor import Cursor
from seqmlm.streams.sinks import PARTIAL, Schema, convert, format_of, partial_of, unescaped

COLUMNS = {"id": "text", "source": "text", "line": "integer", "score": "number", "alarm": "flag"}
SCHEMA = Schema(columns={**COLUMNS, "channels": "p_values", "top": "units"}, statistics=("pll", "length"))


def _row(number: int) -> dict[str, Any]:
    return {
        "id": f'r{number}, "x"\n',
        "source": "f",
        "line": number,
        "score": None if number == 3 else number / 7,
        "alarm": number % 2 == 0,
        "channels": {"pll": 0.5, "length": float("nan") if number == 4 else 1 / (number + 1)},
        "top": [
            {"unit": "ä", "start": 0, "end": 1, "surprisal": 2.5, "expected": [{"unit": "b", "p": 0.25}]}
        ],
        "missing": ["E11"],
    }


OLD = '"id","source","line"\n"old",,1\n'
"""A finished output of another run."""

ROWS = [_row(number) for number in range(23)]


def _opened(path: Path | None, kind: str, schema: Schema = SCHEMA, **given: Any) -> Rows:
    return Rows(path, {"of": "x"}, Problems(), format=kind, columns=schema, **given)


def _write(path: Path, kind: str, *, commit: int | None = None) -> None:
    """Write the rows, committing after a number of them; only as far as that, if there is one."""
    with _opened(path, kind) as rows:
        rows.write([[one] for one in ROWS[:commit]])
        rows.commit()
        if commit is None:
            rows.finish()


def _made(
    path: Path | None, own: list[dict[str, Any]], kind: str, schema: Schema = SCHEMA, **given: Any
) -> None:
    """Write rows to the end, behind those that are there."""
    with _opened(path, kind, schema, **given) as rows:
        rows.write([[one] for one in own])
        rows.commit()
        rows.finish()


def _read(path: Path, kind: str) -> list[dict[str, Any]]:
    if kind == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if kind == "csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_json_lines_are_the_rows_with_null_for_what_is_no_number(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", "jsonl")
    found = _read(tmp_path / "a.jsonl", "jsonl")
    assert found[4]["channels"] == {"pll": 0.5, "length": None}
    assert [row for n, row in enumerate(found) if n != 4] == [row for n, row in enumerate(ROWS) if n != 4]


def test_a_table_has_flat_columns_and_json_in_cells(tmp_path: Path) -> None:
    _write(tmp_path / "a.csv", "csv")
    found = _read(tmp_path / "a.csv", "csv")
    assert list(found[0]) == ["id", "source", "line", "score", "alarm", "p_pll", "p_length", "top", "extra"]
    assert (found[3]["id"], found[3]["score"], found[3]["alarm"]) == ('r3, "x"\n', "", "false")
    assert float(found[5]["score"]) == ROWS[5]["score"]
    assert found[4]["p_length"] == ""
    assert json.loads(found[0]["top"]) == ROWS[0]["top"]
    assert json.loads(found[0]["extra"]) == {"missing": ["E11"]}


def test_parquet_has_nested_units_and_one_schema(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", "parquet")
    found = _read(tmp_path / "a.parquet", "parquet")
    assert [row["line"] for row in found] == list(range(23))
    assert found[2]["top"][0]["expected"] == [{"unit": "b", "p": 0.25}]
    assert (found[3]["score"], found[4]["p_length"], found[5]["p_pll"]) == (None, None, 0.5)
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]


def _stopped(*given: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_rows_that_nobody_committed_never_look_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool, dies: bool
) -> None:
    """A run dies before its first commit, and the next one while it begins, or before it has a row."""
    out = tmp_path / "out.jsonl"
    mark = out.with_name(out.name + UNDER_WAY)
    with _opened(out, "jsonl") as rows:
        rows.write([[ROWS[0]], [ROWS[1]]])
        rows.keep()
    assert out.read_bytes()
    assert mark.exists()
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        if dies:
            patch.setattr(Cursor, "save", _stopped)
        with _opened(out, "jsonl", resume=resume):
            pass
    assert mark.exists()
    with _opened(out, "jsonl", resume=resume) as rows:
        rows.write([[ROWS[2]]])
        rows.commit()
        rows.finish()
    assert not mark.exists()
    assert [json.loads(line)["line"] for line in out.read_text().splitlines()] == [2]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_does_not_depend_on_commits_and_stops(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_BATCH_BYTES", 1000)
    whole = tmp_path / f"whole.{kind}"
    _write(whole, kind)
    for stop in (1, 7, 22):
        path = tmp_path / f"stopped{stop}.{kind}"
        with _opened(path, kind) as rows:
            rows.write([[one] for one in ROWS[:stop]])
            rows.commit()
            rows.write([[one] for one in ROWS[stop:]])  # not committed: must not be there twice
            rows.keep()
        assert len(_committed(path, kind).read_text().splitlines()) == len(ROWS)
        _made(path, ROWS[stop:], kind, resume=True)
        assert path.read_bytes() == whole.read_bytes(), stop


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_another_file_is_not_gone_on_with(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    _write(path, kind, commit=9)
    committed = _committed(path, kind)
    committed.write_bytes(committed.read_bytes()[::-1])
    for _ in range(2):
        with pytest.raises(StateError, match="it has changed since the interrupted run"):
            _opened(path, kind, resume=True).__enter__()
        committed.unlink(missing_ok=True)


def _committed(path: Path, kind: str) -> Path:
    """The file that grows while an output is written."""
    return path if kind == "jsonl" else path.with_name(path.name + PARTIAL)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_is_made_at_the_end_from_lines_that_are_then_removed(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / f"a.{kind}", OLD)
    _write(path, kind, commit=len(ROWS))
    assert path.read_text() == OLD
    _write(tmp_path / "a.jsonl", "jsonl")
    assert _committed(path, kind).read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    mark = path.with_name(path.name + UNDER_WAY)
    kept, lines = mark.read_bytes(), _committed(path, kind).read_bytes()
    _made(path, [], kind, resume=True)
    made = path.read_bytes()
    assert not _committed(path, kind).exists()
    assert not mark.exists()
    # A process that is killed when the table is there, and its mark, too, is resumed from its last commit.
    mark.write_bytes(kept)
    _committed(path, kind).write_bytes(lines)
    _made(path, [], kind, resume=True)
    assert path.read_bytes() == made
    assert len(_read(path, kind)) == len(ROWS)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_where_nothing_was_committed_nothing_stays(tmp_path: Path, kind: str) -> None:
    with _opened(tmp_path / f"a.{kind}", kind) as rows:
        rows.write([None])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "partial"), [("jsonl", False), ("csv", False), ("csv", True), ("parquet", False)]
)
def test_nothing_is_written_through_a_link(tmp_path: Path, kind: str, partial: bool) -> None:
    target, path = tmp_path / "target", tmp_path / "a"
    target.write_text("precious\n")
    link = partial_of(path) if partial else path

    def linked() -> None:
        with _opened(path, kind) as rows:
            link.symlink_to(target)
            rows.write([[one] for one in ROWS])
            rows.commit()
            rows.finish()

    with pytest.raises(StateError, match="there is a symbolic link of this name"):
        linked()
    assert target.read_text() == "precious\n"
    assert link.is_symlink()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_output_without_rows_has_its_columns(tmp_path: Path, kind: str) -> None:
    _made(tmp_path / "a", [], kind)
    assert _read(tmp_path / "a", kind) == []
    if kind == "parquet":
        assert pq.read_schema(tmp_path / "a").names == list(SCHEMA.flat_columns)
    else:
        assert (tmp_path / "a").read_text().strip().replace('"', "").split(",") == list(SCHEMA.flat_columns)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_half_a_surrogate_is_written_as_its_escape(tmp_path: Path, kind: str) -> None:
    row = {**ROWS[0], "id": "a\udc80", "top": [{"unit": "\ud800", "start": 0, "end": 1, "surprisal": 1.0}]}
    _made(tmp_path / "a", [row, ROWS[1]], kind)
    found = _read(tmp_path / "a", kind)
    assert [one["id"] for one in found] == ["a\\udc80", ROWS[1]["id"]]
    if kind == "parquet":
        assert found[0]["top"][0]["unit"] == "\\ud800"


def test_a_table_is_converted_a_few_lines_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "a.jsonl", "jsonl")
    monkeypatch.setattr(sinks, "_BATCH_BYTES", 1000)
    convert(tmp_path / "a.jsonl", tmp_path / "a.parquet", SCHEMA, format="parquet")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups > 3


def test_csv_on_standard_output_is_that_of_a_file_and_comes_at_once(tmp_path: Path) -> None:
    stdout = io.StringIO()
    with _opened(None, "csv", stdout=stdout) as rows:
        rows.write([[one] for one in ROWS[:7]])
        assert len(list(csv.DictReader(io.StringIO(stdout.getvalue())))) == 7
        rows.write([[], None, ROWS[7:]])
        rows.finish()
    _write(tmp_path / "a.csv", "csv")
    assert stdout.getvalue() == (tmp_path / "a.csv").read_text()


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("shown", [True, False])
def test_rows_that_are_not_wanted_are_only_counted(tmp_path: Path, kind: str, shown: bool) -> None:
    stdout, path = io.StringIO(), tmp_path / "a"
    given: dict[str, Any] = {"row_filter": lambda row: row["alarm"], "stdout": stdout if shown else None}
    with _opened(None if shown else path, kind, **given) as rows:
        rows.write([[one] for one in ROWS])
        rows.commit()
        assert len([*rows.read()]) == len(ROWS)
        rows.finish()
    text = stdout.getvalue() if shown else path.read_text()
    lines = [json.loads(line) for line in text.splitlines()] if kind == "jsonl" else _of_csv(text)
    assert [row["id"] for row in lines] == [row["id"] for row in ROWS if row["alarm"]]


def _of_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("people", [False, True])
def test_rows_that_come_at_the_end_are_shown_as_others_are(people: bool) -> None:
    stdout = io.StringIO()
    line = (lambda row: f"row {row['id']}\n") if people else None
    with _opened(None, "jsonl", stdout=stdout, needs_all=True, line=line) as rows:
        rows.write([[{"id": "a"}], [{"id": "b"}]])
        assert stdout.getvalue() == ""
        rows.finish(lambda own: ({**row, "id": row["id"] * 2} for row in own))
    shown = "row aa\nrow bb\n" if people else '{"id": "aa"}\n{"id": "bb"}\n'
    assert stdout.getvalue() == shown


def test_rows_that_are_not_kept_are_shown_alone() -> None:
    stdout = io.StringIO()
    with _opened(None, "jsonl", stdout=stdout, keeps=False) as rows:
        rows.write([ROWS])
        assert list(rows.read()) == []
        rows.finish()
    assert len(stdout.getvalue().splitlines()) == len(ROWS)


FORMULAS = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'=x", "''-x", "=\n"]
PLAIN = ["-", "a=1", "'x", "", "1", " =x", "'", "'-"]


@pytest.mark.parametrize("stdout", [True, False])
def test_no_spreadsheet_takes_a_text_for_a_formula(tmp_path: Path, stdout: bool) -> None:
    schema = Schema(columns={"id": "text", "score": "number", "line": "integer"})
    rows = [{"id": text, "score": -1.5, "line": -2, "more": "=1"} for text in FORMULAS + PLAIN]
    stream, path = io.StringIO(), tmp_path / "a.csv"
    _made(None if stdout else path, rows, "csv", schema, stdout=stream)
    text = stream.getvalue() if stdout else path.read_bytes().decode()
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["id"] for row in found] == [f"'{text}" for text in FORMULAS] + PLAIN
    assert {(row["score"], row["line"], row["extra"]) for row in found} == {("-1.5", "-2", '{"more": "=1"}')}
    assert [unescaped(row["id"]) for row in found] == FORMULAS + PLAIN


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_other_formats_have_texts_as_they_are(tmp_path: Path, kind: str) -> None:
    _made(tmp_path / kind, [{"id": text} for text in FORMULAS], kind, Schema(columns={"id": "text"}))
    assert [row["id"] for row in _read(tmp_path / kind, kind)] == FORMULAS


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("name", "value"), [("score", "secret"), ("line", 1 << 70), ("alarm", "secret"), ("id", 5)]
)
def test_a_value_that_its_column_cannot_hold_is_said_without_it(
    tmp_path: Path, kind: str, name: str, value: object
) -> None:
    told = rf"a value in the column '{name}' does not have its type, .*ends in \.jsonl"
    with pytest.raises(StateError, match=told) as caught:
        _made(tmp_path / "a", [*ROWS[:3], {**ROWS[3], name: value}], kind)
    assert "secret" not in str(caught.value)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {f"a{PARTIAL}", f"a{UNDER_WAY}"}, "the rows are kept"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_private_files_are_the_owners(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.touch(mode=0o644)
    with handling_sensitive_data():
        _write(path, kind)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_full_disk_leaves_what_was_committed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    committed = _committed(path, kind)
    with _opened(path, kind) as rows:
        rows.write([[one] for one in ROWS[:5]])
        rows.commit()
        before = committed.read_bytes()
        with _files_of_at_most(len(before) + 50):
            rows.write([[one] for one in ROWS[5:]])
            with pytest.raises(StateError, match=r"cannot write .*/a\.[\w.]+: .*free space.*same command"):
                rows.commit()
    assert committed.read_bytes() == before, "no torn row is left"
    _made(path, ROWS[5:], kind, resume=True)
    _write(tmp_path / "whole", kind)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_disk_that_is_full_when_the_table_is_made_leaves_its_lines(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / f"a.{kind}", OLD)
    _write(path, kind, commit=len(ROWS))
    told = rf"cannot write .*/a\.{kind}: File too large; .*free space.*run the same command"
    with (
        _opened(path, kind, resume=True) as rows,
        pytest.raises(StateError, match=told),
        _files_of_at_most(200),
    ):
        rows.finish()
    assert path.read_text() == OLD
    assert {file.name for file in tmp_path.iterdir()} == {
        f"a.{kind}{one}" for one in ("", PARTIAL, UNDER_WAY)
    }
    _made(path, [], kind, resume=True)
    assert len(_read(path, kind)) == len(ROWS)


def test_standard_output_that_refuses_rows_is_named_in_one_sentence() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    stdout = full.open("w")
    with pytest.raises(StateError, match="cannot write to standard output: No space left on device"):
        _made(None, [{"id": "a"}], "jsonl", stdout=stdout)
    with pytest.raises(OSError):
        stdout.close()


def test_formats_by_name() -> None:
    assert format_of(Path("x.CSV")) == "csv"
    assert format_of(Path("x.csv"), "parquet") == "parquet"
    assert format_of(None) == format_of(Path("scores")) == "jsonl"
    with pytest.raises(UsageError, match="spreadsheets cannot be written"):
        format_of(Path("scores.XLSX"))
    for name, option in (("a.sarif", "review --sarif"), ("a.html", "--report")):
        with pytest.raises(UsageError, match=option):
            format_of(Path(name))
    with pytest.raises(UsageError, match="did you mean 'parquet'"):
        format_of(None, "parket")
    with pytest.raises(UsageError, match="standard output"):
        format_of(None, "parquet")
    with pytest.raises(UsageError, match="p_pll"):
        Schema(columns={"p_pll": "number", "channels": "p_values"}, statistics=("pll",))


@pytest.mark.parametrize("resumed", [False, True])
def test_tsv_quotes_nothing_and_is_read_back(tmp_path: Path, resumed: bool) -> None:
    schema = Schema(columns={"id": "text", "value": "number", "n": "integer", "edge": "flag"}, closed=True)
    texts = ["a\tb", "line\nnext\r", '"', "back\\slash\\t", "", "=1+1", "-x", "ä\x0b\u2028z", "\ud800"]
    rows: list[dict[str, Any]] = [
        {"id": text, "value": 0.1 * n if n % 2 else None, "n": n, "edge": n % 3 == 0}
        for n, text in enumerate(texts)
    ]
    path = tmp_path / "a.tsv"
    assert format_of(path) == "tsv"
    if resumed:
        with _opened(path, "tsv", schema) as begun:
            begun.write([rows[:4]])
            begun.commit()
            begun.write([rows[4:6]])
            begun.keep()
    _made(path, rows[4 if resumed else 0 :], "tsv", schema, resume=resumed)
    found = [row for _, row in read_rows(str(path))]
    assert list(found[0]) == ["id", "value", "n", "edge"]
    told = [r"a\tb", r"line\nnext\r", '"', r"back\\slash\\t", "", "'=1+1", "'-x", "ä\x0b\u2028z", r"\\ud800"]
    assert [row["id"] for row in found] == told
    assert [float(row["value"]) if row["value"] else None for row in found] == [row["value"] for row in rows]
    assert [row["edge"] for row in found] == [str(row["edge"]).lower() for row in rows]
    stream = io.StringIO()
    _made(None, rows, "tsv", schema, stdout=stream)
    assert stream.getvalue().encode() == path.read_bytes()

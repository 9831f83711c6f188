"""CSV, TSV and parquet columns."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import in_blocks, refused, written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import read_parquet
from seqmlm.data.readers.objects import json_object, json_value
from seqmlm.data.readers.tables import DECIMAL, numeric, read_csv, read_jsonl, read_tsv
from seqmlm.data.rows import read_rows
from seqmlm.errors import DataError

cells = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=20)


@given(st.lists(st.tuples(cells, cells.filter(lambda c: not c.isspace())), min_size=1, max_size=6))
def test_any_csv_comes_back(rows: list[tuple[str, str]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("name", "text"), *rows])
    with in_blocks(out.getvalue().encode(), 1 << 20):
        found = list(read_csv("x.csv", Problems(), id_column="name"))
    assert [(r.id, r.raw) for r in found] == rows


def test_lines_ids_documents_and_meta(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'id,text,book,label\n1,"two\nlines",A,x\n\n3,"with ""quotes""",,y\n'))
    found = list(read_csv(path, Problems(), id_column="id", document_column="book", keep=["label"]))
    assert [(r.id, r.raw, r.line, r.document, dict(r.meta)) for r in found] == [
        ("1", "two\nlines", 2, "A", {"label": "x"}),
        ("3", 'with "quotes"', 5, "", {"label": "y"}),
    ]
    path = written(tmp_path / "b.csv", "key,text\n1,a\n")
    assert [r.id for r in read_csv(path, Problems())] == ["b.csv:2"]


@pytest.mark.parametrize(
    ("reader", "text", "options", "raws"),
    [
        (read_csv, "one,two\nthree,four\n", {"column": "2", "header": False}, ["two", "four"]),
        (read_csv, "one\ntwo\n", {}, ["two"]),  # a single column needs no name
        (read_tsv, 'text\tlabel\n"open\t1\nclose"\t0\n', {}, ['"open', 'close"']),  # no quotation marks
        (read_csv, "id/text\n1/a,b\n", {"delimiter": "/"}, ["a,b"]),
        (read_csv, '"x; y; z",text\n1,"a, b"\n', {}, ["a, b"]),  # what is quoted separates nothing
        (read_csv, "a; b; c,1\nd,0\n", {"header": False, "column": "1"}, ["a; b; c", "d"]),  # nor do data
        (read_csv, '"a; b; c",1\nd,0\n', {"header": False, "column": "1"}, ["a; b; c", "d"]),
    ],
)
def test_columns_and_what_is_between_them(
    reader: Any, text: str, options: dict[str, Any], raws: list[str], tmp_path: Path
) -> None:
    assert [r.raw for r in reader(written(tmp_path / "a.csv", text), Problems(), **options)] == raws


@pytest.mark.parametrize("apart", [";", "|", "\t", ","])
def test_the_first_line_says_what_is_between_columns(tmp_path: Path, apart: str) -> None:
    """A spreadsheet of a country with decimal commas writes semicolons."""
    text = "1,5" if apart == "," else "a,b"
    cells = (("id", "text", "y"), ("1", text, "1,5"), ("2", "1,5", "x, y"))
    quoted = [[f'"{cell}"' if "," in cell and apart == "," else cell for cell in row] for row in cells]
    path = written(tmp_path / "a.csv", "\n" + "".join(f"{apart.join(row)}\n" for row in quoted))
    problems = Problems()
    for told in (None, apart):
        found = list(read_csv(path, problems, delimiter=told, keep="y"))
        assert [one.raw for one in found] == [text, "1,5"], "a text stays as it is"
        assert [one.meta["y"] for one in found] == ["1.5" if apart == ";" else "1,5", "x, y"]
    assert dict(problems.counts) == ({DECIMAL: 2} if apart == ";" else {})
    rows = [row["y"] for _, row in read_rows(str(path))]
    assert rows == ["1.5" if apart == ";" else "1,5", "x, y"]


@pytest.mark.parametrize(
    ("above", "comments"),
    [
        ("# Melamed et al., RNA 2013 (a, b), PMID\n# second\n", 2),
        ("\n# one; two; three\n\n", 1),
        ("", 0),
    ],
)
def test_comments_above_the_header_are_left_out(above: str, comments: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"{above}id;text\n1;a, b\n")
    problems = Problems()
    assert [one.raw for one in read_csv(path, problems)] == ["a, b"]
    assert dict(problems.counts) == (
        {"a comment above the header of a table, skipped": comments} if comments else {}
    )
    assert [row["text"] for _, row in read_rows(str(path))] == ["a, b"]


def test_a_header_may_begin_as_a_comment_does(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "#id,text\n1,a\n")
    assert [one.raw for one in read_csv(path, Problems())] == ["a"]
    assert [dict(row) for _, row in read_rows(str(path))] == [{"#id": "1", "text": "a"}]
    assert list(read_csv(written(tmp_path / "b.csv", "#id,text\n"), Problems())) == []


def test_names_of_records_and_documents_have_no_decimal_commas(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id;text;doc;y\n1,5;a;2,5;3,5\n")
    for named in ({}, {"id_column": "id"}):
        [one] = read_csv(path, Problems(), document_column="doc", keep="id,doc,y", **named)
        assert (one.id, one.document, one.meta["y"]) == ("1,5", "2,5", "3.5")
    [(_, row)] = read_rows(str(path))
    assert (row["id"], row["y"]) == ("1,5", "3.5"), "a label of it is found by its name"
    path = written(tmp_path / "b.csv", "name;icd_code;text;y\n1,5;2,5;a;3,5\n")
    [(_, row)] = read_rows(str(path))
    assert row == {"name": "1,5", "icd_code": "2,5", "text": "a", "y": "3.5"}, "the first column names rows"
    [one] = read_csv(path, Problems(), keep="icd_code,y")
    assert one.meta == {"icd_code": "2,5", "y": "3.5"}
    names = ("HADM_ID", "patientID", "userId", "zipcode", "URIC_ACID", "PAID", "Fluid")
    assert [names[at] for at in numeric(names)] == ["URIC_ACID", "PAID", "Fluid"]


def test_a_missing_column_lists_those_there_are(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,sentence\n1,a\n")
    for options in ({}, {"column": "sentence", "keep": ["text"]}, {"column": "id", "id_column": "text"}):
        with pytest.raises(DataError, match="no column of this name") as caught:
            list(read_csv(path, Problems(), **options))  # type: ignore[arg-type]
        assert caught.value.field == "text"
        assert "id, sentence" in (caught.value.remedy or "")
        assert (caught.value.line, "header=false" in str(caught.value)) == (None, True)
        assert not caught.value.skippable
    with pytest.raises(DataError, match=r"there are: 1, 2; choose one with --option column=NAME\)"):
        list(read_csv(path, Problems(), header=False))
    with pytest.raises(DataError) as caught:  # the first line may hold values
        list(read_csv(path, Problems(sensitive=True)))
    assert "sentence" not in str(caught.value)


def test_bad_rows_are_named_and_the_others_stay(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,text\n1,a\n2\n3,\n4,b,c\n5,d\n")
    problems = refused(read_csv, path, "a row with too few fields", ["a", "b", "d"], line=3)
    assert problems.counts == {
        "a row with more fields than the table has columns": 1,
        "a row with too few fields": 1,
        "no text in the field": 1,
    }


def test_a_quotation_mark_that_never_closes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'id,text\n1,a\n2,"b\n' + "3,c\n" * 1000)
    with pytest.raises(DataError, match=r"a.csv:3: a field without end"):
        list(read_csv(path, Problems(), max_bytes=500))


def table(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_parquet(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet", id=[1, 2, 3], text=["a", None, "c"], book=["x", "x", None], n=[7, 8, 9]
    )
    problems = Problems("skip")
    found = list(read_parquet(path, problems, id_column="id", document_column="book", keep=["n"]))
    assert [(r.id, r.raw, r.line, r.document, dict(r.meta)) for r in found] == [
        ("1", "a", 1, "x", {"n": 7}),
        ("3", "c", 3, None, {"n": 9}),
    ]
    assert problems.counts == {"no text in the field": 1}
    with pytest.raises(DataError, match=r"a.parquet:2: field 'text': no text") as caught:
        list(read_parquet(path, Problems()))
    assert caught.value.remedy


def test_parquet_that_cannot_be_read(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", id=[1], sentence=["a"])
    with pytest.raises(DataError, match="no column of this name") as caught:
        list(read_parquet(path, Problems()))
    assert "id, sentence" in (caught.value.remedy or "")
    with pytest.raises(DataError, match="holds no text"):
        list(read_parquet(path, Problems(), column="id"))
    whole = path.read_bytes()
    for data, message in ((b"hello" * 10, "not parquet"), (whole[:-20], "not parquet"), (b"", "is empty")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            list(read_parquet(path, Problems()))
    with pytest.raises(DataError, match="no such file"):
        list(read_parquet(tmp_path / "none.parquet", Problems()))
    with pytest.raises(DataError, match="standard input"):
        list(read_parquet("-", Problems()))


def test_parquet_damaged_in_the_middle_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"sentence {i} {i * 7919 % 1000}" for i in range(20_000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=5000, compression="zstd")
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(2).column(0).dictionary_page_offset
    data[start : start + 2000] = bytes(2000)
    path.write_bytes(data)
    problems = Problems("skip")
    found = [r.raw for r in read_parquet(path, problems)]
    assert found == texts[: len(found)]
    assert 1000 < len(found) <= 10_000
    assert problems.counts == {"the file is not parquet, or damaged": 1}


def test_the_csv_limit_of_python_does_not_bind(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)
    path = written(tmp_path / "a.csv", "id,text\n1," + "x" * 200_000 + "\n")
    assert len(next(iter(read_csv(path, Problems()))).raw) == 200_000
    csv.field_size_limit(131_072)


def test_a_quotation_mark_that_swallows_the_rest_is_said_with_its_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'id,text\n1,fine\n2,"never closed\n3,lost\n4,lost\n')
    problems = refused(read_csv, path, "a field without end", ["fine"], line=3)
    assert problems.places == {"a field without end": f"{path}:3"}
    assert "it continues to line 5" in problems.remedies["a field without end"]


def test_a_refused_line_takes_the_row_it_is_in_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,fine\n2,"one\ntw\xffo\nthree"\n3,"also\nfine"\n\xff\n4,last\n')
    problems = Problems("skip")
    assert [(r.line, r.raw) for r in read_csv(path, problems)] == [
        (2, "fine"),
        (6, "also\nfine"),
        (9, "last"),
    ]
    assert problems.counts == {"bytes that are not UTF-8": 2}


def test_a_carriage_return_in_a_bare_field_is_called_that(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b'id,text\n1,a\rb\n2,"c\rd"\n')
    problems = Problems("skip")
    assert [r.raw for r in read_csv(path, problems)] == ["c\rd"]
    assert problems.counts == {"a CR in a field without quotes": 1}


def test_a_column_that_is_there_twice_is_refused_where_it_is_wanted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,x,x\none,1,2\n")
    assert [r.raw for r in read_csv(path, Problems())] == ["one"]
    with pytest.raises(DataError, match="field 'x': two columns of this name"):
        list(read_csv(path, Problems(), id_column="x"))
    path.write_text(",".join(["c"] * 100_000 + ["text"]) + "\n" + "," * 100_000 + "wide\n,\n")
    problems = Problems("skip")
    assert [r.raw for r in read_csv(path, problems)] == ["wide"]
    assert problems.counts == {"a row with too few fields": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "JSON that is nested too deeply"),
        ('{"a":' * 100_000, "JSON that is nested too deeply"),
        ("9" * 5000, "JSON with a number of thousands of digits"),
        ("{", "not JSON"),
        (b'{"a": "\xff"}', "bytes that are not UTF-8"),
        (b'{"a": "\xed\xa0\xbd"}', "bytes that are not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "bytes that are not UTF-8"),
    ],
)
def test_json_that_cannot_be_read_is_one_error(text: str | bytes, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        json_value(text, "a.json", 7, "write it again")
    assert (caught.value.reason, caught.value.source, caught.value.line) == (reason, "a.json", 7)
    assert json_object(text if isinstance(text, str) else "7") is None


def test_a_field_called_id_names_the_record_where_it_holds_text_or_a_number(tmp_path: Path) -> None:
    ids: list[object] = ["q17", 7, 2.5, "q17", "", " ", None, True, ["x"], "\ud800"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": one, "text": "t"}) + "\n" for one in ids) + '{"text": "t"}\n')
    by_line = [f"a.jsonl:{line}" for line in range(5, 12)]
    assert [r.id for r in read_jsonl(path, Problems())] == ["q17", "7", "2.5", "q17", *by_line]
    (tmp_path / "a.csv").write_text("id,text\nq17,t\n,t\nq17,t\n")
    assert [r.id for r in read_csv(tmp_path / "a.csv", Problems())] == ["q17", "a.csv:3", "q17"]
    assert [r.id for r in read_tsv(written(tmp_path / "a.tsv", "text\tid\nt\tx 1\n"), Problems())] == ["x 1"]
    parquet = table(tmp_path / "a.parquet", id=["q17", None], text=["t", "t"])
    assert [r.id for r in read_parquet(parquet, Problems())] == ["q17", "a.parquet:2"]


def test_an_id_that_cannot_be_told_is_not_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,text,id\na,t,b\n")
    assert [(r.id, r.raw) for r in read_csv(path, Problems())] == [("a.csv:2", "t")]
    path.write_text("id,n\nthe text,5\n")
    assert [(r.id, r.raw) for r in read_csv(path, Problems(), column="id")] == [("a.csv:2", "the text")]

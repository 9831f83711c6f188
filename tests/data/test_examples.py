"""Labels are read wherever data have them; one that is missing or does not fit is named with its place."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from written import jsonl, written

from seqmlm.data.examples import Example, LabelSource, Spans, examples
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_fasta
from seqmlm.data.readers.tables import read_csv, read_jsonl
from seqmlm.data.record import Record
from seqmlm.domains.logs import LOGS
from seqmlm.errors import DataError, UsageError
from seqmlm.tasks.columns import Labelling, reader_options

WORDS = {"words": ["a", "b", "c"], "spans": [(0, 3), (0, 3), None]}
LETTERS = [(n, n + 1, letter) for n, letter in enumerate("HHHHHCEEE")]


def record(meta: Mapping[str, Any], raw: str = "a red cat", id: str = "r") -> Record:
    return Record(id=id, raw=raw, source="r.csv", line=7, meta=meta)


def plain(label: Any) -> Any:
    if not isinstance(label, Spans):
        return label
    assert label.bounds.dtype == "int32"
    return [(*bounds, name) for bounds, name in zip(label.bounds.tolist(), label.labels, strict=True)]


def read(records: Sequence[Record], problems: Problems | None = None, **options: Any) -> list[Example]:
    return list(examples(records, problems or Problems(), LabelSource(**options)))


@pytest.mark.parametrize(
    ("meta", "options", "label"),
    [
        ({"y": " joy "}, {"columns": ["y"]}, "joy"),
        ({"y": "none"}, {"columns": ["y"]}, "none"),
        ({"y": True}, {"columns": ["y"]}, "true"),
        ({"y": "1.5"}, {"columns": ["y"]}, "1.5"),
        ({"y": "1.5"}, {"columns": ["y"], "numeric": True}, (1.5,)),
        ({"y": [1, "2"]}, {"columns": ["y"], "numeric": True}, (1.0, 2.0)),
        ({"y": ["b", "a", "b"]}, {"columns": ["y"]}, ("b", "a")),
        ({"y": []}, {"columns": ["y"]}, ()),
        ({"p": "1", "q": "False", "r": 1.0}, {"columns": ["p", "q", "r"]}, ("p", "r")),
        ({"p": "0", "q": 0}, {"columns": ["p", "q"]}, ()),
        ({"p": "0", "q": "2"}, {"columns": ["p", "q"]}, (0.0, 2.0)),
        ({"p": "0", "q": "1"}, {"columns": ["p", "q"], "numeric": True}, (0.0, 1.0)),
        ({"y": "HHHHHCEEE"}, {"columns": ["y"], "letters": True}, LETTERS),
        ({**WORDS, "tags": ["X", "Y", "Z"]}, {}, [(0, 3, "X")]),
        ({"spans": [(0, 1), (2, 5)], "upos": ["_", "N"]}, {"columns": ["upos"]}, [(2, 5, "N")]),
        ({"spans": [{"start": 2, "end": 5, "label": "P"}, (0, 1, "D")]}, {}, [(0, 1, "D"), (2, 5, "P")]),
        ({"spans": []}, {}, []),
        ({"y": [[2, 5, "red"]]}, {"columns": ["y"]}, [(2, 5, "red")]),
        ({"description": "of a cell TARGET=Cell membrane SET=train"}, {}, "Cell membrane"),
        ({"description": "Cell.membrane-M test"}, {"columns": ["2"]}, "Cell.membrane-M"),
        ({"description": "TARGET=3 OTHER=4"}, {"columns": ["OTHER"], "numeric": True}, (4.0,)),
    ],
)  # fmt: skip
def test_a_label_is_read(meta: Mapping[str, Any], options: dict[str, Any], label: Any) -> None:
    (one,) = read([record(meta)], **options)
    assert plain(one.label) == label
    assert type(plain(one.label)) is type(label)


@pytest.mark.parametrize(
    ("meta", "options", "message"),
    [
        ({}, {}, "r.csv:7: no label .*--label"),
        ({**WORDS}, {}, "no label .*--label"),
        ({"description": "Nucleus-U test"}, {}, "no label .*--label 2 is the second word .*'Nucleus-U'"),
        ({"y": None}, {"columns": ["y"]}, "r.csv:7: field 'y': no label .fill it in, .* --on-error skip"),
        ({}, {"columns": ["y"]}, "field 'y': no such field .correct its name"),
        ({"p": "1"}, {"columns": ["p", "q"]}, "field 'q': no such field"),
        ({"lines": (1, 2), "labels": ("a", "b")}, {"columns": ["y"]}, "its lines have no label in common"),
        ({"y": " "}, {"columns": ["y"]}, "no label"),
        ({"y": float("nan")}, {"columns": ["y"]}, "no label"),
        ({"p": "1", "q": ""}, {"columns": ["p", "q"]}, "field 'q': no label"),
        ({"y": ["a", None]}, {"columns": ["y"]}, "no label"),
        ({"y": {"a": 1}}, {"columns": ["y"]}, "a label of several parts"),
        ({"y": "high"}, {"columns": ["y"], "numeric": True}, "a label that is not a number"),
        ({"y": "inf"}, {"columns": ["y"], "numeric": True}, "a label that is not a number"),
        ({"y": "HHE"}, {"columns": ["y"], "letters": True}, r"fewer labels than characters \(3 labels for 9"),
        ({**WORDS, "tags": ["X"] * 4}, {}, r"field 'tags': more labels than words \(4 labels for 3"),
        ({**WORDS, "tags": ["_"] * 3}, {}, "no label .*another column with --label"),
        ({"spans": [{"start": 6, "end": 10, "label": "P"}]}, {}, "a span that is not within its record"),
        ({"spans": [{"start": 2, "end": 2, "label": "P"}]}, {}, "a span that is not within its record"),
        ({"spans": [{"start": 2, "label": "P"}]}, {}, "a span without start, end and label"),
        ({"spans": [{"start": 2, "end": True, "label": "P"}]}, {}, "a span without start, end and label"),
        ({"spans": [{"start": 2, "end": 5}]}, {}, "no label"),
        ({"spans": ["P"]}, {}, "a span without start, end and label"),
        ({"spans": [(0, 3, "a"), (2, 5, "b")]}, {}, "spans that overlap"),
        ({"y": "a", "other": " "}, {"columns": ["y"], "pair": "other"}, "'other': a pair with an empty side"),
        ({"y": "a"}, {"columns": ["y"], "pair": "other"}, "a pair with an empty side"),
    ],
)  # fmt: skip
def test_a_label_that_cannot_be_read_is_one_bad_record(
    meta: Mapping[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read([record(meta)], **options)
    assert caught.value.remedy
    problems = Problems("skip")
    good = record({**dict.fromkeys("pqy", "1"), "other": "b", "description": "TARGET=x"}, "1", "good")
    kept = read([record(meta), good], problems, **options)
    assert [one.record.id for one in kept] == ["good"]
    assert problems.bad_count == 1


def test_columns_are_classes_or_values_by_the_first_record() -> None:
    records = [record({"p": "0", "q": "1"}), record({"p": "0.5", "q": "1"})]
    with pytest.raises(DataError, match="field 'p': neither 0 nor 1"):
        read(records, columns=["p", "q"])
    assert [one.label for one in read(records[::-1], columns=["p", "q"])] == [(0.5, 1.0), (0.0, 1.0)]


@pytest.mark.parametrize(
    ("meta", "part"),
    [
        ({"description": "TARGET=x SET=train VALIDATION=False"}, "train"),
        ({"description": "TARGET=x SET=train VALIDATION=True"}, "validation"),
        ({"description": "TARGET=x SET=test VALIDATION=False"}, "test"),
        ({"TARGET": "x", "Set": "train", "validation": ""}, "train"),
        ({"TARGET": "x", "split": "dev"}, "validation"),
        ({"TARGET": "x", "split": "calibration"}, "validation"),
        ({"TARGET": "x", "validation": "1"}, "validation"),
        ({"TARGET": "x", "set": ""}, None),
        ({"TARGET": "x"}, None),
    ],
)
def test_the_data_say_which_part_a_record_is(meta: Mapping[str, Any], part: str | None) -> None:
    (one,) = read([record(meta)])
    assert one.part == part


def test_an_unknown_part_is_told() -> None:
    problems = Problems()
    (one,) = read([record({"TARGET": "x", "set": "fold 3"})], problems)
    assert one.part is None
    assert problems.counts == {"an unknown split, other than train, validation or test: ignored": 1}
    assert read([record({"set": "fold 3"})], columns=["set"])[0].part is None


def test_a_file_or_folder_has_a_class(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, ">s\nACGT\n") for name in ("a.fa", "many/b.fa", "c.fa")]
    records = [one for path in paths for one in read_fasta(path, Problems())]
    options: dict[str, Any] = {"classes": {str(paths[0]): "none", f"{tmp_path}/many/": "promoter"}}
    assert [one.label for one in read(records[:2], **options)] == ["none", "promoter"]
    with pytest.raises(DataError, match=r"c\.fa: a file without a class .*--class"):
        read(records, **options)


def test_a_pair_in_two_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,other,y\nq,p,1\n")
    records = list(read_csv(path, Problems(), keep=("other", "y")))
    (one,) = read(records, columns=["y"], pair="other", raw=lambda text, fields: text.upper() + fields["y"])
    assert one.second is not None
    assert (one.record.raw, one.second.raw, one.label) == ("q", "P1", "1")


def test_spans_of_json_lines_from_a_file(tmp_path: Path) -> None:
    line = '{"text": "in Rome", "spans": [{"start": 3, "end": 7, "label": "LOC"}]}\n'
    path = written(tmp_path / "a.jsonl", line)
    assert plain(read(list(read_jsonl(path, Problems(), keep=("spans",))))[0].label) == [(3, 7, "LOC")]


# Files of labels

RECORDS = [record({}, "MKV", "a"), record({}, "LLL", "b"), record({}, "W", "c")]


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("l.csv", "id,set,y\na,train,p\nc,test,q\nz,test,q\n", {}),
        ("l.tsv", "name\ty\tz\na\tp\t1\nc\tq\t1\nz\tq\t1\n", {"columns": ["y"]}),
        ("l.jsonl", '{"n": "a", "y": "p"}\n{"n": "c", "y": "q"}\n{"n": "z", "y": "q"}\n', {}),
    ],
)
def test_a_table_of_labels(name: str, text: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / name, text)
    problems = Problems()
    found = read(RECORDS, problems, labels=str(path), **options)
    assert [(one.record.id, one.label) for one in found] == [("a", "p"), ("c", "q")]
    assert [one.part for one in found] == (["train", "test"] if "set" in text else [None, None])
    assert problems.counts == {
        "a label whose id matches no record, ignored": 1,
        "a record without a label, left out": 1,
    }


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "id,y,z\na,p,q\n",
            {},
            r"l.csv:2: several columns .* label \(choose one with --label; the columns are: id, y, z\)",
        ),
        ("id,y\na,p\na,q\n", {}, "l.csv:3: a second label for the same id"),
        ("id,y\na,\n", {}, "l.csv:2: field 'y': no label"),
        (
            "id,why\na,p\n",
            {"columns": ["wy"]},
            "l.csv:2: field 'wy': no such column .name it with --label; the columns are: id, why",
        ),
        (
            "name,y\na,p\n",
            {"pair": "other", "columns": ["y"]},
            "field 'other': no such column .name it with --pair",
        ),
        (
            "id,y\nz,p\n",
            {},
            "no id in this file matches the id of a record .compare the ids: 'z' in this file, 'a' in",
        ),
        ("id,y\n", {}, "l.csv: no labels"),
    ],
)
def test_a_bad_table_of_labels(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "l.csv", text)
    with pytest.raises(DataError, match=message) as caught:
        read(RECORDS, labels=str(path), **options)
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["id,y,secret\nr,p,q\n", "id,secret\nsecret,q\n", "secret,y\nr,p\n"])
def test_sensitive_labels_are_not_shown(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "l.csv", text)
    with pytest.raises(DataError) as caught:
        read(RECORDS, Problems(sensitive=True), labels=str(path))
    assert "secret" not in str(caught.value)


def test_a_table_of_pairs_by_id(tmp_path: Path) -> None:
    path = written(tmp_path / "l.csv", "one,other,y\na,b,1\nc,a,0\na,z,1\n")
    problems = Problems()
    found = read(RECORDS, problems, labels=str(path), pair="other")
    assert [(one.record.id, one.second and one.second.id, one.label) for one in found] == [
        ("a", "b", "1"),
        ("c", "a", "0"),
    ]
    assert problems.counts == {"a pair of which a record is missing, left out": 1}
    path = written(tmp_path / "l.csv", "one;other;y\na;1,5;2,5\n")
    (one,) = read([*RECORDS, record({}, "MK", "1,5")], labels=str(path), pair="other")
    assert (one.second and one.second.id, one.label) == ("1,5", "2.5"), "an id has no decimal comma"


def fasta(folder: Path, name: str, **sequences: str) -> str:
    return str(written(folder / name, "".join(f">{id} SET=train\n{s}\n" for id, s in sequences.items())))


def test_letters_in_fasta_with_a_mask(tmp_path: Path) -> None:
    labels, mask = fasta(tmp_path, "l.fa", a="H-e", c="C"), fasta(tmp_path, "m.fa", a="101", c="1")
    found = read(RECORDS, labels=labels)
    assert [plain(one.label) for one in found] == [[(0, 1, "H"), (1, 2, "-"), (2, 3, "e")], [(0, 1, "C")]]
    assert [one.part for one in found] == ["train", "train"]
    found = read(RECORDS, labels=labels, mask=mask)
    assert [plain(one.label) for one in found] == [[(0, 1, "H"), (2, 3, "e")], [(0, 1, "C")]]


def test_letters_of_a_document_that_was_cut(tmp_path: Path) -> None:
    labels = fasta(tmp_path, "l.fa", whole="xyHEC")
    part = Record(id="whole:2-4", raw="AC", source="d.fa", line=1, document="whole", meta={"start": 2})
    assert plain(read([part], labels=labels)[0].label) == [(0, 1, "H"), (1, 2, "E")]
    other = replace(part, raw="GT", meta={**part.meta, "strand": "-"})
    assert plain(read([other], labels=labels)[0].label) == [(0, 1, "E"), (1, 2, "H")]
    masked = read([other], labels=labels, mask=fasta(tmp_path, "m.fa", whole="11011"))
    assert plain(masked[0].label) == [(0, 1, "E")]


@pytest.mark.parametrize(
    ("labels", "mask", "message"),
    [
        ({"a": "HH"}, None, r"l.fa:1: fewer labels than characters \(2 labels for 3 characters\)"),
        ({"b": "HHH", "a": "HHHH"}, None, "l.fa:3: more labels than characters"),
        ({"a": "HHH"}, {"a": "11"}, "m.fa:1: a mask whose length differs from its labels"),
        ({"a": "HHH"}, {"a": "1H0"}, "m.fa:1: a mask with letters other than 0 and 1"),
        ({"a": "HHH"}, {"b": "111"}, "l.fa:1: labels without a mask"),
        ({"a": "HHH"}, {"a": "000"}, "l.fa:1: no label .its mask"),
        ({"z": "HHH"}, None, "l.fa: no id in this file"),
    ],
)
def test_bad_letters(
    labels: dict[str, str], mask: dict[str, str] | None, message: str, tmp_path: Path
) -> None:
    masked = {"mask": fasta(tmp_path, "m.fa", **mask)} if mask else {}
    with pytest.raises(DataError, match=message) as caught:
        read(RECORDS, labels=fasta(tmp_path, "l.fa", **labels), **masked)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "options",
    [
        {"classes": {"a": "b"}, "columns": ["y"]},
        {"classes": {"a": "b"}, "labels": "l.fa"},
        {"mask": "m.fa"},
        {"mask": "m.fa", "labels": "l.csv"},
        {"columns": ["y"], "labels": "l.fa"},
    ],
)
def test_sources_that_exclude_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LabelSource(**options)


def test_places_of_deeploc(real_data: Path) -> None:
    records = read_fasta(real_data / "protein/deeploc/deeploc_test_set.fasta.gz", Problems())
    counts = Counter(one.label for one in examples(records, Problems(), LabelSource(columns=["2"])))
    assert (len(counts), counts.total(), counts["Plastid-U"]) == (22, 2768, 53)


def test_sessions_of_hdfs_with_a_label_of_another_name(real_data: Path, tmp_path: Path) -> None:
    text = gzip.decompress((real_data / "logs/hdfs_100k/session_test.jsonl.gz").read_bytes()).decode()
    path = written(tmp_path / "s.jsonl", text.replace('"label":', '"fault":'))

    def options(name: str) -> dict[str, Any]:
        return reader_options(LOGS, Labelling(labels=(name,)), str(path))

    records = LOGS.read([path], Problems(), **options("fault"))
    found = Counter(one.label for one in examples(records, Problems(), LabelSource(columns=["fault"])))
    assert found == {"0": 1588 - 57, "1": 57}
    with pytest.raises(DataError, match=r"no column 'label' .*there are: session, fault, templates"):
        options("label")


def test_a_session_of_several_lines_has_the_label_in_which_they_agree(tmp_path: Path) -> None:
    told = {"one": (1, 1), "two": (0, 1), "three": (None, None), "four": (0, 0), "five": (None, 1)}
    lines = [
        {"session": name, "message": f"line {n}", "anomaly": own[n]}
        for n in (0, 1)
        for name, own in told.items()
    ]
    path = jsonl(tmp_path / "s.jsonl", lines)
    options = reader_options(LOGS, Labelling(labels=("anomaly",)), str(path))
    problems, source = Problems("skip"), LabelSource(columns=["anomaly"])
    found = {
        one.record.id: one.label for one in examples(LOGS.read([path], problems, **options), problems, source)
    }
    assert found == {"one": "1", "four": "0"}
    assert problems.bad_count == 3


def test_secondary_structure_of_flip(real_data: Path) -> None:
    folder = real_data / "protein" / "flip_secondary_structure"
    files = {"labels": folder / "sampled.fasta.gz", "mask": folder / "mask.fasta.gz"}
    source = LabelSource(**{name: str(path) for name, path in files.items()})
    problems = Problems()
    records = read_fasta(folder / "sequences.fasta.gz", problems)
    found = list(examples(records, problems, source))
    assert problems.counts == {}
    first = found[0]
    assert isinstance(first.label, Spans)
    assert first.label.bounds[0].tolist() == [2, 3]
    assert first.label.labels[:8] == tuple("CCCCCCCE")
    assert Counter(one.part for one in found) == {"train": 9712, "validation": 1080, "test": 364}
    assert {len(name) for one in found if isinstance(one.label, Spans) for name in one.label.labels} == {1}

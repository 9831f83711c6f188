"""Data sets named hf:NAME, saved folders and shards: their splits, columns, and faults in one sentence."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from formats import saved

from seqmlm import plugins
from seqmlm.data.fingerprints import file_fingerprint
from seqmlm.data.problems import Problems
from seqmlm.data.readers.huggingface import Reference, is_saved, is_shards
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.errors import DataError, UsageError

TEXTS = [f"text number {n}" for n in range(8)]


def read(domain: str, path: Any, **options: Any) -> list[Record]:
    return list(plugins.domain(domain).read([path], Problems(), **options))


def shards(folder: Path, **columns: list[Any]) -> Path:
    """Two shards of a train split and one of a test split."""
    folder.mkdir()
    for name, part in {"train-0": slice(0, 3), "train-1": slice(3, 6), "test-0": slice(6, None)}.items():
        table = pa.table({key: values[part] for key, values in columns.items()})
        pq.write_table(table, folder / f"{name}.parquet")
    (folder / "README.md").write_text("# A data set\n")
    return folder


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:imdb", {"name": "imdb"}),
        ("hf:nyu-mll/glue:train", {"name": "nyu-mll/glue", "split": "train"}),
        ("hf:nyu-mll/glue:sst2/train", {"name": "nyu-mll/glue", "subset": "sst2", "split": "train"}),
        ("hf:wikitext@v1:wikitext-2/", {"name": "wikitext", "revision": "v1", "subset": "wikitext-2"}),
    ],
)
def test_references_are_read_and_written(text: str, parts: Mapping[str, str]) -> None:
    assert Reference.parse(text) == Reference(**parts)
    assert str(Reference(**parts)) == text


def test_a_folder_is_a_name_whatever_it_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "odd@name:x"
    folder.mkdir()
    assert Reference.parse(f"hf:{folder}") == Reference(name=str(folder))
    assert Reference.parse(f"hf:{folder}:train") == Reference(name=str(folder), split="train")
    for wrong in ("hf:", "hf:x:", "hf::train"):
        with pytest.raises(UsageError, match="hf:NAME:SPLIT"):
            Reference.parse(wrong)


def test_splits_that_the_data_name_are_told_and_a_named_one_is_not(tmp_path: Path) -> None:
    folder = shards(tmp_path / "set", review=TEXTS, stars=list(range(8)))
    found = read("text", f"hf:{folder}", text="review", keep="stars")
    assert [r.raw for r in found] == TEXTS
    assert [r.meta["split"] for r in found] == ["train"] * 6 + ["test"] * 2
    assert (found[4].id, found[4].line, found[4].meta["stars"]) == ("set:train:5", 5, 4)
    assert found[4].source == f"hf:{folder}:train"
    named = read("text", f"hf:{folder}:test", column="review")
    assert [(r.raw, dict(r.meta)) for r in named] == [(text, {}) for text in TEXTS[6:]]


def test_a_saved_folder_is_known_as_one(tmp_path: Path) -> None:
    (reference,) = saved(tmp_path, {"text": TEXTS, "name": list("abcdefgh")})
    folder = tmp_path / "saved"
    assert is_saved(folder)
    assert is_saved(folder / "train")
    assert not is_saved(tmp_path)
    for path in (reference, folder):
        found = read("text", path, id_column="name", document_column="text")
        assert [(r.id, r.raw, r.document) for r in found] == [
            (name, text, text) for name, text in zip("cdefghab", TEXTS[2:] + TEXTS[:2], strict=True)
        ]
        assert [r.meta["split"] for r in found] == ["train"] * 6 + ["validation"] * 2
    (one, *_) = read("text", folder / "train")
    assert (one.raw, dict(one.meta)) == (TEXTS[2], {}), "one split, saved alone, is divided like other data"


def test_shards_are_a_data_set_where_the_field_has_no_parquet_of_its_own(tmp_path: Path) -> None:
    folder = shards(tmp_path / "set", chain=["MKV", "ac d", "MK*"] * 3)
    assert is_shards(folder)
    found = read("protein", folder, text="chain")
    assert [r.raw for r in found] == ["MKV", "ACD", "MK"] * 3
    assert found[0].source == f"hf:{folder}:train"
    assert next(r.source for r in read("text", folder, column="chain")) == str(folder / "test-0.parquet")
    (folder / "p.fasta").write_text(">p\nMKV\n")
    assert not is_shards(folder)
    assert [r.id for r in read("protein", folder)] == ["p"], "tables beside sequences are not data"
    assert len(read("protein", folder / "test-0.parquet", text="chain")) == 3


def test_a_column_of_several_types_is_text(tmp_path: Path) -> None:
    """`datasets` gives such a column as JSON, texts in quotation marks."""
    values = ['a\n"b"', None, float("nan"), 5, {}, [1], "c"]
    lines = "".join(json.dumps({"code": value}) + "\n" for value in values)
    (tmp_path / "train.jsonl").write_text(lines)
    problems = Problems("skip")
    rows = plugins.domain("code").read([f"hf:{tmp_path}"], problems, text="code", language="python")
    assert [(row.raw, row.line) for row in rows] == [('a\n"b"', 1), ("5", 4), ("c", 7)]
    assert problems.counts == {"no text in the field": 4}


@pytest.mark.parametrize("name", ["a[b] *", "a\nb", os.fsdecode(b"a\xffb"), "a:b", "a#b?c"], ids=ascii)
def test_the_name_of_a_folder_is_no_pattern(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text('{"text": "one"}\n')
    (folder / "data" / "test.jsonl").write_text('{"text": "two"}\n')
    assert [row.raw for row in read("text", f"hf:{folder}")] == ["one", "two"]
    saved(tmp_path, {"text": TEXTS})
    kept = (tmp_path / "saved").rename(tmp_path / f"{name} saved")
    assert sorted(row.raw for row in read("text", f"hf:{kept}")) == TEXTS


def test_a_cell_beyond_the_limit_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmlm.data.readers.arrow.MAX_BYTES", 10)
    pq.write_table(pa.table({"text": ["one", "x" * 11, "two"]}), tmp_path / "a.parquet")
    problems = Problems("skip")
    rows = plugins.domain("text").read([tmp_path / "a.parquet"], problems)
    assert [row.raw for row in rows] == ["one", "two"]
    assert problems.counts == {"a cell longer than the limit of 10 bytes": 1}


def test_json_that_is_nested_deeply_ends_no_process(tmp_path: Path) -> None:
    deep = 100_000
    (tmp_path / "train.jsonl").write_text(f'{{"text": {"[" * deep}{"]" * deep}}}\n')
    with pytest.raises(DataError, match="a line of JSON is nested more than 200 deep"):
        read("text", f"hf:{tmp_path}")
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "[{" * deep + '\\"'}) + "\n")
    assert [len(row.raw) for row in read("text", f"hf:{tmp_path}")] == [2 * deep + 2]


def test_every_field_makes_its_own_of_a_row(tmp_path: Path) -> None:
    (dna,) = saved(tmp_path / "dna", {"text": ["ACGU", "acgtnnnn", "GG-CC"] * 2})
    assert [(r.raw, r.id) for r in read("dna", f"{dna}:train")][:2] == [
        ("acgt", "saved:train:1:0-4"),
        ("GGCC", "saved:train:2"),
    ]
    (code,) = saved(tmp_path / "code", {"body": ["x = 1"] * 4, "language": ["python"] * 4})
    (first, *_) = read("code", code, text="body")
    assert (first.raw, first.raw.language) == ("x = 1", "python")
    (logs,) = saved(tmp_path / "logs", {"m": [f"line {n}" for n in range(8)]})
    (window,) = read("logs", f"{logs}:train", text="m")
    assert window.raw == LogLines(lines=tuple(f"line {n}" for n in range(2, 8)))
    rows = {"lines": [["a", "b"], ["c"]] * 2, "timestamp": [[1.0, 2.5], [3.0]] * 2, "session": list("wxyz")}
    (sessions,) = saved(tmp_path / "sessions", rows)
    found = read("logs", f"{sessions}:train")
    assert [(r.id, r.raw) for r in found][1:] == [
        ("y", LogLines(lines=("a", "b"), times=(1.0, 2.5))),
        ("z", LogLines(lines=("c",), times=(3.0,))),
    ]
    events = {"who": ["p", "p", "q", "q"], "time": ["2024-01-01"] * 4, "code": ["I10", "E11", "I10", "J45"]}
    (ehr,) = saved(tmp_path / "ehr", events)
    (patient, _) = read("ehr", f"{ehr}:train", patient="who")
    assert (patient.id, [event.code for event in patient.raw.events]) == ("p", ["CODE//E11"])


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("hf:{}/set:dev", r"no split of this name \(Available splits: \['train', 'test'\]\)"),
        ("hf:{}/saved:dev", r"no split of this name \(there are: train, validation\)"),
        (
            "hf:{}/set:sst2/train",
            r"no subset of this name, or one must be named \(BuilderConfig 'sst2' not found",
        ),
        ("hf:{}/set", r"field 'text': no column of this name \(there are: review, stars; choose one with"),
        ("hf:{}/empty", "no such data set, or no data in it"),
        ("hf:{}/not/there", "no such data set, or no data in it"),
        ("hf:{}/program", "made by a program, which is not run"),
    ],
)
def test_faults_are_one_sentence(tmp_path: Path, reference: str, said: str) -> None:
    shards(tmp_path / "set", review=TEXTS, stars=list(range(8)))
    saved(tmp_path, {"text": TEXTS})
    (tmp_path / "empty").mkdir()
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "program.py").write_text("raise SystemExit('it was run')\n")
    with pytest.raises(DataError, match=said):
        read("text", reference.format(tmp_path))
    problems = Problems("skip")
    assert not list(plugins.domain("text").read([reference.format(tmp_path)], problems))
    assert problems.bad_count > 0


def test_a_data_set_has_one_format(tmp_path: Path) -> None:
    (reference,) = saved(tmp_path, {"text": TEXTS})
    with pytest.raises(UsageError, match="has the format 'huggingface', not 'csv'"):
        read("text", reference, format="csv")
    assert len(read("text", reference, format="huggingface")) == 8


def test_the_hub_is_asked_for_the_commit_and_faults_of_the_network_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets
    import huggingface_hub

    asked: list[Any] = []
    monkeypatch.setattr("seqmlm.engine.foreign.hub_is_reachable", lambda: True)

    def info(self: Any, name: str, revision: str | None = None) -> Any:
        asked.append((name, revision))
        return SimpleNamespace(sha="c0ffee")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    assert plugins.domain("text").files.inputs(["hf:a/b@v1:train"], options={}) == ["hf:a/b@c0ffee:train"]
    assert asked == [("a/b", "v1")]
    assert file_fingerprint(["hf:a/b@c0ffee"]) != file_fingerprint(["hf:a/b@c0ffef"])

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("name resolution failed")

    monkeypatch.setattr(datasets, "load_dataset_builder", away)
    for reference in ("hf:a/b", "hf:a/b:train"):
        with pytest.raises(DataError, match=r"the hub cannot be reached \(check the network"):
            read("text", reference)

    def absent(*_: Any, **__: Any) -> Any:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub")

    monkeypatch.setattr(datasets, "load_dataset_builder", absent)
    with pytest.raises(DataError, match="there is no such data set"):
        read("text", "hf:a/b")


def test_rows_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    folder, asked = shards(tmp_path / "set", text=TEXTS), []
    stream = datasets.DatasetBuilder.as_streaming_dataset

    def watched(self: Any, *names: Any, **options: Any) -> Any:
        asked.append(options)
        return stream(self, *names, **options)

    monkeypatch.setattr(datasets.DatasetBuilder, "as_streaming_dataset", watched)
    assert len(read("text", f"hf:{folder}")) == 8
    assert {"split": "train"} in asked


# What follows are exploits as they would be found: whatever runs leaves a file, whatever is read a secret.


class Exploit:
    """Unpickled, it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def packed(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("ending", ["pkl", "pickle", "pyd", "pth", "pt", "npy", "npz"])
def test_what_is_pickled_in_a_data_set_is_not_unpickled(ending: str, tmp_path: Path) -> None:
    mark, folder = tmp_path / "run", tmp_path / "set"
    folder.mkdir()
    data = pickle.dumps(Exploit(mark))
    if ending in ("npy", "npz"):
        buffer = io.BytesIO()
        array = np.array([Exploit(mark)], dtype=object)
        np.save(buffer, array) if ending == "npy" else np.savez(buffer, a=array)
        data = buffer.getvalue()
    elif ending in ("pth", "pt"):
        buffer = io.BytesIO()
        torch.save(Exploit(mark), buffer)
        data = buffer.getvalue()
    packed(
        folder / "train.tar", {f"{n}.{e}": d for n in range(2) for e, d in ((ending, data), ("txt", b"x"))}
    )
    for options in ({"text": "txt"}, {"text": ending}):
        problems = Problems("skip")
        found = list(plugins.domain("text").read([f"hf:{folder}"], problems, **options))
        assert found or problems.bad_count
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / f"train.{ending}").write_bytes(data)
    assert not list(plugins.domain("text").read([f"hf:{alone}"], Problems("skip")))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Exploit(mark)))  # the exploit is one
    assert mark.exists()


@pytest.mark.parametrize("name", ["set.py", "train.py", "dataset.py", "__init__.py", "conftest.py"])
def test_no_program_of_a_data_set_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, mark = shards(tmp_path / "set", text=TEXTS), tmp_path / "run"
    (folder / name).write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    with suppress(DataError):
        read("text", f"hf:{folder}")
    assert not mark.exists()


CONFIGS = "configs:\n- config_name: default\n  {}\n"


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "named",
    [
        "data_files: ../secret.txt",
        "data_files: [a.txt, '{secret}']",
        "data_files: [{{split: train, path: ../*.txt}}]",
        "data_files: [{{split: train, path: [b/../../secret.txt]}}]",
        "data_files: file://{secret}",
        "data_files: https://localhost:1/secret.txt",
        "data_files: zip://secret.txt::../a.zip",
        "data_dir: ..",
        "data_files: ../secret.txt # ---",
    ],
)
def test_a_data_set_names_no_file_outside_of_it(file: str, named: str, tmp_path: Path) -> None:
    folder, secret = tmp_path / "set", tmp_path / "secret.txt"
    folder.mkdir()
    secret.write_text("the secret\n")
    (folder / "a.txt").write_text("a text\n")
    text = CONFIGS.format(named.format(secret=secret))
    (folder / file).write_text(f"---\n# --- \n{text}---\n# A data set\n" if file == "README.md" else text)
    with pytest.raises(DataError, match="a file outside of itself"):
        read("text", f"hf:{folder}")
    (folder / file).unlink()
    assert [record.raw for record in read("text", f"hf:{folder}")] == ["a text"]


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("fault", ["aliases", "deep", "no YAML", "a pipe"])
def test_a_description_that_does_harm_is_refused(file: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text\n")
    doubled = "\n".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
    if fault == "a pipe":
        os.mkfifo(tmp_path / file)
    else:
        text = {"aliases": f"- &a0 [x]\n{doubled}", "deep": "[" * 1000, "no YAML": "a: b: c"}[fault]
        (tmp_path / file).write_text(f"---\n{text}\n---\n" if file == "README.md" else text)
    with pytest.raises(DataError, match=rf"{file}: the description of the data set cannot be read"):
        read("text", f"hf:{tmp_path}")


def test_the_name_of_a_file_need_not_be_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.parquet")
    with open(path, "wb") as file:
        pq.write_table(pa.table({"text": TEXTS}), file)
    assert [record.raw for record in read("text", str(path))] == TEXTS


def test_a_pipe_in_a_saved_folder_is_not_waited_for(tmp_path: Path) -> None:
    saved(tmp_path, {"text": TEXTS})
    [victim] = (tmp_path / "saved/train").glob("*.arrow")
    victim.unlink()
    os.mkfifo(victim)
    with pytest.raises(DataError, match="a pipe, socket or device"):
        read("text", f"hf:{tmp_path / 'saved'}")


@pytest.mark.parametrize("index", ["state.json", "dataset_dict.json"])
def test_a_saved_folder_names_no_file_outside_of_it(index: str, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name, {"text": [f"{name} {n}" for n in range(8)]})
    mine, other = tmp_path / "mine/saved", tmp_path / "other/saved"
    if index == "state.json":
        state = json.loads((mine / "train/state.json").read_text())
        [foreign] = other.glob("train/*.arrow")
        state["_data_files"] = [{"filename": f"../../../other/saved/train/{foreign.name}"}]
        (mine / "train/state.json").write_text(json.dumps(state))
    else:
        (mine / index).write_text(json.dumps({"splits": ["../../other/saved/train"]}))
    for path in (str(mine), f"hf:{mine}", f"hf:{mine}:train"):
        with pytest.raises(DataError, match=r"outside of itself|no split of this name"):
            read("text", path)
    (mine / "dataset_dict.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="nested too deeply"):
        read("text", str(mine))


def test_a_format_is_no_data_set_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("not asked for\n")
    with pytest.raises(DataError, match="the name of a file format"):
        read("text", "hf:text")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "b.txt").write_text("asked for\n")
    assert [record.raw for record in read("text", "hf:text")] == ["asked for"]


def test_others_may_log_while_rows_are_read(tmp_path: Path) -> None:
    folder, logger = shards(tmp_path / "set", text=TEXTS), logging.getLogger("datasets")
    level = logger.level
    found = plugins.domain("text").read([f"hf:{folder}"], Problems())
    next(found)
    assert logger.level == level
    found.close()


def test_files_that_decide_are_those_of_the_folder_and_the_split(tmp_path: Path) -> None:
    folder = shards(tmp_path / "set", text=TEXTS)
    found = plugins.domain("text").files.inputs([f"hf:{folder}:test"], options={})
    assert found[0] == f"hf:{folder}:test"
    assert {Path(name).name for name in found[1:]} >= {"train-0.parquet", "test-0.parquet"}
    other = plugins.domain("text").files.inputs([f"hf:{folder}:train"], options={})
    assert file_fingerprint(found) != file_fingerprint(other)


# The reader of CSV that `datasets` uses leaves its file open where it fails.
@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_rows_that_break_off_are_named_and_no_value_is_told(
    tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = 3000 if ending == "jsonl" else 30_000
    lines = ['{"text": "some words"}'] * rows if ending == "jsonl" else ["text,n", *["some words,1"] * rows]
    lines.append('{"text": secret}' if ending == "jsonl" else "secret,b,c,d")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / f"a.{ending}").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="the data set") as caught:
        read("text", f"hf:{folder}:train")
    assert "secret" not in str(caught.value)
    assert capfd.readouterr().err == ""

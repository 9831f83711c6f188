"""What is exported comes back: the same records, in the same parts, with their encodings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.inference.model_folder import load_tokenizer
from seqmlm.management.export_data import TOKENIZER, ExportConfig, export
from seqmlm.training.corpus import cached_sample
from seqmlm.workspace import Workspace

OPTIONS = {"code": {"id_field": "id", "document_field": "document"}, "logs": {"session_field": "id"}}
COLUMNS = {"id_column": "id", "document_column": "document"}


def facts(record: Record) -> tuple[Any, ...]:
    return record.id, type(record.raw), str(record.raw), record.document


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("name", [n for n in plugins.names("domains") if not plugins.domain(n).sensitive])
def test_records_come_back(workspace: Path, name: str) -> None:
    import datasets

    domain, out = plugins.domain(name), workspace / "out"
    done = export(ExportConfig(domain=name, out=out))
    loaded = datasets.load_from_disk(str(out))
    assert {part: len(loaded[part]) for part in loaded} == dict(done.splits)
    assert set(done.splits) == {"train", "validation", "calibration"}
    files = [str(path) for path in cached_sample(name, Workspace.locate(), 0).files]
    wanted = sorted(map(facts, domain.read(files, Problems())))
    found = list(domain.read([out], Problems(), **OPTIONS.get(name, COLUMNS)))
    assert sorted(map(facts, found)) == wanted
    assert {r.meta["split"] for r in found} == {"train", "validation", "calibration"}
    row, record = loaded["train"][5], found[5]
    again = load_tokenizer(str(out / TOKENIZER)).encode_batch([record.raw])[0]
    assert np.array_equal(row["input_ids"], again.ids)
    assert np.array_equal(row["groups"], again.groups)
    assert list(workspace.glob(".out*")) == [], "nothing half written stays"


def test_a_training_divides_an_export_as_it_was(workspace: Path) -> None:
    first = export(ExportConfig(domain="protein", out=workspace / "one"))
    options = dict(COLUMNS)
    paths = (str(workspace / "one"),)
    second = export(ExportConfig(domain="protein", out=workspace / "two", paths=paths, options=options))
    assert first.splits == second.splits


def test_what_a_system_says_of_an_input_is_no_fault_of_the_output(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error", "p.fasta")

    monkeypatch.setattr("seqmlm.management.export_data.CorpusReader.records_with_parts", broken)
    with pytest.raises(DataError, match=r"p\.fasta: cannot be read: Input/output error"):
        export(ExportConfig(domain="protein", out=workspace / "out"))
    monkeypatch.undo()
    monkeypatch.setenv("SEQMLM_HOME", str(workspace))
    monkeypatch.setattr("seqmlm.management.export_data._save", broken)
    with pytest.raises(StateError, match=r"cannot write .*out: Input/output error"):
        export(ExportConfig(domain="protein", out=workspace / "out"))
    assert [path.name for path in workspace.iterdir() if "out" in path.name] == []


def test_sensitive_data_are_refused(workspace: Path) -> None:
    for config in (
        ExportConfig(domain="ehr", out=workspace / "out"),
        ExportConfig(domain="text", out=workspace / "out", sensitive=True),
    ):
        with pytest.raises(UsageError, match="records of sensitive data cannot be exported"):
            export(config)
    assert not (workspace / "out").exists()


def test_the_folder_one_stands_in_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="name a folder inside it"):
        export(ExportConfig(domain="protein", out=Path(".")))


def test_bad_records_are_counted_and_nothing_half_written_stays(workspace: Path) -> None:
    file, out = workspace / "p.fasta", workspace / "out"
    file.write_text(">a\nMKV\n>b\nM1V\n>c\n>d\nMKVLW\n>e\nMAAA\n")
    with pytest.raises(DataError, match="a FASTA record without a sequence"):
        export(ExportConfig(domain="protein", out=out, paths=(str(file),)))
    assert [path.name for path in workspace.iterdir() if "out" in path.name] == []
    done = export(ExportConfig(domain="protein", out=out, paths=(str(file),), on_error="skip"))
    assert sum(done.splits.values()) == 3
    assert done.problems == {"'1' is not in the protein alphabet": 1, "a FASTA record without a sequence": 1}
    with pytest.raises(StateError, match="already exists"):
        export(ExportConfig(domain="protein", out=out, paths=(str(file),)))


def test_names_that_are_no_text_are_written_with_escapes(workspace: Path) -> None:
    import datasets

    folder = Path(os.fsdecode(os.fsencode(workspace) + b"/caf\xe9"))
    folder.mkdir()
    for number in range(20):
        (folder / os.fsdecode(b"f\xe9%d.py" % number)).write_text(f"def f{number}(x):\n    return x\n")
    export(ExportConfig(domain="code", out=workspace / "out", paths=(str(folder),)))
    parts = datasets.load_from_disk(str(workspace / "out")).values()
    assert {row["id"][:2] for rows in parts for row in rows} == {"f\\"}

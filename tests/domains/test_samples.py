"""The pages on samples describe truth.json exactly, and samples are reproducible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from written import rows

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.domains.samples import Sample
from seqmlm.errors import UsageError

DOMAINS = ("code", "dna", "ehr", "logs", "protein", "text")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "list": list}
# Which tables of a domain's page describe the items of which lists, in order.
ITEMS = {
    "code": ("idioms", "anomalies", "modules"),
    "dna": ("contigs",),
    "ehr": ("conditions",),
    "logs": ("sessions",),
    "protein": ("families",),
    "text": ("sentences",),
}
# What a sample's seed does not change.
PLANTED = {
    *("schema", "n", "motifs", "loop", "repeat", "families", "verb_forms", "noun_forms", "positions"),
    *("templates", "states", "transitions", "conditions", "edges", "indirect", "labs"),
    *("idioms", "kinds", "bug_share"),
}


def documented(page: str) -> list[dict[str, type]]:
    """The key tables of a page of the documents."""
    text = (DOCS / page).read_text(encoding="utf-8")
    tables: list[dict[str, type]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| key"):
            tables.append({})
        elif line.startswith("| `"):
            tables[-1][cells[0].strip("`")] = TYPES[cells[1]]
        inside = line.startswith("|")
    assert tables
    assert not inside or text.endswith("|\n")
    return tables


def _bytes(sample: Sample) -> dict[str, bytes]:
    """Every data file of a sample, by its name."""
    (data,) = sample.files
    files = sorted(data.rglob("*")) if data.is_dir() else [data]
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def check(value: dict[str, Any], table: dict[str, type]) -> None:
    assert set(value) == set(table)
    for key, kind in table.items():
        assert type(value[key]) is kind, key


@pytest.mark.parametrize("name", ITEMS)
def test_truth_is_as_documented(name, tmp_path: Path):
    sample = plugins.domain(name).sample.draw(tmp_path, n=60, seed=3)
    truth = json.loads(sample.truth.read_text(encoding="utf-8"))
    own, *tables = documented(f"samples/{name}.md")
    check(truth, documented("samples.md")[0] | own)
    for items, table in zip(ITEMS[name], tables, strict=True):
        assert truth[items]
        for item in truth[items]:
            check(item, table)
    assert (truth["schema"], truth["seed"], truth["n"]) == (f"seqmlm.sample.{name}.v1", 3, 60)
    assert [path.name for path in sample.files] == [truth["file"]]
    assert sample.truth.name == "truth.json"


@pytest.mark.parametrize("name", DOMAINS)
def test_the_same_seed_writes_the_same_bytes_and_another_only_other_draws(name, tmp_path: Path):
    domain = plugins.domain(name)
    first, again, other = (
        domain.sample.draw(tmp_path / folder, n=50, seed=seed)
        for folder, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert _bytes(first) == _bytes(again) != _bytes(other)
    assert first.truth.read_bytes() == again.truth.read_bytes()
    one, two = (json.loads(sample.truth.read_text()) for sample in (first, other))
    planted = PLANTED & set(one)
    assert {key: one[key] for key in planted} == {key: two[key] for key in planted}


@pytest.mark.parametrize("name", DOMAINS)
def test_the_folder_reads_back_as_the_records_drawn(name, tmp_path: Path):
    domain = plugins.domain(name)
    domain.sample.draw(tmp_path, n=37, seed=0)
    assert len(list(domain.read([tmp_path], Problems()))) == 37


@pytest.mark.parametrize("name", DOMAINS)
def test_an_empty_sample_is_refused(name, tmp_path: Path):
    with pytest.raises(UsageError, match="at least one"):
        plugins.domain(name).sample.draw(tmp_path, n=0)


def _numbers(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """By the word that agrees with the subject: the root, or what is beside it where that is no verb."""
    plural = {pair[1] for pair in truth["verb_forms"]}
    texts = (folder / "text.txt").read_text().splitlines()
    found = {}
    for text, one in zip(texts, truth["sentences"], strict=True):
        root = one["heads"].index(0) + 1
        links = enumerate(zip(one["heads"], one["relations"], strict=True), start=1)
        subject = next(n for n, link in links if link == (root, "nsubj"))
        [verb] = [b for a, b, _ in one["agreement"] if a == subject and one["heads"][b - 1] in (0, root)]
        word = text.split()[verb - 1].strip(".")
        found[f"text.txt:{one['line']}"] = "plural" if word in plural else "singular"
    return found


def _faults(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    return {one["session"]: "no" if one["kind"] == "normal" else "yes" for one in truth["sessions"]}


def _outcomes(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    caused = {edge["target"] for edge in truth["edges"] if edge["kind"] == "comorbidity"}
    times = {row["subject_id"]: row["prediction_time"] for row in rows(folder / "labels.json")}
    events = pq.read_table(folder / "meds" / "data").to_pylist()
    found: dict[str, bool] = {}
    for subject, time in times.items():
        first: dict[str, Any] = {}
        for event in events:
            if event["subject_id"] == subject and event["time"] is not None:
                first.setdefault(event["code"], event["time"].isoformat())
        found[str(subject)] = any(first.get(code, "") > time for code in caused)
    return found


@pytest.mark.parametrize(("name", "of"), [("text", _numbers), ("logs", _faults), ("ehr", _outcomes)])
def test_labels_are_what_is_planted(name, of, tmp_path: Path):
    sample = plugins.domain(name).sample.draw(tmp_path, n=60, seed=3)
    told = {str(next(iter(row.values()))): [*row.values()][-1] for row in rows(tmp_path / "labels.json")}
    assert told == of(tmp_path, json.loads(sample.truth.read_text()))
    assert len(set(told.values())) == 2

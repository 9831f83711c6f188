"""Predictions that lie in files have the figures that the fine-tuning said of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2
from text_models import text_model
from written import jsonl

from seqmlm.finetuning.predict import TAUGHT

Run = Callable[..., Any]
WORDS = ["the", "cat", "sees", "a", "dog", "and", "so", "no", "dogs", "bark", "loudly", "here"]


def sentences(n: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[WORDS[k] for k in rng.integers(0, len(WORDS), 12)] for _ in range(n)]


LABELS: dict[str, Callable[[list[str]], Any]] = {
    "class": lambda words: "yes" if words[0] < "d" else "no",
    "value": lambda words: 0.5 + len("".join(words)),
    "multilabel": lambda words: [one for one in ("cat", "dog") if one in words],
}


@pytest.mark.parametrize("kind", LABELS)
def test_figures_are_those_of_the_fine_tuning(
    kind: str, workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    train, test = (
        jsonl(
            tmp_path / f"{n}.jsonl",
            [
                {"text": " ".join(w), "y": LABELS[kind](w), "doc": f"{n}-{k // 3}"}
                | {name: int(name in w) for name in ("cat", "dog")}
                for k, w in enumerate(told)
            ],
        )
        for n, told in enumerate((sentences(80), sentences(40, 1)))
    )
    data = ("--train", train, "--test", test, "--option", "document_field=doc")
    asked = (*data, "--label", "y", "--task", kind, "--name", "learnt")
    told = seqmlm(
        "finetune", text_model(tmp_path / "m"), *asked, "--tune", "none", "--rivals", "off", "--json"
    ).ok()
    stored = workspace / "runs/learnt/predictions.parquet"
    kept = seqmlm("evaluate", stored, "--json").ok().json
    seqmlm("evaluate", stored, "--label-field", "y").refused(2, "already contains its truth and groups")
    seqmlm("evaluate", stored, stored).refused(2, "already contains its truth and groups")
    assert kept["intervals"] == told.json["intervals"]
    assert kept["kind"] == kind
    assert kept["items"] == 40
    assert kept["groups"] == 14
    for name in ("p.jsonl", "p.csv", "p.parquet"):
        seqmlm("predict", "learnt", test, "--truth", "y", "--out", tmp_path / name).ok()
        found = seqmlm("evaluate", tmp_path / name, "--json").ok().json
        assert found["groups"] == 14
        of_primary = found["intervals"][found["primary"]]
        assert of_primary == pytest.approx(told.json["intervals"][found["primary"]], abs=1e-4)
        for measure in told.json["intervals"]:
            assert found[measure] == pytest.approx(told.json[measure], abs=1e-4), (name, measure)
    for data, taught in ((train, {TAUGHT: 80}), (test, {})):
        assert (
            seqmlm("predict", "learnt", data, "--out", tmp_path / "n.jsonl", "--json").ok().json["notes"]
            == taught
        )
    page = tmp_path / "p.html"
    seqmlm("predict", "learnt", train, "--out", tmp_path / "n.jsonl", "--report", page).ok()
    first = page.read_text().partition('<dl class="facts">')[0]
    assert f"<li>{TAUGHT}: 80</li>" in first
    assert ("Least sure" in page.read_text()) == (kind in ("class", "tags", "entities"))
    if kind == "multilabel":  # a column for each class says the same
        asked = ("--truth", "cat", "--truth", "dog", "--out", tmp_path / "flags.jsonl")
        seqmlm("predict", "learnt", test, *asked).ok()
        assert (tmp_path / "flags.jsonl").read_bytes() == (tmp_path / "p.jsonl").read_bytes()
    if kind != "value":
        odd = {"text": "a", "doc": "d", "y": "odd" if kind == "class" else ["odd"]}
        other = jsonl(tmp_path / "o.jsonl", [odd])
        seqmlm("predict", "learnt", other, "--truth", "y").refused(3, "o.jsonl:1: the label 'odd' is in no")
    seqmlm("predict", "learnt", test, "--out", tmp_path / "p.conll").refused(2, "conll is for tags and")
    assert f"none: fine-tuned on labels, {told.json['kind']} y" in seqmlm("models", "show", "learnt").ok().out
    shown = seqmlm("evaluate", tmp_path / "p.csv").ok().out.splitlines()
    assert shown[:2] == ["40 predictions, 14 groups", "measure\tvalue\t95 % low\t95 % high"]
    assert {line.split("\t")[0] for line in shown[2:]} == set(told.json["intervals"])
    assert seqmlm("evaluate", tmp_path / "p.csv", "--report", page).ok().out.splitlines() == shown
    own = page.read_text()
    assert f"{kept['primary']} {kept[kept['primary']]:.3f}" in own
    parts = {"class": "Surest mistakes", "value": "Largest errors", "multilabel": "Measures"}
    assert parts[kind] in own
    assert page.stat().st_mode & 0o044
    (tmp_path / "p.csv").chmod(0o600)
    page.unlink()
    seqmlm("evaluate", tmp_path / "p.csv", "--report", page).ok()
    assert not page.stat().st_mode & 0o077
    seqmlm("evaluate", tmp_path / "p.csv", "--report", tmp_path / "p.csv").refused(2, "--report")


def test_a_page_tells_what_was_taken_for_what(tmp_path: Path, seqmlm: Run) -> None:
    rows = [
        {"id": f"r{n}", "truth": truth, "prediction": said, "p": {"a": p, "b": 1 - p}}
        for n, (truth, said, p) in enumerate(
            [("a", "a", 0.9), ("a", "b", 0.2), ("b", "b", 0.4), ("b", "a", 0.7)] * 3
        )
    ]
    path, page = jsonl(tmp_path / "p.jsonl", rows), tmp_path / "page.html"
    seqmlm("evaluate", path, "--report", page, "--set", "draws=20").ok()
    cells = [re.sub("<[^>]*>", "", one) for one in re.findall(r"<td[^>]*>.*?</td>", page.read_text())]
    of = cells.index("a")
    assert cells[of : of + 8] == ["a", "3", "3", "6", "b", "3", "3", "6"]
    mistakes = cells[of + 8 :]
    assert mistakes[0::4] == ["r1", "r5", "r9", "r3", "r7", "r11"]
    assert mistakes[:4] == ["r1", "a", "b", "0.8"]
    assert ">r1<" in page.read_text()
    seqmlm("evaluate", path, "--report", page, "--set", "draws=20", "--set", "sensitive=true").ok()
    assert ">accuracy<" in page.read_text()
    assert ">r1<" not in page.read_text()


def test_a_page_of_what_has_no_measure_or_interval(tmp_path: Path, seqmlm: Run) -> None:
    page = tmp_path / "page.html"
    flat = [{"id": f"r{n}", "truth": n, "prediction": 5.0} for n in range(4)]
    seqmlm("evaluate", jsonl(tmp_path / "p.jsonl", flat), "--report", page, "--set", "draws=20").ok()
    assert "spearman is not defined for 4 predictions, because all true labels" in page.read_text()
    alone = [{"id": "r", "truth": "a", "prediction": "a", "p": {"a": 0.9, "b": 0.1}}]
    seqmlm("evaluate", jsonl(tmp_path / "p.jsonl", alone), "--report", page, "--set", "draws=20").ok()
    assert "accuracy 1.000, 1 prediction." in page.read_text()


def test_entities_are_those_of_their_records(tmp_path: Path, seqmlm: Run) -> None:
    rng = np.random.default_rng(0)
    tags = ["O", "B-A", "I-A"]
    truth, said = (
        [["B-A" if n == 0 else tags[k] for n, k in enumerate(rng.integers(0, 3, 6))] for _ in range(30)]
        for _ in range(2)
    )
    rows = [
        {
            "id": f"s{n}",
            "start": k,
            "end": k + 1,
            "prediction": one,
            "true": true,
            "p": dict.fromkeys(tags, 0),
        }
        for n, own in enumerate(zip(truth, said, strict=True))
        for k, (true, one) in enumerate(zip(*own, strict=True))
    ]
    path = jsonl(tmp_path / "p.jsonl", rows)
    found = seqmlm("evaluate", path, "--label-field", "true", "--json", "--set", "draws=20").ok().json
    assert (found["kind"], found["items"], found["groups"]) == ("entities", 30, 30)
    assert found["f1"] == pytest.approx(f1_score(truth, said, mode="strict", scheme=IOB2))
    seqmlm("evaluate", path).refused(3, "p.jsonl:1: field 'truth': the predictions have no truth")
    seqmlm("evaluate", path, "--label-field", "true", "--prevalence", "0.1").refused(2, "is for scores")
    jsonl(path, [{**row, "true": "B-B"} for row in rows])
    seqmlm("evaluate", path, "--label-field", "true").refused(
        3, "p.jsonl:1: a true label that is not a class"
    )
    jsonl(path, [{**row, "p": None} for row in rows])
    seqmlm("evaluate", path, "--label-field", "true").refused(3, "predict with --level unit")
    few = [{"id": str(n), "prediction": "a", "p": {"a": 1.0, "b": 0.0}, "truth": "a"} for n in range(5)]
    seqmlm("evaluate", jsonl(path, few), "--set", "sensitive=true").refused(3, "fewer than 11 groups")


CLASS = {"id": "a", "prediction": "a", "p": {"a": 0.6, "b": 0.4}, "truth": "a"}
VALUE = {"id": "a", "prediction": 0.5, "truth": 1}


@pytest.mark.parametrize(
    ("first", "odd", "reason"),
    [
        (VALUE, {"prediction": ""}, "a prediction without numbers"),
        (VALUE, {"prediction": "yes"}, "a prediction without numbers"),
        (VALUE, {"prediction": None}, "a prediction without numbers"),
        (VALUE, {"truth": [1, 2]}, "a true label with a different number of values"),
        (CLASS, {"p": None}, "a prediction without numbers"),
        (CLASS, {"p": {"a": 1.0}}, "a prediction without numbers"),
        (CLASS, {"truth": ["a", "b"]}, "several true classes, or none"),
        (CLASS, {"truth": []}, "several true classes, or none"),
        (CLASS, {"truth": "c"}, "a true label that is not a class"),
    ],
)
def test_an_odd_row_is_refused_with_its_line(
    first: dict[str, Any], odd: dict[str, Any], reason: str, tmp_path: Path, seqmlm: Run
) -> None:
    path = jsonl(tmp_path / "p.jsonl", [first, {**first, **odd}])
    seqmlm("evaluate", path).refused(3, f"p.jsonl:2: {reason}")
    other = jsonl(tmp_path / "o.jsonl", [first, {name: cell for name, cell in first.items() if name != "id"}])
    seqmlm("evaluate", other).refused(3, "o.jsonl:2: field 'id': no such field")


def test_a_column_that_is_named_is_the_truth(tmp_path: Path, seqmlm: Run) -> None:
    path = jsonl(tmp_path / "p.jsonl", [{**CLASS, "id": str(n)} for n in range(4)])
    seqmlm("evaluate", path, "--set", "draws=20").ok()
    seqmlm("evaluate", path, "--label-field", "sentimnt").refused(3, "p.jsonl:1: field 'sentimnt'")
    seqmlm("evaluate", path, "--positive", "a").refused(2, "--positive is for scores")


def test_values_are_told_by_their_names(tmp_path: Path, seqmlm: Run) -> None:
    numbers = np.random.default_rng(0).normal(size=(30, 2))
    own = [({"x": x, "y": y}, [x, -y]) for x, y in numbers]
    rows = [{"id": f"{n}", "prediction": said, "truth": true} for n, (said, true) in enumerate(own)]
    rows[3]["prediction"] = dict(reversed(own[3][0].items()))
    found = seqmlm("evaluate", jsonl(tmp_path / "p.jsonl", rows), "--json", "--set", "draws=20").ok().json
    assert found["rmse"] == pytest.approx(
        np.sqrt(np.mean(numbers[:, 1] ** 2))
    )  # the mean of 0 and twice that

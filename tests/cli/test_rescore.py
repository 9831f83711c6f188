"""`seqmlm rescore` through the entry point: totals, the choice of a weight, errors beside the first pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fork_server import Run
from text_models import text_model
from written import rows as rows_of

from seqmlm.evaluation.rescoring import parts
from seqmlm.tasks.rescore import Rescore

RIGHT = ["the cat sees the dog", "a dog barks", "the dogs bark loudly", "no cats sleep here"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_model(tmp_path_factory.mktemp("rescore"))


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """Forty lists; the first pass likes a wrong one, every list has the right one."""
    path = tmp_path / "lists.jsonl"
    with path.open("w") as file:
        for number in range(40):
            right = RIGHT[number % 4]
            wrong = " ".join(reversed(right.split()))
            hypotheses = [{"text": wrong, "score": -1.0}, {"text": right, "score": -1.5}]
            file.write(json.dumps({"id": f"u{number}", "hyps": hypotheses, "ref": right}) + "\n")
    return path


def test_totals_are_what_they_are_said_to_be(seqmlm: Run, model: Path, lists: Path, tmp_path: Path) -> None:
    done = seqmlm("rescore", model, lists, "--weights", "0,0.5", "--norm", "length", "--set", "temperature=2")
    assert done.code == 0, done.err
    rows = done.rows
    assert [row["id"] for row in rows] == [f"u{number}" for number in range(40)]
    text = tmp_path / "a.txt"
    text.write_text("".join(f"{hyp['text']}\n" for hyp in rows[0]["hyps"]))
    plls = [json.loads(line)["pll"] for line in seqmlm("score", model, text).out.splitlines()]
    for hyp, pll in zip(rows[0]["hyps"], plls, strict=True):
        assert hyp["pll"] == pytest.approx(pll, abs=1e-4)
        assert hyp["total"]["0"] == pytest.approx(hyp["score"] / 5)
        assert hyp["total"]["0.5"] == pytest.approx((hyp["score"] + 0.5 * pll / 2) / 5, abs=1e-4)
    assert rows[0]["weight"] is None
    assert [hyp["score"] for hyp in rows[0]["hyps"]] == [-1.0, -1.5]
    best = max(rows[0]["hyps"], key=lambda hyp: hyp["total"]["0.5"])
    assert rows[0]["best"] == {"0": rows[0]["hyps"][0]["text"], "0.5": best["text"]}
    assert "oracle" in done.err


def test_a_person_reads_the_best_hypothesis() -> None:
    row = {"id": "u1", "ref": None, "weight": None, "best": {"0": "a cat", "0.5": "a bat", "1": "a bat"}}
    task = Rescore.__new__(Rescore)
    assert task.line(row) == "u1  a cat (weight 0)  a bat (weight 0.5 to 1)"
    chosen = {**row, "weight": 0.5, "hyps": [{"text": "a bat"}, {"text": "a cat"}]}
    assert task.line(chosen) == "u1  a bat"


def test_a_weight_is_chosen_on_one_part_and_reported_on_the_other(
    seqmlm: Run, model: Path, lists: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    done = seqmlm("rescore", model, lists, "--dev", 0.5, "--weights", "0,1,3", "--json", "--out", out).ok()
    result = done.json
    dev = {row["name"]: row["error_rate"] for row in result["dev"]}
    assert dev[f"weight {result['weight']:g}"] == min(dev[f"weight {w}"] for w in (0, 1, 3))
    rows = rows_of(out)
    chosen = parts([row["id"] for row in rows], 0.5)
    tested = [row for row, chooses in zip(rows, chosen, strict=True) if not chooses]
    assert 10 < len(tested) < 30
    test = {row["name"]: row for row in result["test"]}
    assert test["oracle"]["error_rate"] == 0
    assert test["oracle"]["changed"] == len(tested)
    assert test["first pass"]["exact"] == test["weight 0"]["exact"] == 0
    right = [row["hyps"][0]["text"] == row["ref"] for row in tested]
    assert test[f"weight {result['weight']:g}"]["exact"] == pytest.approx(sum(right) / len(right))
    gain = test["first pass"]["error_rate"] - test[f"weight {result['weight']:g}"]["error_rate"]
    assert result["gain"]["value"] == pytest.approx(gain)
    assert all(row["weight"] == result["weight"] for row in rows)


def test_lists_without_references_and_empty_hypotheses(seqmlm: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "lists.tsv"
    path.write_text("u\t-9\ta dog\nu\t-1\t\n")
    done = seqmlm("rescore", model, path, "--weights", "0.1").ok()
    [row] = done.rows
    assert row["best"] == {"0.1": "a dog"}
    assert [hyp["text"] for hyp in row["hyps"]] == ["a dog", ""]
    assert row["hyps"][1]["total"] == {"0.1": None}
    assert "error rate" not in done.err
    characters = seqmlm(
        "rescore", model, path, "--json", "--set", "unit=character", "--ref", _references(tmp_path)
    ).ok()
    oracle = characters.json["test"][-1]
    assert (oracle["name"], oracle["error_rate"]) == ("oracle", pytest.approx(1 / 6))


def _references(folder: Path) -> Path:
    (folder / "ref.tsv").write_text("u\ta dogs\n")
    return folder / "ref.tsv"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--weights", "0,x"), 2, "must be numbers"),
        (("--weights", "-1"), 2, "must be numbers"),
        (("--set", "temperature=0"), 2, "above 0"),
        (("--dev", "1.5"), 2, "share of the lists"),
        (("--dev", "0.001"), 3, "leaves 0 to choose by"),
        (("--norm", "wrong"), 2, "norm"),
        (("--ref", "none.tsv"), 3, "no such file"),
    ],
)
def test_what_is_wrong_is_named(seqmlm, model, lists, monkeypatch, arguments, code, message):
    monkeypatch.chdir(lists.parent)
    seqmlm("rescore", model, "lists.jsonl", *arguments).refused(code, message)


def test_a_weight_is_not_chosen_without_references(seqmlm: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.tsv").write_text("u\t-9\ta dog\nv\t-1\tdogs\n")
    seqmlm("rescore", model, tmp_path / "lists.tsv", "--dev", 0.5).refused(2, "--ref")

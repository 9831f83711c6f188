"""The cloze study runs through, is not run twice, and says what its rows say."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "cloze_study"))

from study import by_sentence, main, sentence


def data(folder: Path) -> Path:
    """Like the catalogue: SST-2 and the opinion lexicon."""
    for name, count in (("train", 300), ("dev", 40)):
        rows = [
            f"{name} {number} is a {'good' if number % 2 else 'bad'} film\t{number % 2}"
            for number in range(count)
        ]
        path = folder / f"text/sst2/{name}.tsv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("\n".join(["sentence\tlabel", *rows]).encode()))
    for name, word in (("positive", "good"), ("negative", "bad")):
        path = folder / f"text/opinion_lexicon/{name}-words.txt.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(f"; a list\n\n{word}\n".encode()))
    return folder


def test_phrases_go_with_the_sentence_that_they_are_cut_from() -> None:
    rows = [("a film", "x"), ("it is a film", "y"), ("film", "z"), ("a bad one", "z")]
    assert by_sentence(rows) == [[rows[1], rows[0], rows[2]], [rows[3]]]


def arms(cloze: float, uniform: float, nocloze: float) -> list[dict[str, object]]:
    found = {"cloze": cloze, "uniform": uniform, "nocloze": nocloze, "none": 0.5}
    return [
        {"arm": arm, "seed": draw % 2, "draw": draw, "accuracy": value + draw / 100}
        for arm, value in found.items()
        for draw in range(4)
    ]


@pytest.mark.parametrize(
    ("values", "nearer"),
    [((0.8, 0.6, 0.5), "nocloze"), ((0.8, 0.7, 0.5), "cloze"), ((0.5, 0.6, 0.8), "cloze")],
)
def test_the_sentence_says_what_uniform_masks_are_nearer_to(
    values: tuple[float, float, float], nearer: str
) -> None:
    told = sentence(arms(*values))
    assert told.startswith(f"uniform lies nearer to {nearer}: ")
    assert "holds 0" not in told
    assert "holds 0" in sentence([row for row in arms(0.8, 0.6, 0.5) if row["draw"] == 0])


def test_it_runs_once(
    tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tracked_workspace}/mlflow.db")
    out, told = tracked_workspace / "out", tracked_workspace / "rows.json"
    words = [
        "--data",
        str(data(tracked_workspace / "data")),
        "--out",
        str(out),
        "--quick",
        "--json",
        str(told),
    ]
    main(words)
    first = capsys.readouterr().out
    assert "uniform lies nearer to" in first
    rows = json.loads(told.read_text())
    assert [(row["p"], row["labels"]) for row in rows["labels"]] == [("none", 10), ("100", 10)]
    assert [row["arm"] for row in rows["masks"]] == ["cloze", "uniform", "nocloze", "none"]
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("arms/*.json")}
    assert len(kept) == 6
    main(words)
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in out.rglob("arms/*.json")} == kept

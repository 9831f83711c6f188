"""`seqmlm zeroshot --cloze`: ranks are those of scoring each candidate alone, figures those of the rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_fields import random_model

from seqmlm import plugins
from seqmlm.inference import model_folder
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.tokenizers.code import CodeTokenizer

SOURCES = {
    "a.py": "def f(a, b):\n    c = a + b\n    return g(c, a) * b\n\n\ndef h(x, y):\n    return x - y > y\n",
    "b.py": "def k(p, q):\n    while p < q:\n        p = p + q\n    return [p, q]\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clozes")
    for name, text in SOURCES.items():
        (path / name).write_text(text)
    tokenizer = CodeTokenizer.train(list(SOURCES.values()) * 20, vocabulary_size=300)
    model = random_model("code", tokenizer, max_length=128)
    model_folder.write(path / "model", model.rows, model.tokenizer, model.card)
    return path


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_ranks_are_those_of_each_candidate_alone(
    folder: Path, tmp_path: Path, seqmlm: Callable[..., Any]
) -> None:
    out = tmp_path / "gaps.jsonl"
    asked_of = ("--cloze", "operator,variable", "--out", out, "--json")
    done = seqmlm("zeroshot", folder / "model", folder, *asked_of)
    assert done.code == 0, done.err
    found = rows(out)
    assert set(done.json) == {"operator", "variable"}
    domain, cloze = plugins.domain("code"), Cloze(Session.open(str(folder / "model")))
    asked = [
        one
        for name, text in SOURCES.items()
        for one in domain.questions(domain.of_text(text, {"language": "python"}), ("operator", "variable"))
    ]
    assert [(row["answer"], row["kind"]) for row in found] == [(one.answer, one.kind) for one in asked]
    for row, one in zip(found, asked, strict=True):
        scores = []
        for text in one.candidates:
            [fit] = cloze.fits(cloze.put([one.prompt], [[text]]))
            scores.append(fit.log_prob / fit.units)
        own = scores[one.candidates.index(one.answer)]
        assert row["rank"] == 1 + sum(score > own for score in scores)
        assert row["log_prob"] == pytest.approx(own, abs=1e-5)
        assert row["candidates"] == len(one.candidates)
    for kind, told in done.json.items():
        own_rows = [row for row in found if row["kind"] == kind]
        right = np.mean([row["prediction"] == row["answer"] for row in own_rows])
        assert told["n"] == len(own_rows)
        assert told["accuracy"] == pytest.approx(right)
        assert told["reciprocal_rank"] == pytest.approx(np.mean([1 / row["rank"] for row in own_rows]))
        [(_, most)] = Counter(row["answer"] for row in own_rows).most_common(1)
        assert told["majority"] == pytest.approx(most / len(own_rows))
        others = [(row["candidates"] - row["rank"]) / (row["candidates"] - 1) for row in own_rows]
        assert told["pairwise"] == pytest.approx(np.mean(others))
        assert told["gain"] == pytest.approx(right - max(told["majority"], told["counts"]))


def test_a_limit_draws_the_same_gaps_of_all(folder: Path, tmp_path: Path, seqmlm: Callable[..., Any]) -> None:
    asked = "zeroshot", folder / "model", folder, "--cloze", "all"
    whole = seqmlm(*asked, "--out", tmp_path / "all.jsonl")
    assert whole.code == 0, whole.err
    for name in ("one", "two"):
        assert seqmlm(*asked, "--limit", 5, "--out", tmp_path / f"{name}.jsonl").code == 0
    five = rows(tmp_path / "one.jsonl")
    assert len(five) == 5
    assert five == rows(tmp_path / "two.jsonl")
    every = [json.dumps({**row, "log_prob": 0}) for row in rows(tmp_path / "all.jsonl")]
    places = [every.index(json.dumps({**row, "log_prob": 0})) for row in five]
    assert places == sorted(places)
    assert seqmlm(*asked, "--limit", 5, "--seed", 1, "--out", tmp_path / "other.jsonl").code == 0
    assert rows(tmp_path / "other.jsonl") != five


def test_counts_leave_the_gap_itself_out() -> None:
    from seqmlm.domains.holes import Hole, Prompt, Question
    from seqmlm.tasks.clozes import Told, _Neighbours

    counts, prompt = _Neighbours(), Prompt(raw="", holes=(Hole(0, 0),))
    given = [("+", "a", "b")] * 2 + [("-", "a", "b")] + [("*", "c", "d")] + [("-", "e", "f")] * 3
    for answer, before, behind in given:
        beside = before, behind
        one = Question(
            kind="operator", prompt=prompt, line=1, answer=answer, candidates=("+", "-"), beside=beside
        )
        counts.add(one)
    told = [Told("f", "operator", answer, "", 1, 2, before, behind) for answer, before, behind in given]
    # Of + without itself one + and one - are left, and - is more frequent elsewhere; of - two +.
    assert counts.right(told).tolist() == [False, False, False, False, True, True, True]


def test_the_report_has_all_kinds(folder: Path, tmp_path: Path, seqmlm: Callable[..., Any]) -> None:
    report = tmp_path / "gaps.html"
    done = seqmlm(
        *("zeroshot", folder / "model", folder / "a.py", "--cloze", "all", "--out", tmp_path / "g.jsonl"),
        *("--report", report),
    )
    assert done.code == 0, done.err
    assert "operator" in report.read_text()
    assert "most frequent" in done.err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--cloze", "operators"), 2, "did you mean 'operator'"),
        (("--cloze", "all", "--label", "a=b"), 2, "leave one out"),
        (("--limit", "5", "--template", "x"), 2, "add --cloze"),
        (("--cloze", "exception"), 3, "no gap can be made"),
    ],
)
def test_requests_without_sense(
    folder: Path, tmp_path: Path, seqmlm: Callable[..., Any], options: tuple[str, ...], code: int, said: str
) -> None:
    done = seqmlm("zeroshot", folder / "model", folder / "b.py", *options, "--out", tmp_path / "x.jsonl")
    assert (done.code, said in done.err) == (code, True), done.err

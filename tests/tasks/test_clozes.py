"""`seqmlm zeroshot --cloze`: ranks are those of scoring each candidate alone, figures those of the rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_fields import random_model

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.inference import model_folder
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.tokenizers.code import CodeTokenizer
from seqmlm.tokenizers.log_templates import TemplateTokenizer

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


def read(domain: Any, text: str) -> Record:
    return Record(id="a", raw=domain.of_text(text, {"language": "python"}), source="a.py", line=1)


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
        for one in domain.questions(read(domain, text), ("operator", "variable"))
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


EVENTS = {
    "accepted": "info",
    "looked up": "info",
    "cache hit": "info",
    "no such entry there": "warning",
    "gone": "error",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows all but the last event, and a log of sessions; one event has two severities."""
    path, random = tmp_path_factory.mktemp("shop"), np.random.default_rng(3)
    lines, sessions = [], []
    for session in range(12):
        drawn = [str(one) for one in random.choice(list(EVENTS), random.integers(2, 6))]
        sessions.append(LogLines(lines=tuple(one for one in drawn if one != "gone")))
        for place, name in enumerate(drawn):
            level = "error" if name == "no such entry there" and place % 2 else EVENTS[name]
            row = {"ts": 1.7e9 + session * 100 + place, "level": level, "msg": name, "req": f"s{session}"}
            lines.append(json.dumps(row))
    (path / "app.jsonl").write_text("\n".join(lines) + "\n")
    tokenizer = TemplateTokenizer.train(sessions * 5)
    model = random_model("logs", tokenizer, max_length=64)
    model_folder.write(path / "model", model.rows, model.tokenizer, model.card)
    return path


def test_lines_and_their_severity_by_hand(shop: Path, tmp_path: Path, seqmlm: Callable[..., Any]) -> None:
    out = tmp_path / "gaps.jsonl"
    given = ("--option", "session=req", "--option", "message_field=msg")
    done = seqmlm(
        "zeroshot",
        shop / "model",
        shop / "app.jsonl",
        *given,
        "--cloze",
        "event,next,severity",
        "--out",
        out,
        "--json",
    )
    assert done.code == 0, done.err
    found = rows(out)
    domain, session = plugins.domain("logs"), Session.open(str(shop / "model"))
    cloze, known = Cloze(session), [one for one in EVENTS if one != "gone"]
    options = {"session": "req", "message_field": "msg"}
    records = list(domain.read([str(shop / "app.jsonl")], Problems(), **options))
    lines = [
        (record.raw.lines[one.stands], record.meta["origins"][one.stands][0])
        for record in records
        for one in domain.questions(record, ("event",))
    ]
    asked = [one for record in records for one in domain.questions(record, ("event", "next", "severity"))]
    stands = [
        record.raw.lines[one.stands]
        for record in records
        for one in domain.questions(record, tuple(done.json))
    ]
    assert [row["kind"] for row in found] == [one.kind for one in asked]
    for row, one, text in zip(found, asked, stands, strict=True):
        others = [session.tokenizer.stand_in] * (len(one.prompt.holes) - 1)
        fits = {}
        for name in known:
            put = cloze.put([one.prompt], [[name, *others]])
            fits[name] = cloze.fits(put)[0].log_prob
        fits["gone"] = math.log(1 - sum(map(math.exp, fits.values())))  # whatever it does not know
        if one.kind == "severity":
            rest = list(lines)
            rest.remove((text, one.answer))
            scores = {}
            for level in {bad for _, bad in lines}:
                share = {
                    name: np.mean([bad == level for own, bad in rest if own == name])
                    for name in EVENTS
                    if any(own == name for own, _ in rest)
                }
                total = sum(np.exp(fits[name]) * part for name, part in share.items())
                scores[level] = float(np.log(total)) if total else -np.inf
            assert row["answer"] == one.answer
        else:
            scores = fits
            assert row["answer"] == ("<NEW>" if text == "gone" else text)
        own = scores[row["answer"].replace("<NEW>", "gone")]
        if one.kind == "severity" and abs(row["log_prob"] - own) > 1e-5:
            print(
                "DBG",
                row,
                text,
                {k: float(np.exp(v)) for k, v in fits.items()},
                share,
                scores,
                [
                    (g.text, float(np.exp(g.log_prob)))
                    for g in cloze.guesses(cloze.opened([one.prompt]), 99, gap=0)[0][0]
                ],
                rest,
            )
        assert row["log_prob"] == (pytest.approx(own, abs=1e-5) if np.isfinite(own) else None)
        assert row["rank"] >= 1 + sum(score > own + 1e-6 for score in scores.values())
    assert done.json["event"]["n"] == done.json["severity"]["n"] == len(lines)

"""`seqmlm review`, through the command line, with a tiny model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from plain_git import git
from stopped import stop_at
from tiny_domain_models import MODULE, calibrated_code_model, changed_source, work_tree
from written import rows

from seqmlm.cli import main
from seqmlm.errors import DataError
from seqmlm.inference.model_folder import read_card, seal
from seqmlm.rows.file import Rows

BUGGY = changed_source()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model's folder."""
    return calibrated_code_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work tree with one file of two changed lines, and one that came."""
    folder = work_tree(tmp_path / "tree", BUGGY)
    (folder / "new.py").write_text("def f(a):\n    return a\n")
    git(folder, "add", "new.py")
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    return folder


def review(*arguments: str | Path, command: str = "review") -> int:
    try:
        main([command, *map(str, arguments)])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.parametrize("way", ["since", "diff", "diff not applied"])
def test_changed_lines_before_and_after(model, tree, way, tmp_path):
    diff = tmp_path / "d.diff"
    diff.write_bytes(git(tree, "diff", "HEAD"))
    if way == "diff not applied":
        git(tree, "reset", "-q", "--hard")
    asked = ["--since", "HEAD"] if way == "since" else ["--diff", str(diff)]
    out = tmp_path / "rows.jsonl"
    page = tmp_path / "page.html"
    assert review(model, ".", *asked, "--out", out, "--fpr", "0.2", "--report", page) == 0
    found = rows(out)
    told = [(row["source"], row["line"], row["change"], row["line_before"]) for row in found]
    assert sorted(told) == [
        ("new.py", 1, "new", None),
        ("new.py", 2, "new", None),
        ("pkg/stack.py", 3, "new", None),
        ("pkg/stack.py", 18, "modified", 17),
    ]
    changed = next(row for row in found if row["line"] == 18)
    assert changed["score"] == pytest.approx(changed["score_after"] - changed["score_before"])
    assert changed["function"] == "depth"
    for row in found:
        assert 0 < row["p_value"] <= 1
        assert not row["alarm"] or (row["score"] > 0 and row["p_value"] <= 0.2)
    assert "score rise" in page.read_text()
    for kind, why in (
        ("modified", ">no more unusual than before"),
        ("new", ">no more surprising than normal"),
    ):
        calm = sum(row["score"] <= 0 for row in found if row["change"] == kind)
        assert page.read_text().count(why) == calm


def test_scores_are_those_of_both_whole_files(model, tree, tmp_path):
    out, old, new = (tmp_path / name for name in ("c.jsonl", "old.jsonl", "new.jsonl"))
    assert review(model, ".", "--since", "HEAD", "--out", out) == 0
    (tmp_path / "stack.py").write_text(MODULE)
    assert review(model, tmp_path / "stack.py", "--out", old, command="score") == 0
    assert review(model, "pkg/stack.py", "--out", new, command="score") == 0
    [changed] = [row for row in rows(out) if row["change"] == "modified"]
    [after] = [row for row in rows(new) if row["line"] == 18]
    [before] = [row for row in rows(old) if row["line"] == 17]
    assert changed["score_after"] == pytest.approx(after["score"], abs=1e-5)
    assert changed["score_before"] == pytest.approx(before["score"], abs=1e-5)
    assert changed["p_value"] == pytest.approx(after["p_value"], abs=1e-5)


def test_a_language_that_the_model_was_not_trained_on_is_said(model, tree, capsys, tmp_path):
    """Nobody has looked at such lines, and "0 alarms" alone would read as if somebody had."""
    known = tmp_path / "known"
    shutil.copytree(model, known)
    card = read_card(known)
    assert card is not None
    seal(known, replace(card, languages=("python",)))
    (tree / "page.js").write_text("let page = 1;\n")
    git(tree, "add", "page.js")
    told = "record in javascript, a language without training data: its scores are unreliable"
    for asked in (["--since", "HEAD"], []):
        assert review(known, ".", *asked, "--fpr", "0.2") == 0
        printed = capsys.readouterr().err
        assert told in printed
        assert "in python" not in printed
        assert review(model, ".", *asked, "--fpr", "0.2") == 0  # which does not say what it was trained on
        assert told not in capsys.readouterr().err


def test_only_new_findings_show(model, tree, tmp_path):
    first, again, out = tmp_path / "a.sarif", tmp_path / "b.sarif", tmp_path / "rows.jsonl"
    common = [model, "pkg/stack.py", "--out", out, "--fpr", "0.3", "--alarms-only"]
    assert review(*common, "--sarif", first) == 0
    known = rows(out)
    assert known
    results = json.loads(first.read_text())["runs"][0]["results"]
    assert len(results) == len(known)
    assert {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results} == {
        "pkg/stack.py"
    }
    path = tree / "pkg" / "stack.py"
    path.write_text("\n\n\n" + path.read_text())
    assert review(*common, "--sarif", again, "--baseline", first) == 0
    states = [r["baselineState"] for r in json.loads(again.read_text())["runs"][0]["results"]]
    new = rows(out)
    assert states.count("new") == len(new) < len(known)
    assert states.count("unchanged") > 0
    assert states.count("unchanged") + states.count("absent") == len(known)


def test_a_review_that_is_stopped_does_not_offer_to_resume(model, tree, tmp_path, capsys, monkeypatch):
    out = tmp_path / "rows.jsonl"
    for _ in range(2):  # the second one finds what the first has left
        with monkeypatch.context() as patched:
            stop_at(patched, Rows, "write", 1, None)
            assert review(model, ".", "--since", "HEAD", "--out", out) == 143
        told = capsys.readouterr().err
        assert "run the same command again" in told
        assert "--resume" not in told


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_failure_leaves_the_old_rows_and_promises_no_resuming(
    model, tree, tmp_path, capsys, monkeypatch, name
):
    def fail(*_, **__):
        raise DataError("odd", source="x")

    out = tmp_path / name
    old = '"id","source","line"\n' if name.endswith("csv") else '{"id": "a", "source": "b", "line": 1}\n'
    out.write_text(old)
    with monkeypatch.context() as patched:
        patched.setattr("seqmlm.scoring.review.Review._judge_change", fail)
        assert review(model, ".", "--since", "HEAD", "--out", out) == 3
    assert out.read_text() == old
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("rows")] == [name]
    assert "--resume" not in capsys.readouterr().err
    assert review(model, ".", "--since", "HEAD", "--out", out) == 0
    assert out.read_text() != old


def test_sarif_may_take_the_place_of_its_own_baseline(model, tree, tmp_path):
    sarif = tmp_path / "a.sarif"
    common = [model, "pkg/stack.py", "--fpr", "0.3", "--sarif", sarif]
    assert review(*common) == 0
    assert review(*common, "--baseline", sarif) == 0
    states = {r["baselineState"] for r in json.loads(sarif.read_text())["runs"][0]["results"]}
    assert states == {"unchanged"}
    assert review(*common[:-2], "--baseline", sarif, "--out", sarif) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--since", "nowhere"], 2, "no revision 'nowhere'"),
        (["--since", "HEAD", "--diff", "d"], 2, "give only one"),
        (["--since", "HEAD", "--sarif", "x"], 2, "--fpr"),
        (["--since", "HEAD", "--set", "level=token"], 2, "--level line"),
        (["--diff", "nowhere.diff"], 3, "nowhere.diff"),
    ],
)
def test_requests_that_make_no_sense(model, tree, capsys, arguments, code, message):
    assert review(model, ".", *arguments) == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_nothing_that_changed_is_no_review(model, tree, capsys, tmp_path):
    (tmp_path / "empty.diff").write_text("")
    git(tree, "reset", "-q", "--hard")
    for asked in (["--since", "HEAD"], ["--diff", str(tmp_path / "empty.diff")]):
        assert review(model, ".", *asked, "--fpr", "0.2") == 0
        told = capsys.readouterr().err
        how = "since" if "--since" in asked else "by"
        assert f"no changes of source code {how} {asked[1]}" in told
        assert "alarms" not in told


def test_one_folder(model, tree, capsys):
    assert review(model, "same.py", "--since", "HEAD") == 2
    assert "one folder" in capsys.readouterr().err

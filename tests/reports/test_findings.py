"""SARIF: the fields that consumers need, and baselines read back from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seqmlm.anomaly.findings import CONTENT, PLACE, Finding, Fingerprints
from seqmlm.errors import DataError, StateError
from seqmlm.privacy import handling_sensitive_data
from seqmlm.reports.findings import Baseline, sarif, write_sarif


def one(text: str = "x = 1", uri: str = "src/a.py", line: int = 3, **more: Any) -> Finding:
    place: dict[str, Any] = {"uri": uri, "first_line": line, "last_line": line, "columns": None, "scope": "f"}
    said = {"rule": "line", "message": "An unusual line.", "p_value": 0.001, "score": 4.5}
    return Finding(**{**place, **said, "fingerprints": Fingerprints(uri).hashes("line", "f", text), **more})


def check(log: dict[str, Any]) -> None:
    """What the 2.1.0 schema and GitHub's code scanning ask for."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    [run] = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    for rule in driver["rules"]:
        assert rule["id"]
        assert rule["shortDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        assert re.fullmatch(r"[A-Za-z]+", rule["name"])
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert isinstance(result["message"]["text"], str)
        assert result.get("baselineState", "new") in ("new", "unchanged", "updated", "absent")
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        [location] = result["locations"]
        artifact = location["physicalLocation"]["artifactLocation"]
        assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", artifact["uri"])
        if "uriBaseId" in artifact:
            assert artifact["uriBaseId"] in run["originalUriBaseIds"]
            assert not artifact["uri"].startswith("/")
        region = location["physicalLocation"]["region"]
        assert 1 <= region["startLine"] <= region["endLine"]
        if "startColumn" in region and region["startLine"] == region["endLine"]:
            assert 1 <= region["startColumn"] <= region["endColumn"]


def test_the_log_has_what_consumers_need():
    found = [
        one(),
        one(uri="src/na me é#1.py", columns=(3, 7), rule="token"),
        one(rule="function", last_line=9, scope=None, state="new", p_value=None),
        one(uri="/abs/b.py", state="absent"),
    ]
    log = sarif(found, version="1.0")
    check(log)
    results = log["runs"][0]["results"]
    assert [r["ruleId"] for r in results] == ["seqmlm/line", "seqmlm/token", "seqmlm/function", "seqmlm/line"]
    place = results[1]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "src/na%20me%20%C3%A9%231.py"
    assert "logicalLocations" not in results[2]["locations"][0]
    assert results[0]["properties"] == {"p_value": 0.001, "score": 4.5}
    check(sarif([], version="1.0"))


def test_a_file_is_written_whole_and_private(tmp_path):
    path = tmp_path / "deep" / "a.sarif"
    with handling_sensitive_data():
        write_sarif(path, [one()], version="1")
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(path.read_text())["runs"][0]["results"]) == 1
    assert [p.name for p in path.parent.iterdir()] == ["a.sarif"]
    with pytest.raises(StateError, match="cannot write"):
        write_sarif(Path("/proc/none/a.sarif"), [one()], version="1")


def stored(folder: Path, found: list[Finding], kind: str) -> Path:
    path = folder / f"old.{kind}"
    if kind == "sarif":
        write_sarif(path, found, version="1")
        return path
    given = [(one.uri, one.first_line, dict(one.fingerprints), True) for one in found]
    given.append(("a.py", 1, {PLACE: "0", CONTENT: "0"}, False))
    names = ("source", "line", "fingerprints", "alarm")
    rows = [{"id": "a", **dict(zip(names, values, strict=True))} for values in given]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["sarif", "jsonl"])
def test_only_what_is_new_is_new(tmp_path, kind):
    old = [one("x = 1", line=3), one("y = 2", line=9), one("z = 3", uri="gone.py")]
    baseline = Baseline.load(stored(tmp_path, old, kind))
    assert baseline.is_known(one("x = 1", line=30))  # lines above it came
    assert not baseline.is_known(one("x = 7"))
    assert baseline.is_known(one("y  =  2", uri="src/renamed.py"))
    assert not baseline.is_known(one("y = 2"))  # the copy of a finding is a new one
    gone = baseline.absent_findings({"src/a.py", "gone.py"})
    assert [(f.uri, f.state) for f in gone] == [("gone.py", "absent")]
    assert baseline.absent_findings({"src/a.py"}) == []  # nobody looked


def test_what_was_absent_is_not_known(tmp_path):
    path = tmp_path / "a.sarif"
    for found, known in (([one(state="absent"), one("y", state="unchanged")], 1), ([], 0)):
        write_sarif(path, found, version="1")
        assert len(Baseline.load(path).findings) == known


SARIF = (
    '{"runs": [{"results": [{"ruleId": "a", "message": {"text": "b"}, "locations": [{"physicalLocation": '
    '{"artifactLocation": {"uri": "c"}, "region": {"startLine": %s}}}]}]}]}'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "neither SARIF nor JSON lines"),
        ("[1, 2]\n", "neither SARIF nor JSON lines"),
        ('{"fingerprints": 5}', "neither SARIF nor JSON lines"),
        ('{"fingerprints": {"a": "b"}, "line": null}', "neither SARIF nor JSON lines"),
        ('{"fingerprints": {"a": "b"}, "line": 1e999}', "neither SARIF nor JSON lines"),
        ('{"runs": [{"results": [{}]}]}', "not a SARIF file written by seqmlm"),
        (SARIF % '"first"', "not a SARIF file written by seqmlm"),
        (SARIF % "1e999", "not a SARIF file written by seqmlm"),
    ],
)
def test_other_files_are_named(tmp_path, text, message):
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        Baseline.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        Baseline.load(tmp_path / "none")

"""Write findings as SARIF 2.1.0 (OASIS, 2020), which code hosts, editors and CI systems show.

A baseline has the findings of an earlier run, as SARIF or JSON lines. With a baseline, only new findings are
reported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from seqmlm.anomaly.findings import CONTENT, PLACE, Finding
from seqmlm.engine.durable import replace_file
from seqmlm.errors import DataError, StateError
from seqmlm.parsing import LARGEST_JSON, parse_json, read_bounded

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
ROOT = "SRCROOT"
TOOL = "seqmlm"


def sarif(findings: Sequence[Finding], *, version: str) -> dict[str, Any]:
    """The SARIF log of one run. Findings that were compared with a baseline have a `state`.

    version: the version of seqmlm.
    """
    rules = sorted({finding.rule for finding in findings})
    run: dict[str, Any] = {
        "tool": {"driver": {"name": TOOL, "version": version, "rules": [_rule(name) for name in rules]}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The folder the scoring was started in."}}},
        "results": [_result(finding, rules.index(finding.rule)) for finding in findings],
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def write_sarif(path: Path, findings: Iterable[Finding], *, version: str) -> None:
    """Write a log atomically, and create its folder.

    Raises:
        StateError: the log cannot be written.
    """
    text = json.dumps(sarif(list(findings), version=version), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; free space or name another file") from None


def _rule(name: str) -> dict[str, Any]:
    """The SARIF rule for a level."""
    return {
        "id": f"{TOOL}/{name}",
        "name": f"Unusual{name.title().replace('-', '')}",
        "shortDescription": {"text": f"An unusual {name}"},
        "fullDescription": {
            "text": f"A {name} that is more surprising to a language model of normal data than nearly every "
            f"normal {name}. Unusual does not mean wrong, but it is worth a look."
        },
        "defaultConfiguration": {"level": "warning"},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    """The SARIF result for a finding. `rule` is the index of its rule."""
    region: dict[str, Any] = {"startLine": finding.first_line, "endLine": finding.last_line}
    if finding.columns is not None:
        region |= {"startColumn": finding.columns[0], "endColumn": finding.columns[1]}
    artifact = {"uri": quote(finding.uri, errors="surrogateescape")}
    if not finding.uri.startswith("/"):
        artifact["uriBaseId"] = ROOT
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": artifact, "region": region}}
    if finding.scope is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.scope, "kind": "function"}]
    result: dict[str, Any] = {
        "ruleId": f"{TOOL}/{finding.rule}",
        "ruleIndex": rule,
        "level": "warning",
        "message": {"text": finding.message},
        "locations": [location],
        "partialFingerprints": dict(finding.fingerprints),
    }
    if finding.state is not None:
        result["baselineState"] = finding.state
    properties = {"p_value": finding.p_value, "score": finding.score}
    result["properties"] = {name: value for name, value in properties.items() if value is not None}
    return result


# Baselines

# Errors when JSON is valid, but is not a baseline.
_UNFIT = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
_ORDER = (PLACE, CONTENT)  # first the place, then the content, which stays the same in a renamed file


class Baseline:
    """The findings of an earlier run, which are already known."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        marks = [finding.fingerprints for finding in self.findings]
        self._open = {name: Counter(mark[name] for mark in marks if name in mark) for name in _ORDER}
        self._matches: Counter[str] = Counter()

    @classmethod
    def load(cls, path: Path) -> Baseline:
        """Read the findings of a SARIF file, or the alarms in scores as JSON lines.

        Raises:
            DataError: the file is neither of them.
        """
        try:
            text = read_bounded(path, LARGEST_JSON).decode("utf-8")
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read ({error})", source=str(path)) from None
        findings = _sarif_findings(text, path)
        return cls(_row_findings(text, path) if findings is None else findings)

    def is_known(self, finding: Finding) -> bool:
        """Whether the baseline has a finding. Each known finding matches only once, so a copy is new."""
        for name in _ORDER:
            mark = finding.fingerprints.get(name)
            if mark is None or self._open[name][mark] <= 0:
                continue
            alike = (candidate for candidate in self.findings if candidate.fingerprints.get(name) == mark)
            match = next(candidate for candidate in alike if not self._matches[_key(candidate)])
            self._matches[_key(match)] += 1
            for kind in self._open.keys() & match.fingerprints.keys():
                self._open[kind][match.fingerprints[kind]] -= 1
            return True
        return False

    def absent_findings(self, files: Collection[str]) -> list[Finding]:
        """The findings of the baseline in some files that did not match a finding of this run."""
        inside = [finding for finding in self.findings if finding.uri in files]
        return [replace(finding, state="absent") for finding in inside if not self._matches[_key(finding)]]


def _key(finding: Finding) -> str:
    """The fingerprint of a finding's place, or all its fingerprints without a place."""
    return finding.fingerprints.get(PLACE) or json.dumps(sorted(finding.fingerprints.items()))


def _sarif_findings(text: str, path: Path) -> list[Finding] | None:
    """The results of a SARIF log without absent ones, or None if the text is not a SARIF log."""
    try:
        log = parse_json(text)
    except ValueError:
        return None
    if not isinstance(log, dict) or "runs" not in log:
        return None
    try:
        results = [result for run in log["runs"] for result in run.get("results", ())]
        return [_result_finding(result) for result in results if result.get("baselineState") != "absent"]
    except _UNFIT as error:
        raise DataError(f"not a SARIF file written by seqmlm ({error!r})", source=str(path)) from None


def _result_finding(result: Mapping[str, Any]) -> Finding:
    """The finding in a SARIF result."""
    place, properties = result["locations"][0]["physicalLocation"], result.get("properties", {})
    region = place.get("region", {})
    first = int(region.get("startLine", 1))
    return Finding(
        rule=result["ruleId"].rpartition("/")[2],
        message=result["message"]["text"],
        uri=unquote(place["artifactLocation"]["uri"]),
        first_line=first,
        last_line=int(region.get("endLine", first)),
        columns=None,
        scope=None,
        fingerprints=_marks(result.get("partialFingerprints", {})),
        p_value=properties.get("p_value"),
        score=properties.get("score"),
    )


def _marks(values: Mapping[str, Any]) -> dict[str, str]:
    """Fingerprints by name, all as text."""
    return {str(name): str(value) for name, value in values.items()}


def _row_findings(text: str, path: Path) -> list[Finding]:
    """The alarms in scores as JSON lines."""
    findings = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            if row.get("fingerprints") and row.get("alarm", True):
                first = row.get("line", 1)
                findings.append(
                    Finding(
                        rule="",
                        message="",
                        uri=str(row.get("source", "")),
                        first_line=int(first),
                        last_line=int(row.get("last_line", first)),
                        columns=None,
                        scope=row.get("function"),
                        fingerprints=_marks(row["fingerprints"]),
                        p_value=row.get("p_value"),
                        score=row.get("score"),
                    )
                )
        except _UNFIT:
            reason, remedy = "neither SARIF nor JSON lines of scores", "give a file from --sarif or --out"
            raise DataError(reason, source=str(path), line=number, remedy=remedy) from None
    return findings

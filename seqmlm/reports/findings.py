"""Findings as SARIF 2.1.0 (OASIS, 2020), which code hosts, editors and CI systems show, and as a baseline.

A baseline is the findings of an earlier run, SARIF or JSON lines, against which only what is new is worth a
look.
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
    """The log of one run of some version of this program; findings have a `state` where they were
    compared."""
    rules = sorted({one.rule for one in findings})
    run: dict[str, Any] = {
        "tool": {"driver": {"name": TOOL, "version": version, "rules": [_rule(name) for name in rules]}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The folder the scoring was started in."}}},
        "results": [_result(one, rules.index(one.rule)) for one in findings],
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def write_sarif(path: Path, findings: Iterable[Finding], *, version: str) -> None:
    """Write a log, whole or not at all; its folder is made.

    Raises:
        StateError: it cannot be written.
    """
    text = json.dumps(sarif(list(findings), version=version), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; free space or name another file") from None


def _rule(name: str) -> dict[str, Any]:
    return {
        "id": f"{TOOL}/{name}",
        "name": f"Unusual{name.title().replace('-', '')}",
        "shortDescription": {"text": f"An unusual {name}"},
        "fullDescription": {
            "text": f"A {name} that a language model of normal data finds more surprising than nearly every "
            "normal one. Unusual is not wrong: it is worth a look."
        },
        "defaultConfiguration": {"level": "warning"},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
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

# What JSON raises that has other things than a baseline where this one looks.
_UNFIT = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
_ORDER = (PLACE, CONTENT)  # the place first, then the content, which a renamed file keeps


class Baseline:
    """Findings of an earlier run, which are known already."""

    def __init__(self, known: Iterable[Finding]) -> None:
        self.known = tuple(known)
        self._left = {
            name: Counter(one.fingerprints[name] for one in self.known if name in one.fingerprints)
            for name in _ORDER
        }
        self._met: Counter[str] = Counter()

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """The findings of a SARIF file, or the alarms of scores as JSON lines.

        Raises:
            DataError: the file is neither.
        """
        try:
            text = read_bounded(path, LARGEST_JSON).decode("utf-8")
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read ({error})", source=str(path)) from None
        found = _of_sarif(text, path)
        return cls(_of_rows(text, path) if found is None else found)

    def is_known(self, finding: Finding) -> bool:
        """Whether the baseline has it; each of its findings is met once, so that a copy of one is new."""
        for name in _ORDER:
            mark = finding.fingerprints.get(name)
            if mark is None or self._left[name][mark] <= 0:
                continue
            alike = (one for one in self.known if one.fingerprints.get(name) == mark)
            met = next(one for one in alike if not self._met[_key(one)])
            self._met[_key(met)] += 1
            for other in self._left.keys() & met.fingerprints.keys():
                self._left[other][met.fingerprints[other]] -= 1
            return True
        return False

    def absent(self, looked_at: Collection[str]) -> list[Finding]:
        """What the baseline has and nobody met, in the files that were looked at."""
        left = (one for one in self.known if not self._met[_key(one)] and one.uri in looked_at)
        return [replace(one, state="absent") for one in left]


def _key(finding: Finding) -> str:
    return finding.fingerprints.get(PLACE) or json.dumps(sorted(finding.fingerprints.items()))


def _of_sarif(text: str, path: Path) -> list[Finding] | None:
    """The results of a SARIF log that are not absent from it; None where the text is none."""
    try:
        log = parse_json(text)
    except ValueError:
        return None
    if not isinstance(log, dict) or "runs" not in log:
        return None
    try:
        results = [result for run in log["runs"] for result in run.get("results", ())]
        return [_of_result(one) for one in results if one.get("baselineState") != "absent"]
    except _UNFIT as error:
        raise DataError(f"not SARIF as this program writes it ({error!r})", source=str(path)) from None


def _of_result(result: Mapping[str, Any]) -> Finding:
    place, known = result["locations"][0]["physicalLocation"], result.get("properties", {})
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
        p_value=known.get("p_value"),
        score=known.get("score"),
    )


def _marks(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


def _of_rows(text: str, path: Path) -> list[Finding]:
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            if row.get("fingerprints") and row.get("alarm", True):
                first = row.get("line", 1)
                found.append(
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
            reason, remedy = "neither SARIF nor JSON lines of scores", "give what --sarif or --out wrote"
            raise DataError(reason, source=str(path), line=number, remedy=remedy) from None
    return found

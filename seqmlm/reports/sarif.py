"""SARIF 2.1.0 (OASIS, 2020), which code hosts, editors and CI systems show findings from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from seqmlm.anomaly.findings import Finding
from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
ROOT = "SRCROOT"
TOOL = "seqmlm"


def sarif(findings: Sequence[Finding], *, version: str) -> dict[str, Any]:
    """The log of one run.

    Args:
        findings: in order; with `state` where they were compared with a baseline.
        version: of this program.
    """
    rules = sorted({one.rule for one in findings})
    run: dict[str, Any] = {
        "tool": {"driver": {"name": TOOL, "version": version, "rules": [_rule(name) for name in rules]}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The folder the scoring was started in."}}},
        "results": [_result(one, rules.index(one.rule)) for one in findings],
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def write_sarif(path: Path, findings: Iterable[Finding], *, version: str, private: bool = False) -> None:
    """Write a log, whole or not at all.

    Args:
        path: replaced if there; its folder is made.
        private: only the owner may read it.

    Raises:
        StateError: it cannot be written.
    """
    text = json.dumps(sarif(list(findings), version=version), indent=2, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), mode=0o600 if private else 0o666)
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; free space or name another file") from None


def _rule(name: str) -> dict[str, Any]:
    return {
        "id": f"{TOOL}/{name}",
        "name": f"Unusual{name.title().replace('-', '')}",
        "shortDescription": {"text": f"An unusual {name}"},
        "fullDescription": {
            "text": f"A {name} that a language model of normal code finds more surprising than nearly every "
            "normal one. Unusual is not wrong: it is worth a look."
        },
        "defaultConfiguration": {"level": "warning"},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": finding.first_line, "endLine": finding.last_line}
    if finding.columns is not None:
        region |= {"startColumn": finding.columns[0], "endColumn": finding.columns[1]}
    uri = quote(finding.uri, errors="surrogateescape")
    artifact: dict[str, Any] = (
        {"uri": uri} if finding.uri.startswith("/") else {"uri": uri, "uriBaseId": ROOT}
    )
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

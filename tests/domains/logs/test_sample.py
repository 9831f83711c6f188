"""The log sample is what its truth says: the machine, its faults, and the lines they stand in."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.readers.objects import Fields
from seqmlm.domains.logs.readers.reading import kind_of
from seqmlm.domains.logs.sample import END, FAULTY, KINDS, START


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    sample = LOGS.sample.draw(tmp_path_factory.mktemp("logs"), seed=5)
    return sample.files[0], json.loads(sample.truth.read_text()), sample.files[0].read_text().splitlines()


def pattern(text: str) -> re.Pattern[str]:
    """What a template's lines look like."""
    return re.compile(r"[\w.]+".join(map(re.escape, re.split(r"\{\w+\}", text))))


def messages(session: dict[str, Any], lines: list[str]) -> list[str]:
    texts = [lines[number - 1] for number in session["lines"]]
    assert all(text.endswith(f" request_id={session['session']}") for text in texts)
    return [text.split(": ", 1)[1].rpartition(" request_id=")[0] for text in texts]


def test_lines_are_of_their_states(drawn: tuple[Path, dict[str, Any], list[str]]):
    _, truth, lines = drawn
    texts = {template["name"]: pattern(template["text"]) for template in truth["templates"]}
    template = {state["name"]: state["template"] for state in truth["states"]}
    for session in truth["sessions"]:
        for state, text in zip(session["states"], messages(session, lines), strict=True):
            if state:
                assert texts[template[state]].fullmatch(text)
            else:
                assert not any(one.fullmatch(text) for one in texts.values())
    of_sessions = [number for session in truth["sessions"] for number in session["lines"]]
    assert sorted(of_sessions) == list(range(1, len(lines) + 1))
    assert lines == sorted(lines, key=lambda text: text[:32])


def test_normal_requests_walk_as_planted(drawn: tuple[Path, dict[str, Any], list[str]]):
    _, truth, _ = drawn
    planted = {(a, b): share for a, b, share in truth["transitions"]}
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for session in truth["sessions"]:
        if session["kind"] in ("normal", "slow"):
            walk = [START, *session["states"], END]
            for a, b in pairwise(walk):
                seen[a][b] += 1
    assert {(a, b) for a, ways in seen.items() for b in ways} == set(planted)
    for (a, b), share in planted.items():
        n = seen[a].total()
        assert abs(seen[a][b] - share * n) <= 4 * np.sqrt(share * (1 - share) * n) + 1e-9
    for state in {a for a, _ in planted}:
        assert sum(share for (a, _), share in planted.items() if a == state) == pytest.approx(1)


def test_faults_can_be_found(drawn: tuple[Path, dict[str, Any], list[str]]):
    _, truth, lines = drawn
    template = {state["name"]: state["template"] for state in truth["states"]} | {START: START, END: END}
    follows = {(template[a], template[b]) for a, b, _ in truth["transitions"]}
    pause = {state["name"]: state["pause"] for state in truth["states"]}
    sessions = {session["session"]: session for session in truth["sessions"]}
    faulty = {s["session"] for s in truth["sessions"] if s["kind"] != "normal"}
    assert {one["session"] for one in truth["anomalies"]} == faulty
    assert abs(len(faulty) - FAULTY * truth["n"]) < 4 * np.sqrt(FAULTY * truth["n"])
    assert set(Counter(one["kind"] for one in truth["anomalies"])) == set(KINDS)
    seconds = np.array([np.datetime64(text[:26]).astype("int64") / 1e6 for text in lines])
    for one in truth["anomalies"]:
        session = sessions[one["session"]]
        assert (session["kind"], set(one["lines"]) <= set(session["lines"])) == (one["kind"], True)
        walk = [template.get(state, "") for state in (START, *session["states"], END)]
        breaks = [i for i, pair in enumerate(pairwise(walk)) if pair not in follows]
        at = [session["lines"].index(number) for number in one["lines"]]
        if one["kind"] == "slow":
            [i] = at
            waited = seconds[session["lines"][i] - 1] - seconds[session["lines"][i - 1] - 1]
            assert not breaks
            assert waited > 10 * pause[session["states"][i]]
        else:
            assert breaks
            assert all(min(at) <= i <= max(at) + 1 for i in breaks)
        assert ("" in session["states"]) == (one["kind"] == "unseen")
        assert len(at) == (2 if one["kind"] == "reordered" else 1)


def test_train_reads_it_as_requests(drawn: tuple[Path, dict[str, Any], list[str]]):
    path, truth, lines = drawn
    assert kind_of(lines, Fields()) == "syslog"
    problems = Problems()
    records = list(LOGS.read([path], problems))
    found = {record.id: record for record in records}
    for session in truth["sessions"]:
        record = found.pop(session["session"])
        assert list(record.meta["lines"]) == session["lines"]
        assert [text.rpartition(" request_id=")[0] for text in record.raw.lines] == messages(session, lines)
    assert not found
    assert problems.counts == {}

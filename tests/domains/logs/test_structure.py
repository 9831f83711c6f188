"""Planted jobs are in their file, with the information they say; networks of templates by hand."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoded import decoded, map_of, planted_and_noise

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.structure import EventsDecoder
from tests.domains.logs.test_sample import pattern

COUNT = 1500


@pytest.fixture(scope="module")
def sample(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any], list[Record], list[Record]]:
    out = tmp_path_factory.mktemp("logs")
    made = LOGS.sample.draw(out, n=COUNT, seed=3)
    truth = json.loads(made.truth.read_text())
    jobs = list(LOGS.read([out / truth["jobs_file"]], Problems()))
    return out, truth, jobs, list(LOGS.read(made.files, Problems()))


def lines_of(out: Path, truth: dict[str, Any]) -> list[str]:
    return (out / truth["jobs_file"]).read_text().splitlines()


def test_lines_of_jobs_are_of_their_steps(sample) -> None:
    out, truth, jobs, _ = sample
    lines, steps = lines_of(out, truth), {one["name"]: one for one in truth["job_steps"]}
    records = {record.id: record for record in jobs}
    kinds = {(one["first"], one["second"]): one["kind"] for one in truth["job_pairs"]}
    assert len(truth["jobs"]) == len(records) == COUNT
    for job in truth["jobs"]:
        assert list(records[job["session"]].meta["lines"]) == job["lines"]
        for number, name, choice in zip(job["lines"], job["steps"], job["choices"], strict=True):
            header, _, message = lines[number - 1].partition(": ")
            assert f" {steps[name]['component']}[" in header
            text, _, session = message.rpartition(" request_id=")
            assert session == job["session"]
            assert pattern(steps[name]["texts"][choice]).fullmatch(text)
        step = dict(zip(job["lines"], job["steps"], strict=True))
        assert {kinds[step[a], step[b]] for a, b in job["direct"]} == {"hidden cause", "transition"}
        assert {kinds[step[a], step[b]] for a, b in job["indirect"]} == {"indirect"}
        assert len(job["direct"]) + len(job["indirect"]) == len(kinds)
    assert sorted(number for job in truth["jobs"] for number in job["lines"]) == list(
        range(1, len(lines) + 1)
    )


def entropy(values: list[tuple[int, ...]]) -> float:
    return -sum(n / len(values) * math.log2(n / len(values)) for n in Counter(values).values())


def test_the_draws_have_the_information_that_is_planted(sample) -> None:
    _, truth, _, _ = sample
    names = ["broker", "cache", "worker", "writer"]
    drawn = [dict(zip(job["steps"], job["choices"], strict=True)) for job in truth["jobs"]]
    assert {(one["first"], one["second"]) for one in truth["job_pairs"]} == {
        (a, b) for a, b in product(names, names) if names.index(a) < names.index(b)
    }
    for one in truth["job_pairs"]:
        a, b = one["first"], one["second"]
        rest = [name for name in names if name not in (a, b)]

        def of(*columns: str) -> float:
            return entropy([tuple(job[name] for name in columns) for job in drawn])

        # Three standard errors; counts overestimate it by about .004 bits, given the rest by .06.
        assert of(a) + of(b) - of(a, b) == pytest.approx(one["information_bits"], abs=0.12)
        given = of(a, *rest) + of(b, *rest) - of(a, b, *rest) - of(*rest)
        assert one["conditional_bits"] - 0.06 < given < one["conditional_bits"] + 0.12
        assert (one["conditional_bits"] == 0) == (one["kind"] == "indirect")
        assert one["information_bits"] > 0.3
    for one in truth["job_steps"]:
        if one["follows"] in names:
            kept = np.mean([job[one["name"]] == job[one["follows"]] for job in drawn])
            assert kept == pytest.approx(0.85, abs=4 * math.sqrt(0.85 * 0.15 / COUNT))
    free = [tuple(job[name] for name in ("noise", "broker")) for job in drawn]
    assert entropy([x[:1] for x in free]) + entropy([x[1:] for x in free]) - entropy(free) < 0.01


def test_a_folder_of_the_sample_is_read_without_its_jobs(sample) -> None:
    out, _, jobs, requests = sample
    assert {one.id for one in LOGS.read([out], Problems())} == {one.id for one in requests}
    assert not {one.id for one in jobs} & {one.id for one in requests}


def test_truth_of_jobs_and_of_requests(sample) -> None:
    out, truth, jobs, requests = sample
    knows = EventsDecoder().truths(out / "truth.json", Problems())
    planted = {one["session"]: one for one in truth["jobs"]}
    for record in jobs[:50]:
        own, job = knows(record, record.raw.lines), planted[record.id]
        place = {number: at for at, number in enumerate(job["lines"])}
        assert own.edges == {(place[a], place[b]) for a, b in job["direct"]}
        indirect = {pair for pair, kind in own.kinds.items() if kind == "indirect"}
        assert indirect == {(place[a], place[b]) for a, b in job["indirect"]}
        assert knows(record, record.raw.lines[:-1]) is None
    sessions = {one["session"]: one for one in truth["sessions"]}
    follows = {(a, b) for a, b, _ in truth["transitions"]}
    told = 0
    for record in requests:
        own, session = knows(record, record.raw.lines), sessions[record.id]
        assert (own is None) == (session["kind"] not in ("normal", "slow"))
        if own is None:
            continue
        states = session["states"]
        assert {(i, i + 1) for i in range(len(states) - 1)} <= own.edges
        assert all((states[i], states[j]) in follows for i, j in own.edges if j == i + 1)
        token = next(i for i, state in enumerate(states) if state.startswith("token"))
        assert own.kinds[token - 1, token + 1] == "hidden cause"
        assert own.kinds[0, len(states) - 1] == "indirect"
        told += 1
    assert told > 0.9 * COUNT


def session(name: str, lines: list[str], *, keys: bool = False) -> Record:
    return Record(id=name, raw=LogLines(lines=tuple(lines), keys=keys), source="-", line=1)


def test_lines_of_one_template_are_one_name() -> None:
    decoder = EventsDecoder()
    lines = ["open by u0001 on queue a17", "wrote 12 rows to disk", "closed at once", "idle"]
    other = ["open by u0042 on queue a17", "closed at once", "wrote 99 rows to disk", "idle too long now"]
    first, second = {(0, 1): 3.0, (1, 2): 2.0, (0, 2): 1.0}, {(0, 2): 1.0, (1, 2): 2.0, (0, 1): 1.5}
    pairs = (("1", [*lines, other[-1]], first), ("2", other, second))
    made = [
        decoded(decoder, session(name, own), own, map_of(len(own), links, 0.01)) for name, own, links in pairs
    ]
    assert made[0].predicted == {(0, 1), (1, 2)}, "the weakest side of the triangle is indirect"
    rows = [line.split("\t") for line in "".join(decoder.files(made)["network.tsv"]).splitlines()[1:]]
    found = {frozenset(row[:2]): row for row in rows}
    opened, wrote, closed = "open by <*> on queue a17", "wrote <NUM> rows to disk", "closed at once"
    assert float(found[frozenset((opened, wrote))][2]) == pytest.approx(2.0)
    assert found[frozenset((opened, wrote))][3] == "2"
    assert float(found[frozenset((opened, closed))][2]) == pytest.approx(1.25)
    assert found[frozenset((opened, closed))][6] == "false"
    # The first is one line before, then two: 1.5 on average.
    assert (found[frozenset((opened, wrote))][0], found[frozenset((opened, wrote))][5]) == (opened, "1.5")


def test_event_ids_are_their_own_names() -> None:
    decoder = EventsDecoder()
    ids = ["5", "22", "5"]
    made = [decoded(decoder, session("1", ids, keys=True), ids, map_of(3, {(0, 1): 1.0}, 0.01))]
    text = "".join(decoder.files(made)["network.tsv"])
    assert text.splitlines()[1].split("\t")[:2] == ["5", "22"]
    assert (0, 2) not in made[0].predicted


def test_planted_maps_are_perfect_and_noise_is_null(sample) -> None:
    out, _, jobs, _ = sample
    decoder = LOGS.structure()
    right, noise = planted_and_noise(decoder, out, jobs[:300], lambda one: list(one.raw.lines))
    assert all(one.truth is not None and one.predicted >= one.truth.edges for one in right)
    found, floor = decoder.measures(right), decoder.measures(noise)
    assert found["auprc"] == found["auroc_against_indirect"] == found["recall_of_direct"] == 1
    assert found["auroc_against_indirect_of_pmi"] < 0.8, "PMI shows what is indirect too"
    assert floor["auroc"] == pytest.approx(0.5, abs=0.12)
    assert floor["auprc"] < found["prevalence"] + 0.25

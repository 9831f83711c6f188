"""Calibrating from the rows that a stream judged: the same as from their scores, or refused."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_models import NORMAL
from scipy.stats import betabinom
from scored_streams import calibrated_model, follow, following, in_one_go, rows_of

from seqmlm.data.problems import Problems
from seqmlm.errors import StateError, UsageError
from seqmlm.inference.calibrations import (
    store_backgrounds,
    stored_background,
    stored_calibration,
    stored_calibrations,
)
from seqmlm.inference.detector import table
from seqmlm.rows.judge import Normal
from seqmlm.scoring.calibrate import CalibrateConfig
from seqmlm.scoring.plan import choose
from seqmlm.tasks.task import open_model
from seqmlm.watch.calibration import calibrate_stream
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.incidents import list_incidents, mark_incident
from seqmlm.watch.store import Streams
from seqmlm.workspace import Workspace

LINES = 8
OPTIONS = {"window": LINES, "session": "none"}
_FAULT = ["disk 7 on fire", *NORMAL, *NORMAL[1:]]
_BACKUP = ["backup 7 begins", *NORMAL, *NORMAL[1:]]


def _lines(number: int, messages: Iterable[str]) -> list[str]:
    at = LINES * number
    return [
        f"2024-03-05 {(at + n) // 3600 + 8:02d}:{(at + n) // 60 % 60:02d}:{(at + n) % 60:02d} INFO {text}"
        for n, text in enumerate(messages)
    ]


def _mixed(windows: Iterable[int], rng: np.random.Generator) -> list[str]:
    """Windows of lines that are drawn."""
    return [line for w in windows for line in _lines(w, rng.choice(NORMAL, size=LINES))]


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may calibrate."""
    return Path(shutil.copytree(made, tmp_path / "model"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    normal = _mixed(range(60), np.random.default_rng(0))
    return Path(calibrated_model(tmp_path_factory.mktemp("model"), normal, options=OPTIONS))


def _config(model: Path, log: Path, **changed: object) -> WatchConfig:
    asked = {"options": OPTIONS, "level": "session", "mode": "exact", "fpr": 0.05, "quiet": "1s", **changed}
    return following(str(model), log.parent, paths=(str(log),), out=log.with_suffix(".jsonl"), **asked)


def _resolved(number: int) -> bool:
    return [one.state for one in list_incidents()[0]].count("resolved") >= number


def _one_shot(config: WatchConfig, rows: Iterable[int]) -> Normal:
    """The oracle: statistics of some rows of the whole file, scored at once without a stream."""
    again = in_one_go(config, out=None)
    plan = choose(again, open_model(again))
    records = list(plan.session.domain.read(again.sources, Problems(), format="iso", scoring=True, **OPTIONS))
    judged = list(plan.detector().judged(records, Problems()))
    chosen = [judged[number - 1].row for number in rows]
    statistics, lengths = table(chosen, plan.level.judges)
    asked, counted = (
        {name: one for name, one in statistics.items() if (name in plan.level.counted) is own}
        for own in (False, True)
    )
    made = Normal.fit(asked, lengths, seed=0, fusion=plan.level.fusion)
    return replace(made, counted=Normal.fit(counted, lengths, seed=0, fusion=plan.level.fusion))


def _same(one: Normal, other: Normal) -> None:
    (state, arrays), (expected, wanted) = one.to_state(), other.to_state()
    assert arrays.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(arrays[name], values, rtol=0, atol=1e-5, err_msg=name)
    assert {k: v for k, v in state.items() if k in ("rows", "fusion", "used")} == {
        k: v for k, v in expected.items() if k in ("rows", "fusion", "used")
    }


def test_it_is_that_of_the_same_rows_scores_and_keeps_the_rate(
    model: Path, tmp_path: Path, workspace: Path
) -> None:
    """A stream with a fault and a false alarm; what is acknowledged decides what is used, and nothing else.

    Of the next rows at .05 as many alarm as a beta-binomial distribution of the ranked rows says (99.8 %).
    """
    rng = np.random.default_rng(1)
    log, said = workspace / "a.log", (CalibrateConfig(model=str(model)), workspace / "a.jsonl")
    lines = [*_mixed(range(100), rng), *_lines(100, _FAULT), *_mixed(range(101, 200), rng)]
    lines += [*_lines(1100, _BACKUP), *_mixed(range(1101, 1400), rng)]
    log.write_text("\n".join(lines) + "\n")
    config = _config(model, log)
    follow(config, lambda: len(rows_of(config)) >= 500 and _resolved(2))
    before = stored_calibrations(model)
    by = {one.id: one.what for one in list_incidents()[0]}
    fault = next(number for number, what in by.items() if "disk" in what)
    backup = next(number for number, what in by.items() if "backup" in what)

    result = calibrate_stream(*said)
    assert (result.rows, result.faults, result.false_alarms, result.unjudged) == (500, 0, 0, len(by))
    level = open_model(config).domain.level("session")
    stored = _stored(config)
    _same(stored, _one_shot(config, range(1, 501)))

    mark_incident(fault, acknowledged=True)
    mark_incident(backup, normal=True)
    with Streams(Workspace.locate()) as registry:
        stream = registry.stream(str(config.out))
        left_out = registry.faults(stream.id)
    assert 101 in left_out
    assert 201 not in left_out
    result = calibrate_stream(*said)
    assert (result.rows, result.faults) == (500 - len(left_out), len(left_out))
    assert (result.false_alarms, result.unjudged) == (1, len(by) - 2)
    stored = _stored(config)
    _same(stored, _one_shot(config, [n for n in range(1, 501) if n not in left_out]))
    assert stored.rows == result.rows
    assert level.name == result.level

    later = workspace / "later.log"
    later.write_text("\n".join(_mixed(range(2000, 2400), np.random.default_rng(2))) + "\n")
    then = _config(model, later)
    follow(then, 400)
    found = sum(row["p_value"] <= 0.05 for row in rows_of(then))
    place = int(0.05 * (stored.ranked + 1))  # so many of the ranks are at most .05
    low, high = betabinom(400, place, stored.ranked + 1 - place).ppf([0.001, 0.999])
    assert low <= found <= high
    assert before.keys() == stored_calibrations(model).keys()


def test_a_rolling_calibration_rests_on_false_alarms_and_not_on_faults(model: Path, workspace: Path) -> None:
    """Marked while the stream goes on: its next move takes exactly the newest 200 rows without a fault."""
    rng = np.random.default_rng(6)
    log = workspace / "r.log"
    lines = [*_mixed(range(99), rng), *_lines(400, _FAULT), *_mixed(range(800, 809), rng)]
    lines += [*_lines(1200, _BACKUP), *_mixed(range(1600, 1610), rng)]
    log.write_text("\n".join(lines) + "\n")
    config = _config(model, log, calibration="rolling", fpr=0.02)
    follow(
        config,
        lambda: (
            len(rows_of(config)) >= 120 and sum("never seen" in one.what for one in list_incidents()[0]) == 2
        ),
    )
    for one in list_incidents()[0]:
        if "disk" in one.what:
            mark_incident(one.id, acknowledged=True)
        elif "backup" in one.what:
            mark_incident(one.id, normal=True)
    with log.open("a") as file:
        file.write("\n".join(_mixed(range(2000, 2185), rng)) + "\n")
    follow(config, 305)
    with Streams(Workspace.locate()) as registry:
        stream = registry.stream(str(config.out))
        kept = registry.rolling(stream.id)
        faults = sorted(registry.faults(stream.id))
    assert kept is not None
    assert (100 in faults, 110 in faults) == (True, False)
    assert kept.state["moved"] == 300
    window = [n for first, last in kept.state["window"] for n in range(first, last + 1)]
    assert window == [n for n in range(1, 251) if n not in faults][-200:]


def _stored(config: WatchConfig) -> Normal:
    session = open_model(config)
    found = stored_calibration(session.model, session.domain.level("session"), "exact")
    return found.fitted


def test_what_cannot_be_used_is_refused(model: Path, tmp_path: Path, workspace: Path) -> None:
    """Few rows, another model, another file: one sentence, and the calibration stays."""
    own, other = tmp_path / "own", tmp_path / "other"
    shutil.copytree(model, own)
    shutil.copytree(model, other)
    log = workspace / "b.log"
    log.write_text("\n".join(_mixed(range(150), np.random.default_rng(3))) + "\n")
    config = _config(own, log)
    follow(config, 150)
    before = (own / "calibration.safetensors").read_bytes()
    asked, stream = CalibrateConfig(model=str(own)), workspace / "b.jsonl"
    with pytest.raises(StateError, match="statistics of 150 rows that count as normal are kept, and a cal"):
        calibrate_stream(asked, stream)
    with log.open("a") as file:
        file.write("\n".join(_mixed(range(150, 260), np.random.default_rng(4))) + "\n")
    follow(config, 260)
    time.sleep(1.1)
    with pytest.raises(StateError, match="statistics of 0 rows that count as normal are kept since 1s ago"):
        calibrate_stream(asked, stream, "1s")
    with pytest.raises(StateError, match="follows files and writes"):
        calibrate_stream(asked, workspace / "c.jsonl")
    with pytest.raises(UsageError, match="--fpr"):
        calibrate_stream(replace(asked, fpr=2.0), stream)
    assert (own / "calibration.safetensors").read_bytes() == before
    assert calibrate_stream(asked, stream, "1h").rows == 260
    assert calibrate_stream(replace(asked, model=str(other)), stream).rows == 260  # the same model, elsewhere
    known = stored_background(open_model(config).model, open_model(config).domain.level("session"))
    assert known is not None
    store_backgrounds(other, {"another": known})
    with pytest.raises(StateError, match=r"different: background.safetensors.*are not mixed"):
        calibrate_stream(replace(asked, model=str(other)), stream)


def test_what_a_person_is_told(
    model: Path, tmp_path: Path, workspace: Path, seqmlm: Callable[..., Any]
) -> None:
    own = tmp_path / "own"
    shutil.copytree(model, own)
    log = workspace / "d.log"
    lines = [*_mixed(range(220), np.random.default_rng(5)), *_lines(230, _FAULT)]
    log.write_text("\n".join(lines) + "\n")
    follow(_config(own, log), 221)
    out = workspace / "d.jsonl"
    for words in (["x.log"], ["--level", "line"], ["--mode", "exact"], ["--records", 5]):
        seqmlm("calibrate", own, *words, "--from-stream", out).refused(2, "cannot be given with it")
    seqmlm("calibrate", own, "x.log", "--since", "7d").refused(2, "--since goes with --from-stream")
    done = seqmlm("calibrate", own, "--from-stream", out)
    assert (done.code, done.out.splitlines()[2].split("\t")[:3]) == (0, ["session", "exact", "221"])
    assert "that nobody has judged: acknowledge what was a fault" in done.err
    assert "a fault among them that nobody noticed is normal from now on, and hides later ones" in done.err
    assert "planted faults" not in done.err  # which another calibration found
    found = seqmlm("calibrate", own, "--from-stream", out, "--json").json
    assert (found["rows"], found["faults"], found["records"], found["level"]) == (221, 0, None, "session")

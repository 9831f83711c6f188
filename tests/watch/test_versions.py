"""A stream goes on at each start with the version of the model that its command names then."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_models import NORMAL, write_log_model
from scored_streams import (
    OPTIONS,
    Said,
    calibrated_model,
    follow,
    following,
    line,
    register,
    rows_of,
    sensitive_copy,
    windows,
    write,
)

from seqmlm.errors import StateError
from seqmlm.scoring.calibrate import CalibrateConfig, calibrate_files
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.follower import Follower
from seqmlm.watch.incidents import list_incidents, mark_incident
from seqmlm.watch.scoring import watch_files
from seqmlm.watch.store import Streams
from seqmlm.watch.timeline import timeline
from seqmlm.workspace import Workspace


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> str:
    return calibrated_model(tmp_path_factory.mktemp("first"), windows(range(60)))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A version with other numbers of tokens."""
    return calibrated_model(tmp_path_factory.mktemp("second"), windows(range(60)), NORMAL[::-1])


@pytest.fixture
def config(first: str, workspace: Path, tmp_path: Path) -> WatchConfig:
    """A watch of the newest version of "app"."""
    (workspace / "logs").mkdir()
    shutil.copytree(first, tmp_path / "app1")
    register(tmp_path / "app1", "live")
    return following("app", workspace / "logs", mode="exact", fpr=0.05, quiet="0.5s")


def _log(config: WatchConfig) -> Path:
    return Path(config.paths[0]).with_name("a.log")


def _states(config: WatchConfig) -> Callable[[], bool]:
    return lambda: config.out.exists() and [one.state for one in list_incidents()[0]] == ["resolved"]


def _recalibrate(folder: Path, lines: list[str]) -> None:
    normal = folder.with_name("normal.log")
    write(normal, lines)
    given: dict[str, Any] = {"level": "session", "mode": "exact", "options": OPTIONS, "format": "iso"}
    calibrate_files(CalibrateConfig(model=str(folder), paths=(str(normal),), **given), lambda text: None)


class Clock:
    """Each turn of the follower takes a second, unless it stands: then half a window waits for the rest."""

    def __init__(self) -> None:
        self.time, self.stands = 0.0, False

    def __call__(self) -> float:
        self.time += 0.0 if self.stands else 1.0
        return self.time


def test_a_newer_version_goes_on_in_the_middle_of_a_window(
    config: WatchConfig, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, followers, log = Clock(), list[Follower](), _log(config)

    def follower(*given: Any, **options: Any) -> Follower:
        followers.append(Follower(*given, clock=clock, **options))
        return followers[-1]

    monkeypatch.setattr("seqmlm.watch.scoring.Follower", follower)
    lines = [line(number) for number in range(16)]
    write(log, lines[:8])

    def halfway() -> bool:
        if len(rows_of(config)) == 2 and not clock.stands:
            clock.stands = True
            write(log, lines[8:10])
        return clock.stands and followers[0].bytes == log.stat().st_size

    follow(config, halfway)
    assert _held(config) == 2
    clock.stands = False
    register(second)
    write(log, lines[10:])
    said = Said()
    summary = follow(config, 4, said)
    rows = rows_of(config)
    assert [row["line"] for row in rows] == [1, 5, 9, 13], "nothing is lost or doubled"
    assert [row["model"] for row in rows] == ["app:1", "app:1", "app:2", "app:2"]
    assert all(row["calibrated"] for row in rows)
    assert said.has("app:") == [
        f"continuing {config.out} after 2 rows; app:2 scores the rows from here on, app:1 scored "
        "the earlier rows"
    ]
    assert (summary.items, summary.figures["rows"]) == (4, 4)
    assert {timeline(model).streams[0].rows for model in ("app", "app:1", "app:2", "app@live")} == {4}
    write(_log(config), [line(number) for number in range(16, 20)])
    said = Said()
    follow(config, 5, said)
    assert said.has("continuing") == [f"continuing {config.out} after 4 rows"], "it is said once"


def _held(config: WatchConfig) -> int:
    """Lines that wait for others of their window."""
    with Streams(Workspace.locate()) as registry:
        (state,) = registry.stream(str(config.out)).files
        return state["line"] - state["taken"] + sum(map(len, state["held"].values()))  # type: ignore[no-any-return]


def test_a_model_that_was_calibrated_anew_goes_on(config: WatchConfig, tmp_path: Path) -> None:
    write(_log(config), windows(range(4)))
    follow(config, 4)
    _recalibrate(tmp_path / "app1", windows([0] * 60))
    write(_log(config), windows(range(4, 8)))
    said = Said()
    follow(config, 8, said)
    assert [row["line"] for row in rows_of(config)] == list(range(1, 32, 4))
    assert {row["model"] for row in rows_of(config)} == {"app:1"}
    assert said.has("app:1") == [
        f"continuing {config.out} after 4 rows; app:1 has changed, and scores later rows in its new state"
    ]
    alone = replace(config, out=tmp_path / "alone.jsonl")
    follow(alone, 8)
    rows, others = rows_of(config), rows_of(alone)
    assert [row["p_value"] for row in rows[4:]] == [row["p_value"] for row in others[4:]]
    assert [row["p_value"] for row in rows[:4]] != [row["p_value"] for row in others[:4]]


def test_a_model_of_another_name_goes_on(config: WatchConfig, second: str) -> None:
    write(_log(config), windows(range(2)))
    follow(config, 2)
    write(_log(config), windows(range(2, 4)))
    said = Said()
    follow(replace(config, model=second), 4, said)
    assert said.has(f"{second} scores the rows from here on, app:1 scored the earlier rows")
    assert [row["line"] for row in rows_of(config)] == [1, 5, 9, 13]
    assert [row["model"] for row in rows_of(config)] == ["app:1"] * 2 + [second] * 2


def test_a_version_that_cannot_judge_is_refused_and_nothing_is_lost(
    config: WatchConfig, first: str, tmp_path: Path
) -> None:
    write(_log(config), windows(range(2)))
    follow(config, 2)
    uncalibrated = tmp_path / "uncalibrated"
    uncalibrated.mkdir()
    write_log_model(uncalibrated)
    register(uncalibrated)
    write(_log(config), windows(range(2, 4)))
    with pytest.raises(StateError, match="needs a calibration"):
        watch_files(config)
    register(sensitive_copy(first, tmp_path / "sensitive"))
    with pytest.raises(StateError, match="one is for sensitive data, the other is not"):
        watch_files(config)
    follow(replace(config, model="app:1"), 4)
    assert [row["line"] for row in rows_of(config)] == [1, 5, 9, 13]
    assert {row["model"] for row in rows_of(config)} == {"app:1"}


def test_a_false_alarm_stays_silent_under_a_newer_version(config: WatchConfig, second: str) -> None:
    def strange(number: int) -> list[str]:
        return [line(0, f"disk {number} on fire"), *map(line, (1, 2, 3))]

    write(_log(config), strange(7))
    follow(config, _states(config))
    mark_incident(1, normal=True)
    register(second)
    write(_log(config), strange(8))
    follow(config, 2)
    first_row, second_row = rows_of(config)
    assert (first_row["model"], second_row["model"]) == ("app:1", "app:2")
    assert second_row["alarm"]
    assert second_row["muted"] == "incident 1"
    assert len(list_incidents()[0]) == 1
    assert "1 of 1 incident with a verdict (100%) was a false alarm." in timeline().verdict()


def test_rows_on_standard_output_go_on_too(config: WatchConfig, second: str) -> None:
    config, outputs = replace(config, out=None), [io.StringIO(), io.StringIO()]
    for number, out in enumerate(outputs):
        write(_log(config), windows([number]))
        follow(config, lambda out=out: out.getvalue().count("\n") == 1, stdout=out)  # type: ignore[misc]
        if not number:
            register(second)
    assert ['"app:1"' in outputs[0].getvalue(), '"app:2"' in outputs[1].getvalue()] == [True, True]

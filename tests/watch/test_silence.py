"""A log that stops raises an alarm while nothing is written, and one incident."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from inspect import signature
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from log_models import NORMAL
from scored_streams import calibrated_model, follow, following, rows_of, write

from seqmlm.scoring.live import LiveModel
from seqmlm.watch import scoring
from seqmlm.watch.incidents import list_incidents
from seqmlm.watch.silence import FEWEST, Silence


def lines(count: int) -> list[str]:
    """One every ten seconds, at times two minutes apart."""
    seconds = [10 * n + 110 * (n // 50) for n in range(count)]
    return [
        f"2024-03-05 {s // 3600:02}:{s // 60 % 60:02}:{s % 60:02} INFO {NORMAL[n % 4]}"
        for n, s in enumerate(seconds)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return calibrated_model(tmp_path_factory.mktemp("model"), lines(1600))


def test_a_log_that_stops_is_an_incident(
    model: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that runs a thousand times as fast, for the whole of the silence."""
    began = time.time()
    monkeypatch.setattr(
        scoring, "Silence", partial(Silence, clock=lambda: began + 1000 * (time.time() - began))
    )
    logs = workspace / "logs"
    logs.mkdir()
    write(logs / "app.log", lines(40))
    config = following(model, logs, fpr=0.05, mode="exact", level="session")

    def silences() -> list[dict[str, Any]]:
        return [row for row in rows_of(config) if "silence" in row]

    follow(config, lambda: len(silences()) >= 2)
    first, second = silences()[:2]
    assert len(rows_of(config)) - len(silences()) == 10, "of the lines"
    assert (first["id"], first["line"], first["alarm"], first["units"]) == ("app.log:40", 40, True, 0)
    assert FEWEST <= first["silence"] < second["silence"]
    assert first["p_value"] <= 0.05
    assert first["reason"].startswith("The log has stopped: no line for ")
    assert "normally at most 2" in first["reason"]
    [incident] = list_incidents()[0]
    assert incident.title == "the log has stopped, app.log:40"
    assert incident.rows == len(silences())


def test_what_is_usual_or_not_known_is_no_alarm(model: str, workspace: Path) -> None:
    config = following(model, workspace, fpr=0.05, mode="exact", level="session")
    model_of = partial(LiveModel, say=print)
    ask = partial(model_of(config).pause_row, "a.log", 7, last=1e9)
    assert ask(seconds=100.0) is None, "every fiftieth line is so late"
    row = ask(seconds=3600.0)
    assert row is not None
    assert row["time"] == "2001-09-09T01:46:40+00:00"
    quiet = model_of(following(model, workspace, mode="exact", level="session"))
    assert quiet.pause_row("a.log", 7, seconds=3600.0, last=1e9) is None
    assert quiet.plan.session.domain.level("line").reasons.pause_statistics(60.0) == {}


def test_the_clock_begins_with_the_last_line(model: str, workspace: Path) -> None:
    judge = LiveModel(following(model, workspace, fpr=0.05, mode="exact", level="session"), print).pause_row
    taken, now = list[dict[str, Any]](), [0.0]
    follower: Any = SimpleNamespace(lines=5, place=("a.log", 5))
    silence = Silence(follower, judge, taken.append, 600.0, clock=lambda: now[0])
    for second in range(0, 3000, 10):
        now[0] = float(second)
        follower.lines += second < 1000  # a line every ten seconds, and then none
        silence.look()
    assert [row["silence"] > 110 for row in taken] == [True] * len(taken)
    assert 4 <= len(taken) <= 7, "again every five minutes"
    apart = [b["silence"] - a["silence"] for a, b in pairwise(taken)]
    assert all(300 <= one <= 320 for one in apart)
    follower.place = None
    silence.look()
    assert len(taken) <= 7, "no file is followed"


def test_a_machine_that_sleeps_or_a_clock_that_is_set_is_no_silence(
    model: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both move the time of day, and not the clock that silence is measured by."""
    judge = LiveModel(following(model, workspace, fpr=0.05, mode="exact", level="session"), print).pause_row
    taken, moved = list[dict[str, Any]](), [0.0]
    given, now = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: given() + moved[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    follower: Any = SimpleNamespace(lines=5, place=("a.log", 5))
    silence = Silence(follower, judge, taken.append, 600.0, clock=lambda: now[0])
    assert signature(Silence).parameters["clock"].default.__name__ == "monotonic"
    silence.look()
    for step in (8 * 3600.0, -3600.0, 86_400.0):
        moved[0] += step
        now[0] += 10.0
        silence.look()
    assert taken == []
    now[0] += 3600.0
    moved[0] += 3600.0
    silence.look()
    [row] = taken
    assert row["silence"] == pytest.approx(3630.0)
    first, last = (datetime.fromisoformat(row[name]).timestamp() for name in ("time", "last_time"))
    assert first == pytest.approx(given(), abs=60), "when the last line came"
    assert last == pytest.approx(given() + moved[0], abs=60)

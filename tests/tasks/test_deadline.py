"""One deadline: how it divides the time, where phases stop, and that a resumed run repeats what was cut."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from time_limits import FakeTime, endless, fake_time, finished

from seqmlm.engine import loop
from seqmlm.errors import StateError
from seqmlm.inference.calibrations import CALIBRATION
from seqmlm.inference.model_folder import COUNTS
from seqmlm.tasks import deadline
from seqmlm.tasks.deadline import AFTERWARDS, CUTS, Cuts, Deadline, Start, TimeAfterTraining
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain

__all__ = ["fake_time"]


def limited(limit: float) -> Deadline:
    made = Deadline()
    made.limit = limit
    return made


def after_of(folder: Path, limit: float = 100.0, **changes: Any) -> TimeAfterTraining:
    """The time after a training that took half of its limit."""
    made = limited(limit)
    made.carry(limit / 2)
    start = Start(limit=limit, elapsed=limit / 10, steps=limit / 2, slowness=1.0)
    cuts = Cuts(folder / CUTS, {"limit": limit})
    return TimeAfterTraining(outcome=finished(**changes), deadline=made, start=start, cuts=cuts)


# Division of the time


@pytest.mark.parametrize(
    ("elapsed", "processor", "steps"),
    [
        # On a quiet machine four fifths of what the start and the end leave are for steps.
        (10.0, 1.0, (1 - AFTERWARDS) * (200 - 10 - 1.5)),
        # On a busy one what must follow takes longer: at half the speed twice as long.
        (20.0, 0.5, (1 - AFTERWARDS) * (200 - 20 - 3)),
        # A start as long as the limit leaves a tenth of the limit all the same.
        (190.0, 0.5, 0.1 * 200),
    ],
)
def test_steps_get_what_start_and_end_leave(
    elapsed: float, processor: float, steps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeTime(tick=0.0, processor=processor)
    monkeypatch.setattr(deadline, "time", clock)
    made = limited(200.0)
    clock.now += elapsed
    start = made.start()
    assert start.elapsed == elapsed
    assert start.steps == pytest.approx(steps)
    assert start.spent == pytest.approx(200 - steps)


def test_a_busy_machine_keeps_time_for_the_least_of_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    for processor in (1.0, 0.25):
        clock = FakeTime(tick=0.0, processor=processor)
        monkeypatch.setattr(deadline, "time", clock)
        made = limited(60.0)
        clock.now += 20.0
        start = made.start()
        kept.append(60 - start.elapsed - start.steps)
    assert kept[1] > 2 * kept[0]


@pytest.mark.parametrize(("reading", "longer"), [(20.0, 0.0), (50.0, 0.0), (80.0, 30.0)])
def test_reading_may_take_half_of_the_limit(reading: float, longer: float, monkeypatch: pytest.MonkeyPatch):
    clock = FakeTime(tick=0.0)
    monkeypatch.setattr(deadline, "time", clock)
    made = limited(100.0)
    clock.now += reading
    text = made.extend(reading)
    assert made.seconds_left() == pytest.approx(100.0 - reading + longer)
    assert made.wall() == pytest.approx(reading)
    assert ("reading took 80 s" in text) == bool(longer)


def test_without_a_limit_nothing_ends(tmp_path: Path) -> None:
    made = Deadline()
    assert made.seconds_left() == math.inf
    assert made.extend(1e9) == ""
    phase = endless()
    assert not any(phase.ends_after(n / 100) for n in range(100))
    assert phase.settle("all", speed=2.0) == {"speed": 2.0}
    whole = TimeAfterTraining(outcome=finished(tokens=10**9), deadline=Deadline())
    assert whole.affordable("work", lambda number: 1 / 0, count=9, probe=1, share=1.0) == 9
    assert whole.budget("work", 1.0) is None
    assert whole.calibration == int(AFTERWARDS * 3 * 10**9)


# Phases


def test_a_phase_stops_where_its_next_unit_would_end_late(fake_time: FakeTime, tmp_path: Path) -> None:
    """Each unit takes a second; a tenth of the 48 s that are left is 4.8 s."""
    after = after_of(tmp_path)
    phase = after.phase("work", 0.1)
    units = next(n for n in range(1, 99) if phase.ends_after(n / 100))
    assert 1 < units <= 5
    phase.settle("the work")
    assert after.reports == [f"{units}% of the work"]


def test_a_phase_does_the_least_however_late_it_is(fake_time: FakeTime, tmp_path: Path) -> None:
    after = after_of(tmp_path)
    fake_time.now += 1000.0
    phase = after.phase("work", 0.5, min_units=3)
    assert [phase.ends_after(n / 9) for n in (1, 2, 3)] == [False, False, True]


def test_what_is_complete_is_not_reported(fake_time: FakeTime, tmp_path: Path) -> None:
    after = after_of(tmp_path)
    fake_time.now += 1000.0
    phase = after.phase("work")
    phase.ends_after(1.0)
    phase.settle("the work")
    assert after.reports == []


def test_a_cut_is_repeated_by_the_next_process_whatever_the_clock_says(
    fake_time: FakeTime, tmp_path: Path
) -> None:
    first = after_of(tmp_path)
    phase = first.phase("work", 0.1)
    units = next(n for n in range(1, 99) if phase.ends_after(n / 100))
    recorded = phase.settle("the work", speed=7.0)
    amount = first.amount("more", lambda: 41.9)
    fake_time.tick = 100.0
    again = after_of(tmp_path)
    phase = again.phase("work", 0.1)
    assert next(n for n in range(1, 99) if phase.ends_after(n / 100)) == units
    assert phase.settle("the work", speed=8.0) == recorded
    assert again.amount("more", lambda: 1 / 0) == amount == 41
    assert again.reports == first.reports


def test_other_limits_and_steps_decide_anew(fake_time: FakeTime, tmp_path: Path) -> None:
    after_of(tmp_path).amount("work", lambda: 1)
    assert after_of(tmp_path, steps=2).amount("work", lambda: 2) == 2
    assert after_of(tmp_path, limit=200.0).amount("work", lambda: 3) == 3


def test_as_much_is_done_as_a_small_part_says_is_affordable(fake_time: FakeTime, tmp_path: Path) -> None:
    """Ten items take a second; a fifth of some 48 s, less a margin, suffices for about 77."""
    after, probed = after_of(tmp_path), list[int]()
    number = after.affordable("work", probed.append, count=1000, probe=10, share=0.2)
    assert probed == [10]
    assert 60 < number < 90
    assert after.reports == [f"{number / 1000:.0%} of work"]


def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / CUTS).write_text("{")
    with pytest.raises(StateError, match="remove the file"):
        Cuts(tmp_path / CUTS, {})


# A training


class Killed(BaseException):
    """Ends a process at once."""


class DyingCuts(Cuts):
    """Ends the process after it has written one cut."""

    def write(self, name: str, **values: Any) -> None:
        super().write(name, **values)
        raise Killed


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """A training of four steps, whose clock moves by two seconds at each look."""
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path))
    monkeypatch.setattr(deadline, "time", FakeTime(tick=2.0))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: 0.0)
    random, letters = np.random.default_rng(0), list("ACDEFGHIKLMNPQRSTVWY")
    file = tmp_path / "p.fasta"
    file.write_text(
        "".join(f">p{n}\n{''.join(random.choice(letters, size=40))}\n" for n in range(600)), encoding="utf-8"
    )
    shape = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    return {
        "data": {"paths": [str(file)], "validation": 0.2, "calibration": 0.2},
        "model": {"size": "tiny", "max_length": 64, "overrides": shape},
        "train": {"max_steps": 4, "max_time": "200s", "tokens_per_row": 128, "tokens_per_batch": 256},
    }


def folder_of(workspace: Path, name: str) -> dict[str, Any]:
    """What a training has made that does not say when."""
    folder = workspace / "runs" / name / "model"
    card = json.loads((folder / "seqmlm.json").read_text())
    files = {file: (folder / file).read_bytes() for file in ("model.safetensors", COUNTS)}
    tables = {key: array.tobytes() for key, array in load_file(folder / CALIBRATION).items()}
    return {**files, **tables, "metrics": card["metrics"]}


def test_a_training_that_is_killed_after_each_decision_comes_to_the_same_bytes(
    flags: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain(TrainRequest(domain="protein", name="whole", flags=flags), SilentConsole())
    saved = json.loads((tmp_path / "runs/whole" / CUTS).read_text())
    assert any(cut.get("cut") for cut in saved["cuts"].values()), "the clock has cut something"
    kills = 0
    with monkeypatch.context() as patch:
        patch.setattr("seqmlm.training.job.Cuts", DyingCuts)
        while True:
            request = TrainRequest(domain="protein", name="killed", resume="auto", flags=flags)
            try:
                pretrain(request, SilentConsole())
            except Killed:
                kills += 1
            else:
                break
    assert kills == len(saved["cuts"])
    assert json.loads((tmp_path / "runs/killed" / CUTS).read_text()) == saved
    assert folder_of(tmp_path, "killed") == folder_of(tmp_path, "whole")


def test_a_training_says_what_was_cut_and_how_to_complete_it(
    flags: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = list[str]()

    class Noted(SilentConsole):
        def message(self, text: str) -> None:
            messages.append(text)

    result = pretrain(TrainRequest(domain="protein", name="m", flags=flags), Noted())
    [cut] = [text for text in messages if text.startswith("--max-time 200s cut the work short")]
    assert "seqmlm calibrate m NORMAL" in cut
    assert "seqmlm train --resume m" in cut
    assert result.wall_seconds <= 1.15 * 200


class MessagesOnly:
    """A console of a user that has one member of the protocol."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def test_a_training_works_with_a_console_that_lacks_members(flags: Mapping[str, Any]) -> None:
    short = {**flags, "train": {**flags["train"], "max_time": None, "max_steps": 2}}
    console = MessagesOnly()
    request = TrainRequest(domain="protein", name="m", flags=short)
    assert pretrain(request, console).steps == 2  # type: ignore[arg-type]
    assert console.messages
    assert pretrain(replace(request, name="n"), object()).steps == 2  # type: ignore[arg-type]

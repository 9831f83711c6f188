"""Both spellings of resume, in both commands that train: a stopped run ends in the weights of another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fork_server import Finished, Run
from text_models import text_model
from tiny_models import FAST
from written import jsonl

from seqmlm.training.observers import Recorder
from seqmlm.training.resume import COMMANDS, REQUESTS

WORDS = ["the", "cat", "sees", "a", "dog", "and", "so", "no", "dogs", "bark", "loudly", "here"]
TASKS = {command: task for task, command in COMMANDS.items()}


class Training:
    """A command with all that it needs for a short training, in a workspace."""

    def __init__(self, command: str, seqmlm: Run, workspace: Path, stop_at: Callable[[int], Any]) -> None:
        self.command, self.seqmlm, self.workspace, self.stop_at = command, seqmlm, workspace, stop_at
        texts = [" ".join(WORDS[(7 * n + 3 * k * k) % 12] for k in range(4 + n % 5)) for n in range(60)]
        rows = [{"text": text, "y": "yes" if "cat" in text else "no"} for text in texts]
        file = jsonl(workspace / "t.jsonl", rows)
        if command == "train":
            limits = ("--max-steps", 4, "--set", "data.calibration=0")
            self.words: tuple[object, ...] = ("-d", "text", "--data", file, *FAST, *limits)
        else:
            model = text_model(workspace / "m")
            steps = ("--set", "epochs=2", "--set", "tokens_per_step=200", "--rivals", "off")
            self.words = (model, "--train", file, "--label", "y", *steps)

    def __call__(self, *words: object) -> Finished:
        """The command with these words."""
        return self.seqmlm(self.command, *words)

    def stopped(self, name: str) -> str:
        """What a run says that is stopped in its second step or behind it."""
        with self.stop_at(2):
            run = self(*self.words, "--name", name)
        assert run.code == 143, run.err
        return " ".join(run.err.split())

    def weights(self, name: str) -> bytes:
        """The weights of the model that a run ended in."""
        return (self.workspace / "runs" / name / "model/model.safetensors").read_bytes()


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """A context in which a training is stopped after a step."""
    on_step = Recorder.on_step

    def context(step: int) -> Any:
        def stopping(recorder: Recorder, report: Any) -> None:
            on_step(recorder, report)
            if report.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        patched = monkeypatch.context()
        return _Patched(patched, stopping)

    return context


class _Patched:
    """A context of monkeypatch in which steps are reported to another function."""

    def __init__(self, context: Any, on_step: Callable[[Recorder, Any], None]) -> None:
        self._context, self._on_step = context, on_step

    def __enter__(self) -> None:
        self._context.__enter__().setattr(Recorder, "on_step", self._on_step)

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


@pytest.fixture(params=sorted(TASKS))
def training(
    request: pytest.FixtureRequest, seqmlm: Run, workspace: Path, stop_at: Callable[[int], Any]
) -> Training:
    return Training(request.param, seqmlm, workspace, stop_at)


def test_a_stopped_run_goes_on_by_either_spelling(training: Training) -> None:
    training(*training.words, "--name", "whole").ok()
    for name, words in {
        "alone": ("--resume", "alone"),
        "named": ("--name", "named", "--resume"),
        "again": ("--resume", *training.words, "--name", "again"),
    }.items():
        message = training.stopped(name)
        assert f" and saved; to continue: seqmlm {training.command} --resume {name}" in message
        training(*training.words, "--name", name).refused(4, f"{training.command} --resume {name}")
        training(*words).ok()
        assert training.weights(name) == training.weights("whole")


def test_a_run_that_cannot_be_resumed_is_named(training: Training) -> None:
    [other] = TASKS.keys() - {training.command}
    folder = training.workspace / "runs/theirs"
    folder.mkdir(parents=True)
    (folder / REQUESTS[TASKS[other]]).write_text("domain: text\n")
    training("--resume", "theirs").refused(4, f"continue it with seqmlm {other} --resume theirs")
    training("--resume", "nobody").refused(4, "there is no run 'nobody' to resume")
    training("--resume=nobody", "--name", "theirs").refused(2, "two different runs")
    training(*training.words, "--name", "theirs").refused(4, "is a run of another kind, not a ")
    assert [path.name for path in folder.iterdir()] == [REQUESTS[TASKS[other]]]


def test_a_fine_tuning_that_was_begun_before_its_settings_were_complete(
    seqmlm: Run, workspace: Path, stop_at: Callable[[int], Any]
) -> None:
    """Earlier versions kept neither the time limit, nor the rivals and their table, in `finetune.yaml`."""
    training = Training("finetune", seqmlm, workspace, stop_at)
    training(*training.words, "--name", "whole").ok()
    training.stopped("old")
    file = workspace / "runs/old/finetune.yaml"
    settings = yaml.safe_load(file.read_text())
    for name in ("max_time", "rivals", "table"):
        del settings[name]
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    training("--resume", "old", "--set", "patience=9").refused(
        4, "other values of patience: give the original"
    )
    training("--resume", "old", "--rivals", "off").ok()
    assert training.weights("old") == training.weights("whole")
    file.write_text("[]\n")
    training("--resume", "old").refused(2, "finetune.yaml must contain keys and values")

"""Kills trainings, at random moments and at chosen file operations, and checks that nothing is lost.

    python campaign.py FOLDER --kills 20 --seed 0

A process that imports torch takes seconds to start; so one parent imports everything, computes nothing (no
thread pool may exist at a fork), and forks a child for every life of a training. The first life ends at a
file operation, the second at a random moment, the third is left to finish. After each:

* what is there under the name of a checkpoint is a valid checkpoint;
* the newest one is not older than the last one that was announced;
* every loss reported so far equals, with ==, that of a training nobody disturbed.

A polite part follows: SIGTERM or SIGINT to the whole process group, loader workers included, as a terminal
or a scheduler sends it, must end in a saved step.

Prints one JSON object: kills by kind, and a sentence for each thing that went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import tiny_training as tiny
import torch

from seqmlm.engine import checkpoint, durable
from seqmlm.engine.durable import Disk
from seqmlm.engine.loop import StepReport

STEPS, EVERY = 12, 4


class Journal(tiny.Memory):
    """Appends what it hears to a file, a system call a line: a kill cannot tear one."""

    def __init__(self, path: Path, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _note(self, **values: Any) -> None:
        os.write(self._file, json.dumps(values).encode() + b"\n")

    def on_step(self, report: StepReport) -> None:
        self._note(step=report.step, loss=report.loss)
        time.sleep(self.pause)

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._note(saved=step)

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "stopping":
            self._note(stopping=detail["signal"])


class Deadly(Disk):
    """Counts file operations, and kills this process at the n-th; a write is then half done."""

    def __init__(self, fatal: int | None, log: Path | None = None) -> None:
        self.count, self.fatal, self.log = 0, fatal, log

    def _next(self, kind: str, path: str | Path) -> bool:
        self.count += 1
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{kind} {Path(path).name}\n")
        return self.count == self.fatal

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        if self._next("write", handle.name):
            handle.write(memoryview(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(handle, data)

    def sync(self, path: Path) -> None:
        if self._next("sync", path):
            os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, source: Path, target: Path) -> None:
        if self._next("rename", target):
            os.kill(os.getpid(), signal.SIGKILL)
        super().rename(source, target)

    def remove(self, folder: Path) -> None:
        if self._next("remove", folder):
            next(folder.iterdir()).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().remove(folder)


@dataclass
class Life:
    """One process's share of a training, and how it is to end.

    Args:
        operation: the number of the file operation to die at.
        delay: seconds until it is killed.
        polite: a signal for its process group, sent when two steps are done.
        torn: it saves as one should not.
    """

    folder: Path
    workers: int = 0
    operation: int | None = None
    delay: float | None = None
    polite: int | None = None
    log: Path | None = None
    torn: bool = False

    def run(self) -> bool:
        """Fork, train, kill; returns whether the child was killed."""
        child = os.fork()
        if child == 0:
            self._train()
        if self.delay is not None:
            time.sleep(self.delay)
            os.kill(child, signal.SIGKILL)
        if self.polite is not None:
            while len(journal(self.folder)) < 2:
                time.sleep(0.01)
            os.killpg(child, self.polite)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return True
        if os.WEXITSTATUS(status):
            raise RuntimeError(f"the training in {self.folder} failed; see above")
        return False

    def _train(self) -> None:
        status = 1
        try:
            os.setpgid(0, 0)
            durable.DISK = Deadly(self.operation, self.log)
            if self.torn:
                checkpoint.save = save_in_place
            training, _ = tiny.make_loop(
                self.folder / "checkpoints",
                tiny.TinyRows(width=8, layers=1),
                observer=Journal(self.folder / "journal", pause=0.0 if self.polite is None else 0.1),
                loader_workers=self.workers,
                max_steps=STEPS,
                checkpoint_every_steps=EVERY,
                keep_last=1,
            )
            training.run(resume=True)
            status = 0
        finally:
            os._exit(status)


def save_in_place(root: Path, step: int, tensors: Any, state: Any, **_: Any) -> Path:
    """The planted mistake: no temporary folder, no rename."""
    path = checkpoint.folder(root, step)
    path.mkdir(parents=True, exist_ok=True)
    checkpoint._write_files(path, step, tensors, state)
    return path


def journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "journal"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass
class Campaign:
    root: Path
    random: random.Random
    torn: bool = False
    killed: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    trainings: int = 0

    def undisturbed(self) -> None:
        """The losses to be equal to, the file operations of a training, and how long it takes."""
        folder = self._folder()
        began = time.monotonic()
        Life(folder, log=folder / "operations").run()
        self.duration = time.monotonic() - began
        self.operations = (folder / "operations").read_text().splitlines()
        self.expected = {entry["step"]: entry["loss"] for entry in journal(folder) if "step" in entry}
        assert len(self.expected) == STEPS

    def _folder(self) -> Path:
        self.trainings += 1
        folder = self.root / f"training-{self.trainings:04d}"
        folder.mkdir(parents=True)
        return folder

    def targets(self) -> list[int]:
        """Numbers of operations to die at: all of the second checkpoint, its kinds taking turns, then any."""
        done = [number for number, operation in enumerate(self.operations) if operation == "sync checkpoints"]
        last = next(n for n in range(done[1], len(self.operations)) if self.operations[n].startswith("write"))
        second = list(range(done[0] + 2, last + 1))  # counted from 1
        self.random.shuffle(second)
        turn: Counter[str] = Counter()
        order = {}
        for number in second:
            turn[self.kind(number)] += 1
            order[number] = turn[self.kind(number)]
        rest = [number for number in range(1, len(self.operations) + 1) if number not in order]
        self.random.shuffle(rest)
        return [*sorted(second, key=lambda number: order[number]), *rest]

    def kind(self, number: int) -> str:
        return self.operations[number - 1].split()[0]

    def run(self, kills: int) -> None:
        """Kill that many times, in turns at an operation and at a random moment."""
        self.undisturbed()
        targets = self.targets()
        while self.killed.total() < kills:
            folder, workers = self._folder(), 2 * (self.trainings % 4 == 0)
            operation = targets.pop(0)
            targets.append(operation)
            sentence = Life(folder, workers=workers, torn=self.torn, operation=operation)
            self.kill(
                sentence, self.kind(operation), f"operation {operation}, {self.operations[operation - 1]}"
            )
            if self.killed.total() < kills:
                delay = self.random.uniform(0, self.duration)
                self.kill(
                    Life(folder, workers=workers, torn=self.torn, delay=delay), "moment", f"{delay:.3f} s"
                )
            self.finish(folder, workers)

    def ask_politely(self) -> None:
        """Signals to the whole group of a training with two loader workers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            folder = self._folder()
            if Life(folder, workers=2, polite=number).run():
                self.problems.append(f"{folder.name}: died of signal {number}")
            last = journal(folder)[-2:]
            if [*last[0]] != ["stopping"] or [*last[1]] != ["saved"]:
                self.problems.append(f"{folder.name}: ended with {last} after signal {number}")
            self.check(folder, f"signal {number}")
            self.finish(folder, workers=0)

    def finish(self, folder: Path, workers: int) -> None:
        """Let a training come to its end, and look whether all of it was reported."""
        Life(folder, workers=workers, torn=self.torn).run()
        self.check(folder, "left to finish")
        steps = {entry["step"] for entry in journal(folder) if "step" in entry}
        if steps != set(self.expected):
            self.problems.append(f"{folder.name}: steps {set(self.expected) - steps} were never reported")

    def kill(self, life: Life, kind: str, when: str) -> None:
        self.killed[kind] += life.run()
        self.check(life.folder, when)

    def check(self, folder: Path, when: str) -> None:
        when = f"{folder.name}, {when}"
        torn: list[checkpoint.SkippedCheckpoint] = []
        newest = checkpoint.newest_valid(folder / "checkpoints", torn)
        entries = journal(folder)
        for each in torn:
            self.problems.append(f"{when}: {each.path.name}: {each.reason}")
        saved = [entry["saved"] for entry in entries if "saved" in entry]
        if saved and (newest is None or checkpoint.step_of(newest) < max(saved)):
            self.problems.append(f"{when}: step {max(saved)} was saved, but the newest is {newest}")
        for entry in entries:
            if "step" in entry and entry["loss"] != self.expected[entry["step"]]:
                self.problems.append(f"{when}: step {entry['step']}: loss {entry['loss']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    campaign = Campaign(arguments.folder / "sound", random.Random(arguments.seed))
    campaign.run(arguments.kills)
    seconds = time.monotonic() - began
    campaign.ask_politely()
    planted = Campaign(arguments.folder / "planted", random.Random(arguments.seed), torn=True)
    planted.run(4)
    result = {
        "kills": dict(campaign.killed),
        "operations": len(campaign.operations),
        "problems": campaign.problems,
        "planted_problems": planted.problems,
        "seconds_per_kill": round(seconds / max(1, campaign.killed.total()), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

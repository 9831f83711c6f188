"""The size that a limit of time is for: the rule, and that measuring it changes nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fork_server import Run

from seqmlm import plugins
from seqmlm.engine.distributed import Processes
from seqmlm.training import sizing
from seqmlm.training.assemble import Training
from seqmlm.training.corpus import CorpusReader
from seqmlm.training.launch import TrainRequest, agreed_plan, plan
from seqmlm.training.sizing import PASSES, STEPS, TOKENS_PER_PARAMETER, Candidate, choose, sized_plan
from seqmlm.workspace import Workspace

LITTLE, MORE, MOST = 1_000, 10_000, 100_000  # parameters


def candidates(batch: int = 1, epoch: float = math.inf, most: float = math.inf) -> list[Candidate]:
    known = {"tiny": LITTLE, "small": MORE, "base": MOST}
    return [
        Candidate(size=size, parameters=n, batch=batch, epoch=epoch, most_tokens=most)
        for size, n in known.items()
    ]


def enough(parameters: int) -> float:
    """Tokens for so many parameters."""
    return TOKENS_PER_PARAMETER * parameters


@pytest.mark.parametrize(
    ("speeds", "limits", "size", "measured"),
    [
        # At one token a second: what the time is worth in tokens.
        ((1, 1, 1), {"time": enough(LITTLE) / 9}, "tiny", "tiny"),
        ((1, 1, 1), {"time": enough(MORE) - 1}, "tiny", "tiny"),
        ((1, 1, 1), {"time": enough(MORE)}, "small", "tiny small"),
        ((1, 1, 1), {"time": enough(MOST) - 1}, "small", "tiny small"),
        ((1, 1, 1), {"time": enough(MOST)}, "base", "tiny small base"),
        # Slower ones see less: small is measured, and seen to be too slow.
        ((1, 0.5, 0.1), {"time": enough(MORE)}, "tiny", "tiny small"),
        ((1, 0.5, 0.1), {"time": 2 * enough(MORE)}, "small", "tiny small"),
        ((1, 0.5, 0.1), {"time": 2 * enough(MOST)}, "small", "tiny small base"),
        ((1, 0.5, 0.1), {"time": 10 * enough(MOST)}, "base", "tiny small base"),
        # By accident faster than a smaller one: not believed.
        ((1, 2, 0.1), {"time": enough(MORE)}, "small", "tiny small"),
        # No memory for it.
        ((1, 0, 1), {"time": 9 * enough(MOST)}, "tiny", "tiny small"),
        ((0, 1, 1), {"time": 9 * enough(MOST)}, "tiny", "tiny"),
        # Another limit ends the training before.
        ((1, 1, 1), {"time": 9 * enough(MOST), "most": enough(MORE) - 1}, "tiny", "tiny"),
        ((1, 1, 1), {"time": 9 * enough(MOST), "most": enough(MORE)}, "small", "tiny small"),
        # The same data again and again.
        ((1, 1, 1), {"time": 9 * enough(MOST), "epoch": enough(MORE) / PASSES - 1}, "tiny", "tiny"),
        ((1, 1, 1), {"time": 9 * enough(MOST), "epoch": enough(MORE) / PASSES}, "small", "tiny small"),
        # Enough tokens in too few steps.
        ((1, 1, 1), {"time": enough(MOST), "batch": enough(MOST) / STEPS + 1}, "tiny", "tiny"),
        ((1, 1, 1), {"time": enough(MOST), "batch": enough(MOST) / STEPS}, "base", "tiny small base"),
    ],
)
def test_the_largest_size_that_sees_enough(
    speeds: tuple[float, ...], limits: Mapping[str, Any], size: str, measured: str
) -> None:
    asked: list[str] = []

    def speed(name: str) -> float:
        asked.append(name)
        return dict(zip(("tiny", "small", "base"), speeds, strict=True))[name]

    time, others = limits["time"], {key: value for key, value in limits.items() if key != "time"}
    choice = choose(candidates(**others), time, speed)
    assert choice.size == size
    assert asked == measured.split()
    assert choice.sees <= time
    sizes = ["tiny", "small", "base", None]
    assert (choice.larger and choice.larger.size) == sizes[sizes.index(size) + 1]


# -- in a training -----------------------------------------------------------------------------------------


SHORT = ("--max-steps", 2, "--set", "train.evaluation_records=4", "--set", "model.dropout=0.1")


def arguments(fasta: Path, name: str) -> tuple[object, ...]:
    return ("train", "-d", "protein", fasta, *SHORT, "--max-time", "1h", "--json", "--name", name)


def raising(error: type[BaseException]) -> Any:
    def measured(*_: Any, **__: Any) -> float:
        raise error("a size was measured")

    return measured


def test_measuring_leaves_no_trace(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    """What follows is the training of that size, bit by bit, dropout included."""
    named = seqmlm(*arguments(fasta, "named"), "--size", "tiny").ok()
    assert "size:" not in named.err
    chosen = seqmlm(*arguments(fasta, "chosen")).ok()
    assert "size: tiny (1h is enough for about 4,100 tokens" in chosen.err
    one, other = workspace / "runs/named", workspace / "runs/chosen"
    for file in ("config.yaml", "model/model.safetensors", "checkpoints/step-00000002/optimizer.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    assert chosen.json["train_loss"] == named.json["train_loss"]
    files = [{path.relative_to(run) for path in run.rglob("*")} for run in (one, other)]
    assert files[0] == files[1]
    shown = seqmlm("runs", "show", "chosen", "--json").out
    assert '"tiny"' in shown


def test_a_resumed_run_keeps_its_size_and_measures_nothing(
    seqmlm: Run, fasta: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqmlm(*arguments(fasta, "one")).ok()
    monkeypatch.setattr(sizing, "measured_speed", raising(AssertionError))
    (workspace / "runs/one/result.json").unlink()
    for resumed in (
        seqmlm("train", "--resume", "one", "--max-steps", 3, "--max-time", "9h", "--json"),
        seqmlm(*arguments(fasta, "one"), "--resume", "auto"),
    ):
        assert resumed.code == 0, resumed.err
        assert resumed.json["resumed_from"] in (2, 3)
        assert "size:" not in resumed.err


def test_a_kill_while_it_measures_leaves_no_run(
    seqmlm: Run, fasta: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException): ...

    monkeypatch.setattr(sizing, "measured_speed", raising(Killed))
    with pytest.raises(Killed):
        seqmlm(*arguments(fasta, "one"))
    assert not (workspace / "runs/one").exists()


@pytest.mark.parametrize("out_of_memory", [True, False])
def test_a_size_without_memory_is_not_taken(
    seqmlm: Run, fasta: Path, monkeypatch: pytest.MonkeyPatch, out_of_memory: bool
) -> None:
    """Speeds are made up; whether another error is one."""
    speeds = iter([1e9])
    fails = raising(torch.OutOfMemoryError if out_of_memory else RuntimeError)
    monkeypatch.setattr(sizing, "measured_speed", lambda *_, **__: next(speeds, None) or fails())
    monkeypatch.setattr(sizing, "PASSES", 10**9)
    dry = ("train", "-d", "protein", fasta, "--max-time", "1h", "--dry-run", "--json")
    if not out_of_memory:
        with pytest.raises(RuntimeError, match="was measured"):
            seqmlm(*dry)
        return
    done = seqmlm(*dry).ok()
    assert done.json["size"] == "tiny"
    assert "'small' does not fit in memory" in done.err


@pytest.mark.parametrize(("per_second", "size"), [(1.0, "tiny"), (1.3e4, "small"), (1e6, "base")])
def test_the_size_taken_decides_what_depends_on_it(
    workspace: Path, fasta: Path, monkeypatch: pytest.MonkeyPatch, per_second: float, size: str
) -> None:
    """The plan is that of a request which names the size; other processes follow without measuring."""
    flags = {"data": {"paths": [str(fasta)]}, "train": {"max_time": "1h"}}
    place = Workspace.locate()
    request = TrainRequest(domain="protein", name="x", flags=flags)
    agreed = agreed_plan(request, place, Processes("cpu"))
    corpus = CorpusReader(agreed.config, plugins.domain("protein"), place).corpus(lambda text: None)
    monkeypatch.setattr(sizing, "measured_speed", lambda *_, **__: per_second)
    monkeypatch.setattr(Training, "new_model", lambda training: None)  # its speed is made up
    monkeypatch.setattr(sizing, "PASSES", 10**9)
    said: list[str] = []
    own = sized_plan(agreed, corpus, Processes("cpu"), said.append)
    assert own == plan(
        TrainRequest(domain="protein", name="x", flags={**flags, "model": {"size": size}}), place
    )
    assert len(said) == 1
    monkeypatch.setattr(sizing, "measured_speed", raising(AssertionError))
    second: Any = SimpleNamespace(is_main=False, world=1, text_from_main=lambda text: size)
    assert sized_plan(agreed, corpus, second, said.append) == own
    assert len(said) == 1
    assert sized_plan(own, corpus, second, said.append) is own

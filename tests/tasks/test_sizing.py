"""The size that a limit of time is for: the rule, and that measuring it changes nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seqmlm import plugins
from seqmlm.engine.distributed import Processes
from seqmlm.tasks import pretrain, sizing
from seqmlm.tasks.assemble import batch_tokens
from seqmlm.tasks.config import TrainConfig
from seqmlm.tasks.corpus import CorpusReader, build_corpus
from seqmlm.tasks.launch import TrainRequest, plan
from seqmlm.tasks.sizing import (
    PASSES,
    STEPS,
    TOKENS_PER_PARAMETER,
    Candidate,
    Choice,
    choose,
    foretold,
    sized,
    told,
)
from seqmlm.workspace import Workspace

Run = Callable[..., Any]

LITTLE, MORE, MOST = 1_000, 10_000, 100_000  # parameters


def candidates(batch: int = 1, epoch: float = math.inf, most: float = math.inf) -> list[Candidate]:
    known = {"tiny": LITTLE, "small": MORE, "base": MOST}
    return [
        Candidate(size=size, parameters=n, batch=batch, epoch=epoch, most=most) for size, n in known.items()
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


NEEDS = f"small needs {TOKENS_PER_PARAMETER * 10:.0f} million"


@pytest.mark.parametrize(
    ("sees", "epoch", "larger_sees", "amount", "why"),
    [
        (
            2_100_000,
            42_000_000,
            1_234_567,
            "2.1 million tokens, 0.05 times",
            f"{NEEDS} and sees 1.2 million; ",
        ),
        (2_100_000, 42_000_000, 2_100_000, "2.1 million tokens, 0.05 times", f"{NEEDS}; "),
        (12_345_678, 10_000, 1, "12 million tokens, 1,200 times", f"{NEEDS} in at most {PASSES} passes; "),
        (52_345, 100_000, 0, "52,000 tokens, 0.52 times", "small does not fit in memory; "),
        (52_345, 52_345, None, "52,000 tokens, 1 times", ""),
    ],
)
def test_it_says_why(sees: float, epoch: int, larger_sees: float | None, amount: str, why: str) -> None:
    larger = Candidate(size="small", parameters=10**7, batch=1, epoch=epoch)
    choice = Choice("tiny", sees) if larger_sees is None else Choice("tiny", sees, larger, larger_sees)
    line = f"size: tiny (within 5m it sees about {amount} the data; {why}--size names another)"
    assert told(choice, "5m", epoch) == line


@pytest.mark.parametrize(
    ("limits", "speed", "lasts", "shorter", "line"),
    [
        (
            {"max_steps": 1000},
            2123.0,
            3859.0,
            ("tiny", 150.0),
            "64 min for 1,000 steps of 8,192 tokens at 2,100 tokens/s; --size tiny takes about 2 min; "
            "--max-time 15m without --size picks one for 15 min",
        ),
        (
            {"epochs": 12.0},
            25.0,
            14400.0,
            None,
            "4 h for 12 epochs of 31 million tokens at 25 tokens/s; --max-time 15m ends it after 15 min",
        ),
        ({"epochs": 0.5}, 9.5, 899.0, None, "15 min for 0.5 epochs of 31 million tokens at 9.5 tokens/s"),
        (
            {"max_steps": 3, "epochs": 0.5},
            400.0,
            61.4,
            None,
            "61 s for 3 steps of 8,192 tokens at 400 tokens/s",
        ),
        (
            {"max_steps": 3000, "epochs": 0.5},
            1e6,
            61,
            None,
            "61 s for 0.5 epochs of 31 million tokens at 1,000,000 tokens/s",
        ),
    ],
)
def test_it_says_how_long(
    limits: dict[str, Any], speed: float, lasts: float, shorter: tuple[str, float] | None, line: str
) -> None:
    train = TrainConfig(**limits, tokens_per_batch=8192)
    assert foretold(train, 31_000_000, speed, lasts, shorter) == f"time: about {line}"


# -- in a training -----------------------------------------------------------------------------------------


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    """Forty proteins."""
    path = tmp_path / "mine.fasta"
    residues = "LAGVSERTIDPKQNFYMHWC"
    texts = ("".join(residues[(7 * n + 3 * i * i) % 20] for i in range(30 + n)) for n in range(40))
    path.write_text("".join(f">p{n}\n{text}\n" for n, text in enumerate(texts)))
    return path


SHORT = ("--max-steps", 2, "--set", "train.evaluation_records=4", "--set", "model.dropout=0.1")


def arguments(fasta: Path, name: str) -> tuple[object, ...]:
    return ("train", "-d", "protein", fasta, *SHORT, "--max-time", "1h", "--json", "--name", name)


def _measured(*_: Any, **__: Any) -> float:
    raise AssertionError("a size was measured")


def test_measuring_leaves_no_trace(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    """What follows is the training of that size, bit by bit, dropout included."""
    named = seqmlm(*arguments(fasta, "named"), "--size", "tiny")
    assert named.code == 0, named.err
    assert "size:" not in named.err
    chosen = seqmlm(*arguments(fasta, "chosen"))
    assert chosen.code == 0, chosen.err
    assert "size: tiny (within 1h it sees about 4,100 tokens" in chosen.err
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
    first = seqmlm(*arguments(fasta, "one"))
    assert first.code == 0, first.err
    monkeypatch.setattr(sizing, "measured_speed", _measured)
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

    def kill(*_: Any, **__: Any) -> float:
        raise Killed

    monkeypatch.setattr(sizing, "measured_speed", kill)
    with pytest.raises(Killed):
        seqmlm(*arguments(fasta, "one"))
    assert not (workspace / "runs/one").exists()


@pytest.mark.parametrize("out_of_memory", [True, False])
def test_a_size_without_memory_is_not_taken(
    seqmlm: Run, fasta: Path, monkeypatch: pytest.MonkeyPatch, out_of_memory: bool
) -> None:
    """Speeds are made up; whether another error is one."""
    speeds = iter([1e9])

    def speed(*_: Any, **__: Any) -> float:
        for one in speeds:
            return one
        raise torch.OutOfMemoryError("CUDA out of memory") if out_of_memory else RuntimeError("broken")

    monkeypatch.setattr(sizing, "measured_speed", speed)
    monkeypatch.setattr(sizing, "PASSES", 10**9)
    dry = ("train", "-d", "protein", fasta, "--max-time", "1h", "--dry-run", "--json")
    if not out_of_memory:
        with pytest.raises(RuntimeError, match="broken"):
            seqmlm(*dry)
        return
    done = seqmlm(*dry)
    assert done.code == 0, done.err
    assert done.json["size"] == "tiny"
    assert "small does not fit in memory" in done.err


@pytest.mark.parametrize(("per_second", "size"), [(1.0, "tiny"), (1.3e4, "small"), (1e6, "base")])
def test_the_size_taken_decides_what_depends_on_it(
    workspace: Path, fasta: Path, monkeypatch: pytest.MonkeyPatch, per_second: float, size: str
) -> None:
    """The plan is that of a request which names the size; other processes follow without measuring."""
    flags = {"data": {"paths": [str(fasta)]}, "train": {"max_time": "1h"}}
    place = Workspace.locate()
    agreed = pretrain.agreed_plan(
        TrainRequest(domain="protein", name="x", flags=flags), place, Processes("cpu")
    )
    corpus = build_corpus(CorpusReader(agreed.config, plugins.domain("protein"), place), lambda text: None)
    monkeypatch.setattr(sizing, "measured_speed", lambda *_, **__: per_second)
    monkeypatch.setattr(sizing, "PASSES", 10**9)
    said: list[str] = []
    own = sized(agreed, corpus, Processes("cpu"), said.append)
    assert own == plan(
        TrainRequest(domain="protein", name="x", flags={**flags, "model": {"size": size}}), place
    )
    assert len(said) == 1
    monkeypatch.setattr(sizing, "measured_speed", _measured)
    second: Any = SimpleNamespace(is_main=False, world=1, text_from_main=lambda text: size)
    assert sized(agreed, corpus, second, said.append) == own
    assert len(said) == 1
    assert sized(own, corpus, second, said.append) is own


LONG = ("train", "-d", "protein", "--set", "train.evaluation_records=4", "--set", "model.dropout=0.1")


def test_a_long_training_is_foretold_and_is_the_same(
    seqmlm: Run, fasta: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every machine is slow; the smaller size is measured too, with the batch that it would have."""
    arguments = (*LONG, fasta, "--size", "small", "--max-steps", 2)
    quiet = seqmlm(*arguments, "--name", "quiet")
    assert quiet.code == 0, quiet.err
    assert "time:" not in quiet.err, "it is clearly short"
    monkeypatch.setattr(sizing, "FASTEST", {"cpu": 1.0, "cuda": 1.0})
    real, speeds = sizing.measured_speed, iter([10.0, 20.0])

    def speed(*given: Any, **further: Any) -> float:
        real(*given, **further)
        return next(speeds)

    monkeypatch.setattr(sizing, "measured_speed", speed)
    told_ = seqmlm(*arguments, "--name", "told")
    assert told_.code == 0, told_.err
    line = "time: about 27 min for 2 steps of 8,192 tokens at 10 tokens/s; --size tiny takes about 3 min; "
    assert line in " ".join(told_.err.split())
    assert told_.err.index("time:") < told_.err.index("layers:"), "before it begins"
    one, other = workspace / "runs/quiet", workspace / "runs/told"
    for file in ("config.yaml", "model/model.safetensors", "checkpoints/step-00000002/optimizer.safetensors"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def test_nothing_is_measured_for_what_is_short_limited_or_resumed(
    seqmlm: Run, fasta: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "measured_speed", _measured)
    short = seqmlm(*LONG, fasta, "--size", "tiny", "--max-steps", 2, "--name", "one")
    assert short.code == 0, short.err
    monkeypatch.setattr(sizing, "FASTEST", {"cpu": 1.0, "cuda": 1.0})
    resumed = seqmlm("train", "--resume", "one", "--max-steps", 3)
    assert resumed.code == 0, resumed.err
    limited = seqmlm(*LONG, fasta, "--size", "tiny", "--max-steps", 2, "--max-time", "1h", "--name", "two")
    assert limited.code == 0, limited.err
    with pytest.raises(AssertionError, match="a size was measured"):
        seqmlm(*LONG, fasta, "--size", "tiny", "--max-steps", 2, "--name", "three")


@pytest.mark.parametrize(
    ("flags", "settings", "sizes", "batches"),
    [
        ({"size": "base"}, (), ["small", "tiny"], [8192, 2048]),
        ({"size": "small"}, (), ["tiny"], [2048]),
        ({"size": "tiny"}, (), [], []),
        ({"size": "small"}, ("train.tokens_per_batch=5000",), ["tiny"], [5000]),
        ({}, ("model.overrides={num_hidden_layers: 2}",), [], []),
    ],
)
def test_smaller_sizes_are_those_that_would_be_asked_for(
    workspace: Path, flags: dict[str, Any], settings: tuple[str, ...], sizes: list[str], batches: list[int]
) -> None:
    request = TrainRequest(domain="protein", flags={"model": flags}, settings=settings)
    smaller = sizing._smaller(plan(request, Workspace.locate()).config)
    assert [one.model.size for one in smaller] == sizes
    assert [batch_tokens(one) for one in smaller] == batches

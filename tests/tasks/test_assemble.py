"""The best weights of a training: kept, given back where they are better, and found again by a resume."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import protein_model

from seqmlm.engine.loop import Goal
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.optimizer import module_tensors
from seqmlm.errors import StateError
from seqmlm.inference.model_folder import read_card, seal
from seqmlm.training import assemble, objective
from seqmlm.training.assemble import FEWEST_BITS
from seqmlm.training.launch import TrainRequest
from seqmlm.training.objective import Best
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain


def scripted(*bits: float) -> Any:
    """Evaluates to these bits, one after another."""
    left = iter(bits)
    return lambda rows: {"eval/bits_per_unit": next(left)}


@pytest.fixture
def rows() -> MaskedRows:
    rows = protein_model().rows
    assert isinstance(rows, MaskedRows)
    return rows


@pytest.fixture
def step(rows: MaskedRows) -> Callable[[], dict[str, torch.Tensor]]:
    """Changes every weight; gives a copy of them."""

    def taken() -> dict[str, torch.Tensor]:
        with torch.no_grad():
            for one in rows.parameters():
                one.add_(1.0)
        return {name: one.clone() for name, one in module_tensors(rows).items()}

    return taken


def same(rows: MaskedRows, weights: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one, weights[name]) for name, one in module_tensors(rows).items())


def test_better_weights_of_earlier_come_back(rows: MaskedRows, step: Any, tmp_path: Path) -> None:
    best = Best(scripted(3.0, 2.0, 2.5, 4.0), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=False)
    step()
    best(rows)
    good = step()
    best(rows)
    step()
    assert best(rows) == {"eval/bits_per_unit": 2.5}
    step()
    assert best.restore(rows) == 4.0
    assert best.value == 2.0
    assert same(rows, good)


@pytest.mark.parametrize("last", [1.5, 2.01, float("nan")])
def test_the_last_weights_stay_where_earlier_ones_are_hardly_better(
    rows: MaskedRows, step: Any, tmp_path: Path, last: float
) -> None:
    best = Best(scripted(2.0, last), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=False)
    best(rows)
    weights = step()
    assert best.restore(rows) is None
    assert same(rows, weights)


def test_a_training_without_evaluations_keeps_its_weights(rows: MaskedRows, tmp_path: Path) -> None:
    assert Best(scripted(), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=False).restore(rows) is None


def test_a_resume_knows_the_best_so_far_and_a_new_training_does_not(
    rows: MaskedRows, step: Any, tmp_path: Path
) -> None:
    good = step()
    Best(scripted(2.0), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=False)(rows)
    step()
    again = Best(scripted(3.0, 3.0), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=True)
    again(rows)
    assert again.restore(rows) == 3.0
    assert same(rows, good)
    assert Best(scripted(), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=False).value is None
    (tmp_path / "best").write_bytes(b"torn")
    assert Best(scripted(), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=True).value is None


def test_a_full_disk_is_said(rows: MaskedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(objective, "replace_file", full)
    with pytest.raises(StateError, match="No space left"):
        Best(scripted(2.0), tmp_path / "best", FEWEST_BITS, worth=0.01, resume=False)(rows)


def test_of_a_metric_of_which_more_is_better_the_highest_is_kept(
    rows: MaskedRows, step: Any, tmp_path: Path
) -> None:
    values = iter((0.5, 0.7, 0.6, 0.6))
    best = Best(
        lambda rows: {"f1": next(values)}, tmp_path / "best", Goal("f1", higher_is_better=True), resume=False
    )
    best(rows)
    good = step()
    best(rows)
    step()
    best(rows)
    assert best.restore(rows) == 0.6
    assert same(rows, good)


@pytest.mark.parametrize(
    ("masking", "keeps"),
    [
        ({}, True),
        ({"masker": "position.v1", "options": {"positions": [-1]}}, False),
        ({"masker": "lexicon.v1", "options": {"words": ["good"]}}, False),
    ],
)
def test_masks_of_chosen_places_keep_the_last_weights(
    masking: dict[str, Any], keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights that are best by masks anywhere would undo what the chosen ones teach."""
    made: list[Path] = []

    class Recorded(Best):
        def __init__(self, evaluator: Any, file: Path, goal: Goal, **rest: Any) -> None:
            made.append(file)
            super().__init__(evaluator, file, goal, **rest)

    monkeypatch.setattr(assemble, "Best", Recorded)
    file = tmp_path / "t.txt"
    file.write_text("".join(f"the film number {n} is good\n" for n in range(60)))
    flags = {
        "data": {"paths": [str(file)], "calibration": 0.0},
        "model": {"size": "tiny"},
        "train": {"max_steps": 1},
        "masking": masking,
    }
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path))
    pretrain(TrainRequest(domain="text", name="m", flags=flags), SilentConsole())
    assert bool(made) == keeps


def test_a_model_of_code_says_which_languages_it_was_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its data and of its parent's; nothing where the parent does not say."""
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path))

    def trained(name: str, *suffixes: str, init: Path | None = None) -> Path:
        for n in range(20):
            file = tmp_path / name / f"part{n}" / f"own{suffixes[n % len(suffixes)]}"
            file.parent.mkdir(parents=True)
            file.write_text(f"x{n} = {n}\n")
        flags = {
            "data": {"paths": [str(tmp_path / name)], "calibration": 0.0},
            "model": {"size": "tiny"} if init is None else {"init": str(init)},
            "train": {"max_steps": 1},
        }
        pretrain(TrainRequest(domain="code", name=name, flags=flags), SilentConsole())
        return tmp_path / "runs" / name / "model"

    first = trained("first", ".py", ".rb")
    card = read_card(first)
    assert card is not None
    assert card.languages == ("python", "ruby")
    second = read_card(trained("second", ".lua", init=first))
    assert second is not None
    assert second.languages == ("lua", "python", "ruby")
    seal(first, replace(card, languages=()))
    third = read_card(trained("third", ".lua", init=first))
    assert third is not None
    assert third.languages == ()

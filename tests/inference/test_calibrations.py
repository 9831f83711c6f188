"""Calibrations and backgrounds in a model folder: what is whole as a file may still make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from seqmlm import plugins
from seqmlm.errors import StateError
from seqmlm.inference.calibrations import (
    BACKGROUND,
    CALIBRATION,
    TRAINED_ON,
    stored_background,
    stored_calibrations,
    stored_trained_on,
)

ENTRY = {"level": "record", "mode": "exact", "kind": "single", "state": {}, "screen": "exact"}


@pytest.mark.parametrize(
    "numbers", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool], ids=str
)
@pytest.mark.parametrize(
    "header", [{}, [], 5, {"format": 2, "entries": [ENTRY]}, {"format": 2, "entries": 5}]
)
def test_a_calibration_that_makes_no_sense_is_said(tmp_path: Path, numbers: Any, header: Any) -> None:
    tensors = {"record/exact/scores": torch.zeros(3).to(numbers)}
    save_file(tensors, tmp_path / CALIBRATION, metadata={"seqmlm": json.dumps(header)})
    with pytest.raises(StateError, match=CALIBRATION):
        stored_calibrations(tmp_path)


@pytest.mark.parametrize("field", ["code", "dna", "ehr", "logs", "protein", "text"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 2)])
def test_a_background_that_makes_no_sense_is_said(tmp_path: Path, field: str, shape: tuple[int, ...]) -> None:
    domain = plugins.domain(field)
    model: Any = SimpleNamespace(path=str(tmp_path), domain=domain, tokenizer=object())
    levels = [level for level in domain.levels if level.background is not None]
    for level in levels:
        save_file({f"{level.name}/x": torch.zeros(shape)}, tmp_path / BACKGROUND)
        with pytest.raises(StateError, match=BACKGROUND):
            stored_background(model, level)


def test_records_of_the_training_that_make_no_sense_are_said(tmp_path: Path) -> None:
    save_file({"hashes": torch.from_numpy(np.zeros((2, 2)))}, tmp_path / TRAINED_ON)
    with pytest.raises(StateError, match=TRAINED_ON):
        stored_trained_on(tmp_path)

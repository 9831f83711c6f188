"""What a model folder holds to judge with: calibrations by level and mode, and the backgrounds of levels.

calibration.json + calibration.safetensors     a calibration for each level and mode
background.safetensors                         what levels know of normal data
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.levels import Level
from seqmlm.engine.mode import ONE_PASS, Mode
from seqmlm.errors import StateError
from seqmlm.evaluation.cascade import CascadeCalibration
from seqmlm.evaluation.conformal import Calibration
from seqmlm.tasks.bundle import LoadedModel

STATES, ARRAYS, BACKGROUNDS = "calibration.json", "calibration.safetensors", "background.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A calibration of one level and mode: exactly one of the first two.

    Args:
        calibration: of a mode.
        cascade: of a cascade, whose first stage asks in the mode `screen`.
        rows_per_day: of normal data with times; None without.
    """

    calibration: Calibration | None = None
    cascade: CascadeCalibration | None = None
    screen: Mode = ONE_PASS
    rows_per_day: float | None = None


def stored_calibration(model: LoadedModel, level: Level, mode: str) -> Stored | None:
    """The calibration of a level and mode ("cascade" is one), or None.

    Raises:
        StateError: the files cannot be read.
    """
    folder = Path(model.path)
    if not (folder / STATES).is_file():
        return None
    try:
        entry = json.loads((folder / STATES).read_text(encoding="utf-8"))["entries"].get(
            f"{level.name}/{mode}"
        )
        if entry is None:
            return None
        arrays = _under(load_file(folder / ARRAYS), f"{level.name}/{mode}/")
        if entry["kind"] == "cascade":
            cascade = CascadeCalibration.from_state(entry["state"], arrays)
            screen = Mode.parse(entry["screen"])
            return Stored(cascade=cascade, screen=screen, rows_per_day=entry["rows_per_day"])
        calibration = Calibration.from_state(entry["state"], arrays)
        return Stored(calibration=calibration, rows_per_day=entry["rows_per_day"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the calibration in {folder} cannot be read ({error}); calibrate the model again"
        ) from None


def stored_background(model: LoadedModel, level: Level) -> Background | None:
    """What a level knows of normal data; None where it needs nothing, or the model holds nothing."""
    file = Path(model.path) / BACKGROUNDS
    if level.background is None or not file.is_file():
        return None
    arrays = _under(load_file(file), f"{level.name}/")
    return level.background.load(arrays, model.tokenizer) if arrays else None


def store(folder: Path, entries: Mapping[tuple[str, str], Stored]) -> None:
    """Write the calibrations of a model, by level and mode."""
    states: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for (level, mode), one in entries.items():
        fitted = one.cascade or one.calibration
        assert fitted is not None
        state, own = fitted.to_state()
        kind = "mode" if one.cascade is None else "cascade"
        states[f"{level}/{mode}"] = {
            "kind": kind,
            "screen": str(one.screen),
            "rows_per_day": one.rows_per_day,
            "state": state,
        }
        arrays |= {f"{level}/{mode}/{name}": values for name, values in own.items()}
    save_file(arrays, folder / ARRAYS)
    (folder / STATES).write_text(json.dumps({"entries": states}), encoding="utf-8")


def _under(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

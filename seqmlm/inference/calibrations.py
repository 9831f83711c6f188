"""Files of a model folder for calibration. Each file is written whole, or not at all.

calibration.safetensors   a calibration for each level and mode: arrays, with other facts as JSON in the
                          header, so that a single rename replaces everything
background.safetensors    statistics of normal data, by level
trained_on.safetensors    keyed hashes of the training records
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqmlm.anomaly.judge import Calibration, TwoPopulations, calibration_from_state
from seqmlm.anomaly.levels import Background, Level
from seqmlm.data.counts import released_count
from seqmlm.data.identity import TrainedOn
from seqmlm.errors import StateError
from seqmlm.inference.arrays import HEADER, UNFIT, Arrays, damaged_file, encode_arrays, read_arrays
from seqmlm.inference.model_folder import CALIBRATION as CALIBRATION
from seqmlm.inference.model_folder import LoadedModel, changing, put_file
from seqmlm.parsing import parse_json

BACKGROUND, TRAINED_ON = "background.safetensors", "trained_on.safetensors"

_CALIBRATE = "calibrate the model again ('seqmlm calibrate')"
_FORMAT = 5
_FACTS = ("rows_per_day", "records", "precision", "source", "counts")
FEW_RECORDS = 30
"""A calibration from fewer records reports their number, because rows of the same record are similar."""
USUAL_RATE = 0.05
"""The rate of false alarms that a calibration must support to be selected if no rate is requested."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A calibration of one level and mode.

    Args:
        fitted: computes p-values of rows.
        rows_per_day: rows per day in normal data with times. None without times.
        records: number of normal records from which the rows come.
        precision: "fp32" or "bf16", the precision of the model for the normal data.
        source: fingerprint of the normal data, or of the training data from which they were set aside.
        created: time of the calibration, ISO 8601.
        counts: identity of the counts in the scores (`seqmlm.inference.expert`), or "none".
    """

    fitted: Calibration
    rows_per_day: float | None = None
    records: int = 0
    precision: str = "fp32"
    source: str = ""
    created: str = ""
    counts: str = "none"

    @property
    def rows(self) -> int:
        """Number of normal rows that the calibration was fitted to."""
        return self.fitted.rows

    @property
    def few(self) -> bool:
        """Whether its rows come from few records.

        It is then less reliable than the number of rows suggests.
        """
        return 0 < self.records < min(FEW_RECORDS, self.rows)

    @property
    def coarse(self) -> bool:
        """Whether it has so few rows that no p-value can be as low as `USUAL_RATE`."""
        return self.fitted.smallest_rate > USUAL_RATE + 1e-9

    def facts(self, alpha: float | None = None) -> dict[str, Any]:
        """Figures of the calibration by name. With a rate of alarms (`alpha`), they include its support."""
        fitted = self.fitted
        facts: dict[str, Any] = {
            "rows": fitted.rows,
            "records": released_count(self.records),
            "few_records": self.few,
            "smallest_rate": fitted.smallest_rate,
            "tail": fitted.has_tail,
            "rows_per_day": self.rows_per_day,
            "precision": self.precision,
            "judged_by": ", ".join(fitted.applying),
        }
        if isinstance(fitted, TwoPopulations):
            facts["counted_rows"] = fitted.counts.rows
        if alpha is not None:
            rests = "ranks" if alpha >= fitted.smallest_rate else "tail" if fitted.has_tail else "nothing"
            facts["alpha"] = {"rate": alpha, "rests_on": rests}
        return facts


def rate_above(rate: float) -> str:
    """A rate with two digits, rounded up. A user who enters it is then not below the rate.

    >>> rate_above(1 / 301), rate_above(0.05)
    ('0.0034', '0.05')
    """
    digits = 1 - math.floor(math.log10(rate))
    return f"{math.ceil(rate * 10**digits - 1e-9) / 10**digits:.{digits}f}".rstrip("0")


def calibration_summary(calibrations: Mapping[tuple[str, str], Stored]) -> str:
    """The rows and rates of calibrations in one sentence."""
    levels: dict[str, list[str]] = {}
    for (level, mode), calibration in calibrations.items():
        fitted = calibration.fitted
        counted = fitted.counts if isinstance(fitted, TwoPopulations) else None
        few = f" from fewer than {FEW_RECORDS} records" if calibration.few else ""
        rows = f"{mode} {calibration.rows:,} rows{few}"
        rows += "" if counted is None else f", {counted.rows:,} for rules based on counts"
        levels.setdefault(level, []).append(
            f"{rows} (rates from {rate_above(calibration.fitted.smallest_rate)})"
        )
    parts = [f"level {level}: {', '.join(mode_texts)}" for level, mode_texts in levels.items()]
    return f"calibrated {'; '.join(parts)}"


def stored_calibrations(folder: Path) -> dict[tuple[str, str], Stored]:
    """All calibrations of a model folder, by level and mode. Empty if it has none.

    Raises:
        StateError: the file cannot be read.
    """
    file = folder / CALIBRATION
    if not file.is_file():
        return {}
    arrays, header = read_arrays(file, _CALIBRATE)
    try:
        facts = parse_json(header.get(HEADER, "{}"), finite=True)
        if facts.get("format") != _FORMAT:
            raise ValueError(f"format {facts.get('format')}; this version of seqmlm reads {_FORMAT}")
        return {
            (entry["level"], entry["mode"]): _stored(
                entry, _under(arrays, f"{entry['level']}/{entry['mode']}/")
            )
            for entry in facts["entries"]
        }
    except StateError as error:
        raise StateError(f"{file}: {error} ('seqmlm calibrate')") from None
    except UNFIT as error:
        raise damaged_file(file, error, _CALIBRATE) from None


def readable_calibrations(folder: Path, notify: Callable[[str], None]) -> dict[tuple[str, str], Stored]:
    """The calibrations that a new calibration keeps. If this version cannot read the file, there are none."""
    try:
        return stored_calibrations(folder)
    except StateError as error:
        notify(f"{error}; all its calibrations are dropped, also those of other levels")
        return {}


def stored_calibration(model: LoadedModel, level: Level, mode: str) -> Stored | None:
    """The calibration for a level and mode, or None.

    Raises:
        StateError: the file cannot be read.
    """
    return stored_calibrations(Path(model.path)).get((level.name, mode))


def stored_background(model: LoadedModel, level: Level) -> Background | None:
    """The background of a level: its statistics of normal data.

    None if the level needs no background, or the model has none. Levels with the same kind of background can
    use the background of each other. If it was fitted to scores, both levels must have the same view.

    Raises:
        StateError: the file cannot be read.
    """
    kind, file = level.background, Path(model.path) / BACKGROUND
    if kind is None or not file.is_file():
        return None
    arrays = read_arrays(file, _CALIBRATE)[0]
    alike_levels = (
        candidate
        for candidate in model.domain.levels
        if candidate.background is kind and (candidate.view == level.view or not kind.needs_scores)
    )
    for candidate in (level, *alike_levels):
        if arrays_of_level := _under(arrays, f"{candidate.name}/"):
            try:
                return kind.load(arrays_of_level, model.tokenizer)
            except UNFIT as error:
                raise damaged_file(file, error, _CALIBRATE) from None
    return None


def stored_trained_on(folder: Path) -> TrainedOn | None:
    """Hashes of the training records of a model. None if the model does not have them.

    Raises:
        StateError: the file cannot be read.
    """
    file = folder / TRAINED_ON
    if not file.is_file():
        return None
    try:
        return TrainedOn.from_arrays(read_arrays(file, _CALIBRATE)[0])
    except UNFIT as error:
        raise damaged_file(file, error, _CALIBRATE) from None


def store(folder: Path, calibrations: Mapping[tuple[str, str], Stored]) -> None:
    """Store calibrations by level and mode, in place of earlier calibrations of the same level and mode.

    Other calibrations stay.

    The file is read again for this. Therefore two processes that calibrate at the same time keep the results
    of both.

    Raises:
        StateError: the folder cannot be written. The old calibrations then remain as they were.
    """
    with changing(folder) as put:
        # the calibrating command has already shown the message
        stored = readable_calibrations(folder, lambda text: None)
        put(CALIBRATION, _content({**stored, **calibrations}))


def _content(stored: Mapping[tuple[str, str], Stored]) -> bytes:
    """The content of a file with these calibrations."""
    arrays, facts = Arrays(), []
    for (level, mode), calibration in stored.items():
        state, level_arrays = calibration.fitted.to_state()
        arrays |= {f"{level}/{mode}/{name}": values for name, values in level_arrays.items()}
        created = calibration.created or datetime.now(UTC).isoformat(timespec="seconds")
        entry = {
            "level": level,
            "mode": mode,
            "rows": calibration.rows,
            **{x: getattr(calibration, x) for x in _FACTS},
        }
        facts.append({**entry, "created": created, "state": state})
    return encode_arrays(arrays, {HEADER: json.dumps({"format": _FORMAT, "entries": facts})})


def store_backgrounds(folder: Path, backgrounds: Mapping[str, Background]) -> None:
    """Store backgrounds by level. They replace backgrounds of the same levels. Other backgrounds stay.

    Raises:
        StateError: the folder cannot be written.
    """
    file = folder / BACKGROUND
    arrays: Arrays = {}
    for level, background in backgrounds.items():
        arrays |= {f"{level}/{name}": values for name, values in background.arrays().items()}
    with changing(folder) as put:
        stored = read_arrays(file, _CALIBRATE)[0] if file.is_file() else {}
        other_levels = {
            name: values for name, values in stored.items() if name.partition("/")[0] not in backgrounds
        }
        put(BACKGROUND, encode_arrays({**other_levels, **arrays}))


def store_trained_on(folder: Path, trained_on: TrainedOn) -> None:
    """Store the hashes that identify the training records of a model.

    Raises:
        StateError: the folder cannot be written.
    """
    put_file(folder / TRAINED_ON, encode_arrays(trained_on.to_arrays()))


def _stored(facts: Mapping[str, Any], arrays: Arrays) -> Stored:
    fields = {name: facts[name] for name in (*_FACTS, "created")} | {"records": int(facts["records"])}
    return Stored(fitted=calibration_from_state(facts["state"], arrays), **fields)


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

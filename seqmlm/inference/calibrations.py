"""What a model folder holds to judge with, written whole or not at all.

calibration.safetensors   a calibration for each level and mode: arrays, with what belongs to them as JSON in
                          the header, so that one rename replaces all of it
background.safetensors    what levels know of normal data
trained_on.safetensors    keyed hashes of the records the model was trained on
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from seqmlm.anomaly.levels import Background, Level
from seqmlm.data.identity import TrainedOn
from seqmlm.data.privacy import redact_small_counts
from seqmlm.engine.foreign import shapes_of
from seqmlm.errors import StateError, UsageError
from seqmlm.inference.model_folder import CALIBRATION as CALIBRATION
from seqmlm.inference.model_folder import LoadedModel, changing, put_file
from seqmlm.parsing import parse_json
from seqmlm.rows.judge import Calibration, TwoPopulations, calibration_from_state

BACKGROUND, TRAINED_ON = "background.safetensors", "trained_on.safetensors"

HEADER = "seqmlm"
_CALIBRATE = "calibrate the model again ('seqmlm calibrate')"
# What arrays and settings that do not fit together raise: a file that is whole may still say anything.
_UNFIT = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_FORMAT = 5
_FACTS = ("rows_per_day", "records", "precision", "source", "counts")
FEW_RECORDS = 30
"""Records of a calibration below which their number is said, for rows of one record are alike."""
USUAL_RATE = 0.05
"""The rate of false alarms that a calibration must support to be chosen where no rate is asked for."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A calibration of one level and mode.

    Args:
        fitted: judges rows.
        rows_per_day: of normal data with times; None without.
        records: normal records that the rows are of.
        precision: "fp32" or "bf16", that the normal data were asked in.
        source: fingerprint of the normal data, or the data set of the training it was set aside from.
        created: when, ISO 8601.
        counts: what counts were mixed into the scores (`seqmlm.inference.expert`), "none" for none.
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
        """Normal rows it was fitted to."""
        return self.fitted.rows

    @property
    def few(self) -> bool:
        """Whether its rows are of few records: their number promises more than they hold."""
        return 0 < self.records < min(FEW_RECORDS, self.rows)

    @property
    def coarse(self) -> bool:
        """Whether it has so few rows that no p-value can be `USUAL_RATE`."""
        return self.fitted.smallest_rate > USUAL_RATE + 1e-9

    def facts(self, model: LoadedModel, alpha: float | None = None) -> dict[str, Any]:
        """What a person or a machine should know of it, and what a rate of alarms (`alpha`) would rest on."""
        fitted = self.fitted
        found: dict[str, Any] = {
            "rows": fitted.rows,
            "records": redact_small_counts({"n": self.records}, model.card.sensitive)["n"],
            "few_records": self.few,
            "smallest_rate": fitted.smallest_rate,
            "tail": fitted.has_tail,
            "rows_per_day": self.rows_per_day,
            "precision": self.precision,
            "judged_by": ", ".join(fitted.applying),
        }
        if isinstance(fitted, TwoPopulations):
            found["counted_rows"] = fitted.counts.rows
        if alpha is not None:
            rests = "ranks" if alpha >= fitted.smallest_rate else "tail" if fitted.has_tail else "nothing"
            found["alpha"] = {"rate": alpha, "rests_on": rests}
        return found


def rate_above(rate: float) -> str:
    """A rate in two digits, rounded up: what a person types is then not below it.

    >>> rate_above(1 / 301), rate_above(0.05)
    ('0.0034', '0.05')
    """
    digits = 1 - math.floor(math.log10(rate))
    return f"{math.ceil(rate * 10**digits - 1e-9) / 10**digits:.{digits}f}".rstrip("0")


def told(made: Mapping[tuple[str, str], Stored]) -> str:
    """Rows and rates of calibrations in one sentence."""
    levels: dict[str, list[str]] = {}
    for (level, mode), one in made.items():
        counted = one.fitted.counts if isinstance(one.fitted, TwoPopulations) else None
        rows = f"{mode} {one.rows:,} rows{f' of fewer than {FEW_RECORDS} records' if one.few else ''}"
        rows += "" if counted is None else f", {counted.rows:,} of what is counted"
        levels.setdefault(level, []).append(f"{rows} (rates from {rate_above(one.fitted.smallest_rate)})")
    parts = [f"level {level}: {', '.join(own)}" for level, own in levels.items()]
    return f"calibrated {'; '.join(parts)}"


def stored_calibrations(folder: Path) -> dict[tuple[str, str], Stored]:
    """All calibrations of a model folder by level and mode; empty where it has none.

    Raises:
        StateError: the file cannot be read.
    """
    file = folder / CALIBRATION
    if not file.is_file():
        return {}
    arrays, header = tensors(file)
    try:
        facts = parse_json(header.get(HEADER, "{}"), finite=True)
        if facts.get("format") != _FORMAT:
            raise ValueError(f"format {facts.get('format')}; this version of seqmlm reads {_FORMAT}")
        return {
            (one["level"], one["mode"]): _stored(one, _under(arrays, f"{one['level']}/{one['mode']}/"))
            for one in facts["entries"]
        }
    except StateError as error:
        raise StateError(f"{file}: {error} ('seqmlm calibrate')") from None
    except _UNFIT as error:
        raise _broken(file, error) from None


def kept_calibrations(folder: Path, notify: Callable[[str], None]) -> dict[tuple[str, str], Stored]:
    """What stays beside a new calibration: all there is, or nothing of a file this version cannot read."""
    try:
        return stored_calibrations(folder)
    except StateError as error:
        notify(f"{error}; the calibrations in it, of other levels too, are dropped")
        return {}


def stored_calibration(model: LoadedModel, level: Level, mode: str) -> Stored | None:
    """A calibration of a level and mode, or None.

    Raises:
        StateError: the file cannot be read.
    """
    return stored_calibrations(Path(model.path)).get((level.name, mode))


def stored_background(model: LoadedModel, level: Level) -> Background | None:
    """What a level knows of normal data; None where it needs nothing, or the model holds nothing.

    Levels with one kind of background know the same (that of training, where it is from there): any of them
    lends its own to the others, where what it learnt from scores was seen in the same way.

    Raises:
        StateError: the file cannot be read.
    """
    kind, file = level.background, Path(model.path) / BACKGROUND
    if kind is None or not file.is_file():
        return None
    arrays = tensors(file)[0]
    alike = (
        one
        for one in model.domain.levels
        if one.background is kind and (one.view == level.view or not kind.needs_scores)
    )
    for one in (level, *alike):
        if own := _under(arrays, f"{one.name}/"):
            try:
                return kind.load(own, model.tokenizer)
            except _UNFIT as error:
                raise _broken(file, error) from None
    return None


def stored_trained_on(folder: Path) -> TrainedOn | None:
    """What tells the records a model was trained on; None where the model does not know them.

    Raises:
        StateError: the file cannot be read.
    """
    file = folder / TRAINED_ON
    if not file.is_file():
        return None
    try:
        return TrainedOn.from_arrays(tensors(file)[0])
    except _UNFIT as error:
        raise _broken(file, error) from None


def store(folder: Path, made: Mapping[tuple[str, str], Stored], *, private: bool = False) -> None:
    """Put calibrations, by level and mode, in the place of those a model has; its others stay.

    The others are those there are at this moment: two processes that calibrate at once keep both. Private
    ones only the owner may read.

    Raises:
        StateError: the folder cannot be written; the calibrations it had are untouched.
    """
    with changing(folder, private=private) as put:
        others = kept_calibrations(folder, lambda text: None)  # who calibrates was told before
        put(CALIBRATION, _content({**others, **made}))


def _content(stored: Mapping[tuple[str, str], Stored]) -> bytes:
    """The file of some calibrations."""
    arrays, facts = Arrays(), []
    for (level, mode), one in stored.items():
        state, own = one.fitted.to_state()
        arrays |= {f"{level}/{mode}/{name}": values for name, values in own.items()}
        created = one.created or datetime.now(UTC).isoformat(timespec="seconds")
        known = {"level": level, "mode": mode, "rows": one.rows, **{x: getattr(one, x) for x in _FACTS}}
        facts.append({**known, "created": created, "state": state})
    return saved(arrays, {HEADER: json.dumps({"format": _FORMAT, "entries": facts})})


def store_backgrounds(folder: Path, backgrounds: Mapping[str, Background], *, private: bool = False) -> None:
    """Put what levels, by name, know of normal data in the place of what they knew; that of others stays.

    Raises:
        StateError: the folder cannot be written.
    """
    file = folder / BACKGROUND
    arrays: Arrays = {}
    for level, background in backgrounds.items():
        arrays |= {f"{level}/{name}": values for name, values in background.arrays().items()}
    with changing(folder, private=private) as put:
        there = tensors(file)[0] if file.is_file() else {}
        others = {name: values for name, values in there.items() if name.partition("/")[0] not in backgrounds}
        put(BACKGROUND, saved({**others, **arrays}))


def store_trained_on(folder: Path, trained_on: TrainedOn, *, private: bool = False) -> None:
    """Keep what tells the records a model was trained on.

    Raises:
        StateError: the folder cannot be written.
    """
    put_file(folder / TRAINED_ON, saved(trained_on.to_arrays()), private=private)


def _stored(facts: Mapping[str, Any], arrays: Arrays) -> Stored:
    known = {name: facts[name] for name in (*_FACTS, "created")} | {"records": int(facts["records"])}
    return Stored(fitted=calibration_from_state(facts["state"], arrays), **known)


def tensors(file: Path, remedy: str = _CALIBRATE) -> tuple[Arrays, dict[str, str]]:
    """All arrays of a file of a model folder, and its header.

    Raises:
        StateError: it cannot be read, or holds NaN; with the remedy.
    """
    try:
        shapes_of(file)
        with safe_open(file, framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            header = opened.metadata() or {}
    # The last two: of numbers in a format that numpy does not have.
    except (OSError, ValueError, SafetensorError, TypeError, AttributeError) as error:
        raise _broken(file, error, remedy) from None
    for name, values in arrays.items():
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise _broken(file, ValueError(f"{name} holds NaN"), remedy)
    return arrays, header


class OfVectors(Protocol):
    """What is made of vectors, and of no others."""

    @property
    def facts(self) -> Mapping[str, Any]: ...


Made = TypeVar("Made", bound=OfVectors)


def of_vectors(
    file: Path, make: Callable[[Arrays, Any], Made], wanted: Mapping[str, Any], *, name: str, remedy: str
) -> Made:
    """What a model keeps of vectors in a file, made of its arrays and what its header says.

    Args:
        wanted: facts that it must agree with.
        name, remedy: what it is called, and how a person gets another.

    Raises:
        UsageError: there is none, or it is of other vectors.
        StateError: it is damaged.
    """
    if not file.is_file():
        raise UsageError(f"{file.parent} has no {name} yet: {remedy}")
    arrays, header = tensors(file, remedy)
    try:
        found = make(arrays, parse_json(header[HEADER], finite=True))
        other = next((fact for fact, value in wanted.items() if found.facts.get(fact) != value), None)
    except _UNFIT as error:
        raise _broken(file, error, remedy) from None
    if other is not None:
        own = f"{other} {found.facts.get(other)}, and these have {wanted[other]}"
        raise UsageError(f"{file} is of vectors with {own}: {remedy}")
    return found


def saved(arrays: Mapping[str, NDArray[Any]], header: dict[str, str] | None = None) -> bytes:
    """The content of such a file."""
    return save({name: np.ascontiguousarray(values) for name, values in arrays.items()}, metadata=header)


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def _broken(file: Path, error: Exception, remedy: str = _CALIBRATE) -> StateError:
    return StateError(f"{file} cannot be read ({error}); {remedy}")

"""Rows of `alarms.py` for HDFS sessions whose events are the same as, or almost the same as, normal sessions.

Counts of events hardly detect such sessions. Three kinds are compared with normal sessions that do not occur
in the training data:

    near       the anomalies of the file within L1 <= 2 of the events of a training session, each once
    reordered  planted: neighbours swapped, events exchanged, a block moved, a stretch reversed (L1 = 0)
    changed    planted: an event substituted, deleted or doubled (L1 <= 2)

If a planted session occurs as a normal session anywhere in the data, it is drawn again. The baseline is the
best of all simple detectors. It is selected on the measured sessions themselves, which favours it. The
benchmark measures the gain when channels of the model are added. These channels were selected on faults
planted in calibration sessions, never on the measured sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_floors import floors, l1_distance
from anomaly_logs import hdfs_detector
from anomaly_metrics import gain, ranking
from anomaly_models import Detector, Fused, Statistics
from anomaly_plants import COUNT_CHANGES, REORDERINGS, planted, substituted
from anomaly_sessions import Session, SessionTask, records_of
from numpy.typing import NDArray

from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.engine.units import Mode

Doubles = NDArray[np.float64]
Row = dict[str, Any]

TOP = 5

ADDED = ("pll_max",)
"""The channels of the model for a session, selected on planted faults in calibration sessions (`tuned`)."""

TRIED: dict[str, tuple[str, ...]] = {
    "sum": ("pll_sum",),
    "max": ("pll_max",),
    "sum, max": ("pll_sum", "pll_max"),
    "half hidden": ("hidden_sum",),
    "half hidden, max": ("hidden_sum", "hidden_max"),
    "sum, max, half hidden": ("pll_sum", "pll_max", "hidden_sum"),
    "sum, half hidden": ("pll_sum", "hidden_sum"),
    "all": (
        "pll_sum",
        "pll_mean",
        "pll_max",
        "pll_top",
        "hidden_sum",
        "hidden_mean",
        "hidden_max",
        "hidden_top",
    ),
}


def blind(data: Path, out: Path, seed: int, minutes: float, records: int | None = None) -> list[Row]:
    """Rows of the blind spots: floors, the model's channels, both fused, and the gain with its interval."""
    task, detector = hdfs_detector(data, out, seed, minutes)
    measured = Measured(task, detector, edit=records is None)
    rows = tuned(task, measured, seed, records)
    known = set(task.train)
    normals = sorted({s for s, bad in zip(task.test, task.labels, strict=True) if not bad and s not in known})
    normals = some(normals, records)
    normal_cells = measured(normals)
    for kind, (abnormal, base) in _kinds(task, normals, seed, records).items():
        found = measured(abnormal)
        both = {name: np.concatenate([normal_cells[name], found[name]]) for name in found}
        labels = np.repeat([False, True], [len(normals), len(abnormal)])
        groups = np.concatenate([np.arange(len(normals)), base])
        rows += _compared(kind, measured, both, labels, groups)
    return rows


def some(sessions: Sequence[Session], number: int | None) -> list[Session]:
    """At most `number` of the sessions, drawn without replacement; None means all."""
    if number is None or number >= len(sessions):
        return list(sessions)
    return [sessions[i] for i in np.random.default_rng(0).permutation(len(sessions))[:number].tolist()]


class Measured:
    """The baselines and the channels of the model by name, with their values on calibration sessions.

    Args:
        task: its training sessions fit the baselines.
        detector: the model.
        edit: also use the edit distance, which takes minutes.
    """

    def __init__(self, task: SessionTask, detector: Detector, *, edit: bool) -> None:
        self.floors, self.detector = floors(task.train, edit=edit), detector
        self.calibration = self(task.calibration)
        self.lengths = np.array([len(s) for s in task.calibration])

    def __call__(self, sessions: Sequence[Session]) -> Statistics:
        """(N,) of every floor and channel."""
        chosen = list(dict.fromkeys(sessions))
        place = {session: i for i, session in enumerate(chosen)}
        at = np.array([place[session] for session in sessions])
        columns = {name: floor(chosen) for name, floor in self.floors.items()}
        records = records_of(chosen)
        scorer = self.detector.scorer()
        encoded = scorer.encoded(records, Problems())
        columns |= model_channels(
            scorer.unit_scores(encoded), scorer.unit_scores(encoded, Mode("partition", 2))
        )
        columns["length of session"] = np.array([float(len(s)) for s in chosen])
        return {name: values[at] for name, values in columns.items()}

    def fused(self, found: Statistics, channels: Sequence[str], *, by_length: bool = False) -> Doubles:
        """(N,) the channels fused by the product's calibration, learnt from calibration sessions."""
        lengths = found["length of session"].astype(np.int64)
        fused = Fused.fit(self.calibration, self.lengths, channels, by_length=by_length, fusion="fisher")
        return fused.scores(found, lengths)


def model_channels(alone: Sequence[ScoredRecord], hidden: Sequence[ScoredRecord]) -> Statistics:
    """Reductions of the surprisals: each event hidden alone (pll), and with every other one (hidden)."""
    columns: dict[str, list[float]] = {}
    for one, other in zip(alone, hidden, strict=True):
        parts = {"pll": one.surprisal, "hidden": other.surprisal}
        for name, bits in parts.items():
            bits = bits if len(bits) else np.zeros(1)
            columns.setdefault(f"{name}_sum", []).append(float(bits.sum()))
            columns.setdefault(f"{name}_mean", []).append(float(bits.mean()))
            columns.setdefault(f"{name}_max", []).append(float(bits.max()))
            columns.setdefault(f"{name}_top", []).append(float(np.sort(bits)[-TOP:].mean()))
    return {name: np.array(values) for name, values in columns.items()}


def tuned(task: SessionTask, measured: Measured, seed: int, records: int | None) -> list[Row]:
    """The gain of each set of added channels over the 5-gram, on faults in calibration sessions.

    Normal calibration sessions also give the thresholds. Therefore only the order of the sets is meaningful.
    """
    sessions = some(list(dict.fromkeys(task.calibration)), records and records // 2)
    kinds = {k: v for k, v in _kinds(task, sessions, seed + 100, 0).items() if k in ("reordered", "changed")}
    normal = measured(sessions)
    rows = []
    for kind, (abnormal, _) in kinds.items():
        found = measured(abnormal)
        both = {name: np.concatenate([normal[name], found[name]]) for name in found}
        labels = np.repeat([False, True], [len(sessions), len(abnormal)])
        for arm, added in {"5-gram alone": (), **TRIED}.items():
            scores = measured.fused(both, ("5-gram sum", *added))
            rows.append(
                {"set": f"tuning, {kind}", "detector": arm, "auroc": ranking(labels, scores)["auroc"]}
            )
    return rows


def _kinds(
    task: SessionTask, sessions: Sequence[Session], seed: int, records: int | None
) -> dict[str, tuple[list[Session], NDArray[np.int64]]]:
    """The abnormal sessions of each kind, and the number of the session that each was made from."""
    bad = [s for s, label in zip(task.test, task.labels, strict=True) if label]
    normal = {s for s, label in zip(task.test, task.labels, strict=True) if not label}
    normal |= {*task.train, *task.calibration}
    alphabet = sorted({event for s in task.train for event in s})
    distinct = list(dict.fromkeys(bad))
    close = l1_distance(task.train, distinct) <= 2
    near = some([s for s, one in zip(distinct, close.tolist(), strict=True) if one], records)
    found = {"near": (near, len(sessions) + np.arange(len(near)))}
    faults = {
        "reordered": REORDERINGS,
        "changed": {"substitute": partial(substituted, alphabet=alphabet), **COUNT_CHANGES},
    }
    for kind, ways in faults.items():
        made: list[Session] = []
        base: list[int] = []
        for number, fault in enumerate(ways.values()):
            for origin, one in enumerate(planted(sessions, fault, normal, seed * 10 + number)):
                if one is not None:
                    made.append(one)
                    base.append(origin)
        found[kind] = (made, np.array(base))
    planted_all = (found["reordered"][0] + found["changed"][0], np.concatenate([found[k][1] for k in faults]))
    return {**found, "reordered and changed": planted_all}


def _compared(kind: str, measured: Measured, found: Statistics, labels: Any, groups: Any) -> list[Row]:
    """Every baseline, the best baseline with the channels of the model, and the best pair with them."""
    area = {name: ranking(labels, found[name])["auroc"] for name in measured.floors}
    best = max(area, key=lambda name: area[name])
    size = {"set": f"hdfs blind, {kind}", "abnormal": int(labels.sum()), "normal": int((~labels).sum())}
    rows = [{**size, "detector": f"floor {name}", "auroc": value} for name, value in area.items()]
    rows += [
        {**size, "detector": f"model {name}", "auroc": ranking(labels, found[name])["auroc"]}
        for name in found
        if name.startswith(("pll", "hidden"))
    ]
    for base in ((best,), ("neighbour", "5-gram sum")):
        alone = found[best] if len(base) == 1 else measured.fused(found, base)
        for by_length in (False, True):
            both = measured.fused(found, (*base, *ADDED), by_length=by_length)
            rows.append(
                {
                    **size,
                    "detector": f"{' + '.join(base)} + model{', by length' if by_length else ''}",
                    "floor_auroc": ranking(labels, alone)["auroc"],
                    "auroc": ranking(labels, both)["auroc"],
                    **gain(labels, both, alone, groups),
                }
            )
    return rows

"""Rows of `alarms.py` for logs: every baseline and the fused detector, with thresholds without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from anomaly_floors import floors
from anomaly_metrics import alarmed, gain, ranking, threshold_on
from anomaly_models import COUNTING, Detector, Fused, trained
from anomaly_sessions import (
    RawTask,
    SessionTask,
    bgl,
    distinct,
    hdfs,
    hdfs_raw,
    openstack,
    records_of,
    write_raw,
    write_sessions,
)
from numpy.typing import NDArray

from seqmlm.data.record import Record

Doubles = NDArray[np.float64]
Row = dict[str, Any]

RATES = (0.05, 0.02, 0.01, 0.005, 0.001)
RAW = {"hdfs_raw": hdfs_raw, "bgl": bgl}
# A smaller body than "tiny" sees more sessions in the same time: fewer bits per held-out event.
HDFS_FLAGS: dict[str, Any] = {
    "data": {"validation": 0.03},
    "masking": {"rate": 0.3},
    "model": {
        "size": "tiny",
        "overrides": {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        },
    },
    "train": {"learning_rate": 0.004},
}
LOG_STEPS = 1000  # that one quiet core makes in about a minute with so small a body


def log_flags(minutes: float) -> dict[str, Any]:
    """The settings of a training with this number of minutes."""
    return {**HDFS_FLAGS, "train": {**HDFS_FLAGS["train"], "max_steps": round(minutes * LOG_STEPS)}}


def hdfs_detector(data: Path, out: Path, seed: int, minutes: float) -> tuple[SessionTask, Detector]:
    """The HDFS task and a detector trained only on its training sessions."""
    task = hdfs(data)
    return task, session_detector(task, out, seed, minutes)


def session_detector(task: SessionTask, out: Path, seed: int, minutes: float) -> Detector:
    """A detector trained on the training sessions of a task, without the calibration sessions."""
    file = write_sessions(task.train, out / f"{task.name}-train.txt")
    model = trained(out, task.name, "logs", [file], log_flags(minutes), seed, minutes)
    return Detector.of(model, records_of(task.train))


def sessions(
    name: str, data: Path, out: Path, seed: int, minutes: float, records: int | None = None
) -> list[Row]:
    """Rows of one labelled set of sessions. For HDFS, also rows with each unseen session once.

    "unseen events counted": the score is the number of events that do not occur in training, not infinity.
    If the training set is small, normal sessions have some of these events too.
    """
    task = hdfs(data) if name == "hdfs" else openstack(data, name.removeprefix("openstack_"))
    detector = session_detector(task, out, seed, minutes)
    known, lengths = detector.statistics(records_of(task.calibration))
    every = detector.level.statistics
    detectors = {
        "fused": Fused.fit(known, lengths, every, fusion=detector.level.statistics.fusion),
        "fused, all by harmonic mean": Fused.fit(known, lengths, every),
        "fused, all by Fisher": Fused.fit(known, lengths, every, fusion="fisher"),
        "fused, counting alone": Fused.fit(known, lengths, COUNTING),
    }
    counted = floors(task.train)["unseen event"]
    unseen = {**known, "unseen": counted(task.calibration)}
    graded = Fused.fit(unseen, lengths, every)
    rows: list[Row] = []
    for one in [task, distinct(task)] if name == "hdfs" else [task]:
        found, sizes = detector.statistics(records_of(one.test))
        for arm, fused in detectors.items():
            rows += fused_rows(one, arm, fused, found, sizes)
        again = {**found, "unseen": counted(one.test)}
        rows += fused_rows(one, "fused, unseen events counted", graded, again, sizes)
        rows += [
            {
                "set": one.name,
                "detector": f"channel {channel}",
                **ranking(one.labels, _finite(found[channel])),
            }
            for channel in detector.level.statistics
        ]
        rows += floor_rows(one, detectors["fused"].scores(found, sizes))
    return rows


def fused_rows(
    task: SessionTask | RawTask, arm: str, fused: Fused, found: dict[str, Doubles], sizes: Any
) -> list[Row]:
    """Rows of a detector at every false-positive rate, and at the smallest rate that is guaranteed."""
    scores, p_value = fused.scores(found, sizes), fused.judge(found, sizes).p_value
    whole = ranking(task.labels, scores)
    rates = sorted({*RATES, fused.calibration.smallest_rate}, reverse=True)
    return [
        {
            "set": task.name,
            "detector": arm,
            "rate": rate,
            **whole,
            **alarmed(task.labels, p_value <= rate * (1 + 1e-9), getattr(task, "prevalence", None)),
        }
        for rate in rates
    ]


def floor_rows(task: SessionTask, fused: Doubles) -> list[Row]:
    """Rows of every baseline at every rate, with thresholds from calibration sessions.

    Args:
        fused: (N,) scores of the detector. It is compared with the baseline that ranks best, by a paired
            bootstrap over groups of equal sessions.
    """
    rows, areas = [], {}
    for name, floor in floors(task.train).items():
        scores, normal = floor(task.test), floor(task.calibration)
        whole = ranking(task.labels, scores)
        areas[name] = whole["auroc"], scores
        for rate in RATES:
            alarms = scores > threshold_on(normal, rate) if name != "flag everything" else scores > 0
            found = alarmed(task.labels, alarms, task.prevalence)
            rows.append({"set": task.name, "detector": f"floor {name}", "rate": rate, **whole, **found})
    best = max(areas, key=lambda name: areas[name][0])
    number: dict[tuple[int, ...], int] = {}
    groups = [number.setdefault(session, len(number)) for session in task.test]
    over = gain(task.labels, fused, areas[best][1], groups)
    rows.append(
        {"set": task.name, "detector": f"fused against {best}", "floor_auroc": areas[best][0], **over}
    )
    return rows


def raw(name: str, data: Path, out: Path, seed: int, minutes: float, records: int | None = None) -> list[Row]:
    """Rows for raw messages with their natural share of anomalies, divided in time: HDFS (headline) or BGL.

    "normals" trains and calibrates only on normal sessions, "unlabelled" on all sessions.
    """
    task = RAW[name](data)
    rows: list[Row] = []
    for arm in ("normals", "unlabelled"):
        keep = ~task.train_labels if arm == "normals" else np.ones(len(task.train), dtype=bool)
        held = ~task.calibration_labels if arm == "normals" else np.ones(len(task.calibration), dtype=bool)
        train = [record for record, kept in zip(task.train, keep, strict=True) if kept]
        calibration = [record for record, kept in zip(task.calibration, held, strict=True) if kept]
        file = write_raw(train, out / f"{name}-{arm}.jsonl")
        model = trained(out, f"{name}-{arm}", "logs", [file], log_flags(minutes), seed, minutes)
        detector = Detector.of(model, train)
        known, lengths = detector.statistics(calibration)
        found, sizes = detector.statistics(task.test)
        every = detector.level.statistics
        detectors = {
            "fused": Fused.fit(known, lengths, every, fusion=detector.level.statistics.fusion),
            "fused, all by harmonic mean": Fused.fit(known, lengths, every),
            "fused, all by Fisher": Fused.fit(known, lengths, every, fusion="fisher"),
            "fused, counting alone": Fused.fit(known, lengths, COUNTING),
        }
        for detects, fused in detectors.items():
            rows += fused_rows(task, f"{detects}; trained on {arm}", fused, found, sizes)
        as_events = _as_events(task, detector, train, calibration, arm)
        rows += floor_rows(as_events, detectors["fused"].scores(found, sizes))
    return rows


def _as_events(
    task: RawTask, detector: Detector, train: list[Record], calibration: list[Record], arm: str
) -> SessionTask:
    """Template numbers instead of messages, for the baselines."""
    encode = detector.model.tokenizer.encode_batch

    def events(records: list[Record]) -> list[tuple[int, ...]]:
        return [tuple(e.ids[e.groups >= 0].tolist()) for e in encode([record.raw for record in records])]

    return SessionTask(
        name=f"{task.name}, {arm}",
        train=events(train),
        calibration=events(calibration),
        test=events(task.test),
        labels=task.labels,
    )


def _finite(values: Doubles) -> Doubles:
    return np.nan_to_num(values, nan=-1e300, posinf=1e300)

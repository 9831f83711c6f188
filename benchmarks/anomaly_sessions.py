"""The labelled log data of `alarms.py`: sessions of event ids, and raw messages in order of time."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers.events import LogLines

Session = tuple[int, ...]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class SessionTask:
    """One labelled set of sessions of event ids.

    Args:
        name: name of the data set.
        train: sessions that the model and all counts are trained on.
        calibration: normal sessions that only set the threshold.
        test, labels: the judged sessions, and True for an abnormal session.
        prevalence: natural share of abnormal sessions, if it differs from the share in the file.
    """

    name: str
    train: list[Session]
    calibration: list[Session]
    test: list[Session]
    labels: Bools
    prevalence: float | None = None


def hdfs(data: Path) -> SessionTask:
    """DeepLog's training sessions; the normals of LogRobust and the 16,838 abnormal sessions.

    The last tenth of the training file calibrates. Most normals occur verbatim in training: 7,000 sessions,
    1,020 distinct.
    """
    folder = data / "logs"
    normal = _session_lines(folder / "hdfs_deeplog" / "hdfs_train.txt.gz")
    abnormal = _session_lines(folder / "hdfs_deeplog" / "hdfs_test_abnormal.txt.gz")
    others = [s for part in ("train", "valid") for s in _logrobust(folder / "hdfs_logrobust", part)]
    held = len(normal) // 10
    return SessionTask(
        name="hdfs",
        train=normal[:-held],
        calibration=normal[-held:],
        test=others + abnormal,
        labels=np.repeat([False, True], [len(others), len(abnormal)]),
        prevalence=16838 / (16838 + 558223),
    )


def openstack(data: Path, name: str) -> SessionTask:
    """OpenStack sessions of the AIT collection ("parisakalaki" or "loghub").

    Half of the few training sessions calibrate.
    """
    folder = data / "logs" / f"openstack_{name}"
    train, normal, abnormal = (
        _session_lines(folder / f"{part}.txt.gz") for part in ("train", "test_normal", "test_abnormal")
    )
    held = len(train) // 2
    return SessionTask(
        name=f"openstack_{name}",
        train=train[:-held],
        calibration=train[-held:],
        test=normal + abnormal,
        labels=np.repeat([False, True], [len(normal), len(abnormal)]),
    )


def distinct(task: SessionTask) -> SessionTask:
    """The distinct test sessions that are not in training."""
    known = set(task.train)
    kept: dict[Session, bool] = {}
    for session, label in zip(task.test, task.labels.tolist(), strict=True):
        if session not in known:
            kept.setdefault(session, label)
    return replace(
        task,
        name=f"{task.name}, distinct",
        test=list(kept),
        labels=np.array(list(kept.values())),
        prevalence=None,
    )


def records_of(sessions: Iterable[Session]) -> list[Record]:
    """The records that a file of event ids would become."""
    return [
        Record(
            id=str(number), raw=LogLines(lines=tuple(map(str, s)), keys=True), source="sessions", line=number
        )
        for number, s in enumerate(sessions, 1)
    ]


def write_sessions(sessions: Iterable[Session], path: Path) -> Path:
    """Write a file of event ids, one session a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(" ".join(map(str, s)) + "\n" for s in sessions), encoding="utf-8")
    return path


@dataclass(frozen=True, kw_only=True)
class RawTask:
    """Sessions of raw messages in order of time, and their labels."""

    name: str
    train: list[Record]
    calibration: list[Record]
    test: list[Record]
    train_labels: Bools
    calibration_labels: Bools
    labels: Bools


def hdfs_raw(data: Path) -> RawTask:
    """The 9,198 sessions of raw HDFS messages by the time of their first line: half, a tenth, two fifths."""
    folder = data / "logs" / "hdfs_2pct_raw"
    with gzip.open(folder / "labels.tsv.gz", "rt") as stream:
        labels = {row["seq_id"]: row["anomaly"] == "1" for row in csv.DictReader(stream, delimiter="\t")}
    with Problems() as problems:
        found = list(plugins.domain("logs").read([str(folder / "events.tsv.gz")], problems))
    found.sort(key=lambda record: (record.raw.times[0], record.id))
    truth = np.array([labels[_session_of(record)] for record in found])
    return _in_time("hdfs_raw", found, truth)


def bgl(data: Path) -> RawTask:
    """Windows of ten lines of BGL's 2,000, with an alert or not: a smoke test."""
    with Problems() as problems:
        files = [str(data / "logs" / "loghub_2k" / "BGL_2k.log.gz")]
        found = list(plugins.domain("logs").read(files, problems, window=10))
    truth = np.array([any(label != "-" for label in record.meta["labels"]) for record in found])
    return _in_time("bgl", found, truth)


def _in_time(name: str, found: list[Record], truth: Bools) -> RawTask:
    first, second = len(found) // 2, len(found) * 3 // 5
    return RawTask(
        name=name,
        train=found[:first],
        calibration=found[first:second],
        test=found[second:],
        train_labels=truth[:first],
        calibration_labels=truth[first:second],
        labels=truth[second:],
    )


def write_raw(records: Sequence[Record], path: Path) -> Path:
    """Write raw sessions as JSON lines, a session an object."""
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps({"session": record.id, "templates": list(record.raw.lines)}) + "\n")
    return path


def _session_of(record: Record) -> str:
    return record.document or record.id


def _session_lines(path: Path) -> list[Session]:
    with gzip.open(path, "rt") as stream:
        return [tuple(map(int, line.split(",")[-1].split())) for line in stream if line.strip()]


def _logrobust(folder: Path, part: str) -> list[Session]:
    with gzip.open(folder / f"robust_log_{part}.csv.gz", "rt") as stream:
        rows = csv.DictReader(stream)
        return [tuple(map(int, row["Sequence"].split())) for row in rows if row["label"] == "0"]

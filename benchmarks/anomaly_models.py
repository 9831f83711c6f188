"""Small models for `alarms.py`, trained in the same way as by `seqmlm train`, and the scores they give."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.judge import Fusion, Judgement, Normal, fuse
from seqmlm.anomaly.levels import Background, Level
from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.inference import model_folder
from seqmlm.inference.detector import Detector as ModelDetector
from seqmlm.inference.detector import table
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.record_batches import batches
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain
from seqmlm.workspace import Workspace

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Statistics = dict[str, Doubles]

STEPS = 300
"""Steps of a tiny model that one quiet core makes in about a minute."""

COUNTING = ("unseen", "neighbour")
"""Channels of a log session that need no model."""


def steps(minutes: float) -> dict[str, int]:
    """The length of a training in steps, so that the model does not depend on the load of the machine."""
    return {"max_steps": round(minutes * STEPS)}


def trained(
    out: Path,
    name: str,
    domain: str,
    files: Sequence[Path],
    flags: Mapping[str, Any],
    seed: int,
    minutes: float,
) -> LoadedModel:
    """A `tiny` model trained from scratch for `steps(minutes)`, or the model that an earlier call trained.

    Args:
        out: folder of the workspace of the benchmark.
        name: name of the run; seed and minutes are added.
        flags: settings as nested mappings, without `data.paths`; `train.max_steps` sets the steps.
    """
    os.environ["SEQMLM_HOME"] = str(out / "workspace")
    run = f"{name}-{minutes:g}min-seed{seed}"
    where = Workspace.locate().run_dir(run)
    if not (where / "result.json").exists():
        data = {"on_error": "skip", **flags.get("data", {}), "paths": [str(path) for path in files]}
        train = {**steps(minutes), **flags.get("train", {})}
        wanted = {"model": {"size": "tiny"}, **flags, "data": data, "train": train}
        request = TrainRequest(
            domain=domain, name=run, flags=wanted, settings=(f"seed={seed}",), resume="auto"
        )
        pretrain(request, SilentConsole())
    if not (where / "result.json").exists():
        raise SystemExit(f"training {run} was stopped; start again to go on with it")
    return model_folder.load(where / "model")


@dataclass(frozen=True, eq=False)
class Detector:
    """A model at one level with its background of normal records.

    Args:
        model: the model.
        level: the part of a record that is judged.
        background: facts about the training records that the level uses.
    """

    model: LoadedModel
    level: Level
    background: Background | None

    @classmethod
    def of(cls, model: LoadedModel, train: Sequence[Record], level: str | None = None) -> Detector:
        """The detector whose background is learnt from the training records."""
        found = model.domain.level(level)
        if found.background is None:
            return cls(model, found, None)
        encoded = RecordScorer(Session(model)).encoded(train, Problems("skip"))
        return cls(model, found, found.background.fit([e.encoding for e in encoded], model.tokenizer, seed=0))

    def statistics(self, records: Sequence[Record]) -> tuple[Statistics, Longs]:
        """Statistics by channel (N,) of records that are a row each, and their lengths (N,)."""
        first: dict[str, int] = {}
        place = np.array([first.setdefault(_text(record), len(first)) for record in records])
        chosen = dict(zip(reversed(place.tolist()), reversed(records), strict=True))
        rows = [row for own in self.judged([chosen[i] for i in range(len(first))]) for row in own[1]]
        if len(rows) != len(first):
            raise SystemExit(f"level {self.level.name}: {len(rows)} rows for {len(first)} records")
        columns, lengths = table(rows, self.level.statistics)
        return {name: values[place] for name, values in columns.items()}, lengths[place]

    def scorer(self) -> RecordScorer:
        """A scorer of the model without a cache."""
        return RecordScorer(Session(self.model, tokens_per_batch=8192))

    def judged(self, records: Sequence[Record]) -> list[tuple[ScoredRecord, list[Any]]]:
        """Each record with its rows."""
        detector = ModelDetector(self.scorer(), self.level, background=self.background)
        found: list[tuple[ScoredRecord, list[Any]]] = []
        for batch in batches(iter(records)):
            scored = detector.unit_scores(detector.scorer.encoded(batch, Problems("skip")))
            found += zip(scored, detector.rows(scored), strict=True)
        return found


@dataclass(frozen=True, eq=False)
class Fused:
    """Some channels fused by the calibration of the product on normal rows.

    Args:
        calibration: a calibration fitted to them.
        by_length: compare rows with normal rows of similar length, not with all.
    """

    calibration: Normal
    by_length: bool

    @classmethod
    def fit(
        cls,
        statistics: Statistics,
        lengths: Longs,
        channels: Sequence[str],
        *,
        by_length: bool = False,
        fusion: Fusion = "harmonic",
    ) -> Fused:
        """Learn what is normal in these channels."""
        sizes = lengths if by_length else np.zeros_like(lengths)
        chosen = {n: statistics[n] for n in channels}
        return cls(Normal.fit(chosen, sizes, seed=0, fusion=fusion), by_length)

    def judge(self, statistics: Statistics, lengths: Longs) -> Judgement:
        """p-values of rows."""
        sizes = lengths if self.by_length else np.zeros_like(lengths)
        return self.calibration.judge({n: statistics[n] for n in self.calibration.statistics}, sizes)

    def scores(self, statistics: Statistics, lengths: Longs) -> Doubles:
        """(M,) the fused statistic before it is ranked among normal rows: higher is more unusual."""
        return fuse(self.judge(statistics, lengths).p_values, self.calibration.fusion)


def _text(record: Record) -> str:
    return str(record.raw)

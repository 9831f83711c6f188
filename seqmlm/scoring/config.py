"""The settings of a scoring; a request that makes no sense is refused before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from seqmlm import plugins
from seqmlm.anomaly.levels import TRACKS, Level
from seqmlm.data.compressed import ending
from seqmlm.data.sources import split_source
from seqmlm.errors import UsageError
from seqmlm.inference.session import ExpertUse
from seqmlm.parsing import Share, duration
from seqmlm.streams.cursor import Cursor
from seqmlm.tasks.settings import CommandConfig
from seqmlm.tasks.task import TaskConfig


@dataclass(frozen=True, kw_only=True)
class ScoringRequest(CommandConfig):
    """The settings of every scoring: the model, the level it judges at, and the rate of alarms.

    Args:
        out: write the rows to this file instead of stdout: .jsonl, .csv or .parquet.
        fpr: false positive rate: share of normal rows that raise an alarm, such as 0.001 or 0.1%.
        alarms_per_day: alarms a day on normal data, instead of --fpr; the data must have times.
        extrapolate: allow a rate below what the normal rows guarantee, by the fit of a tail to their scores.
        alarms_only: write only the rows that raise an alarm.
        level: what gets a score each, such as record, line or residue. Default: by domain.
        mode: how log-probabilities are computed: exact (mask one unit at a time), partition:K (mask each unit
            once in K passes) or one-pass (mask nothing). Default: by domain; where that would take more than
            ten minutes by estimate, or is not calibrated, another one that is.
        per_unit: add span, surprisal, entropy and rank of every unit.
        format: format of the input files (see `seqmlm data formats`). Default: detected.
        options: KEY=VALUE: option of the file reader, such as column=text; repeatable.
        tokens_per_batch: tokens of one forward pass; halved when memory runs out. Default: by device.
        precision: precision of matrix products: fp32 (exact to rounding), bf16 (faster on GPUs and CPUs with
            bfloat16 units; log-probabilities change by a few hundredths), or auto (bf16 on a GPU that has it,
            else fp32).
        expert: counts of the training data, mixed into the model's probabilities: auto (where that was better
            on validation records), counts (wherever the model has any) or none.
    """

    out: Path | None = None
    fpr: Share | None = None
    alarms_per_day: float | None = None
    extrapolate: bool = False
    alarms_only: bool = False
    level: str | None = None
    mode: str | None = None
    per_unit: bool = False
    tokens_per_batch: int | None = None
    expert: ExpertUse = "auto"

    @property
    def sources(self) -> list[str]:
        """The paths without the names that training gives corpora."""
        return [split_source(path)[1] for path in self.paths]

    @property
    def measured(self) -> Sequence[str]:
        """Sources that can be looked at before they are read; "-" where that is not known."""
        return ["-"]

    @property
    def begun_mode(self) -> str | None:
        """The mode of an unfinished scoring that is to be continued."""
        return None

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The files that are written, by the option that names each."""
        quarantine_file = {"--on-error quarantine": self.quarantine} if self.on_error == "quarantine" else {}
        return {"--out": self.out, **quarantine_file}

    @property
    def quarantine(self) -> Path:
        """The file that bad records are written to, if they are kept."""
        return Path(f"{self.out or 'score'}.quarantine.jsonl")

    @property
    def rate_option(self) -> str | None:
        """The option that sets a rate of alarms; None where none is set."""
        if self.alarms_per_day is not None:
            return "--set alarms_per_day"
        return None if self.fpr is None else "--fpr"

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read.

        Raises:
            UsageError: it does not; the sentence says why.
            DataError: an input is not there.
        """
        if self.fpr is not None and self.alarms_per_day is not None:
            raise UsageError("--fpr and alarms_per_day both say how many alarms are wanted; give one")
        if self.fpr is not None and not 0 < self.fpr < 1:
            raise UsageError(f"--fpr is a share between 0 and 1, such as 0.001 or 0.1%; got {self.fpr:g}")
        if self.alarms_per_day is not None and not self.alarms_per_day > 0:
            raise UsageError(f"alarms_per_day must be above 0; got {self.alarms_per_day:g}")
        has_rate = self.rate_option is not None
        for name, value in {"extrapolate": self.extrapolate, "alarms_only": self.alarms_only}.items():
            if value and not has_rate:
                raise UsageError(f"{name} is about a rate of alarms: --fpr, or --set alarms_per_day=N")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(ScoringRequest, TaskConfig):
    """The settings of `seqmlm score`.

    Args:
        out: write the rows to this file instead of stdout: .jsonl, .csv or .parquet; or the scores along a
            genome alone: .bedgraph, .bed (names genes) or .bw; with .gz, .bed.gz and .bedgraph.gz by bgzip.
        format_out: format of the rows: jsonl, csv or parquet. Default: by the name of --out.
        resume: resume an interrupted --out; no row is lost or duplicated.
        max_latency: DURATION: read standard input live; write each row at most this long after its line, such
            as 1s.
        report: write an HTML report to this file and log a run in MLflow.
    """

    option_fields: ClassVar[tuple[str, ...]] = (
        *("out", "fpr", "level", "mode", "report", "resume", "shard", "max_latency"),
        *CommandConfig.option_fields,
    )
    later: ClassVar[tuple[str, ...]] = ("max_latency", "extrapolate")

    max_latency: str | None = None

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        levels = () if domain is None else plugins.domain(domain).levels
        placed = domain is None or any(type(level).track is not Level.track for level in levels)
        return {"track": TRACKS} if placed else {}

    @property
    def input_paths(self) -> tuple[str, ...]:
        return tuple(self.sources)

    @property
    def measured(self) -> Sequence[str]:
        return self.sources

    @property
    def begun_mode(self) -> str | None:
        if not self.resume or self.out is None:
            return None
        begun = Cursor(self.out, {}).unfinished()[1].get("mode")
        return begun if isinstance(begun, str) else None

    outputs = TaskConfig.outputs

    @property
    def latency(self) -> float | None:
        """Seconds within which a result follows its line; None where the input is read as a file.

        Raises:
            UsageError: not a duration above 0.
        """
        if self.max_latency is None:
            return None
        seconds = duration(self.max_latency)
        if not seconds:
            raise UsageError(f"--max-latency is a duration such as 1s or 0.5s; got {self.max_latency!r}")
        return seconds

    @property
    def track(self) -> Path | None:
        """The output file where it is a track (scores along a sequence, without rows); else None."""
        track = self.out is not None and self.format_out is None and ending(self.out) in TRACKS
        return self.out if track else None

    @property
    def rows_path(self) -> Path | None:
        return self.out if self.track is None else None

    def check(self) -> None:
        TaskConfig.check(self)
        if self.resume and self.track is not None:
            raise UsageError("--resume continues a file of rows: name it with --out")
        super().check()
        if self.latency is not None and self.sources != ["-"]:
            raise UsageError(
                "--max-latency is about lines that are still being written: give - as the one input"
            )

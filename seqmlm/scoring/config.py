"""The settings of a scoring. Invalid requests are refused before anything is read."""

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
    """Settings of every scoring: the model, the level, and the rate of alarms.

    Args:
        out: write the rows to this file instead of stdout: .jsonl, .csv or .parquet.
        fpr: false positive rate: share of normal rows that raise an alarm, such as 0.001 or 0.1%.
        alarms_per_day: alarms per day on normal data, instead of --fpr; the data must have times.
        extrapolate: allow a rate below what the normal rows guarantee, with a tail fitted to their scores.
        alarms_only: write only the rows that raise an alarm.
        level: kind of part that gets one score each, such as record, line or residue. Default: depends on the
            domain.
        mode: how log-probabilities are computed: exact (mask one unit at a time), partition:K (mask each unit
            once in K passes) or one-pass (mask nothing). Default: the domain's own mode; if it is not
            calibrated or would take more than ten minutes, another calibrated mode.
        per_unit: add the span, surprisal, entropy and rank of every unit.
        format: format of the input files (see `seqmlm data formats`). Default: detected.
        options: KEY=VALUE: option of the file reader, such as column=text; repeatable.
        tokens_per_batch: tokens of one forward pass; halved when memory runs out. Default: depends on the
            device.
        precision: precision of matrix products: fp32 (exact to rounding), bf16 or auto. `auto` is bf16 on a
            GPU that supports it, otherwise fp32. `bf16` is faster on hardware with bfloat16 units and changes
            log-probabilities by a few hundredths.
        expert: whether to mix n-gram counts into the model's probabilities: auto (if that was better on
            validation records), counts (if the model has counts) or none.
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
        """The paths without the corpus names that training accepts."""
        return [split_source(path)[1] for path in self.paths]

    @property
    def measured(self) -> Sequence[str]:
        """Sources that can be inspected before reading, "-" if that is unknown."""
        return ["-"]

    @property
    def begun_mode(self) -> str | None:
        """The mode of the unfinished scoring that is continued, or None."""
        return None

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The output files, by the option that names each."""
        quarantine_file = {"--on-error quarantine": self.quarantine} if self.on_error == "quarantine" else {}
        return {"--out": self.out, **quarantine_file}

    @property
    def quarantine(self) -> Path:
        """The file for bad records, if they are kept."""
        return Path(f"{self.out or 'score'}.quarantine.jsonl")

    @property
    def rate_option(self) -> str | None:
        """The option that sets a rate of alarms, or None."""
        if self.alarms_per_day is not None:
            return "--set alarms_per_day"
        return None if self.fpr is None else "--fpr"

    def check(self) -> None:
        """Check the settings before anything is read.

        Raises:
            UsageError: a setting is not valid. The message tells why.
            DataError: an input does not exist.
        """
        if self.fpr is not None and self.alarms_per_day is not None:
            raise UsageError("--fpr and alarms_per_day both set the number of alarms: give only one")
        if self.fpr is not None and not 0 < self.fpr < 1:
            raise UsageError(f"--fpr must be between 0 and 1, such as 0.001 or 0.1%; got {self.fpr:g}")
        if self.alarms_per_day is not None and not self.alarms_per_day > 0:
            raise UsageError(f"alarms_per_day must be above 0; got {self.alarms_per_day:g}")
        has_rate = self.rate_option is not None
        for name, value in {"extrapolate": self.extrapolate, "alarms_only": self.alarms_only}.items():
            if value and not has_rate:
                raise UsageError(f"{name} needs a rate of alarms: add --fpr, or --set alarms_per_day=N")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(ScoringRequest, TaskConfig):
    """Settings of `seqmlm score`.

    Args:
        out: write the rows to this file instead of stdout: .jsonl, .csv or .parquet. Or write only scores
            along a genome: .bedgraph, .bed (with gene names) or .bw; .gz compresses, .bed.gz and .bedgraph.gz
            with bgzip.
        format_out: format of the rows: jsonl, csv or parquet. Default: chosen from the name of --out.
        resume: continue an interrupted --out; no row is lost or duplicated.
        max_latency: DURATION: read standard input live, and write each row at most this long after its line,
            such as 1s.
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
        """Maximum seconds between a line and its result, or None for input that is read as a file.

        Raises:
            UsageError: `max_latency` is not a duration above 0.
        """
        if self.max_latency is None:
            return None
        seconds = duration(self.max_latency)
        if not seconds:
            raise UsageError(f"--max-latency must be a duration such as 1s or 0.5s; got {self.max_latency!r}")
        return seconds

    @property
    def track(self) -> Path | None:
        """The output file if it is a track (scores along a sequence, without rows), else None."""
        track = self.out is not None and self.format_out is None and ending(self.out) in TRACKS
        return self.out if track else None

    @property
    def rows_path(self) -> Path | None:
        return self.out if self.track is None else None

    def check(self) -> None:
        TaskConfig.check(self)
        if self.resume and self.track is not None:
            raise UsageError("--resume continues only a file of rows: give an --out such as scores.jsonl")
        super().check()
        if self.latency is not None and self.sources != ["-"]:
            raise UsageError("--max-latency reads live input: give - as the only input")

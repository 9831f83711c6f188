"""What a scoring can be told, and which of it makes no sense together."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqmlm.data.files import expand, is_reference
from seqmlm.data.problems import OnError
from seqmlm.data.timestamps import duration
from seqmlm.engine.device import Precision
from seqmlm.errors import UsageError
from seqmlm.streams.sinks import format_of
from seqmlm.tasks.corpus import split_source

_DECIDES_NOTHING = ("model", "paths", "out", "on_error", "resume", "report", "track", "sarif", "max_latency")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """What `seqmlm score` can be told.

    Args:
        model: a reference.
        paths: files, folders, or "-".
        mode: "exact", "whole-unit", "partition:K", "one-pass", "cascade"; None: see `score_judge`.
        level: what of a record is judged; None for the domain's own.
        per_unit: every unit with its surprisal, entropy and rank.
        out: where rows go; None for standard output.
        format_out: "jsonl", "csv" or "parquet"; None: what the name of `out` says.
        fpr: share of normal rows that may raise an alarm, in (0, 1).
        alarms_per_day: the same, as a number a day.
        alarms_only: rows without an alarm are not written.
        resume: go on with the unfinished scoring of `out`.
        max_latency: duration ("1s", "500ms" as "0.5s"): standard input is read live.
        report: an HTML file that shows the results.
        track: a bedGraph file of scores along a genome.
        since, diff: a revision, or a unified diff: only lines of a folder of source code that differ from it.
        sarif: alarms as SARIF.
        baseline: SARIF or JSON lines of an earlier scoring: only alarms that it does not have are written.
        domain, format, options, on_error: as reading data takes them.
        tokens_per_batch: budget of a forward pass; None for what suits the device.
        precision: of the matrix products; "auto" is "bf16" on a GPU that has it, else "fp32".
    """

    model: str
    paths: tuple[str, ...] = ()
    mode: str | None = None
    level: str | None = None
    per_unit: bool = False
    out: Path | None = None
    format_out: str | None = None
    fpr: float | None = None
    alarms_per_day: float | None = None
    alarms_only: bool = False
    resume: bool = False
    max_latency: str | None = None
    report: Path | None = None
    track: Path | None = None
    since: str | None = None
    diff: Path | None = None
    sarif: Path | None = None
    baseline: Path | None = None
    domain: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    tokens_per_batch: int | None = None
    precision: Precision = "fp32"

    @property
    def sources(self) -> list[str]:
        """The paths without the names that training gives corpora."""
        return [split_source(path)[1] for path in self.paths]

    @property
    def latency(self) -> float | None:
        """Seconds within which a result follows its line; None where standard input is read as a file.

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
    def output_format(self) -> str:
        """How rows are written.

        Raises:
            UsageError: an unknown format, or one that standard output cannot take.
        """
        return format_of(self.out, self.format_out)

    def decisive(self) -> dict[str, Any]:
        """The settings that decide what is written, for a resumed scoring to be held to."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept = {name: value for name, value in values.items() if name not in _DECIDES_NOTHING}
        return {**kept, "options": dict(sorted(self.options.items())), "format_out": self.output_format}

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read.

        Raises:
            UsageError: it does not; the sentence says why.
            DataError: an input is not there.
        """
        if not self.paths:
            raise UsageError("nothing to score: name files, folders, or - for standard input")
        self._check_output()
        self._check_resume()
        self._check_rates()
        if self.latency is not None and self.sources != ["-"]:
            raise UsageError(
                "--max-latency is about lines that are still being written: give - as the one input"
            )

    def _check_output(self) -> None:
        inputs = {Path(path).resolve() for path in expand(self.sources) if path != "-"}
        for name, path in (
            ("--out", self.out),
            ("--report", self.report),
            ("--track", self.track),
            ("--sarif", self.sarif),
        ):
            if path is not None and path.resolve() in inputs:
                raise UsageError(f"{name} {path} is one of the inputs; choose another file")
        if self.out is not None and self.out.is_dir():
            raise UsageError(f"--out {self.out} is a folder; name a file")
        _ = self.output_format

    def _check_resume(self) -> None:
        if not self.resume:
            return
        if self.out is None:
            raise UsageError("--resume goes on with a file: name it with --out")
        if "-" in self.sources or any(map(_flows, expand(self.sources))):
            raise UsageError(
                "--resume cannot be had with standard input or a pipe: what was read from it is gone; write "
                "it to a file first"
            )
        if any(path is not None for path in (self.report, self.track, self.sarif)):
            raise UsageError(
                "--report, --track and --sarif show what one process has scored; leave them out of a --resume"
            )

    def _check_rates(self) -> None:
        if self.fpr is not None and self.alarms_per_day is not None:
            raise UsageError("--fpr and --alarms-per-day both say how many alarms are wanted; give one")
        if self.fpr is not None and not 0 < self.fpr < 1:
            raise UsageError(f"--fpr is a share between 0 and 1, such as 0.001; got {self.fpr:g}")
        if self.alarms_per_day is not None and not self.alarms_per_day > 0:
            raise UsageError(f"--alarms-per-day must be above 0; got {self.alarms_per_day:g}")
        asked = self.fpr is not None or self.alarms_per_day is not None
        for name, path in (("--sarif", self.sarif), ("--baseline", self.baseline)):
            if path is not None and not asked:
                raise UsageError(f"{name} is about alarms: say how many are wanted with --fpr, such as 0.001")
        if self.alarms_only and not asked:
            raise UsageError("--alarms-only needs a rate of alarms: --fpr or --alarms-per-day")


def input_bytes(paths: Sequence[str]) -> int | None:
    """Size of all input files together, as they lie on the disk; None where some is no file."""
    files = expand(paths)
    if any(map(is_reference, files)) or any(map(_flows, files)):
        return None
    return sum(Path(path).stat().st_size for path in files)


def _flows(path: str) -> bool:
    """Whether a path can be read only once."""
    return path == "-" or not (is_reference(path) or stat.S_ISREG(Path(path).stat().st_mode))

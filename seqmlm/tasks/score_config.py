"""What a scoring can be told: the request alone; what makes no sense is refused before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from seqmlm.data.files import expand
from seqmlm.data.problems import OnError
from seqmlm.data.timestamps import duration
from seqmlm.engine.device import Precision
from seqmlm.errors import UsageError
from seqmlm.inference.batches import is_pipe
from seqmlm.inference.expert import Use
from seqmlm.streams.cursor import Cursor
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import format_of
from seqmlm.tasks.corpus import split_source


@dataclass(frozen=True, kw_only=True)
class ScoringRequest:
    """What every scoring is asked: which model judges what, and how many alarms are wanted.

    Args:
        model: a reference.
        paths: what is read.
        mode: "exact", "partition:K", "one-pass"; None: see `choose_mode`.
        level: what of a record is judged; None for the domain's own.
        per_unit: every unit with its surprisal, entropy and rank.
        out: where rows go; None for standard output.
        fpr: share of normal rows that may raise an alarm, in (0, 1).
        alarms_per_day: the same, as a number a day.
        extrapolate: the rate may be below what normal rows guarantee: it rests on the fit of a tail.
        alarms_only: rows without an alarm are not written.
        domain, format, options, on_error: as reading data takes them.
        tokens_per_batch: budget of a forward pass; None for what suits the device.
        precision: of the matrix products; "auto" is "bf16" on a GPU that has it, else "fp32".
        expert: whether counts are mixed into scores: where they help ("auto"), "counts" or "none".
    """

    model: str
    paths: tuple[str, ...] = ()
    mode: str | None = None
    level: str | None = None
    per_unit: bool = False
    out: Path | None = None
    fpr: float | None = None
    alarms_per_day: float | None = None
    extrapolate: bool = False
    alarms_only: bool = False
    domain: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    tokens_per_batch: int | None = None
    precision: Precision = "fp32"
    expert: Use = "auto"

    decides_nothing: ClassVar[tuple[str, ...]] = ("model", "paths", "on_error", "extrapolate", "out")
    """Fields that change no row."""

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
        aside = {"--on-error quarantine": self.quarantine} if self.on_error == "quarantine" else {}
        return {"--out": self.out, **aside}

    @property
    def quarantine(self) -> Path:
        """Where bad records go, if they are kept."""
        return Path(f"{self.out or 'score'}.quarantine.jsonl")

    @property
    def rate_option(self) -> str | None:
        """What asks for alarms; None where nothing does."""
        if self.alarms_per_day is not None:
            return "--alarms-per-day"
        return None if self.fpr is None else "--fpr"

    def decisive(self) -> dict[str, Any]:
        """The settings that decide what is written, for a scoring that goes on to be held to."""
        names = (name for name in self.__dataclass_fields__ if name not in self.decides_nothing)
        return {
            **{name: getattr(self, name) for name in names},
            "options": dict(sorted(self.options.items())),
        }

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read.

        Raises:
            UsageError: it does not; the sentence says why.
            DataError: an input is not there.
        """
        if self.fpr is not None and self.alarms_per_day is not None:
            raise UsageError("--fpr and --alarms-per-day both say how many alarms are wanted; give one")
        if self.fpr is not None and not 0 < self.fpr < 1:
            raise UsageError(f"--fpr is a share between 0 and 1, such as 0.001; got {self.fpr:g}")
        if self.alarms_per_day is not None and not self.alarms_per_day > 0:
            raise UsageError(f"--alarms-per-day must be above 0; got {self.alarms_per_day:g}")
        asked = self.rate_option is not None
        if self.extrapolate and not asked:
            raise UsageError("--extrapolate is about a rate of alarms: --fpr or --alarms-per-day")
        if self.alarms_only and not asked:
            raise UsageError("--alarms-only needs a rate of alarms: --fpr or --alarms-per-day")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(ScoringRequest):
    """What `seqmlm score` can be told.

    Args:
        paths: files, folders, or "-".
        format_out: "jsonl", "csv" or "parquet"; None: what the name of `out` says.
        resume: continue the unfinished scoring of `out`.
        max_latency: duration ("1s", "500ms" as "0.5s"): standard input is read live.
        report: an HTML file that shows the results.
        track: a file of scores along a genome for its browsers.
        since, diff: a revision, or a unified diff: only lines of a folder of source code that differ from it.
        sarif: alarms as SARIF.
        baseline: SARIF or JSON lines of an earlier scoring: only alarms that it does not have are written.
    """

    format_out: str | None = None
    resume: bool = False
    max_latency: str | None = None
    report: Path | None = None
    track: Path | None = None
    since: str | None = None
    diff: Path | None = None
    sarif: Path | None = None
    baseline: Path | None = None

    decides_nothing = (*ScoringRequest.decides_nothing, "resume", "max_latency", "report", "track", "sarif")

    @property
    def measured(self) -> Sequence[str]:
        changes = self.since is not None or self.diff is not None  # few, and unknown before they are read
        return ["-"] if changes else self.sources

    @property
    def begun_mode(self) -> str | None:
        if not self.resume or self.out is None:
            return None
        begun = Cursor(self.out, {}).begun().get("mode")
        return begun if isinstance(begun, str) else None

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
    def output_format(self) -> str:
        """How rows are written.

        Raises:
            UsageError: an unknown format, or one that standard output cannot take.
        """
        return format_of(self.out, self.format_out)

    @property
    def outputs(self) -> dict[str, Path | None]:
        named = {"--report": self.report, "--track": self.track, "--sarif": self.sarif}
        return {**named, **super().outputs}

    def decisive(self) -> dict[str, Any]:
        return {**super().decisive(), "format_out": self.output_format}

    def check(self) -> None:
        if not self.paths:
            raise UsageError("nothing to score: name files, folders, or - for standard input")
        self._check_output()
        self._check_resume()
        super().check()
        for name, path in (("--sarif", self.sarif), ("--baseline", self.baseline)):
            if path is not None and self.rate_option is None:
                raise UsageError(f"{name} is about alarms: say how many are wanted with --fpr, such as 0.001")
        if self.latency is not None and self.sources != ["-"]:
            raise UsageError(
                "--max-latency is about lines that are still being written: give - as the one input"
            )

    def _check_output(self) -> None:
        check_outputs(self.outputs, inputs=expand(self.sources), streams=True)
        check_outputs(self.outputs, inputs=[] if self.diff is None else [self.diff])
        if self.baseline is not None:  # SARIF may take the place of its own baseline, which is read before
            others = {name: path for name, path in self.outputs.items() if name != "--sarif"}
            check_outputs(others, inputs=[self.baseline])
        _ = self.output_format

    def _check_resume(self) -> None:
        if not self.resume:
            return
        if self.out is None:
            raise UsageError("--resume continues a file: name it with --out")
        if any(map(is_pipe, expand(self.sources))):
            raise UsageError(
                "--resume is not possible with standard input or a pipe: what was read from it is gone; "
                "write it to a file first"
            )
        if any(path is not None for path in (self.report, self.track, self.sarif)):
            raise UsageError(
                "--report, --track and --sarif show what one process has scored; leave them out of a --resume"
            )

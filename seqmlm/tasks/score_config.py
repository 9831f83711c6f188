"""What a scoring can be told: the request alone; what makes no sense is refused before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqmlm.data.files import expand
from seqmlm.data.problems import OnError
from seqmlm.data.timestamps import duration
from seqmlm.engine.device import Precision
from seqmlm.errors import UsageError
from seqmlm.inference.batches import is_pipe
from seqmlm.inference.expert import Use
from seqmlm.inference.grouping import QUIET
from seqmlm.streams import journal
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import format_of
from seqmlm.tasks.corpus import split_source

_SHOWS = ("out", "report", "track", "sarif")
FIXED, ROLLING = "fixed", "rolling"
"""How the rows of a stream are calibrated: by the model's own calibration, or by the stream's newest rows."""

_TELLS = ("ignore", "quiet", "shadow", "webhook", "webhook_format", "metrics_port", "metrics_host")
_DECIDES_NOTHING = ("model", "paths", "on_error", "resume", "max_latency", "extrapolate", *_TELLS, *_SHOWS)


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """What `seqmlm score` can be told.

    Args:
        model: a reference.
        paths: files, folders, or "-".
        mode: "exact", "partition:K", "one-pass"; None: see `choose_mode`.
        level: what of a record is judged; None for the domain's own.
        per_unit: every unit with its surprisal, entropy and rank.
        out: where rows go; None for standard output.
        format_out: "jsonl", "csv" or "parquet"; None: what the name of `out` says.
        fpr: share of normal rows that may raise an alarm, in (0, 1).
        alarms_per_day: the same, as a number a day.
        extrapolate: the rate may be below what normal rows guarantee: it rests on the fit of a tail.
        alarms_only: rows without an alarm are not written.
        resume: continue the unfinished scoring of `out`.
        max_latency: duration ("1s", "500ms" as "0.5s"): standard input is read live.
        follow: `paths` are files, or patterns of files, that are scored while others write to them.
        source: with `follow`, "journald" in place of `paths`: see `seqmlm.streams.journal`.
        ignore: a file of regular expressions: alarms that fit one make no incident, with `follow`.
        calibration: "fixed", or "rolling": with `follow`, p-values are ranks among the stream's newest rows.
        shadow: with `follow`, an alias of the model: the version that it names judges the same rows beside.
        quiet: duration without an alarm after which an incident is over, with `follow`; None for `QUIET`.
        webhook: with `follow`, addresses that are told of incidents.
        webhook_format: of what they are sent; one for all, or one each.
        metrics_port: with `follow`, where counters can be read; 0 for any that is free.
        metrics_host: address that the port is on.
        report: an HTML file that shows the results.
        track: a file of scores along a genome for its browsers.
        since, diff: a revision, or a unified diff: only lines of a folder of source code that differ from it.
        sarif: alarms as SARIF.
        baseline: SARIF or JSON lines of an earlier scoring: only alarms that it does not have are written.
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
    format_out: str | None = None
    fpr: float | None = None
    alarms_per_day: float | None = None
    extrapolate: bool = False
    alarms_only: bool = False
    resume: bool = False
    max_latency: str | None = None
    follow: bool = False
    source: str | None = None
    ignore: Path | None = None
    calibration: str = FIXED
    shadow: str | None = None
    quiet: str | None = None
    webhook: tuple[str, ...] = field(default=(), repr=False)
    webhook_format: tuple[str, ...] = ()
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
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
    expert: Use = "auto"

    @property
    def sources(self) -> list[str]:
        """The paths without the names that training gives corpora."""
        return [split_source(path)[1] for path in self.paths]

    @property
    def latency(self) -> float | None:
        """Seconds within which a result follows its line; None where the input is read as a file.

        Raises:
            UsageError: not a duration above 0.
        """
        if self.max_latency is None:
            return 1.0 if self.follow else None
        seconds = duration(self.max_latency)
        if not seconds:
            raise UsageError(f"--max-latency is a duration such as 1s or 0.5s; got {self.max_latency!r}")
        return seconds

    @property
    def quiet_seconds(self) -> float:
        """How long nothing may come of an incident that goes on.

        Raises:
            UsageError: not a duration above 0.
        """
        seconds = QUIET if self.quiet is None else duration(self.quiet)
        if not seconds:
            raise UsageError(f"--quiet is a duration such as 5m or 30s; got {self.quiet!r}")
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
        """The files that are written, by the option that names each."""
        named = {"--out": self.out, "--report": self.report, "--track": self.track, "--sarif": self.sarif}
        aside = {"--on-error quarantine": self.quarantine} if self.on_error == "quarantine" else {}
        return {**named, **aside}

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
        """The settings that decide what is written, for a resumed scoring to be held to."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept = {name: value for name, value in values.items() if name not in _DECIDES_NOTHING}
        if self.calibration == FIXED:
            del kept["calibration"]  # as streams that were begun before there was another
        return {**kept, "options": dict(sorted(self.options.items())), "format_out": self.output_format}

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read.

        Raises:
            UsageError: it does not; the sentence says why.
            DataError: an input is not there.
        """
        if not self.paths and self.source is None:
            raise UsageError("nothing to score: name files, folders, or - for standard input")
        self._check_source()
        self._check_output()
        self._check_resume()
        self._check_rates()
        self._check_tells()
        if self.follow:
            self._check_follow()
        elif self.ignore is not None or self.quiet is not None:
            name = "--quiet" if self.ignore is None else "--ignore"
            raise UsageError(f"{name} is about the incidents of files that are followed: it needs --follow")
        elif self.latency is not None and self.sources != ["-"]:
            raise UsageError(
                "--max-latency is about lines that are still being written: give - as the one input"
            )

    def _check_source(self) -> None:
        if self.source is None:
            return
        journal.asked(self.source)
        if self.paths:
            raise UsageError("--source takes the place of files: leave one of them out")
        if not self.follow:
            raise UsageError("--source is followed: add --follow")

    def _check_tells(self) -> None:
        if self.calibration not in (FIXED, ROLLING):
            raise UsageError(f"--calibration is {FIXED} or {ROLLING}; got {self.calibration!r}")
        given = {
            "--webhook": self.webhook,
            "--metrics-port": self.metrics_port is not None,
            f"--calibration {ROLLING}": self.calibration == ROLLING,
            "--shadow": self.shadow is not None,
        }
        if not self.follow and (name := next((name for name, value in given.items() if value), None)):
            raise UsageError(f"{name} is about files that are followed: add --follow, or leave it out")
        if self.shadow is not None:
            self._check_shadow(self.shadow)
        if self.metrics_host != "127.0.0.1" and self.metrics_port is None:
            raise UsageError("--metrics-host is the address of --metrics-port, which is not given")
        if self.webhook_format and not self.webhook:
            raise UsageError("--webhook-format is that of --webhook, which is not given")
        if self.webhook and self.rate_option is None:
            raise UsageError("--webhook is told of alarms: say how many are wanted with --fpr, such as 0.001")
        if self.metrics_port is not None and not 0 <= self.metrics_port < 1 << 16:
            raise UsageError(f"--metrics-port is a number up to 65535; got {self.metrics_port}")

    def _check_shadow(self, shadow: str) -> None:
        if not shadow or set(shadow) & set("@:/"):
            raise UsageError(f"--shadow is an alias alone, such as candidate; got {shadow!r}")
        if self.rate_option is None:
            raise UsageError("--shadow compares alarms: say how many are wanted with --fpr, such as 0.001")
        if self.calibration == ROLLING:
            raise UsageError(
                f"--shadow compares versions by their own calibrations, and --calibration {ROLLING} moves "
                "only one of them: leave one out"
            )

    def _check_follow(self) -> None:
        _ = self.latency, self.quiet_seconds
        if self.output_format != "jsonl":
            raise UsageError("--follow writes JSON lines: name a file such as alarms.jsonl with --out")
        if "-" in self.sources:
            raise UsageError("--follow is about files; standard input is read live with --max-latency alone")
        if folder := next(filter(os.path.isdir, self.sources), None):
            raise UsageError(f"--follow needs files or a pattern in quotes: '{Path(folder) / '*.log'}'")
        ends = {
            "--resume": self.resume,
            "--report": self.report,
            "--track": self.track,
            "--sarif": self.sarif,
        }
        compares = {"--baseline": self.baseline, "--since": self.since, "--diff": self.diff}
        if given := next((name for name, value in {**ends, **compares}.items() if value), None):
            what = "it goes on by itself" if given == "--resume" else "it needs an input that ends"
            raise UsageError(f"{given} is not possible with --follow: {what}; leave it out")

    def _check_output(self) -> None:
        check_outputs(self.outputs, inputs=[] if self.follow else expand(self.sources), streams=True)
        check_outputs(self.outputs, inputs=[] if self.diff is None else [self.diff])
        if self.baseline is not None:  # SARIF may take the place of its own baseline, which is read before
            others = {name: path for name, path in self.outputs.items() if name != "--sarif"}
            check_outputs(others, inputs=[self.baseline])
        _ = self.output_format

    def _check_resume(self) -> None:
        if not self.resume:
            return
        if self.out is None and not self.follow:
            raise UsageError("--resume continues a file: name it with --out")
        if not self.follow and any(map(is_pipe, expand(self.sources))):
            raise UsageError(
                "--resume is not possible with standard input or a pipe: what was read from it is gone; "
                "write it to a file first"
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
        asked = self.rate_option is not None
        if self.extrapolate and not asked:
            raise UsageError("--extrapolate is about a rate of alarms: --fpr or --alarms-per-day")
        for name, path in (("--sarif", self.sarif), ("--baseline", self.baseline)):
            if path is not None and not asked:
                raise UsageError(f"{name} is about alarms: say how many are wanted with --fpr, such as 0.001")
        if self.alarms_only and not asked:
            raise UsageError("--alarms-only needs a rate of alarms: --fpr or --alarms-per-day")

"""What a watching can be told; what makes no sense is refused before anything is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from seqmlm.data.compressed import PACKED, ending
from seqmlm.errors import UsageError
from seqmlm.parsing import duration
from seqmlm.scoring.config import ScoringRequest
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import FORMATS
from seqmlm.watch import journal

ROLLING = "rolling"
"""The calibration of a stream by its newest rows; "fixed" is the model's own."""

HERE = "127.0.0.1"

_ENDINGS = ("", *(one for one in FORMATS["jsonl"] if not one.endswith(PACKED)))

UNDECIDED = (
    *("model", "paths", "extrapolate", "out", "tokens_per_batch", "max_latency", "ignore"),
    *("shadow", "quiet", "webhook", "webhook_format", "metrics_port", "metrics_host"),
)
"""Fields that change no row: a stream goes on where they are others."""


@dataclass(frozen=True, kw_only=True)
class WatchConfig(ScoringRequest):
    """What `seqmlm watch` can be told.

    Args:
        paths: files to watch, or patterns of files in quotes.
        out: write the rows to this file of JSON lines instead of stdout.
        max_latency: DURATION: write each row at most this long after its line, such as 0.5s.
        source: in place of files: journald, perhaps with options of journalctl that say which entries, such
            as 'journald -u nginx'.
        ignore: file of regular expressions, one a line: alarms whose least expected line or template fits one
            make no incident.
        calibration: what p-values are ranks among: fixed (the rows the model was calibrated with) or rolling
            (the newest rows of the stream, without those of acknowledged incidents).
        shadow: ALIAS: the version of the model that this alias names judges the same rows beside, and raises
            nothing: each row says in `shadow` whether it would alarm. Scoring takes about twice the time and
            memory.
        quiet: DURATION: an incident is over when its file raised no alarm for so long, such as 10m.
        webhook: URL: post each incident to this address until it is taken; repeatable. Its token is read from
            SEQMLM_WEBHOOK_TOKEN.
        webhook_format: FORMAT: format of what is posted: plain, alertmanager (its API v2) or otlp (logs as
            JSON); one for all webhooks, or one for each. Default: plain.
        metrics_port: PORT: serve counters on this port, as /metrics (Prometheus) and /metrics.json; 0 for any
            that is free.
        metrics_host: ADDRESS: address of this machine that --metrics-port is on. Default: 127.0.0.1.
    """

    shown: ClassVar[tuple[str, ...]] = (
        *("out", "fpr", "max_latency", "source", "ignore", "calibration", "shadow"),
        *("webhook", "webhook_format", "metrics_port"),
        *(name for name in ScoringRequest.shown if name != "on_error"),
    )
    metavar: ClassVar[str] = "[PATH]..."

    on_error: ClassVar[Literal["skip"]] = "skip"  # type: ignore[misc]
    """No setting: a line that cannot be read is an event of its own, and other bytes are a row with `gap`."""

    max_latency: str = "1s"
    source: str | None = None
    ignore: Path | None = None
    calibration: Literal["fixed", "rolling"] = "fixed"
    shadow: str | None = None
    quiet: str = "5m"
    webhook: tuple[str, ...] = field(default=(), repr=False)
    webhook_format: tuple[str, ...] = ()
    metrics_port: int | None = None
    metrics_host: str = HERE

    @property
    def latency(self) -> float:
        """Seconds within which a row follows its line."""
        return self._seconds("max_latency", "--max-latency is a duration such as 1s or 0.5s")

    @property
    def quiet_seconds(self) -> float:
        """How long nothing may come of an incident that goes on."""
        return self._seconds("quiet", "quiet is a duration such as 5m or 30s")

    def _seconds(self, name: str, wanted: str) -> float:
        seconds = duration(text := getattr(self, name))
        if not seconds:
            raise UsageError(f"{wanted}; got {text!r}")
        return seconds

    def check(self) -> None:
        self._check_files()
        super().check()
        check_outputs(self.outputs, streams=True)
        _ = self.latency, self.quiet_seconds
        self._check_calibration()
        self._check_notices()

    def _check_files(self) -> None:
        if self.source is not None:
            journal.asked(self.source)
            if self.paths:
                raise UsageError("--source takes the place of files: leave one of them out")
        elif not self.paths:
            raise UsageError("nothing to watch: name files, or a pattern in quotes such as 'logs/*.log'")
        if self.out is not None and ending(self.out) not in _ENDINGS:
            raise UsageError("rows of what is watched are JSON lines: name a file such as a.jsonl with --out")
        if "-" in self.sources:
            raise UsageError(
                "files are watched; standard input is read live by 'seqmlm score MODEL - --max-latency 1s'"
            )
        if folder := next(filter(os.path.isdir, self.sources), None):
            raise UsageError(f"a folder is not watched; name files or a pattern: '{Path(folder) / '*.log'}'")

    def _check_calibration(self) -> None:
        if self.shadow is None:
            return
        if not self.shadow or set(self.shadow) & set("@:/"):
            raise UsageError(f"--shadow is an alias alone, such as candidate; got {self.shadow!r}")
        if self.rate_option is None:
            raise UsageError("--shadow compares alarms: say how many are wanted with --fpr, such as 0.001")
        if self.calibration == ROLLING:
            raise UsageError(
                f"--shadow compares versions by their own calibrations, and --calibration {ROLLING} moves "
                "only one of them: leave one out"
            )

    def _check_notices(self) -> None:
        if self.metrics_host != HERE and self.metrics_port is None:
            raise UsageError("metrics_host is the address of --metrics-port, which is not given")
        if self.webhook_format and not self.webhook:
            raise UsageError("--webhook-format is that of --webhook, which is not given")
        if self.webhook and self.rate_option is None:
            raise UsageError("--webhook is told of alarms: say how many are wanted with --fpr, such as 0.001")

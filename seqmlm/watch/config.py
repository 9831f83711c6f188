"""The settings of `seqmlm watch`. Impossible requests are refused before anything is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from seqmlm.errors import UsageError
from seqmlm.parsing import duration
from seqmlm.scoring.config import ScoringRequest
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import FORMATS

LOOPBACK = "127.0.0.1"

WebhookFormat = Literal["plain", "alertmanager"]


@dataclass(frozen=True, kw_only=True)
class WatchConfig(ScoringRequest):
    """The settings of `seqmlm watch`.

    Args:
        paths: files to watch, or quoted patterns of files.
        out: write the rows to this file of JSON lines instead of stdout.
        max_latency: DURATION: write each row at most this long after its line, such as 0.5s.
        ignore: file with one regular expression per line. An alarm opens no incident if its least expected
            line or template matches one of them.
        quiet: DURATION: an incident is over if its file raises no alarm for this time, such as 10m.
        webhook: URL: post each incident to this address until it is accepted; the token is read from
            SEQMLM_WEBHOOK_TOKEN.
        webhook_format: FORMAT: format of the posts: plain or alertmanager (its API v2).
        metrics_port: PORT: serve counters on this port, as /metrics (Prometheus) and /metrics.json; 0 selects
            a free port.
        metrics_host: ADDRESS: address of this machine for --metrics-port. Default: 127.0.0.1.
    """

    option_fields: ClassVar[tuple[str, ...]] = (
        *("out", "fpr", "max_latency", "ignore", "webhook", "webhook_format", "metrics_port"),
        *(name for name in ScoringRequest.option_fields if name != "on_error"),
    )

    on_error: ClassVar[Literal["skip"]] = "skip"  # type: ignore[misc]
    """Not a setting: an unreadable line is an event, and other unreadable bytes are a row with `gap`."""

    max_latency: str = "1s"
    ignore: Path | None = None
    quiet: str = "5m"
    webhook: tuple[str, ...] = field(default=(), repr=False)
    webhook_format: WebhookFormat = "plain"
    metrics_port: int | None = None
    metrics_host: str = LOOPBACK

    @property
    def latency(self) -> float:
        """The largest time between a line and its row, in seconds."""
        return self._seconds("max_latency", "--max-latency is a duration such as 1s or 0.5s")

    @property
    def quiet_seconds(self) -> float:
        """The time without an alarm after which an incident is over, in seconds."""
        return self._seconds("quiet", "quiet is a duration such as 5m or 30s")

    @property
    def webhook_url(self) -> str | None:
        """The address to which incidents are posted; None if there is no webhook."""
        return self.webhook[0] if self.webhook else None

    def _seconds(self, name: str, rule: str) -> float:
        seconds = duration(text := getattr(self, name))
        if not seconds:
            raise UsageError(f"{rule}; got {text!r}")
        return seconds

    def check(self) -> None:
        self._check_files()
        super().check()
        check_outputs(self.outputs, streams=True)
        _ = self.latency, self.quiet_seconds
        self._check_notices()

    def _check_files(self) -> None:
        if not self.paths:
            raise UsageError("nothing to watch: name files, or a pattern in quotes such as 'logs/*.log'")
        plain = ("", *(ending for ending in FORMATS["jsonl"] if ending.count(".") == 1))
        if self.out is not None and self.out.suffix.lower() not in plain:
            raise UsageError("`watch` writes JSON lines: use a name such as a.jsonl for --out")
        if "-" in self.sources:
            raise UsageError(
                "`watch` reads files only; for live standard input: 'seqmlm score MODEL - --max-latency 1s'"
            )
        if folder := next(filter(os.path.isdir, self.sources), None):
            raise UsageError(
                f"{folder} is a folder; name files or a pattern instead: '{Path(folder) / '*.log'}'"
            )

    def _check_notices(self) -> None:
        if self.metrics_host != LOOPBACK and self.metrics_port is None:
            raise UsageError("metrics_host has no effect without --metrics-port: add --metrics-port")
        if self.webhook_format != "plain" and not self.webhook:
            raise UsageError("--webhook-format has no effect without --webhook: add --webhook")
        if len(self.webhook) > 1:
            raise UsageError(
                "only one --webhook is possible: let its receiver forward incidents, like Alertmanager, or "
                "start a second watch with another --out"
            )
        if self.webhook and self.rate_option is None:
            raise UsageError("--webhook needs alarms: set a false positive rate with --fpr, such as 0.001")

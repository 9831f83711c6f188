"""`seqmlm watch` from its start to its end. It continues where an earlier process stopped."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TextIO

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import UsageError, number_of, p_value_text
from seqmlm.reports.summary import NoProgress, Progress, Summary
from seqmlm.scoring.live import LiveModel
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.follower import PATIENCE, Follower, absolute
from seqmlm.watch.generations import FileState, Gap
from seqmlm.watch.grouping import Grouping, mute_patterns
from seqmlm.watch.metrics import Lag, MetricsServer, counters
from seqmlm.watch.outbox import Outbox, turns
from seqmlm.watch.request import stream_request
from seqmlm.watch.silence import Silence
from seqmlm.watch.store import Change, NoticeQueue, Streams
from seqmlm.watch.webhooks import TOKEN, Courier, Origin, Webhook, notices, parse_webhook


class Watch:
    """Watch growing files: score new lines, and group related alarms into incidents.

    Rotated files and new files of a pattern are followed. The same command continues where it stopped, even
    after a kill, with the newest version of the model. After a kill, rows may be repeated on stdout, but
    never in --out. To see the incidents: `seqmlm incidents list`.

    Example: seqmlm watch app 'logs/*.log' --max-latency 1s --fpr 0.001 --out alarms.jsonl

    Example: seqmlm watch app@live 'logs/*.log' --fpr 0.01 --webhook http://127.0.0.1:9093/ --out alarms.jsonl
    """

    Config = WatchConfig
    trains = False

    @classmethod
    def launch(
        cls, name: str, config: WatchConfig, *, stdout: TextIO, progress: Progress, as_json: bool
    ) -> Summary:
        """Watch files until a signal arrives."""
        if as_json and config.out is None:
            raise UsageError(
                "--json prints the summary on standard output: name a file for the rows with --out"
            )
        summary = watch_files(config, progress, stdout=stdout)
        if summary.stopped is not None and config.out is None:
            progress.message("stopped; run the same command to continue with the next rows")
        return summary


def watch_files(
    config: WatchConfig, progress: Progress | None = None, *, stdout: TextIO | None = None
) -> Summary:
    """Score the lines of files as they are written, until a signal arrives.

    Args:
        config: the settings.
        progress: receives messages and progress.
        stdout: receives the rows if `config.out` is None; None for the standard output of the process.

    Returns:
        The summary of the whole stream, including earlier processes.

    Raises:
        UsageError: the request is impossible, the port is in use, files of this field cannot be followed, or
            rows that must not be printed need `out`.
        DataError: `ignore` cannot be read.
        StateError: there is no such model or needed calibration, the database or the output cannot be
            written, or the stream has other settings.
    """
    progress = progress or NoProgress()
    config.check()
    terminal = (stdout or sys.stdout) if config.out is None else None
    patterns = [] if config.ignore is None else mute_patterns(config.ignore)
    url, token = config.webhook_url, os.environ.get(TOKEN, "")
    webhook = None if url is None else parse_webhook(url, config.webhook_format, token)
    with ExitStack() as stack:
        server = None
        if config.metrics_port is not None:  # early, so that a port in use is reported before a long start
            server = stack.enter_context(MetricsServer(config.metrics_host, config.metrics_port))
            progress.message(f"counters are at {server.address}/metrics")
        model = LiveModel(config, progress.message)
        stack.enter_context(model.data_rules())
        registry = stack.enter_context(Streams.here())
        if config.out is None:
            config = replace(config, out=_stream_name(config, registry.root))
            progress.message(
                f"rows go to standard output; other commands know this stream by the name {config.out} "
                "(--stream)"
            )
        grouping = Grouping(model=model.reference, quiet=config.quiet_seconds, muted=patterns)
        watching = Watching(config, model, registry, progress, stack)
        watching.begin(grouping, webhook, terminal)
        _send(webhook, registry.notices(watching.outbox.stream), progress, stack)
        if server is not None:
            server.values = partial(counters, watching)
        return replace(watching.run(), streamed=terminal is not None)


class Watching:
    """One process that watches files.

    Args:
        config: the settings.
        model: the model.
        registry: the database.
        progress: receives messages and progress.
        stack: closes everything that the process opens.

    Attributes:
        outbox: commits rows.
        silence: raises an alarm if the log has stopped.
    """

    outbox: Outbox
    silence: Silence

    def __init__(
        self, config: WatchConfig, model: LiveModel, registry: Streams, progress: Progress, stack: ExitStack
    ) -> None:
        self.config, self.model, self.registry = config, model, registry
        self._progress, self._stack, self.lag = progress, stack, Lag()
        self.signals = stack.enter_context(StopSignals())
        self.problems = stack.enter_context(Problems("skip"))
        self.problems.listener = progress.message

    def begin(self, grouping: Grouping, webhook: Webhook | None, stdout: TextIO | None) -> None:
        """Find the stream of the output, and begin to follow its files from the last commit."""
        config, model, out = self.config, self.model, self.config.out
        assert out is not None
        patterns = [absolute(path) for path in config.sources]
        origin = Origin.of(absolute(str(out)), self.problems)
        self.outbox = Outbox(
            out,
            self.registry,
            stream_request(config, patterns, model),
            partial(self._follow, out, patterns),
            grouping=grouping,
            tell=_announcer(self._progress),
            notify=notices(webhook, origin),
            stdout=stdout,
        )
        self._stack.callback(self.outbox.close)
        model.counts.incident_count = self.outbox.incidents
        model.counts.restore(self.outbox.begin(self.problems))
        if self.outbox.recalibrated:
            model.counts.recent.clear()  # these p-values come from another calibration
        self.silence = Silence(
            self.outbox.follower,
            model.pause_row,
            lambda row: self.outbox.write([row]),
            config.quiet_seconds,
        )
        for note in self.outbox.notes:
            self._progress.message(note)

    def _follow(self, out: Path, patterns: Sequence[str], states: Sequence[FileState]) -> Follower:
        """A follower of the files, which continues from the states of an earlier one."""
        config, model, problems = self.config, self.model, self.problems
        outputs = [out, out.with_name(f"{out.name}.lock"), config.ignore]

        return Follower(
            patterns,
            lambda source: model.read(source, problems),
            states,
            tick=model.tick(config.latency),
            tell=self._progress.message,
            patience=PATIENCE,
            rotation=model.rotation,
            replay=lambda: problems.replaying(problems.snapshot()),
            exclude=[os.path.abspath(path) for path in outputs if path is not None],
        )

    def _stopping(self) -> bool:
        """Whether a signal arrived. It is called before each turn, and also checks for pauses and the lag."""
        self.silence.look()
        self.lag.look(lambda: (self.outbox.follower.bytes, self.outbox.follower.unread))
        return self.signals.received is not None

    def run(self) -> Summary:
        """Read, score and commit, turn after turn, until a signal arrives."""
        counts, problems = self.model.counts, self.problems
        began = time.monotonic()
        for records in turns(self.outbox, stopping=self._stopping):
            self._judge(records)
            self.outbox.commit(counts.snapshot(), problems)
            self._progress.progress(counts.records, counts.alarms)
        seconds = time.monotonic() - began
        summary = self.model.summary("watch", problems, self.config.quarantine, seconds)
        return replace(summary, stopped=self.signals.received, go_on="to continue")

    def _judge(self, records: Sequence[Record]) -> None:
        """Score the records of a turn, and add their rows. A record that the model cannot read is a gap."""
        judgement = self.model.judge(records, self.problems)
        self.outbox.write(judgement.rows)
        cause = {
            "what": "the record that begins here",
            "fate": "could not be scored",
            "cause": "the model cannot read it",
        }
        for record in judgement.unreadable:
            self.outbox.write_gap(Gap(path=record.source, line=record.line, offset=0, size=0, **cause))


def _stream_name(config: WatchConfig, root: Path) -> Path:
    """The name of a stream whose rows go to standard output. Equal models and files give equal names."""
    request = json.dumps([config.model, None, [absolute(path) for path in config.paths]])
    name = re.sub(r"[^\w.-]+", "-", Path(config.model).name)
    return root / "streams" / f"{name}-{sha256(request.encode()).hexdigest()[:8]}"


def _send(webhook: Webhook | None, queue: NoticeQueue, progress: Progress, stack: ExitStack) -> None:
    """Send the queued notices to the webhook in a thread, until the stack is closed."""
    for name, states in queue.counts().items():
        if states["waiting"] and (webhook is None or name != webhook.name):
            progress.message(
                f"{states['waiting']:,} notices are stored for webhook {name}, which is not the current "
                f"--webhook; they are sent when a watch uses {name} again"
            )
    if webhook is None:
        return
    if webhook.unsafe:
        progress.message(f"webhook {webhook.name} gets its token or password unencrypted: use https")
    courier = Courier(webhook, queue, progress.message)
    stack.callback(courier.close)
    courier.start()


def _announcer(progress: Progress) -> Callable[[Change], None]:
    """A function that prints a line when an incident opens, gets new values, or is over."""
    news: dict[int, tuple[str, ...]] = {}

    def announce(change: Change) -> None:
        incident = change.incident
        earlier = news.get(incident.id, incident.new)
        news[incident.id] = incident.new
        if change.kind == "resolved":
            del news[incident.id]
            rows = number_of(incident.rows, "row")
            progress.message(f"incident {incident.id} is over after {rows}: {incident.title}")
        elif change.kind == "opened" or earlier != incident.new:
            goes_on = "" if change.kind == "opened" else " continues"
            p_value = p_value_text(incident.p_value)
            progress.message(f"incident {incident.id}{goes_on}: {incident.title} (p {p_value})")

    return announce

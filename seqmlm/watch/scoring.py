"""Watching, end to end: it goes on by itself where it was left, whatever ended it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from seqmlm import __version__
from seqmlm.anomaly.findings import small
from seqmlm.data.files import Source
from seqmlm.data.privacy import redact_small_counts, redacted_count
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import StateError, UsageError, number_of
from seqmlm.inference.batches import tokenized
from seqmlm.inference.calibrations import FEW_RECORDS
from seqmlm.inference.session import Session
from seqmlm.tasks.reading import cut
from seqmlm.tasks.score_output import sentence
from seqmlm.tasks.score_plan import ScoringPlan, choose, opened
from seqmlm.tasks.task import NoProgress, Progress, Summary
from seqmlm.watch.config import ROLLING, WatchConfig
from seqmlm.watch.follower import PATIENCE, Follower, absolute
from seqmlm.watch.generations import FileState
from seqmlm.watch.grouping import Grouping, Ignored, ignored
from seqmlm.watch.journal import JournalFollower
from seqmlm.watch.judging import Judging
from seqmlm.watch.metrics import Lag, MetricsServer, Values
from seqmlm.watch.outbox import Outbox, turns
from seqmlm.watch.rows import P_EDGES, WatchCounts
from seqmlm.watch.store import Change, NoticeQueue, Streams
from seqmlm.watch.versions import Shadow, Successor, alias_of, reference, version_plan
from seqmlm.watch.webhooks import TOKEN, Courier, Origin, Webhook, notices, unsafe, webhooks
from seqmlm.workspace import Workspace

_TICK_SHARE = 0.4  # of the latency that lines may wait to become records; the rest is for scoring


class Watch:
    """Watch files: score their lines while others write to them, and make incidents of their alarms.

    Rotated files and new files of a pattern are taken up. Whatever ended it, it goes on where it was left:
    after a kill rows may come again on stdout, never in --out. What alarms come to: `seqmlm incidents list`.

    Example: seqmlm watch app 'logs/*.log' --max-latency 1s --fpr 0.001 --out alarms.jsonl

    Example: seqmlm watch app --source 'journald -u nginx' --fpr 0.001 --out alarms.jsonl

    Example: seqmlm watch app@live 'logs/*.log' --fpr 0.01 --calibration rolling --out alarms.jsonl

    Example: seqmlm watch app@live 'logs/*.log' --shadow candidate --fpr 0.001 --out alarms.jsonl
    """

    Config = WatchConfig
    trains = False

    @classmethod
    def launch(
        cls, name: str, config: WatchConfig, *, stdout: TextIO, progress: Progress, as_json: bool
    ) -> Summary:
        """Watch files until a signal comes."""
        if as_json and config.out is None:
            raise UsageError(
                "--json prints the summary on standard output: name a file for the rows with --out"
            )
        summary = watch_files(config, progress, stdout=stdout)
        if summary.stopped is not None and config.out is None:
            progress.message("stopped; run the same command to go on with the rows after these")
        return summary


def watch_files(
    config: WatchConfig, progress: Progress | None = None, *, stdout: TextIO | None = None
) -> Summary:
    """Score the lines of files as they are written, until a signal comes.

    Args:
        config: what to watch; its paths may be patterns, and new files are taken up.
        progress: told what happens on the way.
        stdout: where rows go when `config.out` is None; default: that of the process.

    Returns:
        The summary of the whole stream, earlier processes included.

    Raises:
        UsageError: a request that makes no sense, a port that is taken, a field whose files cannot be
            followed, or no `out` for sensitive data.
        DataError: a bad record, under `on_error` "raise"; rows before it are written. Or `ignore` cannot be
            read.
        StateError: no such model, no calibration where one is needed, the database or the output cannot be
            written, or the stream of this output was asked something else.
    """
    progress = progress or NoProgress()
    config.check()
    shown = (stdout or sys.stdout) if config.out is None else None
    rules = [] if config.ignore is None else ignored(config.ignore)
    hooks = webhooks(config.webhook, config.webhook_format, os.environ.get(TOKEN, ""))
    with ExitStack() as stack:
        port = None
        if config.metrics_port is not None:  # taken before minutes are spent
            port = stack.enter_context(MetricsServer(config.metrics_host, config.metrics_port))
            progress.message(f"counters are at {port.address}/metrics")
        plan = _chosen(config, progress)
        if config.out is None:
            config = replace(config, out=_kept(config))
            progress.message(
                f"rows go to standard output; what is known of them is kept as {config.out}, which is their "
                "name for --stream"
            )
        signals = stack.enter_context(StopSignals())
        registry = stack.enter_context(Streams(Workspace.locate()))
        problems = stack.enter_context(
            Problems(config.on_error, quarantine=config.quarantine, sensitive=plan.sensitive)
        )
        counts, lag = WatchCounts(), Lag()
        judging = Judging(config, counts, progress)
        judging.take_up(plan)
        outbox = _outbox(
            config, plan, judging, registry, problems, progress, rules=rules, hooks=hooks, stdout=shown
        )
        stack.callback(outbox.close)
        counts.kept = outbox.incidents
        look = _versions(config, judging, counts, registry, outbox, progress)

        def stopping() -> bool:
            """Asked before each turn: when the model is done, all is committed, and files may be waiting."""
            look()
            lag.look(lambda: (outbox.follower.bytes, outbox.follower.unread))
            return signals.received is not None

        counts.restore(outbox.begin(problems))
        for note in outbox.notes:
            progress.message(note)
        _send(hooks, registry.notices(outbox.stream), progress, stack)
        if port is not None:
            port.values = partial(counters, config, judging, registry, outbox, counts, problems, lag)
        began, before = time.monotonic(), counts.asked
        for records in turns(outbox, stopping=stopping):
            _judge(records, judging, outbox, counts, problems)
            outbox.commit(counts.snapshot(), problems)
            progress.progress(counts.asked, counts.alarms)
        seconds = time.monotonic() - began
        told = {**counts.figures(judging.plan), "level": plan.level.name}
        found = redact_small_counts(told, plan.sensitive)
        rate = (counts.asked - before) / seconds
        return Summary(
            task="watch",
            **redact_small_counts({"items": counts.asked, "bad": problems.bad_count}, plan.sensitive),
            notes=redact_small_counts(problems.counts, plan.sensitive),
            places=problems.places,
            quarantine=config.quarantine if problems.quarantined and problems.bad_count else None,
            figures={**found, "mode": str(judging.plan.mode)},
            answer=sentence(judging.plan, found, counts.asked, seconds, rate),
            stopped=signals.received,
            streamed=shown is not None,
            go_on="to go on with",
        )


def _judge(
    records: Sequence[Record], judging: Judging, outbox: Outbox, counts: WatchCounts, problems: Problems
) -> None:
    """Judge the records of a turn, and hand on their rows.

    Raises:
        DataError: a bad record, where `problems` raises.
    """
    session = judging.plan.session
    spelled = tokenized(session.domain, session.tokenizer, records, problems)
    for part in cut(spelled, judging.plan.budget.share):
        judging.familiar.note(part.items, problems)
        if part.items:
            outbox.write(judging.rows(outbox, judging.answers(part.items)))
            counts.asked += len(part.items)
        if part.failure is not None:
            raise part.failure


def _chosen(config: WatchConfig, progress: Progress) -> ScoringPlan:
    """The plan for a model whose files can be followed."""
    plan = choose(config, opened(config))
    domain = plan.session.domain
    if not domain.followed:
        raise UsageError(
            f"files of the domain {domain.name} cannot be watched; pipe them in: 'seqmlm score MODEL -'"
        )
    for note in (*plan.notes, *_few(plan)):
        progress.message(note)
    return plan


def _few(plan: ScoringPlan) -> list[str]:
    """What is to be said of a calibration of few records, which will judge for months."""
    stored = plan.stored
    if stored is None or not 0 < stored.records < FEW_RECORDS:
        return []
    records = redacted_count(stored.records) if plan.sensitive else stored.records
    return [
        f"the model was calibrated with {stored.rows:,} rows of {records} records only, and rows of one "
        "record are alike: rates of alarms are less sure than so many rows say; give more normal data to "
        "'seqmlm calibrate'"
    ]


def _versions(
    config: WatchConfig,
    judging: Judging,
    counts: WatchCounts,
    registry: Streams,
    outbox: Outbox,
    progress: Progress,
) -> Callable[[], None]:
    """What looks, between two turns, whether an alias names another version, which then judges.

    What was read and not judged, windows that are open among it, is judged by the new one.
    """
    looks: list[Callable[[], None]] = []

    def take_up(named: str) -> None:
        judging.take_up(version_plan(config, named, judging.plan))
        outbox.take_up(judging.rolling, named)

    entry, alias = judging.plan.session.entry, alias_of(config, judging.plan)
    if entry is not None and alias is not None:
        progress.message(f"{config.model} is {entry.reference}; another version is taken up when it moves")
        looks.append(Successor(entry.name, alias, entry.reference, take_up, registry, progress).look)
    if config.shadow is not None:
        judging.shadow = Shadow(config, lambda: judging.plan, counts, registry, progress)
        looks.append(judging.shadow.look)

    def look() -> None:
        for one in looks:
            one()

    return look


def _outbox(
    config: WatchConfig,
    plan: ScoringPlan,
    judging: Judging,
    registry: Streams,
    problems: Problems,
    progress: Progress,
    *,
    rules: Sequence[Ignored],
    hooks: Sequence[Webhook],
    stdout: TextIO | None,
) -> Outbox:
    """Where the rows go, what becomes of alarms, and who is told."""
    assert config.out is not None
    patterns = [absolute(path) for path in config.sources]
    output = absolute(str(config.out))
    return Outbox(
        config.out,
        registry,
        _request(config, plan, patterns),
        partial(_follower, config, patterns, plan.session, problems, progress),
        private=plan.sensitive,
        grouping=Grouping(model=reference(config, plan), quiet=config.quiet_seconds, ignored=rules),
        tell=_Told(progress),
        rolling=judging.rolling,
        notify=notices(hooks, Origin(output=output, version=__version__, sensitive=plan.sensitive)),
        stdout=stdout,
    )


def _kept(config: WatchConfig) -> Path:
    """What a stream whose rows go to standard output is called: the same for the same model and files."""
    told = json.dumps([config.model, config.source, [absolute(path) for path in config.paths]])
    name = re.sub(r"[^\w.-]+", "-", Path(config.model).name)
    folder = Workspace.locate().root / "streams"
    return folder / f"{name}-{sha256(told.encode()).hexdigest()[:8]}"


def _request(config: WatchConfig, plan: ScoringPlan, patterns: Sequence[str]) -> dict[str, Any]:
    """What decides the rows of a stream; of a model that an alias names that alias, and no version."""
    request = {**plan.request(config), "files": patterns}
    if alias_of(config, plan) is not None:
        del request["model file"]
        request["model"] = config.model
    return request


def _send(hooks: Sequence[Webhook], queue: NoticeQueue, progress: Progress, stack: ExitStack) -> None:
    """Begin to send what is queued for the webhooks, until the stack ends."""
    for hook in hooks:
        if unsafe(hook):
            progress.message(f"webhook {hook.name} gets its token or password unencrypted: better use https")
    for name, states in queue.counts().items():
        if states["waiting"] and name not in {hook.name for hook in hooks}:
            progress.message(
                f"{states['waiting']:,} notices wait for webhook {name}, which is not among those of "
                "--webhook: they stay until it is"
            )
    for hook in hooks:
        courier = Courier(hook, queue, progress.message)
        stack.callback(courier.close)
        courier.start()


def counters(
    config: WatchConfig,
    judging: Judging,
    registry: Streams,
    outbox: Outbox,
    counts: WatchCounts,
    problems: Problems,
    lag: Lag,
) -> Values:
    """What `--metrics-port` tells, of the whole stream; asked for in another thread at any time.

    Of sensitive data numbers from 1 to 10 that say something of its content are not told (None), and no
    p-values. What only the database knows is None while that cannot be used.
    """

    plan = judging.plan
    rolling = judging.rolling if config.calibration == ROLLING else None

    def content(number: int) -> int | None:
        return number if not plan.sensitive or redacted_count(number) == number else None

    rated = plan.alpha is not None
    compared = config.shadow is not None and not plan.sensitive  # counts of both tell small ones of one alone
    values: dict[str, Any] = {
        "info": {
            "model": config.model,
            "judge": reference(config, plan),
            "output": str(config.out),
            "version": __version__,
        },
        "lines": outbox.follower.lines,
        "bytes": outbox.follower.bytes,
        "records": counts.asked,
        "rows": counts.rows,
        "alarms": content(counts.alarms) if rated else None,
        "never_seen": content(counts.never_seen),
        "shadow_rows": None if config.shadow is None else counts.shadow_rows,
        "shadow_failed": None if config.shadow is None else counts.shadow_failed,
        "shadow_alarms": counts.shadow_alarms if compared else None,
        "shadow_common": counts.shadow_common if compared else None,
        "shadow_alone": counts.shadow_alarms - counts.shadow_common if compared else None,
        "served_alone": counts.shadow_served - counts.shadow_common if compared else None,
        "bad": problems.bad_count,
        "gaps": outbox.gaps,
        "lag_bytes": lag.bytes,
        "lag_seconds": round(lag.seconds, 3),
        "calibration_rows": None if rolling is None else rolling.rows,
        "recent_low_p": None,
        "recent_lowest_p": None,
        "shifted": None,
        "p_values": None,
        "incidents": None,
        "webhooks": None,
    }
    if plan.calibrated and not plan.sensitive:
        bins = list(counts.p_histogram)
        values["p_values"] = {"upper": list(P_EDGES), "rows": bins, "sum": counts.p_sum}
        if recent := counts.recent_shares(plan):
            values |= {f"recent_{name}": share for name, share in recent.items()}
            values["shifted"] = int(judging.shift is not None)
    with suppress(StateError):
        if rated and not plan.sensitive:
            values["incidents"] = registry.incident_counts(outbox.stream)
        values["webhooks"] = registry.notices(outbox.stream).counts()
    return values


class _Told:
    """Says in one line that an incident opens, that something new joins it, and that it is over."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._new: dict[int, tuple[str, ...]] = {}

    def __call__(self, change: Change) -> None:
        one = change.incident
        before = self._new.get(one.id, one.new)
        self._new[one.id] = one.new
        if change.kind == "opened":
            self._progress.message(f"incident {one.id}: {one.title} (p {small(one.p_value)})")
        elif change.kind == "resolved":
            del self._new[one.id]
            rows = number_of(one.rows, "row")
            self._progress.message(f"incident {one.id} is over after {rows}: {one.title}")
        elif before != one.new:
            self._progress.message(f"incident {one.id} goes on: {one.title} (p {small(one.p_value)})")


def _follower(
    config: WatchConfig,
    patterns: Sequence[str],
    session: Session,
    problems: Problems,
    progress: Progress,
    states: Sequence[FileState],
) -> Follower:
    """What follows the files, from where an earlier one left them."""
    assert config.out is not None
    beside = [config.out, config.out.with_name(f"{config.out.name}.lock"), config.quarantine]
    beside += [] if config.ignore is None else [config.ignore]

    def read(source: Source) -> Iterator[Record]:
        kind = "journal" if config.source is not None and config.format is None else config.format
        given = session.reader([source], format=kind, options=config.options)
        return iter(given(problems))

    options: dict[str, Any] = {
        "tick": _TICK_SHARE * config.latency,
        "tell": progress.message,
        "patience": PATIENCE,
        "again": lambda: problems.replaying(problems.snapshot()),
        "exclude": [os.path.abspath(path) for path in beside],
    }
    if config.source is not None:
        folder = config.out.with_name(f"{config.out.name}.journal")
        return JournalFollower(config.source, folder, read, states, **options)
    return Follower(patterns, read, states, **options)

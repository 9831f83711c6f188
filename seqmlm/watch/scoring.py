"""Watching, end to end: it goes on by itself where it was left, whatever ended it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from seqmlm import __version__
from seqmlm.anomaly.findings import small
from seqmlm.data.files import Source
from seqmlm.data.privacy import redact_small_counts
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import UsageError, number_of
from seqmlm.inference.batches import encoded
from seqmlm.scoring.output import sentence
from seqmlm.scoring.plan import ScoringPlan
from seqmlm.streams.cursor import file_facts, with_defaults
from seqmlm.tasks.reading import TICK_SHARE, cut
from seqmlm.tasks.task import NoProgress, Progress, Summary, check_field, met
from seqmlm.watch.config import ROLLING, UNDECIDED, WatchConfig
from seqmlm.watch.follower import PATIENCE, Follower, absolute
from seqmlm.watch.generations import FileState, Gap
from seqmlm.watch.grouping import Grouping, ignored
from seqmlm.watch.journal import JournalFollower
from seqmlm.watch.judging import Judging, WatchCounts
from seqmlm.watch.metrics import Lag, MetricsServer, counters
from seqmlm.watch.outbox import Outbox, turns
from seqmlm.watch.silence import Silence
from seqmlm.watch.store import Change, NoticeQueue, Streams
from seqmlm.watch.versions import Shadow, Successor, alias_of, plan_of, reference, version_plan
from seqmlm.watch.webhooks import TOKEN, Courier, Origin, Webhook, notices, webhooks
from seqmlm.workspace import Workspace


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
    """Score the lines of files as they are written, until a signal comes; the summary of the whole stream,
    earlier processes included. Without `config.out` rows go to `stdout`, or that of the process.

    Raises:
        UsageError: a request that makes no sense, a port that is taken, a field whose files cannot be
            followed, or no `out` for sensitive data.
        DataError: `ignore` cannot be read.
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
        check_field(config, config.level)
        plan = _chosen(config, progress)
        if config.out is None:
            config = replace(config, out=_kept(config))
            progress.message(
                f"rows go to standard output; what is known of them is kept as {config.out}, which is their "
                "name for --stream"
            )
        watching = Watching(config, plan, progress, stack)
        grouping = Grouping(model="", quiet=config.quiet_seconds, ignored=rules)
        watching.begin(grouping, hooks, shown)
        _send(hooks, watching.registry.notices(watching.outbox.stream), progress, stack)
        if port is not None:
            port.values = partial(counters, watching)
        return replace(watching.run(), streamed=shown is not None)


class Watching:
    """One process that watches files; `stack` closes all that it opens."""

    outbox: Outbox

    def __init__(self, config: WatchConfig, plan: ScoringPlan, progress: Progress, stack: ExitStack) -> None:
        self.config, self.progress, self._stack = config, progress, stack
        self.signals = stack.enter_context(StopSignals())
        self.registry = stack.enter_context(Streams(Workspace.locate()))
        self.problems = stack.enter_context(Problems("skip", sensitive=plan.sensitive))
        self.problems.listener = progress.message
        self.counts, self.lag, self._looks = WatchCounts(), Lag(), list[Callable[[], None]]()
        self.judging = Judging(config, self.counts, progress)
        self.judging.take_up(plan)

    def begin(self, grouping: Grouping, hooks: Sequence[Webhook], stdout: TextIO | None) -> None:
        """Find where the stream was left, and begin to follow its files from there."""
        config, plan, out = self.config, self.judging.plan, self.config.out
        assert out is not None
        patterns = [absolute(path) for path in config.sources]
        origin = Origin(output=absolute(str(out)), version=__version__, sensitive=plan.sensitive)
        self.outbox = Outbox(
            out,
            self.registry,
            _request(config, plan, patterns),
            partial(self._follow, out, patterns),
            private=plan.sensitive,
            grouping=grouping,
            tell=_teller(self.progress),
            notify=notices(hooks, origin),
            stdout=stdout,
        )
        self._stack.callback(self.outbox.close)
        self.counts.kept = self.outbox.incidents
        self._heed_versions()
        self.counts.restore(self.outbox.begin(self.problems))
        self.outbox.take_up(self.judging.rolling, reference(config, plan))
        silence = Silence(self.outbox.follower, self.judging.judges, self._alarm, config.quiet_seconds)
        self._looks.append(silence.look)
        for note in self.outbox.notes:
            self.progress.message(note)

    def _follow(self, out: Path, patterns: Sequence[str], states: Sequence[FileState]) -> Follower:
        """What follows the files, from where an earlier one left them."""
        config, session, problems = self.config, self.judging.plan.session, self.problems
        beside = [out, out.with_name(f"{out.name}.lock"), config.ignore]

        def read(source: Source) -> Iterator[Record]:
            kind = "journal" if config.source is not None and config.format is None else config.format
            return iter(session.reader([source], format=kind, options=config.options)(problems))

        options: dict[str, Any] = {
            "tick": TICK_SHARE * config.latency,
            "tell": self.progress.message,
            "patience": PATIENCE,
            "rotation": session.domain.reading.rotation,
            "again": lambda: problems.replaying(problems.snapshot()),
            "exclude": [os.path.abspath(path) for path in beside if path is not None],
        }
        if config.source is not None:
            folder = out.with_name(f"{out.name}.journal")
            return JournalFollower(config.source, folder, read, states, **options)
        return Follower(patterns, read, states, **options)

    def _heed_versions(self) -> None:
        """Look, between two turns, whether an alias names another version, which then judges what was read
        and not judged, windows that are open among it."""
        config, judging, progress = self.config, self.judging, self.progress

        def take_up(named: str) -> None:
            judging.take_up(version_plan(config, named, judging.plan))
            self.outbox.take_up(judging.rolling, named)

        entry, alias = judging.plan.session.entry, alias_of(config, judging.plan)
        if entry is not None and alias is not None:
            progress.message(
                f"{config.model} is {entry.reference}; another version is taken up when it moves"
            )
            successor = Successor(entry.name, alias, take_up, self.registry, progress)
            self._looks.append(successor.look)
        if config.shadow is not None:
            judging.shadow = Shadow(config, lambda: judging.plan, self.registry, progress)
            self._looks.append(judging.shadow.look)

    def _alarm(self, row: dict[str, Any]) -> None:
        """Take an alarm that is not of a record."""
        self.counts.add(row)
        self.outbox.write([row])

    def _stopping(self) -> bool:
        """Asked before each turn: when the model is done, all is committed, and files may be waiting."""
        for look in self._looks:
            look()
        self.lag.look(lambda: (self.outbox.follower.bytes, self.outbox.follower.unread))
        return self.signals.received is not None

    def run(self) -> Summary:
        """Read, judge and commit, turn after turn, until a signal comes."""
        counts, problems, plan = self.counts, self.problems, self.judging.plan
        began, before = time.monotonic(), counts.asked
        for records in turns(self.outbox, stopping=self._stopping):
            self._judge(records)
            self.outbox.commit(counts.snapshot(), problems)
            self.progress.progress(counts.asked, counts.alarms)
        seconds = time.monotonic() - began
        found = redact_small_counts(
            {**counts.figures(self.judging.plan), "level": plan.level.name}, plan.sensitive
        )
        rate = (counts.asked - before) / seconds
        return Summary(
            task="watch",
            **met(problems, counts.asked, self.config.quarantine, sensitive=plan.sensitive),
            figures={**found, "mode": str(plan.mode)},
            answer=sentence(self.judging.plan, found, counts.asked, seconds, rate),
            stopped=self.signals.received,
            go_on="to go on with",
        )

    def _judge(self, records: Sequence[Record]) -> None:
        """Judge the records of a turn, and hand on their rows; one that the model cannot read is a gap."""
        session, outbox = self.judging.plan.session, self.outbox
        spelled = encoded(session.domain, session.tokenizer, records, self.problems)
        for part in cut(spelled, self.judging.plan.budget.share):
            self.judging.familiar.note(part.items, self.problems)
            outbox.write(self.judging.rows(part.items, outbox.number))
            self.counts.asked += len(part.items)
        if len(spelled) < len(records):
            read = {id(one.record) for one in spelled}
            for one in (one for one in records if id(one) not in read):
                told = {"what": "the record that begins here", "fate": "could not be judged"}
                told["cause"] = "the model cannot read it"
                outbox.tell_gap(Gap(path=one.source, line=one.line, offset=0, size=0, **told))


def _chosen(config: WatchConfig, progress: Progress) -> ScoringPlan:
    """The plan for a model whose files can be followed."""
    plan = plan_of(config)
    if not (domain := plan.session.domain).reading.followed:
        raise UsageError(
            f"files of the domain {domain.name} cannot be watched; pipe them in: 'seqmlm score MODEL -'"
        )
    for note in plan.notes:
        progress.message(note)
    return plan


def _kept(config: WatchConfig) -> Path:
    """What a stream whose rows go to standard output is called: the same for the same model and files."""
    told = json.dumps([config.model, config.source, [absolute(path) for path in config.paths]])
    name = re.sub(r"[^\w.-]+", "-", Path(config.model).name)
    return Workspace.locate().root / "streams" / f"{name}-{sha256(told.encode()).hexdigest()[:8]}"


def _request(config: WatchConfig, plan: ScoringPlan, patterns: Sequence[str]) -> dict[str, Any]:
    """What decides the rows of a stream; of a model that an alias names that alias, and no version."""
    asked = {name: value for name, value in asdict(config).items() if name not in UNDECIDED}
    if config.calibration != ROLLING:
        del asked["calibration"]  # what judges is the model
    asked |= {"mode": str(plan.mode), "level": plan.level.name, "files": patterns}
    asked |= {"options": dict(sorted(config.options.items()))}
    asked |= {"counts": plan.session.counts, "precision": plan.session.precision}
    if alias_of(config, plan) is not None:
        asked["model"] = config.model
    else:
        asked["model file"] = file_facts(plan.session.model.files)
    return with_defaults(asked, config)


def _send(hooks: Sequence[Webhook], queue: NoticeQueue, progress: Progress, stack: ExitStack) -> None:
    """Begin to send what is queued for the webhooks, until the stack ends."""
    for hook in hooks:
        if hook.unsafe:
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


def _teller(progress: Progress) -> Callable[[Change], None]:
    """What says in one line that an incident opens, that something new joins it, and that it is over."""
    known: dict[int, tuple[str, ...]] = {}

    def tell(change: Change) -> None:
        one = change.incident
        before = known.get(one.id, one.new)
        known[one.id] = one.new
        if change.kind == "resolved":
            del known[one.id]
            progress.message(f"incident {one.id} is over after {number_of(one.rows, 'row')}: {one.title}")
        elif change.kind == "opened" or before != one.new:
            goes_on = "" if change.kind == "opened" else " goes on"
            progress.message(f"incident {one.id}{goes_on}: {one.title} (p {small(one.p_value)})")

    return tell

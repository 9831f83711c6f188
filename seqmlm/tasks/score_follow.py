"""Scoring files that others still write to: it goes on by itself where it was left, whatever ended it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from seqmlm.anomaly.findings import small
from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import UsageError
from seqmlm.inference.following import Grouping, Outbox, ignored, turns
from seqmlm.inference.runner import NoProgress, Progress, Runner
from seqmlm.inference.session import Session
from seqmlm.registry import Change, Registry
from seqmlm.streams.follow import PATIENCE, Follower, absolute
from seqmlm.streams.generations import FileState
from seqmlm.tasks.score import opened, problems_of
from seqmlm.tasks.score_output import ScoreCounts, ScoreSummary, lines, summarized
from seqmlm.tasks.score_plan import ScoreConfig, choose
from seqmlm.workspace import Workspace

_TICK_SHARE = 0.4  # of the latency that lines may wait to become records; the rest is for scoring


def score_following(config: ScoreConfig, progress: Progress | None = None) -> ScoreSummary:
    """Score the lines of files as they are written, until a signal comes.

    Args:
        config: what to score, with `follow`; its paths may be patterns, and new files are taken up.
        progress: told what happens on the way.

    Returns:
        The summary of the whole stream, earlier processes included.

    Raises:
        UsageError: a request that makes no sense, or a field whose files cannot be followed.
        DataError: a bad record, under `on_error` "raise"; rows before it are written. Or `ignore` cannot be
            read.
        StateError: no such model, no calibration where one is needed, the database or the output cannot be
            written, or the stream of this output was asked something else.
    """
    progress = progress or NoProgress()
    config.check()
    assert config.out is not None
    rules = [] if config.ignore is None else ignored(config.ignore)
    plan = choose(config, opened(config))
    session = plan.session
    if not session.domain.followed:
        raise UsageError(f"files of the domain {session.domain.name} cannot be followed; pipe them in: -")
    for note in plan.notes:
        progress.message(note)
    patterns = [absolute(path) for path in config.sources]
    request = {**plan.request(config), "files": patterns}
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        registry = stack.enter_context(Registry(Workspace.locate()))
        problems = stack.enter_context(problems_of(config, plan))
        follow = partial(_follower, config, patterns, session, problems, progress)
        entry = session.entry
        model = config.model if entry is None else entry.reference
        grouping = Grouping(model=model, quiet=config.quiet_seconds, ignored=rules)
        outbox = Outbox(
            config.out,
            registry,
            request,
            follow,
            private=plan.sensitive,
            grouping=grouping,
            tell=_Told(progress),
        )
        stack.callback(outbox.close)
        counts = ScoreCounts()
        counts.kept = outbox.incidents
        runner = Runner(
            session,
            plan.detector().encoded,
            lines(config, plan, counts, lambda row: True),
            outbox,
            problems,
            counts=counts,
            budget=plan.budget,
            progress=progress,
            signals=signals,
        )
        runner.run_turns(
            turns(
                session, outbox, problems, budget=plan.budget, stopping=lambda: signals.received is not None
            )
        )
        return summarized(runner, counts, plan, level=plan.level.name)


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
            rows = "1 row" if one.rows == 1 else f"{one.rows:,} rows"
            self._progress.message(f"incident {one.id} is over after {rows}: {one.title}")
        elif before != one.new:
            self._progress.message(f"incident {one.id} goes on: {one.title} (p {small(one.p_value)})")


def _follower(
    config: ScoreConfig,
    patterns: Sequence[str],
    session: Session,
    problems: Problems,
    progress: Progress,
    states: Sequence[FileState],
) -> Follower:
    """What follows the files, from where an earlier one left them."""
    assert config.out is not None
    assert config.latency is not None
    beside = [config.out, config.out.with_name(f"{config.out.name}.lock"), config.quarantine]
    beside += [] if config.ignore is None else [config.ignore]

    def read(source: Source) -> Iterator[Record]:
        given = session.reader([source], format=config.format, options=config.options)
        return iter(given(problems))

    return Follower(
        patterns,
        read,
        states,
        tick=_TICK_SHARE * config.latency,
        tell=progress.message,
        patience=PATIENCE,
        again=lambda: problems.replaying(problems.snapshot()),
        exclude=[os.path.abspath(path) for path in beside],
    )

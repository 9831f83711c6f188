"""Scoring what changed in a folder, since a revision or by a diff: how much more unusual each row became."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from seqmlm.anomaly.values import Row
from seqmlm.data.problems import Problems
from seqmlm.domains.base import Changed
from seqmlm.errors import UsageError
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.inference.runner import Runner
from seqmlm.tasks.score import opened, output_of, problems_of
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tasks.score_output import ScoreCounts, ScoreSummary, lines, summarized
from seqmlm.tasks.score_plan import choose
from seqmlm.tasks.score_show import Findings

RULE = "change"


def score_changes(config: ScoreConfig, stdout: TextIO) -> ScoreSummary:
    """Score the changed rows of one folder and write each.

    A row's `score` is by how much it became more unusual; its p-value is that of the row as it is now, and it
    alarms only where it also became more unusual.

    Args:
        config: with `since` or `diff`, and the folder as its one path.
        stdout: where rows go when `config.out` is None.

    Raises:
        UsageError: not one folder, a field without changes, or no such revision.
        DataError: a diff that does not fit the folder, under `on_error` "raise".
        StateError: no such model, none that is calibrated, or rows that cannot be written.
    """
    root = check(config)
    plan = choose(config, opened(config))
    domain = plan.session.domain
    if plan.level.name != domain.changes_level:
        wanted = f"only at the level {domain.changes_level!r}" if domain.changes_level else "not at all"
        raise UsageError(f"changes of a folder are scored {wanted} by models of the domain {domain.name}")
    with problems_of(config, plan) as problems:
        findings = Findings(RULE, plan.level, config.baseline, config.sarif, private=plan.sensitive)
        counts, detector = ScoreCounts(), plan.detector()

        def seen() -> Iterator[Changed]:
            for change in domain.changes(root, problems, since=config.since, diff=config.diff):
                findings.look_at(change.source)
                yield change

        def answers(batch: Sequence[Changed]) -> list[JudgedRow]:
            return [row for change in batch for row in _judged(detector, change, problems)]

        write = lines(config, plan, counts, findings.is_new)
        runner = Runner(
            plan.session, answers, write, output_of(config, plan, stdout), problems, counts=counts
        )
        runner.run_items(seen(), most=1)
        findings.finish()
    return summarized(runner, counts, plan, level=RULE)


def check(config: ScoreConfig) -> Path:
    """The one folder whose changes are scored.

    Raises:
        UsageError: the request makes no sense.
    """
    config.check()
    if config.since is not None and config.diff is not None:
        raise UsageError("--since and --diff both say what changed; give one")
    if len(config.paths) != 1 or not Path(config.sources[0]).is_dir():
        raise UsageError("--since and --diff are about one folder: name it as the only PATH")
    for name, value in (
        ("--resume", config.resume),
        ("--max-latency", config.max_latency),
        ("--report", config.report),
        ("--track", config.track),
    ):
        if value:
            raise UsageError(
                f"{name} has no meaning for changes of a folder; leave it out (--out and --sarif keep what "
                "was found)"
            )
    return Path(config.sources[0])


def _judged(detector: Detector, change: Changed, problems: Problems) -> list[JudgedRow]:
    """The changed rows of a file, judged as they are now and scored by their change."""
    if change.after is None:
        return []
    after = detector.batch([change.after], problems)
    before = [] if change.before is None else detector.batch([change.before], problems)
    changed = change.rows(_rows(before), _rows(after))
    return [_became(after[index], replace(after[index], row=row)) for index, row in changed]


def _rows(judged: Sequence[JudgedRow]) -> list[Row]:
    return [one.row for one in judged]


def _became(now: JudgedRow, changed: JudgedRow) -> JudgedRow:
    worse = changed.row.score is not None and changed.row.score > 0
    return replace(changed, alarm=None if now.alarm is None else now.alarm and worse)

"""Scoring what changed: the lines of source files that differ from a revision, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from seqmlm.anomaly.values import Row
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code.changes import Change, changed_rows, changes_of_diff, changes_since
from seqmlm.domains.code.levels import LineLevel
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.inference.runner import Runner
from seqmlm.tasks.score import opened, output_of, problems_of
from seqmlm.tasks.score_output import ScoreCounts, ScoreSummary, lines, summarized
from seqmlm.tasks.score_plan import ScoreConfig, choose
from seqmlm.tasks.score_show import Findings

RULE = "change"


def score_changes(config: ScoreConfig, stdout: TextIO) -> ScoreSummary:
    """Score the changed lines of one folder and write a row for each.

    A row's `score` is by how much the line became more unusual; its p-value is that of the line as it is now,
    and it alarms only where it also became more unusual.

    Args:
        config: with `since` or `diff`, and the folder as its one path.
        stdout: where rows go when `config.out` is None.

    Raises:
        UsageError: not one folder, no model of source code, or no such revision.
        DataError: a diff that does not fit the folder, under `on_error` "raise".
        StateError: no such model, none that is calibrated, or rows that cannot be written.
    """
    root = check(config)
    plan = choose(config, opened(config))
    if not isinstance(plan.level, LineLevel):
        raise UsageError("changed lines are judged at the level 'line' of a model of source code")
    with problems_of(config, plan) as problems:
        findings = Findings(RULE, config.baseline, config.sarif, private=plan.sensitive)
        counts, detector = ScoreCounts(), plan.detector()

        def seen(changes: Iterator[Change]) -> Iterator[Change]:
            for change in changes:
                findings.look_at(_source(root, change.path))
                yield change

        def answers(batch: Sequence[Change]) -> list[JudgedRow]:
            return [row for change in batch for row in _judged(detector, root, change, problems)]

        write = lines(config, plan, counts, findings.is_new)
        output = output_of(config, plan, stdout)
        runner = Runner(plan.session, answers, write, output, problems, counts=counts)
        runner.run_items(seen(_changes(root, config, problems)), most=1)
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


def _changes(root: Path, config: ScoreConfig, problems: Problems) -> Iterator[Change]:
    if config.since is not None:
        return changes_since(root, config.since, problems)
    assert config.diff is not None
    try:
        diff = config.diff.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", source=str(config.diff)) from None
    return changes_of_diff(root, diff, str(config.diff), problems)


def _judged(detector: Detector, root: Path, change: Change, problems: Problems) -> list[JudgedRow]:
    """The changed lines of a file, judged as they are now and scored by their change."""
    if change.after is None or not change.hunks:
        return []
    versions = [change.after] if change.before is None else [change.after, change.before]
    records = [
        Record(id=change.path, raw=text, source=_source(root, change.path), line=1) for text in versions
    ]
    after = detector.batch(records[:1], problems)
    before = detector.batch(records[1:], problems) if records[1:] else []
    changed = changed_rows(change, _rows(before), _rows(after))
    return [_became(after[index], replace(after[index], row=row)) for index, row in changed]


def _rows(judged: Sequence[JudgedRow]) -> list[Row]:
    return [one.row for one in judged]


def _became(now: JudgedRow, changed: JudgedRow) -> JudgedRow:
    worse = changed.row.score is not None and changed.row.score > 0
    return replace(changed, alarm=None if now.alarm is None else now.alarm and worse)


def _source(root: Path, path: str) -> str:
    return (root / path).as_posix()

"""Scoring what changed in a folder, since a revision or by a diff: how much more unusual each row became."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from seqmlm.anomaly.values import Row
from seqmlm.data.problems import Problems
from seqmlm.domains.base import Changed
from seqmlm.errors import UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.registry import Registry, resolve
from seqmlm.streams.sinks import Schema, open_sink
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tasks.score_output import ScoreSummary, Tally, line, schema
from seqmlm.tasks.score_plan import ScoringPlan, choose
from seqmlm.tasks.score_show import Findings
from seqmlm.workspace import Workspace

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
    where = resolve(config.model, lambda: Registry(Workspace.locate())).location
    model = model_folder.load(where, domain=config.domain)
    chosen = choose(config, model)
    domain = model.domain
    if chosen.level.name != domain.changes_level:
        wanted = f"only at the level {domain.changes_level!r}" if domain.changes_level else "not at all"
        raise UsageError(f"changes of a folder are scored {wanted} by models of the domain {domain.name}")
    private = model.card.sensitive
    if private and config.out is None:
        raise UsageError("scores of sensitive data are not shown on the console: name a file with --out")
    with ExitStack() as stack:
        aside = Path(f"{config.out or 'score'}.quarantine.jsonl")
        problems = stack.enter_context(Problems(config.on_error, quarantine=aside, sensitive=private))
        findings = Findings(RULE, config.baseline, config.sarif, private=private)
        columns: Schema = schema(
            chosen.level,
            calibrated=chosen.calibrated,
            alarms=chosen.alpha is not None,
            per_unit=config.per_unit,
            sensitive=private,
        )
        sink = open_sink(
            config.out, columns, format=config.output_format, private=private, mark=None, stdout=stdout
        )
        stack.callback(sink.close)
        tally, files = Tally({}), 0
        judge = chosen.judge()
        for change in domain.changes(root, problems, since=config.since, diff=config.diff):
            files += 1
            rows = _judged(judge, change, problems)
            for place, row in enumerate(rows):
                tally.add(row, first=place == 0)
            kept = [row for row in rows if findings.is_new(row) and (row.alarm or not config.alarms_only)]
            findings.look_at(change.source)
            told = {"per_unit": config.per_unit, "sensitive": private}
            sink.write([line(row, model.tokenizer, **told) for row in kept])
        sink.finish()
        findings.finish()
    return _summary(chosen, tally, files, problems)


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


def _judged(judge: Detector, change: Changed, problems: Problems) -> list[JudgedRow]:
    """The changed rows of a file, judged as they are now and scored by their change."""
    if change.after is None:
        return []
    after = judge.batch([change.after], problems)
    before = [] if change.before is None else judge.batch([change.before], problems)
    changed = change.rows(_rows(before), _rows(after))
    return [_became(after[index], replace(after[index], row=row)) for index, row in changed]


def _rows(judged: Sequence[JudgedRow]) -> list[Row]:
    return [one.row for one in judged]


def _became(now: JudgedRow, changed: JudgedRow) -> JudgedRow:
    worse = changed.row.score is not None and changed.row.score > 0
    return replace(changed, alarm=None if now.alarm is None else now.alarm and worse)


def _summary(chosen: ScoringPlan, tally: Tally, files: int, problems: Problems) -> ScoreSummary:
    return ScoreSummary(
        records=files,
        rows=tally.rows,
        units=tally.units,
        bad=problems.bad_count,
        problems=dict(problems.counts),
        seconds=tally.seconds,
        rate=files / tally.seconds if tally.seconds else 0.0,
        unit=chosen.model.card.unit,
        level=RULE,
        mode=chosen.mode_name,
        precision=chosen.precision,
        alarms=tally.alarms if chosen.alpha is not None else None,
        incidents=tally.incidents() if chosen.alpha is not None else None,
        quarantine=str(problems.quarantine) if problems.quarantined and problems.bad_count else None,
    )

"""Findings in source code: all of a folder, or what changed in it since a revision or by a diff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TextIO

from seqmlm import __version__
from seqmlm.anomaly.findings import Finding, finding, uri_of
from seqmlm.anomaly.levels import Level
from seqmlm.anomaly.values import Row
from seqmlm.data.files import expand
from seqmlm.data.problems import Problems
from seqmlm.domains.base import Changed
from seqmlm.errors import UsageError
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.inference.runner import NoProgress, Output, Progress, Runner
from seqmlm.reports.findings import Baseline, write_sarif
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import format_of
from seqmlm.tasks.score import ScoringCommand, opened, problems_of
from seqmlm.tasks.score_config import ScoringRequest
from seqmlm.tasks.score_output import ScoreCounts, ScoreSummary, lines, reason, schema, summarized
from seqmlm.tasks.score_plan import ScoringPlan, choose

CHANGE = "change"
"""What a finding in changed lines is called."""


@dataclass(frozen=True, kw_only=True)
class ReviewConfig(ScoringRequest):
    """What `seqmlm review` can be told.

    Args:
        paths: folder of source code, or files of it.
        since: REV: only lines changed since this git revision, of one folder.
        diff: FILE: only lines changed by this unified diff, applied or not.
        sarif: FILE: write the alarms to this SARIF 2.1.0 file as well; needs --fpr.
        baseline: FILE: SARIF or JSON lines of an earlier review; write only alarms it does not have.
    """

    shown: ClassVar[tuple[str, ...]] = (
        *("since", "diff", "fpr", "sarif", "baseline", "out", "alarms_only", "level"),
        *ScoringRequest.shown,
    )
    metavar: ClassVar[str] = "[PATH]..."

    since: str | None = None
    diff: Path | None = None
    sarif: Path | None = None
    baseline: Path | None = None

    @property
    def changes(self) -> bool:
        """Whether only what changed is looked at."""
        return self.since is not None or self.diff is not None

    @property
    def measured(self) -> Sequence[str]:
        return ["-"] if self.changes else self.sources  # changes are few, and unknown before they are read

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {**super().outputs, "--sarif": self.sarif}

    def check(self) -> None:
        if not self.paths:
            raise UsageError("nothing to review: name a folder of source code, such as .")
        if self.since is not None and self.diff is not None:
            raise UsageError("--since and --diff both say what changed; give one")
        if self.changes and (len(self.paths) != 1 or not Path(self.sources[0]).is_dir()):
            raise UsageError("--since and --diff are about one folder: name it as the only PATH")
        check_outputs(self.outputs, inputs=expand(self.sources), streams=True)
        check_outputs(self.outputs, inputs=[] if self.diff is None else [self.diff])
        if self.baseline is not None:  # SARIF may take the place of its own baseline, which is read before
            check_outputs({**self.outputs, "--sarif": None}, inputs=[self.baseline])
        super().check()
        for name, path in (("--sarif", self.sarif), ("--baseline", self.baseline)):
            if path is not None and self.rate_option is None:
                raise UsageError(f"{name} is about alarms: say how many are wanted with --fpr, such as 0.001")


class Review(ScoringCommand):
    """Review source code: lines that a model of normal code finds unusual, all or only what changed.

    Of changed lines, `score` is by how much each became more unusual. With --baseline only new alarms are
    written; SARIF has all of them, each marked as new, unchanged or absent.

    Example: seqmlm review mycode . --fpr 0.001 --sarif all.sarif

    Example: seqmlm review mycode . --since main --fpr 0.001 --sarif new.sarif --baseline all.sarif
    """

    Config = ReviewConfig

    @classmethod
    def run(cls, config: ReviewConfig, stdout: TextIO, progress: Progress) -> ScoreSummary:
        """Review a folder."""
        return review(config, stdout, progress)


def review(config: ReviewConfig, stdout: TextIO, progress: Progress | None = None) -> ScoreSummary:
    """Judge source code and write a row for each thing judged, and the alarms among them as SARIF.

    Of a changed row, `score` is by how much it became more unusual; its p-value is that of the row as it is
    now, and it alarms only where it also became more unusual.

    Args:
        config: what to review.
        stdout: where rows go when `config.out` is None.
        progress: told what happens on the way.

    Raises:
        UsageError: a request that makes no sense, a field without source code, or no such revision.
        DataError: a bad file, or a diff that does not fit the folder, under `on_error` "raise".
        StateError: no such model, none that is calibrated, or rows that cannot be written.
    """
    config.check()
    progress = progress or NoProgress()
    plan = choose(config, opened(config))
    rule = _rule(config, plan)
    for note in plan.notes:
        progress.message(note)
    with problems_of(config, plan) as problems:
        findings = Findings(rule, plan.level, config.baseline, config.sarif, private=plan.sensitive)
        counts, detector = ScoreCounts(plan.characters), plan.detector()
        runner: Runner[Any, Any] = Runner(
            plan.session,
            partial(_judged, detector, problems) if config.changes else detector.encoded,
            lines(config, plan, counts, findings.is_new),
            _output(config, plan, stdout),
            problems,
            counts=counts,
            budget=plan.budget,
            progress=progress,
        )
        if config.changes:
            runner.run_items(_changes(config, plan, problems, findings), most=1)
        else:
            runner.run(config.sources, format=config.format, options=config.options)
        findings.finish()
        return summarized(runner, counts, plan, level=rule)


def _output(config: ReviewConfig, plan: ScoringPlan, stdout: TextIO) -> Output:
    """Where the rows go; a file appears whole, at the end."""
    format = format_of(config.out)
    return Output(config.out, schema(plan), format=format, private=plan.sensitive, stdout=stdout)


def _rule(config: ReviewConfig, plan: ScoringPlan) -> str:
    """What a finding is called: its level, or a change.

    Raises:
        UsageError: the field has no source code, or changes are not judged at this level.
    """
    domain = plan.session.domain
    if domain.changes_level is None:
        raise UsageError(
            f"source code is reviewed, and {config.model} is a model of the domain {domain.name}: score its "
            "sequences with 'seqmlm score'"
        )
    if not config.changes:
        return plan.level.name
    if plan.level.name != domain.changes_level:
        raise UsageError(f"changes of a folder are judged only at the level {domain.changes_level!r}")
    return CHANGE


def _changes(
    config: ReviewConfig, plan: ScoringPlan, problems: Problems, findings: Findings
) -> Iterator[Changed]:
    """What changed, file by file; those without changed lines are looked at, too."""
    root = Path(config.sources[0])
    for change in plan.session.domain.changes(root, problems, since=config.since, diff=config.diff):
        findings.look_at(change.source)
        yield change


class Findings:
    """Collects the alarms of one scoring; other rows pass.

    Args:
        rule: what is found.
        level: that is judged.
        baseline: an earlier run's SARIF or JSON lines; None for none.
        out: SARIF file, or None.
        private: only the owner may read it.

    Raises:
        DataError: the baseline cannot be read.
    """

    def __init__(
        self, rule: str, level: Level, baseline: Path | None, out: Path | None, *, private: bool
    ) -> None:
        self._rule, self._level, self._out, self._private = rule, level, out, private
        self._baseline = None if baseline is None else Baseline.read(baseline)
        self._found: list[Finding] = []
        self._looked_at: set[str] = set()

    def is_new(self, judged: JudgedRow) -> bool:
        """Take a row; whether it is to be shown: every one without a baseline, with one only new alarms."""
        if self._baseline is None and self._out is None:
            return True
        row, scored = judged.row, judged.scored
        self._looked_at.add(uri_of(scored))
        if not judged.alarm:
            return self._baseline is None
        one = finding(self._rule, row, scored, judged.p_value, reason(self._rule, self._level, judged))
        if self._baseline is None:
            self._keep(one)
            return True
        known = self._baseline.is_known(one)
        self._keep(one.against("unchanged" if known else "new"))
        return not known

    def look_at(self, uri: str) -> None:
        """A file that was looked at, also where it has no rows any more."""
        self._looked_at.add(uri)

    def _keep(self, one: Finding) -> None:
        if self._out is not None:
            self._found.append(one)

    def finish(self) -> None:
        """Write the SARIF file; findings of the baseline that were not met again are absent.

        Raises:
            StateError: it cannot be written.
        """
        if self._out is None:
            return
        gone = [] if self._baseline is None else self._baseline.absent(self._looked_at)
        write_sarif(self._out, [*self._found, *gone], version=__version__, private=self._private)


def _judged(detector: Detector, problems: Problems, batch: Sequence[Changed]) -> list[JudgedRow]:
    """The changed rows of a batch of one file, judged as they are now and scored by their change."""
    [change] = batch
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

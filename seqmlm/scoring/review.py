"""Review source code: a whole folder, or its changes since a revision or in a diff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from seqmlm import __version__
from seqmlm.anomaly.findings import Finding, finding, record_uri
from seqmlm.anomaly.levels import Level
from seqmlm.data.counts import People
from seqmlm.data.files import expand
from seqmlm.data.problems import Problems
from seqmlm.errors import UsageError
from seqmlm.inference.detector import JudgedRow
from seqmlm.inference.record_batches import Encoded
from seqmlm.inference.session import Session
from seqmlm.reports.findings import Baseline, write_sarif
from seqmlm.reports.summary import Figures
from seqmlm.rows.file import Row
from seqmlm.scoring.config import ScoreConfig, ScoringRequest
from seqmlm.scoring.output import reason
from seqmlm.scoring.score import Score
from seqmlm.streams.outputs import check_outputs
from seqmlm.tasks.task import Conclusion, ReadRows

if TYPE_CHECKING:
    from seqmlm.domains.field import FileChange

CHANGE = "change"
"""Name of the SARIF rule for findings in changed lines."""


@dataclass(frozen=True, kw_only=True)
class ReviewConfig(ScoreConfig):
    """Settings of `seqmlm review`.

    Args:
        paths: folder of source code, or source files.
        out: write the rows to this file instead of stdout: .jsonl, .csv or .parquet.
        since: REV: review only lines changed since this git revision, in one folder.
        diff: FILE: review only lines changed by this unified diff, applied or not.
        sarif: FILE: also write the alarms to this SARIF 2.1.0 file; needs --fpr.
        baseline: FILE: SARIF or JSON lines of an earlier review; write only alarms that are not in it.
    """

    option_fields: ClassVar[tuple[str, ...]] = (
        *("since", "diff", "fpr", "sarif", "baseline", "out", "report", "alarms_only"),
        *ScoringRequest.option_fields,
    )
    metavar: ClassVar[str] = "PATH"

    since: str | None = None
    diff: Path | None = None
    sarif: Path | None = None
    baseline: Path | None = None

    @property
    def changes(self) -> bool:
        """Whether only changed lines are reviewed."""
        return self.since is not None or self.diff is not None

    @property
    def measured(self) -> Sequence[str]:
        return ["-"] if self.changes else self.sources  # changes are few, and unknown before they are read

    @property
    def resumable(self) -> bool:
        return False  # the folder may have changed, and findings are compared as a whole

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {**super().outputs, "--sarif": self.sarif}

    def check(self) -> None:
        if not self.paths:
            raise UsageError("nothing to review: give a folder of source code, such as .")
        if self.resume or self.shard is not None:
            raise UsageError("review does not support --resume and --shard: run it again")
        if self.since is not None and self.diff is not None:
            raise UsageError("--since and --diff exclude each other: give only one")
        if self.changes and (len(self.paths) != 1 or not Path(self.sources[0]).is_dir()):
            raise UsageError("--since and --diff work on one folder: give it as the only PATH")
        super().check()
        check_outputs(self.outputs, inputs=expand(self.sources))
        check_outputs(self.outputs, inputs=[] if self.diff is None else [self.diff])
        if self.baseline is not None:  # SARIF may replace its own baseline, which is read before
            check_outputs({**self.outputs, "--sarif": None}, inputs=[self.baseline])
        for name, path in (("--sarif", self.sarif), ("--baseline", self.baseline)):
            if path is not None and self.rate_option is None:
                raise UsageError(f"{name} needs alarms: add --fpr, such as --fpr 0.001")


class _Versions(NamedTuple):
    """A change, and the tokenized records of its file before and after it, if they exist."""

    change: FileChange
    old_records: list[Encoded]
    new_records: list[Encoded]


class Review(Score):
    """Review source code: find lines that are unusual for a model of normal code, in all code or in changes.

    For a changed line, `score` is how much more unusual the line became. The p-value is for the new line. A
    changed line raises an alarm only if it also became more unusual. With --baseline, only new alarms are
    written. The SARIF file has all alarms, marked as new, unchanged or absent.

    Example: seqmlm review mycode . --fpr 0.001 --sarif all.sarif

    Example: seqmlm review mycode . --since main --fpr 0.001 --sarif new.sarif --baseline all.sarif

    Raises:
        UsageError: a field without source code, or changes that are not judged at the level.
    """

    Config = ReviewConfig
    config: ReviewConfig
    requires = replace(Score.requires, capabilities=("changes",))

    def __init__(self, config: ReviewConfig, session: Session) -> None:
        super().__init__(config, session)
        domain, level = session.domain, self.plan.level
        assert domain.changes is not None  # otherwise the model would have been refused
        if config.changes and level.name != domain.changes.level:
            raise UsageError(f"--since and --diff work only with --level {domain.changes.level}")
        self._rule = CHANGE if config.changes else level.name
        given = self._rule, level, config.baseline, config.sarif
        self._findings = Findings(*given)
        changed: dict[str, Any] = {"reads_ahead": False, "may_be_empty": config.changes}
        if config.changes:  # their cost is unknown before they are compared
            changed["costs"] = lambda problems: ()
        if config.baseline is not None:
            changed["row_filter"] = lambda row: not row.get("known")
        self.output = replace(self.output, **changed)

    def input_files(self) -> list[str]:
        """Empty, because a review cannot be resumed."""
        return []

    def records(self, problems: Problems) -> Iterable[Any]:
        """The changes of the folder by file, also files without changed lines. Or all its records."""
        if not self.config.changes:
            return super().records(problems)
        since, diff, root = self.config.since, self.config.diff, Path(self.config.sources[0])
        changes = self.session.domain.changes
        assert changes is not None  # otherwise the model would have been refused
        return changes.read(root, problems, since=since, diff=diff)

    def items(self, records: Iterable[Any], problems: Problems) -> Iterator[Any]:
        if not self.config.changes:
            yield from super().items(records, problems)
            return
        encode = self.detector.scorer.encoded
        for change in records:
            self._findings.looked_at.add(change.source)
            pair = change.old_record, change.new_record
            versions = [[] if record is None else encode([record], problems) for record in pair]
            self.familiar.note(versions[1], problems)
            yield _Versions(change, *versions)

    def cost(self, item: Any) -> float:
        """Maximum forward tokens of an item. For a change, the tokens of both complete versions."""
        if not self.config.changes:
            return super().cost(item)
        return sum(super(Review, self).cost(encoded) for encoded in (*item.old_records, *item.new_records))

    def batch_share(self, item: Any) -> float:
        """The share of a part that an item takes: a change takes a whole part."""
        return 1.0 if self.config.changes else super().batch_share(item)

    def judge_items(self, items: Sequence[Any]) -> list[list[JudgedRow]]:
        """The rows of each record.

        For a change, its changed rows in the new version, scored by the increase.
        """
        return list(map(self._judge_change, items)) if self.config.changes else super().judge_items(items)

    def _judge_change(self, versions: _Versions) -> list[JudgedRow]:
        old_rows = self._rows_in_spans(versions.old_records, versions.change.old_spans)
        new_rows = self._rows_in_spans(versions.new_records, versions.change.new_spans)
        changes = versions.change.rows(
            [judged.row for judged in old_rows], [judged.row for judged in new_rows]
        )
        rows = []
        for index, row in changes:
            judged, is_worse = new_rows[index], row.score is not None and row.score > 0
            rows.append(
                replace(judged, row=row, alarm=None if judged.alarm is None else judged.alarm and is_worse)
            )
        return rows

    def _rows_in_spans(self, version: list[Encoded], spans: Sequence[tuple[int, int]]) -> list[JudgedRow]:
        """The rows of the units that begin inside some spans of a version. The rest is context."""
        rule = self.plan.level.view.units(self.session.tokenizer)
        token_masks = []
        for encoded in version:
            begins = rule.spans(encoded.encoding)[:, 0]
            inside = np.zeros(len(begins), dtype=np.bool_)
            for start, end in spans:
                inside |= (begins >= start) & (begins < end)
            token_masks.append(np.isin(encoded.encoding.groups, rule.numbers(encoded.encoding)[inside]))
        return [row for record_rows in self.detector.each(version, token_masks) for row in record_rows]

    def row(self, judged: JudgedRow) -> Row:
        return {**super().row(judged), **({} if self._findings.is_new(judged) else {"known": True})}

    def figures(self, rows: Iterable[Row]) -> Figures:
        return {**super().figures(rows), "level": self._rule}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        if self.config.changes and not items:
            base = f"since {self.config.since}" if self.config.since is not None else f"by {self.config.diff}"
            return Conclusion(f"nothing to review: no changes of source code {base}")
        return super().conclusion(figures, items, rows)

    def extra_files(self, rows: ReadRows) -> Sequence[Path]:
        self._findings.finish()
        return () if self.config.sarif is None else (self.config.sarif,)


class Findings:
    """Collects the alarms of one scoring.

    Args:
        rule: name of the SARIF rule.
        level: the level of the rows.
        baseline: SARIF or JSON lines of an earlier run, or None.
        out: SARIF file, or None.

    Raises:
        DataError: the baseline cannot be read.
    """

    def __init__(self, rule: str, level: Level, baseline: Path | None, out: Path | None) -> None:
        self._rule, self._level, self._out = rule, level, out
        self._baseline = None if baseline is None else Baseline.load(baseline)
        self._found: list[Finding] = []
        self.looked_at: set[str] = set()

    def is_new(self, judged: JudgedRow) -> bool:
        """Collect a row, and tell whether to write it: always without a baseline, else only a new alarm."""
        if self._baseline is None and self._out is None:
            return True
        row, scored = judged.row, judged.scored_record
        self.looked_at.add(record_uri(scored))
        if not judged.alarm:
            return self._baseline is None
        alarm = finding(self._rule, row, scored, judged.p_value, reason(self._rule, self._level, judged))
        is_known = self._baseline is not None and self._baseline.is_known(alarm)
        if self._baseline is not None:
            alarm = replace(alarm, state="unchanged" if is_known else "new")
        if self._out is not None:
            self._found.append(alarm)
        return not is_known

    def finish(self) -> None:
        """Write the SARIF file. Findings of the baseline that did not occur again are marked as absent.

        Raises:
            StateError: the file cannot be written.
        """
        if self._out is None:
            return
        gone = [] if self._baseline is None else self._baseline.absent_findings(self.looked_at)
        write_sarif(self._out, [*self._found, *gone], version=__version__)

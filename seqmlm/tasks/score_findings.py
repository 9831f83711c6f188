"""Alarms as findings: told apart from those of a baseline, and written as SARIF."""

from __future__ import annotations

from pathlib import Path

from seqmlm import __version__
from seqmlm.anomaly.findings import Finding, finding, told, uri_of
from seqmlm.reports.baseline import Baseline
from seqmlm.reports.sarif import write_sarif
from seqmlm.tasks.judging import JudgedRow


class Findings:
    """Collects the alarms of one scoring; other rows pass.

    Args:
        rule: name of the level.
        baseline: an earlier run's SARIF or JSON lines; None for none.
        out: SARIF file, or None.
        private: only the owner may read it.

    Raises:
        DataError: the baseline cannot be read.
    """

    def __init__(self, rule: str, baseline: Path | None, out: Path | None, *, private: bool) -> None:
        self._rule, self._out, self._private = rule, out, private
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
        sentence = told(self._rule, row, scored, judged.p_value)
        one = finding(self._rule, row, scored, judged.p_value, sentence)
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

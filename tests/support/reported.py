"""The page of a report."""

from __future__ import annotations

from collections.abc import Mapping

from seqmlm.reports.page import Cell, Page
from seqmlm.reports.report import ScoreReport


def drawn(report: ScoreReport, facts: Mapping[str, Cell] | None = None) -> str:
    """The HTML of all that a report has."""
    report.draw(page := Page("R"), facts)
    return page.html()

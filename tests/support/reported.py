"""The page of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqmlm.inference.detector import JudgedRow
from seqmlm.reports.page import Cell, Page
from seqmlm.reports.report import ScoreReport
from seqmlm.scoring.output import line
from seqmlm.tokenizers.base import Tokenizer


class Reported:
    """A report, and the finished rows that it is drawn of.

    Args:
        tokenizer: spells what was expected.
        options: of the report.
    """

    def __init__(self, tokenizer: Tokenizer, **options: Any) -> None:
        self._tokenizer, self._report = (
            tokenizer,
            ScoreReport(surface=tokenizer.spelling.unit_text, **options),
        )
        self.rows: list[dict[str, Any]] = []

    def add(self, judged: JudgedRow) -> None:
        """Take in a row: as the report sees it, and as it is written."""
        self._report.see(judged)
        self.rows.append(line(judged, self._tokenizer))

    def html(self, facts: Mapping[str, Cell] | None = None) -> str:
        """The page."""
        self._report.draw(page := Page("R"), self.rows, facts)
        return page.html()

"""Show findings in source code: numbered lines with a gutter of surprisals, and tokens in colours.

For a long file, only the lines around its findings are drawn, as in a diff.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqmlm.anomaly.values import Longs, ScoredRecord
from seqmlm.domains.code.levels import TOP_TOKENS, SourceUnits
from seqmlm.reports.pictures import Line, NumberedLines, PicturedRecord


class SourceLines(NumberedLines):
    """The picture of a file, or of the parts around its findings.

    The gutter of each line has its number and the mean bits of its three least expected tokens. It has a mark
    if the line raised an alarm.
    """

    gutter = f"before each line: its number, and the mean bits of its {TOP_TOKENS} least expected tokens"

    def lines(self, view: PicturedRecord) -> Sequence[Line]:
        scored = view.scored
        first = scored.record.line - 1
        alarm_of_line = {marked_row.row.line - first: bool(marked_row.alarm) for marked_row in view.rows}
        source = SourceUnits(scored)
        return [
            Line(
                source.begin(number),
                source.end(number),
                f"{number:>5} {_bits(scored, np.flatnonzero(source.lines == number)):>6}",
                alarm=alarm_of_line.get(number, False),
                near=number in alarm_of_line,
            )
            for number in range(1, source.line_of(len(source.text)) + 1)
        ]


def _bits(scored: ScoredRecord, units: Longs) -> str:
    if not len(units):
        return ""
    return f"{np.sort(scored.surprisal[units])[-TOP_TOKENS:].mean():.1f}"

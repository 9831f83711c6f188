"""How findings in source code are shown: numbered lines with a gutter of surprisals, tokens on colours.

Of a long file only the lines around its findings are drawn, as a diff does: whoever wants the whole file has
an editor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqmlm.anomaly.values import Longs, ScoredRecord
from seqmlm.domains.code.levels import TOP_TOKENS, SourceUnits
from seqmlm.reports.pictures import Line, NumberedLines, PicturedRecord


class SourceLines(NumberedLines):
    """A file, or the parts of it around its findings.

    The gutter holds the line's number, the mean surprisal of its three least expected tokens in bits, and a
    mark where the line alarmed.
    """

    gutter = f"before each line its number and the mean bits of its {TOP_TOKENS} least expected tokens"

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

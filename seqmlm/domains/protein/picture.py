"""Show proteins as numbered residues, coloured by the surprisal that their places do not explain."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seqmlm.errors import span_text
from seqmlm.reports.pictures import Line, NumberedLines, PicturedRecord

_CHAIN = 60  # residues per line


class Residues(NumberedLines):
    """A chain in lines of 60 residues, each with the number of its first residue.

    Colours show surprisal above entropy, because at a variable place every residue is a surprise.
    """

    excess = True

    def lines(self, view: PicturedRecord) -> Sequence[Line]:
        length, alarm_of_line = len(view.scored.raw), dict[int, bool]()
        for marked_row in view.rows:
            if len(marked_row.row.units) < len(view.scored):
                for number in range(marked_row.row.start // _CHAIN, (marked_row.row.end - 1) // _CHAIN + 1):
                    alarm_of_line[number] = alarm_of_line.get(number, False) or bool(marked_row.alarm)
        return [
            Line(
                number * _CHAIN,
                min((number + 1) * _CHAIN, length),
                f"{number * _CHAIN + 1:>5}",
                alarm=alarm_of_line.get(number, False),
                near=not alarm_of_line or number in alarm_of_line,
            )
            for number in range(math.ceil(length / _CHAIN))
        ]

    def tip(self, view: PicturedRecord, unit: int) -> str:
        place = int(view.scored.places[unit])
        return f"{span_text(place, place + 1)}: {view.tip(unit)}"

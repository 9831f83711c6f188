"""How proteins are shown: numbered residues, on colours of what their places do not explain."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seqmlm.errors import span_text
from seqmlm.reports.pictures import Line, NumberedLines, PicturedRecord

_CHAIN = 60  # residues of a line


class Residues(NumberedLines):
    """A chain in lines of 60, each with the number of its first residue.

    Colours are of surprisal above entropy, for at a variable place every residue is a surprise.
    """

    excess = True

    def lines(self, shown: PicturedRecord) -> Sequence[Line]:
        length, marked = len(shown.scored.raw), dict[int, bool]()
        for one in shown.rows:
            if len(one.row.units) < len(shown.scored):
                for number in range(one.row.start // _CHAIN, (one.row.end - 1) // _CHAIN + 1):
                    marked[number] = marked.get(number, False) or bool(one.alarm)
        return [
            Line(
                number * _CHAIN,
                min((number + 1) * _CHAIN, length),
                f"{number * _CHAIN + 1:>5}",
                alarm=marked.get(number, False),
                near=not marked or number in marked,
            )
            for number in range(math.ceil(length / _CHAIN))
        ]

    def tip(self, shown: PicturedRecord, unit: int) -> str:
        at = int(shown.scored.places[unit])
        return f"{span_text(at, at + 1)}: {shown.tip(unit)}"

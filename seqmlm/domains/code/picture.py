"""How findings in source code are shown: numbered lines with a gutter of surprisals, tokens on colours.

Of a long file only the lines around its findings are drawn, as a diff does: whoever wants the whole file has
an editor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seqmlm.anomaly.values import Longs, Scored
from seqmlm.domains.code.levels import TOP_TOKENS, SourceUnits
from seqmlm.reports.page import Page
from seqmlm.reports.pictures import Picture, Shown

AROUND = 6
"""Lines shown on either side of a finding, of a file of more than `WHOLE` lines."""
WHOLE = 16  # so many are seen without scrolling

_ALARM, _OPEN, _LEFT_OUT = "▶", "│", "⋯"


class SourceLines(Picture):
    """A file, or the parts of it around its findings.

    The gutter holds the line's number, the mean surprisal of its three least expected tokens in bits, and a
    mark where the line alarmed.
    """

    def draw_record(self, page: Page, shown: Shown) -> None:
        scored = shown.scored
        first = scored.record.line - 1
        marked = {one.row.line - first: bool(one.alarm) for one in shown.rows}
        source = SourceUnits(scored)
        count = source.line_of(len(source.text))
        numbers = _shown(count, marked)
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        units: list[int] = []
        at, before = 0, 0
        for number in numbers:
            if number != before + 1:
                pieces.append(f"{'':>5} {'':>6} {_LEFT_OUT}\n")
                at += len(pieces[-1])
            own = np.flatnonzero(source.lines == number)
            gutter = f"{number:>5} {_bits(scored, own):>6} {_ALARM if marked.get(number) else _OPEN} "
            begin, end = source.begin(number), source.end(number)
            inside = own[scored.spans[own, 0] < end]
            shift = at + len(gutter) - begin
            spans += [(a + shift, min(b, end) + shift) for a, b in scored.spans[inside].tolist()]
            units += inside.tolist()
            pieces.append(f"{gutter}{source.text[begin:end]}\n")
            at, before = at + len(pieces[-1]), number
        page.coloured(
            shown.heading,
            "".join(pieces),
            spans,
            scored.surprisal[units],
            [shown.tell(unit) for unit in units],
            note=shown.note,
            scale=shown.scale,
        )


def _shown(count: int, marked: Mapping[int, bool]) -> Sequence[int]:
    if count <= WHOLE or not marked:
        return range(1, min(count, WHOLE) + 1)
    near = {line for one in marked for line in range(one - AROUND, one + AROUND + 1)}
    return sorted(line for line in near if 1 <= line <= count)


def _bits(scored: Scored, units: Longs) -> str:
    if not len(units):
        return ""
    return f"{np.sort(scored.surprisal[units])[-TOP_TOKENS:].mean():.1f}"

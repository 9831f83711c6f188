"""How findings in patient histories are shown: visits along time, then every visit with its codes on colours.

It names single events of a person. Only the owner may read a report with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqmlm.domains.ehr.levels import PatientUnits
from seqmlm.reports.page import Page
from seqmlm.reports.pictures import LEFT_OUT, RED, Line, Picture, Shown, around, marked

MOST_MISSING = 5
"""Absent codes named of one visit."""


class History(Picture):
    """A patient: a timeline of visits by mean surprisal, then a line a visit with its date and codes."""

    def draw_record(self, page: Page, shown: Shown) -> None:
        scored = shown.scored
        alarmed = {one.row.extra.get("visit", 0): bool(one.alarm) for one in shown.rows}
        patient = PatientUnits(scored)
        numbers = np.unique(patient.visits)
        means = np.array([scored.surprisal[patient.visits == visit].mean() for visit in numbers.tolist()])
        times = [patient.times[visit + 1] for visit in numbers.tolist()]
        known = np.array([time is not None for time in times], dtype=np.bool_)
        named = [patient.named(visit) for visit in numbers.tolist()]
        if known.any():
            kept = np.flatnonzero(known).tolist()
            page.timeline(
                shown.heading,
                np.array([times[place] for place in kept], dtype=np.float64),
                means[kept],
                np.array([alarmed.get(named[place]["visit"], False) for place in kept], dtype=np.bool_),
                [f"visit {named[place]['visit']}: {means[place]:.1f} bits a code" for place in kept],
                y_label="bits a code",
                note=f"{RED}; {shown.note}",
            )
        _draw_codes(page, patient, named, alarmed, shown)


def _draw_codes(
    page: Page,
    patient: PatientUnits,
    named: Sequence[Mapping[str, Any]],
    alarmed: Mapping[int, bool],
    shown: Shown,
) -> None:
    """The visits near those that the report is about, a line each."""
    rows = [one.row for one in shown.rows]
    missing = {row.extra["visit"]: row.extra["missing"] for row in rows if row.extra.get("missing")}
    scored = patient.scored
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    units: list[int] = []
    at, before = 0, -1
    visits = [
        Line(0, 0, "", alarm=alarmed.get(one["visit"], False), near=one["visit"] in alarmed) for one in named
    ]
    for number in around(visits):
        place = named[number]
        visit = place["visit"]
        left_out = f"{LEFT_OUT}\n" if number != before + 1 else ""
        line = f"{left_out}{place.get('date', 'background'):<10} {marked(visits[number].alarm)} "
        before = number
        for unit in np.flatnonzero(patient.visits == visit - 1).tolist():
            code = scored.text(unit) or "(time)"
            spans.append((at + len(line), at + len(line) + len(code)))
            units.append(unit)
            line += f"{code}  "
        absent = ", ".join(f"{one['unit']} {one['p']:.0%}" for one in missing.get(visit, ())[:MOST_MISSING])
        pieces.append(line.rstrip() + (f"\n{'':>13}expected, not there: {absent}\n" if absent else "\n"))
        at += len(pieces[-1])
    page.coloured(
        "",
        "".join(pieces),
        spans,
        scored.surprisal[units],
        [shown.tell(unit) for unit in units],
        scale=shown.scale,
    )

"""Show findings in patient histories: a timeline of visits, then each visit with its codes in colours.

The picture shows individual events of one person, so only the owner can read a report with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqmlm.domains.ehr.levels import PatientUnits
from seqmlm.reports.page import Page
from seqmlm.reports.pictures import LEFT_OUT, RED, Line, Picture, PicturedRecord, alarm_mark, visible_lines

MOST_MISSING = 5
"""Maximum number of missing codes that are named per visit."""


class History(Picture):
    """The picture of a patient: a timeline of the mean surprisal of visits, then a line with the date and
    codes of each visit."""

    def draw_record(self, page: Page, shown: PicturedRecord) -> None:
        scored = shown.scored
        alarmed = {drawn_row.row.extra.get("visit", 0): bool(drawn_row.alarm) for drawn_row in shown.rows}
        patient = PatientUnits(scored)
        numbers = np.unique(patient.visits)
        means = np.array([scored.surprisal[patient.visits == visit].mean() for visit in numbers.tolist()])
        times = [patient.times[visit + 1] for visit in numbers.tolist()]
        has_time = np.array([time is not None for time in times], dtype=np.bool_)
        facts = [patient.visit_facts(visit) for visit in numbers.tolist()]
        if has_time.any():
            dated = np.flatnonzero(has_time).tolist()
            page.timeline(
                shown.heading,
                np.array([times[place] for place in dated], dtype=np.float64),
                means[dated],
                np.array([alarmed.get(facts[place]["visit"], False) for place in dated], dtype=np.bool_),
                [f"visit {facts[place]['visit']}: {means[place]:.1f} bits per code" for place in dated],
                y_label="bits per code",
                note=f"{RED}; {shown.note}",
            )
        _draw_codes(page, patient, facts, alarmed, shown)


def _draw_codes(
    page: Page,
    patient: PatientUnits,
    facts: Sequence[Mapping[str, Any]],
    alarmed: Mapping[int, bool],
    picture: PicturedRecord,
) -> None:
    """Draw one line per visit, for the visits in the report and the visits near them."""
    rows = [drawn_row.row for drawn_row in picture.rows]
    missing = {row.extra["visit"]: row.extra["missing"] for row in rows if row.extra.get("missing")}
    scored = patient.scored
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    units: list[int] = []
    at, previous = 0, -1
    visits = [
        Line(0, 0, "", alarm=alarmed.get(visit_facts["visit"], False), near=visit_facts["visit"] in alarmed)
        for visit_facts in facts
    ]
    for number in visible_lines(visits):
        place = facts[number]
        visit = place["visit"]
        left_out = f"{LEFT_OUT}\n" if number != previous + 1 else ""
        line = f"{left_out}{place.get('date', 'background'):<10} {alarm_mark(visits[number].alarm)} "
        previous = number
        for unit in np.flatnonzero(patient.visits == visit - 1).tolist():
            code = scored.text(unit) or "(time)"
            spans.append((at + len(line), at + len(line) + len(code)))
            units.append(unit)
            line += f"{code}  "
        absent = ", ".join(
            f"{code['unit']} {code['p']:.0%}" for code in missing.get(visit, ())[:MOST_MISSING]
        )
        pieces.append(line.rstrip() + (f"\n{'':>13}expected but missing: {absent}\n" if absent else "\n"))
        at += len(pieces[-1])
    page.coloured(
        "",
        "".join(pieces),
        spans,
        scored.surprisal[units],
        [picture.tip(unit) for unit in units],
        scale=picture.scale,
    )

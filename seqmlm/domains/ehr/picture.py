"""A picture of one patient: visits along time by mean surprisal, and their codes on colours.

It names single events of a person: reports of sensitive data stay where only their owner reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from seqmlm.anomaly.values import Row, Scored
from seqmlm.domains.ehr.levels import PatientUnits
from seqmlm.reports.drawing import SCALE
from seqmlm.reports.page import Page

MOST_MISSING = 5
"""Absent codes named of one visit."""


def add_history(
    page: Page,
    heading: str,
    note: str,
    scored: Scored,
    rows: Sequence[Row],
    alarmed: Mapping[int, bool],
    told: Callable[[int], str],
    *,
    scale: float = SCALE,
) -> None:
    """Add a patient: a timeline of visits, then a line a visit with its date and codes.

    Args:
        page: grows by two parts.
        heading, note: of the first.
        scored: the history.
        rows: of it, for what was missing at a visit.
        alarmed: visits (from 1) that rows name, and whether they alarmed.
        told: what is said of an event that is pointed at.
        scale: bits of the strongest colour.
    """
    patient = PatientUnits(scored)
    numbers = np.unique(patient.visits)
    means = np.array([scored.surprisal[patient.visits == visit].mean() for visit in numbers.tolist()])
    times = [patient.times[visit + 1] for visit in numbers.tolist()]
    known = np.array([time is not None for time in times], dtype=np.bool_)
    named = [patient.named(visit) for visit in numbers.tolist()]
    if known.any():
        kept = np.flatnonzero(known).tolist()
        page.timeline(
            heading,
            np.array([times[place] for place in kept], dtype=np.float64),
            means[kept],
            np.array([alarmed.get(named[place]["visit"], False) for place in kept], dtype=np.bool_),
            [f"visit {named[place]['visit']}: {means[place]:.1f} bits a code" for place in kept],
            y_label="bits a code",
            note=note,
        )
    missing: dict[int, Any] = {
        row.extra["visit"]: row.extra["missing"] for row in rows if row.extra.get("missing")
    }
    _add_codes(page, patient, named, missing, told, scale)


def _add_codes(
    page: Page,
    patient: PatientUnits,
    named: Sequence[Mapping[str, Any]],
    missing: Mapping[int, Any],
    told: Callable[[int], str],
    scale: float,
) -> None:
    scored = patient.scored
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    units: list[int] = []
    at = 0
    for place in named:
        visit = place["visit"]
        line = f"{place.get('date', 'background'):<10} "
        for unit in np.flatnonzero(patient.visits == visit - 1).tolist():
            code = scored.text(unit) or "(time)"
            spans.append((at + len(line), at + len(line) + len(code)))
            units.append(unit)
            line += f"{code}  "
        absent = ", ".join(f"{one['unit']} {one['p']:.0%}" for one in missing.get(visit, ())[:MOST_MISSING])
        pieces.append(line.rstrip() + (f"\n{'':>11}expected, not there: {absent}\n" if absent else "\n"))
        at += len(pieces[-1])
    page.coloured(
        "", "".join(pieces), spans, scored.surprisal[units], [told(unit) for unit in units], scale=scale
    )

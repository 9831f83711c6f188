"""A melody as a curve of pitches, bars that raised an alarm shaded."""

from __future__ import annotations

import numpy as np

from music.levels import pitches
from seqmlm.reports.page import Page
from seqmlm.reports.pictures import Picture, PicturedRecord


class Melody(Picture):
    """Semitones note by note."""

    def draw_record(self, page: Page, shown: PicturedRecord) -> None:
        places = np.arange(len(shown.scored))
        alarms = np.zeros(len(places), dtype=np.bool_)
        for one in shown.rows:
            alarms[one.row.units] |= bool(one.alarm)
        heights = pitches(shown.scored).astype(np.float64)
        page.track(
            f"Melody of {shown.heading}",
            places,
            places + 1,
            heights,
            alarms,
            x_label="note",
            y_label="semitone",
        )

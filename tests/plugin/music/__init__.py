"""Melodies as a field of seqmlm: notes in, unusual bars out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from music.formats import read_tunes
from music.levels import BarLevel
from seqmlm.anomaly.levels import Level, UnitLevel
from seqmlm.domains.field import BuiltInSample, Defaults, Field, Gaps, Text, chapter
from seqmlm.domains.files import Format
from seqmlm.engine.masking.base import MaskingConfig

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture


class Notes(Text):
    """A note a word."""

    hidden = "_"


def _pictures(level: Level) -> Sequence[Picture]:
    from music.picture import Melody
    from seqmlm.reports.pictures import Coloured

    return Melody(), Coloured()


MUSIC = Field(
    name="music",
    title="Melodies as notes",
    unit="note",
    formats={"tune": Format(read=read_tunes, suffixes=(".tune",))},
    defaults=Defaults(
        tokenizer="wordpiece.v1",
        masking=MaskingConfig(masker="span.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="tiny",
        max_length=64,
    ),
    text=Notes(),
    levels=(BarLevel(), UnitLevel("note")),
    pictures=_pictures,
    gaps=Gaps(forms=("_",)),
    sample=BuiltInSample(write=chapter(__name__, "sample.write")),
)

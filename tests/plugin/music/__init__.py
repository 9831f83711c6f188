"""Melodies as a field of seqmlm: notes in, unusual bars out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from music.formats import read_tunes
from music.levels import BarLevel
from seqmlm.anomaly.levels import Level, UnitLevel
from seqmlm.domains.base import Domain, DomainDefaults, Format
from seqmlm.engine.masking.base import MaskingConfig

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture


class Music(Domain):
    """Tunes of single notes."""

    name: ClassVar[str] = "music"
    title: ClassVar[str] = "Melodies as notes"
    unit: ClassVar[str] = "note"
    hidden: ClassVar[str] = "_"
    gaps: ClassVar[tuple[str, ...]] = ("_",)
    formats: ClassVar[Mapping[str, Format]] = {"tune": Format(read=read_tunes, suffixes=(".tune",))}
    defaults: ClassVar[DomainDefaults] = DomainDefaults(
        tokenizer="wordpiece.v1",
        masking=MaskingConfig(masker="span.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="tiny",
        max_length=64,
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        return BarLevel(), UnitLevel("note")

    def pictures(self, level: Level) -> Sequence[Picture]:
        from music.picture import Melody
        from seqmlm.reports.pictures import Coloured

        return Melody(), Coloured()


MUSIC = Music()

"""The weather of stations as a field of seqmlm: a folder in, unusual months out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqmlm.anomaly.levels import Level
from seqmlm.domains.field import BuiltInSample, Defaults, Field, Keys, chapter
from seqmlm.domains.files import Format
from seqmlm.engine.masking.base import MaskingConfig
from weather.formats import is_stations, read_stations, station_files
from weather.levels import MonthLevel

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture


def _pictures(level: Level) -> Sequence[Picture]:
    from seqmlm.reports.pictures import Coloured, Timeline

    return Timeline(), Coloured()


WEATHER = Field(
    name="weather",
    title="Daily weather of stations",
    unit="day",
    formats={"stations": Format(read=read_stations, folder=is_stations, files=station_files)},
    defaults=Defaults(
        tokenizer="wordpiece.v1",
        masking=MaskingConfig(masker="uniform.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="tiny",
        max_length=64,
        validation=0.2,  # of regions, which are few
    ),
    # A region's stations have the same weather.
    keys=Keys(split=lambda record: str(record.meta["region"]), order=lambda record: record.meta["month"]),
    levels=(MonthLevel(),),
    pictures=_pictures,
    sample=BuiltInSample(write=chapter(__name__, "sample.write")),
)

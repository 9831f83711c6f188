"""The weather of stations as a field of seqmlm: a folder in, unusual months out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from seqmlm.anomaly.levels import Level
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain, DomainDefaults, Format
from seqmlm.engine.masking.base import MaskingConfig
from weather.formats import is_stations, read_stations, station_files
from weather.levels import MonthLevel

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture


class Weather(Domain):
    """Months of stations."""

    name: ClassVar[str] = "weather"
    title: ClassVar[str] = "Daily weather of stations"
    unit: ClassVar[str] = "day"
    formats: ClassVar[Mapping[str, Format]] = {
        "stations": Format(read=read_stations, folder=is_stations, files=station_files)
    }
    defaults: ClassVar[DomainDefaults] = DomainDefaults(
        tokenizer="wordpiece.v1",
        masking=MaskingConfig(masker="uniform.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="tiny",
        max_length=64,
        validation=0.2,  # of regions, which are few
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        return (MonthLevel(),)

    def pictures(self, level: Level) -> Sequence[Picture]:
        from seqmlm.reports.pictures import Coloured, Timeline

        return Timeline(), Coloured()

    def split_key(self, record: Record) -> str:
        """The region: its stations have the same weather."""
        return str(record.meta["region"])

    def order_key(self, record: Record) -> Any:
        return record.meta["month"]


WEATHER = Weather()

"""A folder of stations: `stations.csv` names them and their regions, `<station>.txt` has a month a line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import DataError

STATIONS = "stations.csv"


def is_stations(folder: Path) -> bool:
    """Whether a folder is of this format."""
    return (folder / STATIONS).is_file()


def station_files(folder: Path) -> list[Path]:
    """The files that `read_stations` reads."""
    return [folder / STATIONS, *(folder / f"{name}.txt" for name in _regions(folder))]


def read_stations(path: str | Path, problems: Problems) -> Iterator[Record]:
    """Read the months of all stations of a folder.

    Args:
        path: the folder.
        problems: receives lines that begin with no month.
    """
    folder = Path(path)
    for station, region in _regions(folder).items():
        source = str(folder / f"{station}.txt")
        for number, text in lines(source, problems):
            month, _, days = text.partition(" ")
            if len(month) != len("2021-03") or not days:
                wrong = "no month with its days"
                problems.bad(DataError(wrong, source=source, line=number, remedy="correct it"))
                continue
            id, meta = f"{station}/{month}", {"region": region, "month": month}
            yield Record(id=id, raw=days, source=source, line=number, document=station, meta=meta)


def _regions(folder: Path) -> dict[str, str]:
    with (folder / STATIONS).open(encoding="utf-8", newline="") as file:
        return {row["station"]: row["region"] for row in csv.DictReader(file)}

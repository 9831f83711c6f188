"""Stations of a northern climate: snow in winter, storms in summer, and snow in some Julys."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqmlm.domains.samples import Sample, checked_count, heading, write_sample

DEFAULT_COUNT, YEARS, DAYS = 20, (2019, 2020, 2021), 28
_WORDS = np.array(["sun", "cloud", "rain", "storm", "snow"])
_WINTER, _SUMMER = (0.2, 0.4, 0.1, 0.0, 0.3), (0.5, 0.2, 0.2, 0.1, 0.0)


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write the folder `stations` and `truth.json`."""
    count = checked_count(n, DEFAULT_COUNT)
    rng = np.random.default_rng(seed)
    files = {"stations.csv": ["station,region", *(f"s{one},r{one % 10}" for one in range(count))]}
    anomalies = []
    for one in range(count):
        months = files[f"s{one}.txt"] = []
        for month in (f"{year}-{number:02}" for year in YEARS for number in range(1, 13)):
            warm = 4 <= int(month[-2:]) <= 9
            days = rng.choice(_WORDS, DAYS, p=_SUMMER if warm else _WINTER).tolist()
            if month[-2:] == "07" and rng.random() < 0.2:
                days[10:14] = ["snow"] * 4
                anomalies.append({"id": f"s{one}/{month}"})
            months.append(f"{month} {' '.join(days)}")
    truth = {
        **heading("weather", count, seed, "stations", "whole months"),
        "anomalies": anomalies,
    }
    return write_sample(out, "stations", files, truth)

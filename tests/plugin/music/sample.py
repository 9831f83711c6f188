"""Tunes that walk on the scale of C major; every fifth has one note outside of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqmlm.domains.samples import Sample, checked_count, heading, write_sample

DEFAULT_COUNT, NOTES, EVERY = 300, 32, 5
_SCALE = [f"{name}{octave}" for octave in (4, 5) for name in "CDEFGAB"]
_STEPS = (-2, -1, 1, 2)


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write `tunes.tune` and `truth.json`."""
    count = checked_count(n, DEFAULT_COUNT)
    rng = np.random.default_rng(seed)
    lines, anomalies = [], []
    for number in range(count):
        name = f"tune-{number}"
        places = np.clip(7 + np.cumsum(rng.choice(_STEPS, NOTES)), 0, len(_SCALE) - 1)
        notes = [_SCALE[place] for place in places.tolist()]
        if number % EVERY == EVERY - 1:
            at = int(rng.integers(NOTES))
            notes[at] = f"{'CDFGA'[int(rng.integers(5))]}s{notes[at][-1]}"
            start = len(" ".join(notes[:at])) + bool(at)
            anomalies.append({"id": name, "start": start, "end": start + len(notes[at])})
        lines += [f"# {name}", " ".join(notes)]
    truth = {
        **heading("music", count, seed, "tunes.tune", "characters of the notes joined by spaces, from 0"),
        "anomalies": anomalies,
    }
    return write_sample(out, "tunes.tune", lines, truth)

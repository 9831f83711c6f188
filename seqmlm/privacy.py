"""Sensitive data: what holds while a process handles them.

Data are sensitive where they concern people or contain secrets. While a process handles them
(`handling_sensitive_data`), whatever leaves it does so by one of five exits, and these withhold what is about
single people; nothing else needs to know that the data are sensitive.

| exit | of sensitive data |
| --- | --- |
| files (`Rows`, `Page.write` and all others) | only their owner may read them |
| `Summary`, and figures by `seqmlm.data.counts.released` | counts of 1 to 10 people are "<11" |
| `TrackedRun` | no names of data, no commands, no files about single records |
| progress and sentences | counts are `seqmlm.data.counts.People`, which cannot be formatted by mistake |
| errors and the quarantine file (`Problems`) | no letter of the data |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from seqmlm.engine.durable import owner_only

PERSONAL = (
    *("trained_on.safetensors", "calibration.safetensors", "background.safetensors"),
    "counts.safetensors",
)
"""Files of a model folder about records: which ones trained, the score or counts of each that calibrated, and
what the training records have in common. For sensitive data they are not exported."""

_lock = threading.Lock()
_handling = 0


@contextmanager
def handling_sensitive_data(sensitive: bool = True) -> Iterator[None]:
    """Within it, every exit of the process withholds what is about single people.

    It holds for the whole process, other threads included: it is safer to withhold too much.

    Args:
        sensitive: False changes nothing.
    """
    global _handling
    if not sensitive:
        yield
        return
    with owner_only():
        with _lock:
            _handling += 1
        try:
            yield
        finally:
            with _lock:
                _handling -= 1


def sensitive_data() -> bool:
    """Whether the process handles sensitive data at this moment."""
    return _handling > 0

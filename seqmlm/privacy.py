"""Protection of sensitive data while a process handles them.

Data are sensitive if they concern people or contain secrets. While a process handles them
(`handling_sensitive_data`), information can leave the process in five ways. Each of them withholds what
concerns single people. No other code needs to know that the data are sensitive.

* Files (`Rows`, `Page.write` and all others): only their owner may read them.
* `Summary`, and figures from `seqmlm.data.counts.released`: counts of 1 to 10 people are "<11".
* `TrackedRun`: no names of data, no commands, no files about single records.
* Progress and sentences: counts are `seqmlm.data.counts.People`, which cannot be formatted by mistake.
* Errors and the quarantine file (`Problems`): not a single character of the data.
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
"""Files of a model folder about the training data.

They contain hashes of the training records, the score or counts of each calibration record, and statistics
that the training records share. For sensitive data they are not exported.
"""

_lock = threading.Lock()
_handling = 0


@contextmanager
def handling_sensitive_data(sensitive: bool = True) -> Iterator[None]:
    """Context in which the process withholds information about single people.

    It applies to the whole process, including other threads, because withholding too much is safer.

    Args:
        sensitive: False has no effect.
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
    """Whether the process is handling sensitive data now."""
    return _handling > 0

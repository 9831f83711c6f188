"""Remembers how sequences were priced: what comes again, as most log windows do, is not asked again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from seqmlm.anomaly.values import Bools, Scored
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding

UNITS = 1 << 20
"""Most units remembered, over all sequences; beyond it those not asked for longest are forgotten."""

Key = tuple[bytes, Hashable]

_NOBODY = Record(id="", raw="", source="", line=0)
_BLANK = Encoding(ids=np.zeros(0, dtype=np.int32), groups=np.zeros(0, dtype=np.int32))


class PriceMemory:
    """Prices by what the model saw; bounded, exact, and the same for any order of the input."""

    def __init__(self, units: int = UNITS) -> None:
        self._most, self._units = units, 0
        self._known: OrderedDict[Key, Scored] = OrderedDict()

    def priced(
        self,
        encodings: Sequence[Encoding],
        request: Hashable,
        price: Callable[[list[int]], list[Scored]],
        wanted: Sequence[Bools] | None = None,
    ) -> list[Scored]:
        """Prices of a batch, one each, without record and encoding; of equal sequences the same object.

        Args:
            encodings: what the model sees.
            request: whatever else decides the answer (mode, what is kept of it).
            price: prices the sequences with these indices, those that are not known.
            wanted: (L,) for each sequence, True at the tokens to price; None for all.
        """
        keys = [
            (digest(one, None if wanted is None else wanted[number]), request)
            for number, one in enumerate(encodings)
        ]
        fresh = {key: number for number, key in reversed(list(enumerate(keys))) if key not in self._known}
        asked = sorted(fresh.values())
        prices = price(asked) if asked else []
        found = {  # neither texts nor the batch that an encoding is a view of are kept
            keys[number]: replace(one, record=_NOBODY, encoding=_BLANK)
            for number, one in zip(asked, prices, strict=True)
        }
        known = [found[key] if key in found else self._again(key) for key in keys]
        for key, one in found.items():
            self._keep(key, one)
        return known

    def _again(self, key: Key) -> Scored:
        self._known.move_to_end(key)
        return self._known[key]

    def _keep(self, key: Key, one: Scored) -> None:
        self._known[key] = one
        self._units += len(one) + 1
        while self._units > self._most:
            self._units -= len(self._known.popitem(last=False)[1]) + 1


def digest(encoding: Encoding, wanted: Bools | None = None) -> bytes:
    """16 bytes that are equal for encodings a model cannot tell apart, and for equal wishes."""
    state = blake2b(encoding.ids.tobytes(), digest_size=16)
    state.update(encoding.groups.tobytes())
    for array in (encoding.positions, wanted):
        state.update(b"\1" if array is not None else b"\0")
        if array is not None:
            state.update(array.tobytes())
    for name in sorted(encoding.channels):
        state.update(name.encode() + b"\0")
        state.update(encoding.channels[name].tobytes())
    return state.digest()

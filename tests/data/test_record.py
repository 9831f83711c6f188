"""A record is an ordinary frozen dataclass, though its constructor is written out."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, replace

import pytest

from seqmlm.data.record import Record

PLAIN = Record(id="a", raw="MK", source="s", line=1)


def test_fields_and_defaults() -> None:
    assert asdict(PLAIN) == {"id": "a", "raw": "MK", "source": "s", "line": 1, "document": None, "meta": {}}
    assert PLAIN.meta is not Record(id="a", raw="MK", source="s", line=1).meta
    full = Record(id="b", raw=[1], source="-", line=2, document="d", meta={"x": 1})
    assert (full.id, full.raw, full.source, full.line) == ("b", [1], "-", 2)
    assert (full.document, full.meta) == ("d", {"x": 1})


def test_it_is_frozen_and_compares_copies_and_travels() -> None:
    with pytest.raises(FrozenInstanceError):
        PLAIN.line = 3  # type: ignore[misc]
    assert replace(PLAIN, line=2) == Record(id="a", raw="MK", source="s", line=2) != PLAIN
    assert pickle.loads(pickle.dumps(PLAIN)) == copy.copy(PLAIN) == PLAIN
    with pytest.raises(TypeError):
        Record("a", "MK", "s", 1)  # type: ignore[misc]

"""What tests of the registry all say: where a model comes from, and what a stream commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from receiver import START

from seqmlm.registry.entries import DatasetEntry, Origin, TokenizerEntry
from seqmlm.watch import store
from seqmlm.watch.store import Change, Streams, Turn


def origin(fingerprint: str = "f1", hash_: str = "h1", *, domain: str = "protein", **others: Any) -> Origin:
    """Where every model comes from, but for some `others` of its facts."""
    data = DatasetEntry(fingerprint=fingerprint, domain=domain, sources=("a.fasta",), counts={"records": 3})
    tokenizer = TokenizerEntry(hash=hash_, name="residue.v1", vocabulary_size=33)
    masking = {"masker": "uniform.v1", "rate": 0.15}
    return Origin(**{"domain": domain, "dataset": data, "tokenizer": tokenizer, "masking": masking, **others})


class Clocked:
    """A stream with a queue of notices, and a clock that a test sets."""

    def __init__(self, registry: Streams, monkeypatch: pytest.MonkeyPatch, name: str = "out.jsonl") -> None:
        self.registry, self.now, self.row = registry, START, 0
        monkeypatch.setattr(store, "now", lambda: self.now)
        self.stream = registry.begin_stream(name, {})
        self.queue = registry.notices(self.stream)

    def keep(self, *changes: Change, **more: Any) -> list[Change]:
        """Commit changes with the row that they came of."""
        rows = [(self.row, True, f"row {self.row}")]
        return commit(self.registry, self.stream, *changes, rows=rows, **more)


def commit(
    registry: Streams, stream: int, *changes: Change, rows: Sequence[tuple[int, bool, str]] = (), **more: Any
) -> list[Change]:
    """Commit rows and changes of incidents to a stream; of files, counts and the output nothing is said."""
    notify = more.pop("notify", lambda changes: ())
    given: dict[str, Any] = {"files": [], "counts": {}, "mark": {}, "written": 0, **more}
    return registry.commit_stream(stream, Turn(rows=list(rows), changes=list(changes), **given), notify)

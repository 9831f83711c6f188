"""What tests of the registry all say: where a model comes from, and what a stream commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqmlm.registry.entries import DatasetEntry, TokenizerEntry
from seqmlm.watch.store import Change, Streams


def origin(fingerprint: str = "f1", hash_: str = "h1", *, domain: str = "protein") -> dict[str, Any]:
    """What every model needs to say of where it came from, as arguments of `Registry.register`."""
    return {
        "domain": domain,
        "dataset": DatasetEntry(
            fingerprint=fingerprint, domain=domain, sources=("a.fasta",), counts={"records": 3}
        ),
        "tokenizer": TokenizerEntry(hash=hash_, name="residue.v1", vocabulary_size=33),
        "masking": {"masker": "uniform.v1", "rate": 0.15},
    }


def commit(
    registry: Streams, stream: int, *changes: Change, rows: Sequence[tuple[int, bool, str]] = (), **more: Any
) -> list[Change]:
    """Commit rows and changes of incidents to a stream; of files, counts and the output nothing is said."""
    given: dict[str, Any] = {"files": [], "counts": {}, "mark": {}, "written": 0, **more}
    return registry.commit_stream(stream, rows=list(rows), changes=list(changes), **given)

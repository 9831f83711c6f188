"""The oracle of packing can fail: packing by position ids alone leaks between documents, and it says so."""

from __future__ import annotations

import copy

import encoders
import pytest

from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import pack


@pytest.mark.parametrize(
    "name", ["modernbert", "bert", "roberta", "esm-rotary", "distilbert", "electra", "albert"]
)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_position_ids_alone_leak(name: str, implementation: str) -> None:
    model, documents = encoders.encoder(name), encoders.documents()
    naive = encoders.leak(
        model, documents, lambda: encoders.position_ids_only(model, documents, implementation)
    )
    rows = MaskedRows(copy.deepcopy(model), encoders.SPACE, probability="full")
    ours = encoders.leak(model, documents, lambda: rows(pack(documents), output="logits"))
    assert naive > 1e-2
    assert ours < 1e-5


def test_one_document_has_nothing_to_leak() -> None:
    """The leak above is one between documents, not a fault of the naive call."""
    model, documents = encoders.encoder("bert"), encoders.documents((30,))
    assert (
        encoders.leak(model, documents, lambda: encoders.position_ids_only(model, documents, "sdpa")) < 1e-5
    )

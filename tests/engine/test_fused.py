"""What the fused encoder computes once for equal tokens is what it computes for each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from encoders import SPACE, encoder

from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack


@pytest.mark.parametrize("name", ["modernbert", "modernbert-global"])
def test_the_first_layer_of_distinct_tokens_is_that_of_all(name: str) -> None:
    torch.set_num_threads(1)
    rows = MaskedRows(encoder(name), SPACE).eval()
    assert rows._fused is not None
    rng = np.random.default_rng(0)
    documents = [
        Document(ids=rng.integers(4, 20, length), asked=np.arange(0, length, 3)) for length in (9, 40, 23, 40)
    ]
    batch = pack(documents)
    each = rows(batch, output="hidden")
    with torch.no_grad():
        once = rows(batch, output="hidden")
        assert rows._fused._embedded(batch.input_ids)[1] is not None
    assert rows._fused._embedded(batch.input_ids)[1] is None
    assert each.requires_grad
    torch.testing.assert_close(once, each.detach(), atol=2e-6, rtol=1e-5)


def test_rows_of_unlike_tokens_are_not_looked_up() -> None:
    rows = MaskedRows(encoder("modernbert"), SPACE).eval()
    assert rows._fused is not None
    ids = torch.arange(4, 30)[None]
    with torch.no_grad():
        embedded, projected = rows._fused._embedded(ids)
        expected = rows.model.model.embeddings(input_ids=ids)[0]
    assert projected is None
    torch.testing.assert_close(embedded, expected)

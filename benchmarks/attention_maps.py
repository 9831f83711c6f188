"""Maps of attention weights, the baseline for maps of dependence: the mean over all layers and heads.

No token is hidden. No head is selected by its agreement with the truth, because that needs known structure
(Rao et al. 2021). Units with the same name get the mean of their weights. A benchmark must register the
method before it compares with these maps:

    KINDS["attention"] = Attention        # of `seqmlm.structure.estimators`; then `method="attention"`
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from seqmlm.engine.attention import NAME
from seqmlm.engine.conditionals import evaluation_mode
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack
from seqmlm.engine.types import Encoding
from seqmlm.structure.base import Estimator, pair_matrix
from seqmlm.structure.maps import DependenceMap


class Attention(Estimator):
    """The estimator for attention weights, the method `attention` of `seqmlm structure`."""

    name = "attention"
    nats = False
    whole_units = True

    def passes(self, units: int, tokens: int) -> int:
        return 1

    def maps(self, encodings: Sequence[Encoding]) -> list[DependenceMap]:
        found = []
        for encoding in encodings:
            places = self.places(encoding)
            weights = attentions(self._conditionals.rows, encoding).mean(axis=(0, 1), dtype=np.float64)
            share = np.zeros((len(places.at), len(encoding)))
            for place, position in enumerate(places.at.tolist()):
                own = [position, *places.repeats.get(position, ())]
                share[place, own] = 1 / len(own)
            directed = share @ weights @ share.T
            first, second = places.pairs.T
            kept = pair_matrix(places, directed[first, second], directed[second, first])
            found.append(self.unit_map(places, kept, passes=1))
        return found


@torch.no_grad()
def attentions(rows: MaskedRows, encoding: Encoding) -> NDArray[np.float32]:
    """(N, H, T, T) attention weights between the tokens of a sequence, by layer and head.

    Packed attention has no weights to show. Therefore this uses the eager path of transformers. It leaves its
    hooks on the model, and the fused encoder cannot be used after that.
    """
    document = Document(ids=encoding.ids, asked=np.zeros(0, dtype=np.int32), channels=encoding.channels)
    batch = pack([document]).to(rows.model.device)
    embedded = rows.model.get_input_embeddings()(batch.input_ids)
    if rows.channels is not None:
        embedded = embedded + rows.channels(batch.channels).to(embedded.dtype)
    rows.model.set_attn_implementation("eager")
    try:
        with evaluation_mode(rows):
            found = rows.model.base_model(
                inputs_embeds=embedded, position_ids=batch.position_ids, output_attentions=True
            )
    finally:
        rows.model.set_attn_implementation(NAME)
    weights: NDArray[np.float32] = torch.cat(tuple(found.attentions)).cpu().numpy()
    return weights

"""What is taken off vectors before they are compared: fitted on a named corpus, and kept with the model.

Few dimensions of hidden states are large in all vectors, so that cosines are large too, whatever is compared
(Timkey and van Schijndel 2021). A mean, deviations and principal components take that off. They are of a
corpus, never of the vectors at hand: what these have in common would be taken off too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import Floats
from seqmlm.errors import DataError
from seqmlm.inference.arrays import HEADER, encode_arrays
from seqmlm.inference.model_folder import EMBEDDING, put_file
from seqmlm.inference.vector_files import load_vector_file

Normal = Literal["raw", "centred", "z", "whitened"]
FEWEST = 11
"""Vectors of a corpus: a mean of fewer would tell what is in them."""
_NONE = 1e-10  # of the mean variance: what counts as no variance
_BLOCK = 4096
_AGAIN = "fit one on a corpus: seqmlm embed MODEL CORPUS --set fit=true"


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalization:
    """Means, deviations and components of the vectors of a corpus.

    Args:
        mean: (H,). scale: (H,) standard deviations, 0 of dimensions without variance, which z drops.
        components: (C, H) of unit variance (PCA whitening).
        facts: what vectors it is of, and which corpus.
    """

    mean: Floats
    scale: Floats
    components: Floats
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(cls, vectors: Iterable[Floats], facts: Mapping[str, Any]) -> Normalization:
        """Fitted on (H,) vectors, a block of them in memory.

        Raises:
            DataError: there are too few.
        """
        from sklearn.decomposition import IncrementalPCA

        pca, block, count = IncrementalPCA(), list[Floats](), 0
        for vector in vectors:
            block.append(vector)
            count += 1
            if len(block) == 2 * _BLOCK:  # the rest is never too small for a block of its own
                pca.partial_fit(np.stack(block[:_BLOCK]).astype(np.float64))
                del block[:_BLOCK]
        if count < FEWEST:
            raise DataError(f"a normalization is of {FEWEST} vectors or more, and there are {count}")
        pca.partial_fit(np.stack(block).astype(np.float64))
        varied = pca.var_ > _NONE * pca.var_.mean()
        varying = pca.explained_variance_ > _NONE * pca.explained_variance_.mean()
        components = pca.components_[varying] / np.sqrt(pca.explained_variance_[varying])[:, None]
        scale = np.where(varied, np.sqrt(pca.var_), 0.0)
        mean, scale, components = (array.astype(np.float32) for array in (pca.mean_, scale, components))
        return cls(mean=mean, scale=scale, components=components, facts={**facts, "vectors": count})

    @property
    def dropped(self) -> int:
        """Dimensions without variance."""
        return int((self.scale == 0).sum())

    @property
    def digest(self) -> str:
        """Names it, for whoever compares vectors."""
        return sha256(self.saved()).hexdigest()[:16]

    def width(self, normal: Normal) -> int:
        """Numbers of a normalized vector."""
        width = len(self.mean)
        return {"z": width - self.dropped, "whitened": len(self.components)}.get(normal, width)

    def applied(self, normal: Normal, vectors: Floats) -> Floats:
        """(N, W) of (N, H) vectors."""
        if normal == "raw":
            return vectors
        centred: Floats = vectors - self.mean
        if normal == "z":
            return centred[:, self.scale > 0] / self.scale[self.scale > 0]
        whitened: NDArray[np.float32] = centred @ self.components.T
        return centred if normal == "centred" else whitened

    def saved(self) -> bytes:
        """Content of its safetensors file."""
        arrays = {"mean": self.mean, "scale": self.scale, "components": self.components}
        return encode_arrays(arrays, {HEADER: json.dumps(dict(self.facts), sort_keys=True)})

    def keep(self, folder: Path) -> None:
        """Keep it with a model.

        Raises:
            StateError: it cannot be written.
        """
        put_file(folder / EMBEDDING, self.saved())

    @classmethod
    def stored(cls, folder: Path, expected: Mapping[str, Any]) -> Normalization:
        """Normalization of a model folder; see `seqmlm.inference.vector_files.load_vector_file`."""

        def build(arrays: Mapping[str, Floats], facts: Mapping[str, Any]) -> Normalization:
            normalization = cls(**arrays, facts=facts)
            if (
                not normalization.mean.shape
                == normalization.scale.shape
                == normalization.components.shape[1:]
            ):
                raise ValueError("its arrays do not fit together")
            return normalization

        return load_vector_file(folder / EMBEDDING, build, expected, name="normalization", remedy=_AGAIN)

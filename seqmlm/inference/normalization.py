"""Normalize vectors before they are compared.

The normalization is fitted on a corpus and kept with the model.

In hidden states, a few dimensions are large in all vectors, so that all cosines are large (Timkey and van
Schijndel 2021). A mean, deviations and principal components remove this effect. They must come from another
corpus than the compared vectors, because a normalization removes what its corpus has in common.
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
"""Smallest number of vectors of a corpus. The mean of fewer vectors would reveal their content."""
_NONE = 1e-10  # share of the mean variance below which a dimension has no variance
_BLOCK = 4096
_AGAIN = "fit one on a corpus: seqmlm embed MODEL CORPUS --set fit=true"


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalization:
    """Means, deviations and components of the vectors of a corpus.

    Args:
        mean: (H,) means.
        scale: (H,) standard deviations. 0 for dimensions without variance, which "z" drops.
        components: (C, H) components with unit variance (PCA whitening).
        facts: the kind of vectors and the corpus.
    """

    mean: Floats
    scale: Floats
    components: Floats
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(cls, vectors: Iterable[Floats], facts: Mapping[str, Any]) -> Normalization:
        """Fit on vectors (H,), with a block of them in memory.

        Raises:
            DataError: there are too few vectors.
        """
        from sklearn.decomposition import IncrementalPCA

        pca, block, count = IncrementalPCA(), list[Floats](), 0
        for vector in vectors:
            block.append(vector)
            count += 1
            if len(block) == 2 * _BLOCK:  # the rest is then always large enough for its own block
                pca.partial_fit(np.stack(block[:_BLOCK]).astype(np.float64))
                del block[:_BLOCK]
        if count < FEWEST:
            raise DataError(f"{count} vectors are too few for a normalization: {FEWEST} are needed")
        pca.partial_fit(np.stack(block).astype(np.float64))
        varied = pca.var_ > _NONE * pca.var_.mean()
        varying = pca.explained_variance_ > _NONE * pca.explained_variance_.mean()
        components = pca.components_[varying] / np.sqrt(pca.explained_variance_[varying])[:, None]
        scale = np.where(varied, np.sqrt(pca.var_), 0.0)
        mean, scale, components = (array.astype(np.float32) for array in (pca.mean_, scale, components))
        return cls(mean=mean, scale=scale, components=components, facts={**facts, "vectors": count})

    @property
    def dropped(self) -> int:
        """Number of dimensions without variance."""
        return int((self.scale == 0).sum())

    @property
    def digest(self) -> str:
        """A hash that identifies the normalization when vectors are compared."""
        return sha256(self.saved()).hexdigest()[:16]

    def width(self, normal: Normal) -> int:
        """Length of a normalized vector."""
        width = len(self.mean)
        return {"z": width - self.dropped, "whitened": len(self.components)}.get(normal, width)

    def applied(self, normal: Normal, vectors: Floats) -> Floats:
        """Normalize vectors (N, H) to vectors (N, W)."""
        if normal == "raw":
            return vectors
        centred: Floats = vectors - self.mean
        if normal == "z":
            return centred[:, self.scale > 0] / self.scale[self.scale > 0]
        whitened: NDArray[np.float32] = centred @ self.components.T
        return centred if normal == "centred" else whitened

    def saved(self) -> bytes:
        """The content of the safetensors file."""
        arrays = {"mean": self.mean, "scale": self.scale, "components": self.components}
        return encode_arrays(arrays, {HEADER: json.dumps(dict(self.facts), sort_keys=True)})

    def keep(self, folder: Path) -> None:
        """Save the normalization in the folder of a model.

        Raises:
            StateError: it cannot be written.
        """
        put_file(folder / EMBEDDING, self.saved())

    @classmethod
    def stored(cls, folder: Path, expected: Mapping[str, Any]) -> Normalization:
        """The normalization of a model folder. See `seqmlm.inference.vector_files.load_vector_file`."""

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

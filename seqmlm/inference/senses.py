"""Assign senses to words, or labels to any spans, by the nearest centroid among the senses of the word.

The centroid of a sense is the mean of its word's vectors in labelled sentences. A word in context gets the
sense with the largest cosine (Jurafsky and Martin, Speech and Language Processing).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.engine.types import Floats
from seqmlm.errors import UsageError
from seqmlm.evaluation.senses import UNKNOWN
from seqmlm.inference.arrays import HEADER, encode_arrays
from seqmlm.inference.model_folder import SENSES, put_file
from seqmlm.inference.vector_files import load_vector_file

_AGAIN = "build senses with --set senses=TRAIN"


@dataclass(frozen=True, kw_only=True, eq=False)
class Senses:
    """A centroid for each sense of each word.

    Args:
        centroids: (S, H) centroids with length 1.
        words: the word of each sense.
        names: the name of each sense.
        counts: the frequency of each sense in the training data.
        facts: the kind of vectors.
    """

    centroids: Floats
    words: Sequence[str]
    names: Sequence[str]
    counts: Sequence[int]
    facts: Mapping[str, Any]

    @cached_property
    def of_word(self) -> Mapping[str, list[int]]:
        """The numbers of the senses of each word."""
        numbers = defaultdict[str, list[int]](list)
        for number, word in enumerate(self.words):
            numbers[word].append(number)
        return numbers

    @classmethod
    def of(cls, labelled: Iterable[tuple[str, str, Floats]], facts: Mapping[str, Any]) -> Senses:
        """Compute centroids from words, their senses and vectors (H,).

        Raises:
            UsageError: there are no labelled spans.
        """
        sums, counts = dict[tuple[str, str], Floats](), Counter[tuple[str, str]]()
        for word, name, vector in labelled:
            key = word, name
            sums[key] = sums[key] + vector if key in sums else vector.astype(np.float64)
            counts[key] += 1
        if not sums:
            raise UsageError("the data have no labelled spans from which senses could be built")
        keys = sorted(sums)
        centroids = np.stack([sums[key] / max(float(np.linalg.norm(sums[key])), 1e-30) for key in keys])
        words, names = zip(*keys, strict=True)
        sense_counts = [counts[key] for key in keys]
        return cls(
            centroids=centroids.astype(np.float32), words=words, names=names, counts=sense_counts, facts=facts
        )

    def sense(self, word: str, vector: Floats) -> tuple[str, float | None]:
        """The nearest sense of a word, and its cosine.

        `UNKNOWN` if the training data do not contain the word.
        """
        senses = self.of_word.get(word)
        if not senses:
            return UNKNOWN, None
        length = max(float(np.linalg.norm(vector)), 1e-30)
        cosines = self.centroids[senses] @ vector / length
        return self.names[senses[int(cosines.argmax())]], float(cosines.max())

    def frequent(self, word: str) -> str:
        """The most frequent sense of a word in the training data."""
        senses = self.of_word.get(word)
        return self.names[max(senses, key=lambda number: self.counts[number])] if senses else UNKNOWN

    def keep(self, folder: Path) -> None:
        """Save the senses in the folder of a model.

        Raises:
            StateError: they cannot be written.
        """
        described = {
            "words": self.words,
            "names": self.names,
            "counts": self.counts,
            "facts": dict(self.facts),
        }
        content = encode_arrays({"centroids": self.centroids}, {HEADER: json.dumps(described)})
        put_file(folder / SENSES, content)

    @classmethod
    def stored(cls, folder: Path, expected: Mapping[str, Any]) -> Senses:
        """The senses of a model folder. See `seqmlm.inference.vector_files.load_vector_file`."""

        def build(arrays: Mapping[str, Floats], described: Mapping[str, Any]) -> Senses:
            senses = cls(centroids=arrays["centroids"], **described)
            if len({*map(len, (senses.centroids, senses.words, senses.names, senses.counts))}) > 1:
                raise ValueError("its arrays do not fit together")
            return senses

        return load_vector_file(folder / SENSES, build, expected, name="senses", remedy=_AGAIN)

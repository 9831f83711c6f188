"""Senses of words, or labels of any spans: the one whose centroid is nearest among those that the word has.

A sense is the mean of the vectors that its word has in labelled sentences, and a word in context has the
sense that is nearest by cosine (Jurafsky and Martin, Speech and Language Processing).
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

_AGAIN = "build some with --set senses=TRAIN"


@dataclass(frozen=True, kw_only=True, eq=False)
class Senses:
    """A centroid for each sense of each word.

    Args:
        centroids: (S, H), of length 1.
        words, names, counts: of each, its word, its name, and how often training has it.
        facts: what vectors they are of.
    """

    centroids: Floats
    words: Sequence[str]
    names: Sequence[str]
    counts: Sequence[int]
    facts: Mapping[str, Any]

    @cached_property
    def of_word(self) -> Mapping[str, list[int]]:
        """Word to the numbers of its senses."""
        numbers = defaultdict[str, list[int]](list)
        for number, word in enumerate(self.words):
            numbers[word].append(number)
        return numbers

    @classmethod
    def of(cls, labelled: Iterable[tuple[str, str, Floats]], facts: Mapping[str, Any]) -> Senses:
        """From words, their senses and (H,) vectors.

        Raises:
            UsageError: there are none.
        """
        sums, counts = dict[tuple[str, str], Floats](), Counter[tuple[str, str]]()
        for word, name, vector in labelled:
            key = word, name
            sums[key] = sums[key] + vector if key in sums else vector.astype(np.float64)
            counts[key] += 1
        if not sums:
            raise UsageError("no labelled span to build senses from")
        keys = sorted(sums)
        centroids = np.stack([sums[key] / max(float(np.linalg.norm(sums[key])), 1e-30) for key in keys])
        words, names = zip(*keys, strict=True)
        sense_counts = [counts[key] for key in keys]
        return cls(
            centroids=centroids.astype(np.float32), words=words, names=names, counts=sense_counts, facts=facts
        )

    def sense(self, word: str, vector: Floats) -> tuple[str, float | None]:
        """The nearest sense of a word, and its cosine; `UNKNOWN` where training has no such word."""
        senses = self.of_word.get(word)
        if not senses:
            return UNKNOWN, None
        length = max(float(np.linalg.norm(vector)), 1e-30)
        cosines = self.centroids[senses] @ vector / length
        return self.names[senses[int(cosines.argmax())]], float(cosines.max())

    def frequent(self, word: str) -> str:
        """The most frequent sense of a word in training."""
        senses = self.of_word.get(word)
        return self.names[max(senses, key=lambda number: self.counts[number])] if senses else UNKNOWN

    def keep(self, folder: Path) -> None:
        """Keep them with a model.

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
        """Senses of a model folder; see `seqmlm.inference.vector_files.load_vector_file`."""

        def build(arrays: Mapping[str, Floats], described: Mapping[str, Any]) -> Senses:
            senses = cls(centroids=arrays["centroids"], **described)
            if len({*map(len, (senses.centroids, senses.words, senses.names, senses.counts))}) > 1:
                raise ValueError("its arrays do not fit together")
            return senses

        return load_vector_file(folder / SENSES, build, expected, name="senses", remedy=_AGAIN)

"""The part of a report about vectors: the similarity of random pairs and its causes, by layer, and a map."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from seqmlm.engine.types import Floats
from seqmlm.evaluation.geometry import (
    Geometry,
    frequency_correlation,
    geometry,
    neighbour_plane,
    principal_plane,
)
from seqmlm.inference.embedder import Embedder, Item
from seqmlm.inference.record_batches import BATCH_RECORDS

if TYPE_CHECKING:
    from seqmlm.reports.page import Cell, Page

MOST = 2000
"""Number of vectors that are examined, drawn from all vectors."""
ITEMS = 512
"""Number of input items for which each layer is examined."""

_COLUMNS = ("vectors", "mean cosine", "low", "high", "dimensions with the largest share of it")


def survey(
    page: Page, rows: Sequence[Floats], *, normal: str, words: Sequence[str], kinds: Sequence[str]
) -> None:
    """Add the similarity of vectors, its relation to frequency, and maps to a page.

    Args:
        page: the page.
        rows: N vectors (W,).
        normal: name of the normalization of the vectors.
        words: N units, or none.
        kinds: N values of a column for the colours of the map, or none.
    """
    vectors = np.stack(rows)
    if (shape := geometry(vectors)) is None:
        return
    page.table("How similar random pairs are", _COLUMNS, [_row(normal, shape)])
    if words:
        rho = frequency_correlation(vectors, words)
        page.section("Frequency", f"Spearman of a unit's frequency and its mean cosine with all: {rho:.3f}.")
    planes = {"principal components": principal_plane(vectors), "UMAP by cosine": neighbour_plane(vectors)}
    for name, places in planes.items():
        if places is not None:
            page.scatter(f"Map: {name}", places.astype(np.float64), kinds, words, label=name)


def layer_table(embedder: Embedder, items: Iterable[Item]) -> Iterator[list[Cell]]:
    """Rows of a table about the vectors of the first items: two for each layer.

    The first row describes the raw vectors. The second describes half of the vectors after subtraction of the
    mean of the other half.
    """
    vectors_read, first = list[Floats](), islice(items, ITEMS)
    while batch := [*islice(first, BATCH_RECORDS)]:
        vectors_read += embedder.vectors(batch)
    vectors = (
        np.concatenate(vectors_read)[:MOST]
        if vectors_read
        else np.zeros((0, embedder.width), dtype=np.float32)
    )
    half = len(vectors) // 2
    for layer, layer_vectors in enumerate(np.split(vectors, len(embedder.layers.numbers), axis=1)):
        for name, selection in (
            ("raw", layer_vectors),
            ("centred", layer_vectors[half:] - layer_vectors[:half].mean(0) if half else layer_vectors[:0]),
        ):
            if (shape := geometry(selection)) is not None:
                yield _row(f"layer {layer}, {name}", shape)


def add_layers(page: Page, rows: Sequence[Sequence[Cell]]) -> None:
    """Add the table of layers to a page."""
    page.table("The same by layer", _COLUMNS, rows)


def _row(name: str, shape: Geometry) -> list[Cell]:
    alike = shape.anisotropy
    rogues = ", ".join(f"{number}: {share:.3f}" for number, share in shape.rogues)
    return [name, alike.value, alike.low, alike.high, rogues]

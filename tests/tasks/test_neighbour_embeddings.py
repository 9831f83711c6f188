"""Embeddings from neighbours: information matches naive loops, and similar tokens get similar vectors."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seqmlm import plugins
from seqmlm.engine.distributed import Processes
from seqmlm.engine.shapes import BIASED, FROM_NEIGHBOURS
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.training.assemble import Training
from seqmlm.training.corpus import CorpusReader
from seqmlm.training.launch import TrainRequest, agreed_plan
from seqmlm.training.neighbour_embeddings import (
    CONTEXT_POWER,
    FAR,
    FEWEST_OCCURRENCES,
    NEAR,
    STANDARD_DEVIATION,
    neighbour_information,
    neighbour_vectors,
    set_neighbour_embeddings,
)
from seqmlm.workspace import Workspace

SPACE = TokenSpace(size=24, pad=0, mask=1, unk=None, start=2, end=3, special=(0, 1, 2, 3))


class ListedWindows:
    """Windows of token ids between the start and the end token."""

    def __init__(self, ids: list[NDArray[np.int64]]) -> None:
        self.ids = [np.concatenate([[SPACE.start], part, [SPACE.end]]) for part in ids]
        self.lengths = np.array([len(part) for part in self.ids])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Encoding:
        ids = self.ids[index]
        return Encoding(ids=ids, groups=np.arange(len(ids)))


def _naive(ids: list[int], size: int) -> NDArray[np.float64]:
    """(V, 3 V) the same information, by loops over all pairs."""
    blocks = []
    for offsets in ((-NEAR,), (NEAR,), (*FAR, *(-offset for offset in FAR))):
        counts: Counter[tuple[int, int]] = Counter()
        for place, token in enumerate(ids):
            for offset in offsets:
                other = ids[place + offset] if 0 <= place + offset < len(ids) else -1
                if token >= 0 and other >= 0:
                    counts[token, other] += 1
        rows, columns = Counter[int](), Counter[int]()
        for (token, other), count in counts.items():
            rows[token] += count
            columns[other] += count
        total = sum(count**CONTEXT_POWER for count in columns.values())
        block = np.zeros((size, size))
        for (token, other), count in counts.items():
            expected = rows[token] * columns[other] ** CONTEXT_POWER / total
            block[token, other] = max(0.0, math.log(count / expected))
        blocks.append(block)
    return np.concatenate(blocks, axis=1)


def test_information_is_that_of_a_loop_over_all_pairs() -> None:
    ids = np.random.default_rng(0).integers(-1, 7, 200)
    assert neighbour_information(ids, 7).toarray() == pytest.approx(_naive(ids.tolist(), 7), abs=1e-5)


def _sentences(rng: np.random.Generator) -> ListedWindows:
    """Windows in which 4 to 8 come only before 9 to 13, and 14 to 18 only before 19 to 23."""
    pairs = [rng.integers(low, low + 5, (40, 20)) for low in (4, 9, 14, 19)]
    first = np.stack(pairs[:2], axis=-1).reshape(40, -1)
    second = np.stack(pairs[2:], axis=-1).reshape(40, -1)
    return ListedWindows([*first, *second])


def test_tokens_with_the_same_neighbours_get_similar_vectors() -> None:
    embeddings = torch.zeros(24, 8)
    assert set_neighbour_embeddings(embeddings, _sentences(np.random.default_rng(0)), SPACE) == 20
    assert not embeddings[:4].any()
    vectors = embeddings[4:]
    assert vectors.std(correction=0).item() == pytest.approx(STANDARD_DEVIATION, rel=1e-5)
    assert vectors.mean(0).abs().max().item() == pytest.approx(0, abs=1e-6)
    similarity = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    same = torch.block_diag(*[torch.ones(5, 5)] * 4).bool()
    assert similarity[same].min() > similarity[~same].max()


def test_vectors_are_the_same_each_time_and_rare_tokens_keep_theirs() -> None:
    windows = _sentences(np.random.default_rng(1))
    windows.ids[0] = np.array([SPACE.start, *[4] * (FEWEST_OCCURRENCES - 1), SPACE.end])
    only_first = ListedWindows([])
    only_first.ids, only_first.lengths = windows.ids[:1], windows.lengths[:1]
    untouched = torch.full((24, 8), 0.5)
    assert set_neighbour_embeddings(untouched, only_first, SPACE) == 0
    assert (untouched == 0.5).all()
    first, second = torch.zeros(24, 8), torch.zeros(24, 8)
    set_neighbour_embeddings(first, windows, SPACE)
    set_neighbour_embeddings(second, windows, SPACE)
    assert torch.equal(first, second)


def test_vectors_have_the_inner_products_of_an_exact_decomposition() -> None:
    ids = np.random.default_rng(2).integers(-1, 12, 3000)
    information = neighbour_information(ids, 12)
    left, values, _ = np.linalg.svd(information.toarray(), full_matrices=False)
    expected = left[:, :12] * np.sqrt(values[:12])
    expected -= expected.mean(0)
    expected *= STANDARD_DEVIATION / expected.std()
    vectors = neighbour_vectors(information, 12)
    assert vectors @ vectors.T == pytest.approx(expected @ expected.T, abs=1e-4)


@pytest.mark.parametrize("name", sorted(FROM_NEIGHBOURS))
def test_a_new_model_starts_from_the_neighbours_in_its_data(name: str, workspace: Path, fasta: Path) -> None:
    model = {"size": "tiny", "initialization": name}
    flags = {"data": {"paths": [str(fasta)]}, "train": {"max_steps": 1}, "model": model}
    place = Workspace.locate()
    agreed = agreed_plan(TrainRequest(domain="protein", name="x", flags=flags), place, Processes("cpu"))
    corpus = CorpusReader(agreed.config, plugins.domain("protein"), place).corpus(lambda text: None)
    training = Training(agreed.config, corpus)
    bodies = [training.new_model().model for _ in range(2)]
    first, second = (body.get_input_embeddings().weight for body in bodies)
    assert torch.equal(first, second)
    ordinary = corpus.tokenizer.space.ordinary
    frequent = ordinary[corpus.token_counts[ordinary] >= FEWEST_OCCURRENCES]
    assert first[frequent].std(correction=0).item() == pytest.approx(STANDARD_DEVIATION, rel=1e-4)
    assert bodies[0].get_output_embeddings().weight is first
    assert bodies[0].decoder.bias.any().item() == (name in BIASED)

"""Masked copies computed where they differ give the answers of whole copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from encoders import MASK, SPACE, VOCABULARY, modernbert

from seqmlm.engine import fused_layer, layout
from seqmlm.engine.attention import Group
from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.cones import ConeBatch, Layers, cones, costs
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.reductions import TargetLogProb, TopLogProbs
from seqmlm.engine.types import Encoding, running_totals

PATTERNS: dict[str, tuple[int | None, ...]] = {
    "everywhere first": (None, 2, 2, 2),
    "everywhere last": (2, 2, 2, None),
    "in the middle": (3, None, 1, 4),
    "nearby alone": (1, 5, 2),
    "two of four": (None, 2, None, 2),
    "wider than the sequence": (None, 60, 2),
    "one layer": (3,),
}


def rows_of(windows: Sequence[int | None], seed: int = 0) -> MaskedRows:
    """A model with layers of these windows and weights large enough that attention is far from uniform."""
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    model = modernbert(seed, num_hidden_layers=len(windows), layer_types=kinds)
    for layer, window in zip(model.model.layers, windows, strict=True):
        layer.attn.sliding_window = None if window is None else window + 1
    rows = MaskedRows(model, SPACE).eval()
    assert rows.layers.windows == tuple(windows)
    return rows


def sequence(rng: np.random.Generator, length: int, **extra: Any) -> Encoding:
    ids = rng.integers(4, VOCABULARY, length).astype(np.int32)
    ids[[0, -1]] = SPACE.start, SPACE.end
    return Encoding(ids=ids, groups=np.where(ids < 4, -1, np.arange(length)).astype(np.int32), **extra)


def masked_once(encoding: Encoding) -> Query:
    """Every ordinary token hidden in a copy of its own: an exact pseudo-log-likelihood."""
    places = np.arange(1, len(encoding) - 1, dtype=np.int32)
    return Query(encoding=encoding, masked=places, asked=places, masked_in=places - 1, asked_in=places - 1)


def some_queries(rng: np.random.Generator) -> list[Query]:
    """Copies with several masks and substitutes, read elsewhere too, of sequences of many lengths."""
    found = [masked_once(sequence(rng, length)) for length in (3, 9, 30, 30, 41)]
    for length in (25, 40):
        encoding, variants = sequence(rng, length), 9
        masked_in = np.sort(rng.integers(0, variants, 20)).astype(np.int32)
        asked_in = np.sort(np.append(np.arange(variants), rng.integers(0, variants, 12))).astype(np.int32)
        substituted = rng.choice(length, 3, replace=False).astype(np.int32)
        found.append(
            Query(
                encoding=encoding,
                masked=rng.integers(0, length, 20).astype(np.int32),
                masked_in=masked_in,
                asked=rng.integers(0, length, len(asked_in)).astype(np.int32),
                asked_in=asked_in,
                substituted=substituted,
                substitutes=rng.integers(4, VOCABULARY, 3).astype(np.int32),
                substituted_in=np.array([0, 0, 5], dtype=np.int32),
                targets=rng.integers(4, VOCABULARY, len(asked_in)).astype(np.int32),
            )
        )
    shifted = sequence(rng, 20, positions=np.arange(3, 23, dtype=np.int32))
    plain = Query(encoding=shifted, masked=np.array([4], np.int32), asked=np.array([4, 9], np.int32))
    return [*found, masked_once(shifted), plain, masked_once(found[2].encoding)]


class Whole(MaskedRows):
    """The same model, without a way to compute less than whole copies."""

    layers = None  # type: ignore[assignment]


def answers(rows: MaskedRows, queries: list[Query], **settings: Any) -> list[dict[str, np.ndarray]]:
    asked = Conditionals(rows, **settings).ask(queries, [TargetLogProb(), TopLogProbs(3)])
    return [dict(answer.values) for answer in asked]


def agree(windows: Sequence[int | None], queries: list[Query], atol: float = 1e-5, **settings: Any) -> None:
    rows = rows_of(windows)
    expected = answers(Whole(rows.model, SPACE), queries)
    for one, other in zip(answers(rows, queries, **settings), expected, strict=True):
        np.testing.assert_allclose(one["log_prob"], other["log_prob"], atol=atol, rtol=0)
        np.testing.assert_allclose(one["top_log_probs"], other["top_log_probs"], atol=atol, rtol=0)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[ConeBatch]:
    """Every copy is computed as a difference; the batches that were."""
    monkeypatch.setattr(layout, "_WORTH", np.inf)
    seen: list[ConeBatch] = []
    forward = MaskedRows.forward

    def watched(self: MaskedRows, batch: Any, **settings: Any) -> torch.Tensor:
        if isinstance(batch, ConeBatch):
            seen.append(batch)
        return forward(self, batch, **settings)

    monkeypatch.setattr(MaskedRows, "forward", watched)
    return seen


@pytest.mark.parametrize("tokens", [40, 4096])
@pytest.mark.parametrize("name", PATTERNS)
def test_answers_are_those_of_whole_copies(name: str, tokens: int, always: list[ConeBatch]) -> None:
    agree(PATTERNS[name], some_queries(np.random.default_rng(0)), tokens_per_batch=tokens)
    assert len(always) > 3 if tokens == 40 else len(always) == 1


@pytest.mark.parametrize("seed", range(12))
def test_random_patterns(seed: int, always: list[ConeBatch]) -> None:
    rng = np.random.default_rng(seed)
    windows = [None if rng.random() < 0.3 else int(rng.integers(1, 12)) for _ in range(rng.integers(1, 6))]
    if not any(windows):
        windows.append(3)
    agree(windows, some_queries(rng), lookahead=int(rng.integers(5, 60)))
    assert always


def test_small_chunks_and_cut_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, always: list[ConeBatch]):
    monkeypatch.setattr(fused_layer, "_GATHERED", {True: 1000})
    monkeypatch.setattr("seqmlm.engine.cones._SHORTEST", 1)
    monkeypatch.setattr("seqmlm.engine.cones._LONGEST", 2)
    agree((2, 3, None, 2), some_queries(np.random.default_rng(1)))
    assert always


def test_products_in_bfloat16_round_alike(always: list[ConeBatch]) -> None:
    agree((None, 2, 2), some_queries(np.random.default_rng(2)), atol=0.1, precision="bf16")
    assert always


def test_the_kernel_of_other_devices_gives_the_same(monkeypatch: pytest.MonkeyPatch, always: list[ConeBatch]):
    """The call that a GPU gets, made here."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(12, 8, generator=generator), torch.randn(18, 16, generator=generator)
    mask = torch.rand(1, 1, 4, 6, generator=generator) < 0.7
    mask[..., 0] = True
    groups = [Group(3, 4, 6, mask)]
    expected = fused_layer.attention(queries, keys, groups, 2)
    found = fused_layer.attention(queries.to("meta"), keys.to("meta"), [Group(3, 4, 6, mask.to("meta"))], 2)
    assert found.shape == expected.shape
    monkeypatch.setattr(fused_layer, "_on_cpu", lambda _: False)
    torch.testing.assert_close(fused_layer.attention(queries, keys, groups, 2), expected)


def test_copies_are_computed_whole_where_that_is_cheaper() -> None:
    rng = np.random.default_rng(0)
    once = sequence(rng, 80)
    place = np.array([7], dtype=np.int32)
    one_copy = Query(encoding=once, masked=place, asked=place)
    for windows, query, narrow in (
        ((None, 2, 2, 2), masked_once(once), 78),
        ((None, 2, 2, 2), one_copy, 0),
        ((None, 2, None, 2), masked_once(once), 0),
        ((None, 99, 99), masked_once(once), 0),
    ):
        found = layout.lay_out([query], SPACE, rows_limit=99, capacity=None, layers=Layers(windows, 32))
        assert found.narrow == narrow


EVERYWHERE = Layers((None, None, None, None), 32)


def every_token_masked(length: int) -> Query:
    """A copy of a sequence for each of its tokens."""
    ids = np.random.default_rng(length).integers(4, VOCABULARY, length).astype(np.int32)
    places = np.arange(length, dtype=np.int32)
    encoding = Encoding(ids=ids, groups=places)
    return Query(encoding=encoding, masked=places, asked=places, masked_in=places, asked_in=places)


@pytest.mark.parametrize("length", [1, 2, 7, 30, 61, 150])
@pytest.mark.parametrize("name", [*PATTERNS, "everywhere"])
def test_an_exact_score_costs_what_the_engine_computes(name: str, length: int) -> None:
    layers = EVERYWHERE if name == "everywhere" else Layers(PATTERNS[name], 32)
    query = every_token_masked(length)
    laid = layout.lay_out([query], SPACE, rows_limit=999, capacity=None, layers=layers)
    assert laid.narrow in (0, length)
    assert layout.exact_cost(length, layers) == pytest.approx(laid.cost(0, length), rel=1e-6)
    own = laid.first_cost[-1]
    assert laid.cost(0, length) == own + (length if laid.narrow else 0)
    assert laid.narrow or own == length**2


@pytest.mark.parametrize(
    ("windows", "length"), [((None, 2, 2, 2), 60), ((None, 2, 2, 2), 6), ((60, None), 9)]
)
def test_what_was_asked_is_counted_by_its_cost(windows: tuple[int | None, ...], length: int) -> None:
    rows, query = rows_of(windows), every_token_masked(length)
    asked = Conditionals(rows, tokens_per_batch=10**6)
    list(asked.ask([query]))
    assert asked.statistics.forwards == 1
    assert asked.statistics.tokens == round(layout.exact_cost(length, rows.layers))
    whole = Conditionals(Whole(rows.model, SPACE), tokens_per_batch=10**6)
    list(whole.ask([query]))
    assert whole.statistics.tokens == length**2
    again = Conditionals(rows, tokens_per_batch=1)
    list(again.ask([query]))
    assert again.statistics.tokens >= asked.statistics.tokens, "every pass computes the sequence"


def test_copies_read_where_nothing_differs_still_fill_a_pack(always: list[ConeBatch]) -> None:
    """Else a pack that does not fit into memory would be tried for ever."""
    copies = np.arange(30, dtype=np.int32)
    far = np.full(30, 35, dtype=np.int32)
    query = Query(
        encoding=sequence(np.random.default_rng(0), 40),
        masked=copies % 5 + 1,
        masked_in=copies,
        asked=far - copies // 5,
        asked_in=copies,
    )
    found = layout.lay_out([query], SPACE, rows_limit=99, capacity=None, layers=Layers((2, 2), 32))
    assert found.narrow == len(found.documents) == 30
    assert (np.diff(found.first_cost) >= 1).all()
    agree((2, 2), [query], tokens_per_batch=1)
    assert len(always) == 30


def test_channels_are_computed_whole() -> None:
    encoding = sequence(np.random.default_rng(0), 40, channels={"time": np.zeros(40, np.float32)})
    layers = Layers((None, 2, 2), 32)
    found = layout.lay_out([masked_once(encoding)], SPACE, rows_limit=99, capacity=None, layers=layers)
    assert found.narrow == 0


def by_walking(
    length: int, changed: set[int], asked: set[int], windows: Sequence[int | None]
) -> list[set[int]]:
    """The rows of one copy that each layer computes, found by asking every token."""

    def near(rows: set[int], window: int | None) -> set[int]:
        return {i for i in range(length) for j in rows if window is None or abs(i - j) <= window}

    forward, backward = [changed], [asked]
    for window in windows:
        forward.append(near(forward[-1], window))
    for window in reversed(windows):
        backward.append(near(backward[-1], window))
    return [f & b for f, b in zip(forward, reversed(backward), strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_those_that_differ_and_are_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = tuple(None if rng.random() < 0.2 else int(rng.integers(0, 6)) for _ in range(4))
    lengths = rng.integers(1, 40, 7)
    starts = running_totals(lengths)
    changed = [set(rng.integers(0, n, rng.integers(0, 4)).tolist()) for n in lengths]
    asked = [set(rng.integers(0, n, rng.integers(1, 4)).tolist()) for n in lengths]
    walked = [by_walking(n, c, a, windows) for n, c, a in zip(lengths.tolist(), changed, asked, strict=True)]
    flat = [
        np.array(
            sorted(int(start) + i for start, own in zip(starts, sets, strict=False) for i in own), np.int64
        )
        for sets in (changed, asked)
    ]
    found = cones(*flat, starts, Layers(windows, 32))
    for number, spans in enumerate(found):
        expected = {int(s) + i for s, sets in zip(starts, walked, strict=False) for i in sets[number]}
        assert spans.rows.tolist() == sorted(expected)
    narrow, read, whole = costs(*flat, starts, Layers(windows, 10**9))
    assert narrow.tolist() == [sum(map(len, sets[1:])) + sum(map(len, sets[:-1])) / 2 for sets in walked]
    assert (narrow <= read).all()
    assert (read <= whole).all()
    assert whole.tolist() == (1.5 * len(windows) * lengths).tolist()


def test_a_batch_moves_as_one() -> None:
    query = masked_once(sequence(np.random.default_rng(0), 42))
    layers = Layers((None, 2, 2), 32)
    laid = layout.lay_out([query], SPACE, rows_limit=99, capacity=None, layers=layers)
    assert laid.narrow == len(laid.documents) == 40
    batch = laid.batch(0, 40)
    assert isinstance(batch, ConeBatch)
    moved = batch.to("meta")
    assert moved.sequences.input_ids.is_meta
    assert moved.steps[1].blocks[0].keys.is_meta
    assert moved.steps[1].blocks[0].group.mask.is_meta  # type: ignore[union-attr]
    assert batch.tokens.tolist() == [MASK] * 40

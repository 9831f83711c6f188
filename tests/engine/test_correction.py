"""Corrections against optimal outputs computed by hand, in float32 as models give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction, Corrector, derive, selection_bias
from seqmlm.engine.masking.base import MaskingConfig, make_masker
from seqmlm.engine.masking.kmer_span import KmerSpan
from seqmlm.engine.masking.lexicon import Lexicon
from seqmlm.engine.masking.position import Position
from seqmlm.engine.masking.token_class import TokenClass
from seqmlm.engine.masking.uniform import Uniform
from seqmlm.engine.masking.visit import Visit
from seqmlm.engine.masking.whole_unit import WholeUnit
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Entropy, Rank, Rows, TargetLogProb, TopIds
from seqmlm.engine.types import Encoding, Floats, TokenSpace
from seqmlm.errors import UsageError

CONFIG = MaskingConfig()


def space_of(size: int) -> TokenSpace:
    return TokenSpace(size=size, pad=0, mask=1, unk=None, start=2, end=3, special=(0, 1, 2, 3))


class Unequal(Uniform):
    """Selects frequent tokens less often."""

    name: ClassVar[str] = "unequal.test"

    def selection_rate(self, space: TokenSpace) -> Floats:
        rates = super().selection_rate(space)
        return (rates * np.linspace(0.2, 3, space.size)).astype(np.float32)


def optimal(
    q: np.ndarray[Any, Any], shown: int, config: MaskingConfig, u: np.ndarray[Any, Any], s: Any
) -> np.ndarray[Any, Any]:
    """(V,) log-probabilities of the best predictor that sees token `shown` at a selected position."""
    p = q * s * (config.keep * (np.arange(len(q)) == shown) + config.random * u[shown])
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p / p.sum()))


@pytest.mark.parametrize("masker", [Uniform, Unequal])
@pytest.mark.parametrize("replacement", ["uniform", "unigram"])
@pytest.mark.parametrize(("keep", "random"), [(0.1, 0.1), (0.3, 0.05), (0.0, 0.2)])
@pytest.mark.parametrize("vocabulary", [5, 33, 16384])
def test_an_optimal_models_outputs_become_its_masked_conditionals(
    vocabulary: int, keep: float, random: float, replacement: Any, masker: type[Uniform]
) -> None:
    space = space_of(vocabulary + 4)
    config = replace(CONFIG, keep=keep, random=random, mask=1 - keep - random, replacement=replacement)
    rng = np.random.default_rng(vocabulary)
    counts = np.where(space.is_special, 0, rng.integers(1, 1000, space.size)).astype(np.float64)
    u = counts / counts.sum() if replacement == "unigram" else (~space.is_special) / vocabulary
    made = masker(rate=0.15, space=space)
    correction = derive(config, made, space, counts if replacement == "unigram" else None)
    assert correction.kind == "derived"
    assert (correction.bias is None) == (masker is Uniform)
    for rare in (1e-9, 1e-3, 0.5, 1 - 1e-4):
        q = np.where(space.is_special, 0, rng.gamma(0.3, size=space.size) + 1e-12)
        shown = 4 + int(rng.integers(vocabulary))
        q[shown] = 0
        q *= (1 - rare) / q.sum()
        q[shown] = rare
        logits = torch.from_numpy(optimal(q, shown, config, u, made.selection_rate(space))).float()[None] + 3
        log_q = torch.log_softmax(
            Corrector(correction, torch.device("cpu"))(logits, torch.tensor([shown])), -1
        )
        ordinary = space.ordinary
        np.testing.assert_allclose(log_q[0, ordinary], np.log(q[ordinary]), atol=3e-5)


def test_behind_a_mask_only_selection_rates_are_taken_out() -> None:
    space = space_of(37)
    made = Unequal(rate=0.15, space=space)
    q = np.where(space.is_special, 0, np.random.default_rng(0).random(37))
    q /= q.sum()
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(q * made.selection_rate(space))).float()[None]
    corrected = Corrector(derive(CONFIG, made, space), torch.device("cpu"))(
        logits, torch.tensor([space.mask])
    )
    np.testing.assert_allclose(torch.softmax(corrected, -1)[0], q, atol=1e-6)


def test_tokens_that_are_never_selected_keep_their_logits() -> None:
    space = space_of(12)
    bias = selection_bias(Lexicon(rate=0.15, space=space, ids=[5, 6]), space)
    assert bias is None  # equal where it is not 0
    rates = np.where(space.is_special, 0, np.arange(12)).astype(np.float32)
    rates[7] = 0
    stub = Unequal(rate=0.15, space=space)
    stub.selection_rate = lambda space: rates  # type: ignore[method-assign]
    bias = selection_bias(stub, space)
    assert bias is not None
    assert bias[7] == 0
    assert bias[11] - bias[5] == pytest.approx(np.log(11 / 5), abs=1e-6)


OPTIONS: Mapping[type, dict[str, Any]] = {
    Position: {"positions": [-1]},
    KmerSpan: {"k": 1, "first": 4},
    Lexicon: {"ids": [5]},
}


@pytest.mark.parametrize(
    ("masker", "changes", "single", "reason"),
    [
        (Uniform, {"keep": 0.0, "random": 0.0, "mask": 1.0}, False, "never left or replaced"),
        (Uniform, {"keep": 0.2, "random": 0.0}, False, "never put random tokens"),
        (Uniform, {"replacement": "unigram"}, False, "not stored"),
        (WholeUnit, {}, False, "once for each unit"),
        (WholeUnit, {}, True, None),
        (Lexicon, {}, False, "once for each unit"),
        (KmerSpan, {}, True, "once for each run"),
        (TokenClass, {}, True, "once for each symbol"),
        (Visit, {}, True, "depend on the true one"),
        (Position, {}, False, None),
    ],
)
def test_what_breaks_the_assumption_is_named(
    masker: Any, changes: dict[str, Any], single: bool, reason: str | None
) -> None:
    space = space_of(12)
    config = replace(CONFIG, masker=masker.name, options=OPTIONS.get(masker, {}), **changes)
    made = make_masker(masker, config, space)
    if reason is None:
        assert derive(config, made, space, single_tokens=single).seen is not None
        return
    with pytest.raises(UsageError, match=f"masker {config.masker}: .*{reason}"):
        derive(config, made, space, single_tokens=single)


def test_random_tokens_that_never_come_make_the_correction_infinite() -> None:
    space = space_of(8)
    counts = np.array([0, 0, 0, 0, 5, 0, 1, 2])
    with pytest.raises(UsageError, match="never stood in"):
        derive(replace(CONFIG, replacement="unigram"), Uniform(rate=0.15, space=space), space, counts)


class Fixed(torch.nn.Module):
    """The same logits for every position."""

    layers = None

    def __init__(self, space: TokenSpace, seed: int = 0) -> None:
        super().__init__()
        self.space, self.probability, self.model = space, "ordinary", torch.nn.Identity()
        self.table = torch.nn.Parameter(torch.randn(space.size, space.size, generator=_generator(seed)) * 3)

    def forward(self, batch: Any, *, output: str, layers: Any = None) -> torch.Tensor:
        assert output == "logits"
        logits = self.table[batch.asked_ids]
        return logits.masked_fill(torch.from_numpy(self.space.is_special), -torch.inf)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_everything_an_answer_holds_is_of_the_corrected_distribution() -> None:
    space = space_of(21)
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 21, 30).astype(np.int32)
    ids[[3, 4, 9]] = space.mask
    encoding = Encoding(ids=ids, groups=np.arange(30, dtype=np.int32))
    targets = rng.integers(4, 21, 30).astype(np.int32)
    model = Fixed(space)
    seen = np.where(space.is_special, 0, rng.random(21) * 5).astype(np.float32)
    bias = np.where(space.is_special, 0, rng.normal(size=21)).astype(np.float32)
    everywhere = np.arange(30, dtype=np.int32)
    query = Query(encoding=encoding, masked=everywhere[:2], asked=everywhere, targets=targets)
    ask = Conditionals(model, tokens_per_batch=7)
    correction = Correction(seen=seen, bias=bias)
    want = [TargetLogProb(), Entropy(), Rank(), TopIds(4), Rows()]
    [answer] = ask.ask([query], want, correction=correction)
    shown = ids.copy()
    shown[:2] = space.mask
    dense = model.table.detach().double().numpy()[shown] - bias
    dense[everywhere, shown] -= seen[shown]
    dense[:, space.is_special] = -np.inf
    truth = dense - np.logaddexp.reduce(dense, axis=1, keepdims=True)
    at = truth[everywhere, targets]
    np.testing.assert_allclose(answer.values["log_prob"], at, atol=1e-5)
    finite = truth[:, 4:]
    np.testing.assert_allclose(answer.values["entropy"], -(np.exp(finite) * finite).sum(1), atol=1e-5)
    np.testing.assert_array_equal(answer.values["rank"], (truth > at[:, None]).sum(1))
    np.testing.assert_array_equal(answer.values["top_ids"], np.argsort(-truth, axis=1)[:, :4])
    np.testing.assert_allclose(answer.values["rows"][:, 4:], finite, atol=1e-5)

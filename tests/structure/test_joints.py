"""Joints of two places: what is known of compatible conditionals, and each construction by its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import dna_model

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.query import Answer, Query
from seqmlm.structure import joints
from seqmlm.structure.joints import (
    METHODS,
    OTHERS,
    Pair,
    arnold_gokhale,
    deviation,
    joint_measures,
    pair_conditionals,
    top_candidates,
    unary_perplexities,
)
from seqmlm.structure.pairs import Conditional

Doubles = NDArray[np.float64]
A, B = 5, 7


def shares(seed: int, *shape: int) -> Doubles:
    return np.random.default_rng(seed).gamma(0.7, size=shape) + 1e-4


def truth(seed: int = 1) -> Doubles:
    """A joint of two places."""
    own = shares(seed, A, B)
    return np.asarray(own / own.sum())


def compatible(joint: Doubles) -> Conditional:
    """Its conditionals."""
    first, second = joint.sum(axis=1), joint.sum(axis=0)
    return Conditional(
        np.log(first), np.log(second), np.log(joint / first[:, None]), np.log((joint / second).T)
    )


def incompatible(seed: int = 1) -> Conditional:
    """Of no joint."""
    one, two = shares(seed, A, B), shares(seed + 1, B, A)
    first, second = shares(seed + 2, A), shares(seed + 3, B)
    rows = (own / own.sum(axis=-1, keepdims=True) for own in (first, second, one, two))
    scale_first, scale_second = shares(seed + 4, A), shares(seed + 5, B)
    return Conditional(*map(np.log, rows), scale_first, scale_second)


def is_truth(make: Callable[[Conditional], Doubles]) -> bool:
    return all(np.allclose(np.exp(make(compatible(truth(n)))), truth(n), atol=1e-9) for n in range(3))


@pytest.mark.parametrize("name", ["ag", "hcb", "chain"])
def test_of_compatible_conditionals_the_joint_is_theirs(name: str) -> None:
    assert is_truth(METHODS[name])
    own = compatible(truth())
    found = joint_measures(own, METHODS[name](own), 2, 3)
    assert found["a_kl"] == pytest.approx(0, abs=1e-12)
    assert found["g_kl"] == pytest.approx(0, abs=1e-12)
    assert found["jsd"] == pytest.approx(0, abs=1e-12)
    assert found["u"] == pytest.approx(unary_perplexities(own, 2, 3)["u"])
    assert deviation(own) == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("name", ["product", "mrf", "mrf-logits"])
def test_a_random_field_of_log_probabilities_is_another_joint(name: str) -> None:
    assert not is_truth(METHODS[name])


def naive(name: str, own: Conditional) -> Doubles:
    """Cell by cell."""
    p, made = np.exp(own.given_second), np.zeros((A, B))
    pivot = max(range(A), key=lambda a: own.first[a])
    for a in range(A):
        for b in range(B):
            of_first, of_second = p[b, a], np.exp(own.given_first[a, b])
            made[a, b] = {
                "product": np.exp(own.first[a]) * np.exp(own.second[b]),
                "mrf": of_first * of_second,
                "mrf-logits": of_first * of_second * np.exp(own.scale_first[a] + own.scale_second[b]),
                "hcb": of_first / p[b, pivot] * np.exp(own.given_first[pivot, b]),
                "chain": np.exp(own.first[a]) * of_second + np.exp(own.second[b]) * of_first,
            }[name]
    return made / made.sum()


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"ag"}))
def test_constructions_are_what_their_formulas_say(name: str) -> None:
    for seed in range(3):
        assert np.exp(METHODS[name](incompatible(seed))) == pytest.approx(naive(name, incompatible(seed)))


def published(own: Conditional, steps: int) -> Doubles:
    """The loop of the paper, on whole matrices."""
    both = np.exp(own.given_second.T) + np.exp(own.given_first)
    q = np.full((A, B), 1 / (A * B))
    for _ in range(steps):
        q = both / (1 / q.sum(axis=1, keepdims=True) + 1 / q.sum(axis=0, keepdims=True))
        q /= q.sum()
    return np.asarray(q)


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_the_published_procedure_from_uniform_marginals(steps: int) -> None:
    found = arnold_gokhale(incompatible(), steps)
    assert np.exp(found.joint) == pytest.approx(published(incompatible(), steps), abs=1e-12)
    assert found.steps == steps


def summed(own: Conditional, joint: Doubles) -> float:
    """What Arnold-Gokhale makes small: divergences of all rows, summed."""
    one, two = joints._divergences(own.given_first, joint), joints._divergences(own.given_second, joint.T)
    return float(one[0].sum() + two[0].sum())


def test_it_settles_where_no_joint_is_nearer() -> None:
    own, random = incompatible(), np.random.default_rng(0)
    found = arnold_gokhale(own)
    assert found.change < joints.TOLERANCE
    assert np.exp(found.joint) == pytest.approx(published(own, 3000), abs=1e-3)
    exact = np.log(published(own, 3000))
    least = summed(own, exact)
    assert summed(own, found.joint) == pytest.approx(least, abs=1e-5)
    for _ in range(50):
        assert summed(own, joints._normalise(exact + random.normal(scale=0.05, size=exact.shape))) > least


def test_steps_that_are_foretold_come_to_the_same_in_fewer() -> None:
    random = np.random.default_rng(2)
    tables = np.exp(random.normal(scale=4, size=(2, 40, 40)))
    one, two = tables.sum(axis=2)
    own = Conditional(
        *map(np.log, (one / one.sum(), two / two.sum(), *(tables / tables.sum(axis=2)[:, :, None])))
    )
    plain = next(n for n in range(2, 2000) if arnold_gokhale(own, n, uniform=False).change < joints.TOLERANCE)
    found = arnold_gokhale(own)
    assert found.steps < plain / 2
    exact = np.exp(arnold_gokhale(own, 5 * plain, uniform=False).joint)
    assert np.exp(found.joint) == pytest.approx(exact, abs=1e-3)


def test_mask_predict_asks_the_less_sure_place_again() -> None:
    first, second = np.log([0.6, 0.4]), np.log([0.3, 0.5, 0.2])
    given_first = np.log([[0.2, 0.1, 0.7], [1 / 3] * 3])
    given_second = np.log([[0.5, 0.5], [0.5, 0.5], [0.1, 0.9]])
    own = Conditional(first, second, given_first, given_second)
    tried = joints.Candidates(np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int32))
    # 0 and 1 alone; the second is less sure, and given 0 it is 2; then the first is, and given 2 it is 1.
    assert joints.mask_predict(own, tried) == (1, 0)
    some = joints.Candidates(np.arange(2, dtype=np.int32), np.array([0, 1, OTHERS], dtype=np.int32))
    assert joints.mask_predict(own, some) == (0, 0)


def test_measures_cell_by_cell() -> None:
    own, a, b = incompatible(), 3, 4
    q = published(incompatible(9), 5)
    of_second, of_first = q / q.sum(axis=1, keepdims=True), (q / q.sum(axis=0)).T
    rows = [*zip(np.exp(own.given_first), of_second, strict=True)]
    rows += [*zip(np.exp(own.given_second), of_first, strict=True)]
    divergences = [sum(x * np.log(x / y) for x, y in zip(p, r, strict=True)) for p, r in rows]
    middles = [(p + r) / 2 for p, r in rows]
    jensen = [
        sum(x * np.log(x / m) / 2 + y * np.log(y / m) / 2 for x, y, m in zip(p, r, own_middle, strict=True))
        for (p, r), own_middle in zip(rows, middles, strict=True)
    ]
    found = joint_measures(own, np.log(q), a, b)
    assert found["u"] == pytest.approx(-(np.log(of_second[a, b]) + np.log(of_first[b, a])) / 2)
    assert found["p"] == pytest.approx(-np.log(q[a, b]) / 2)
    assert found["a_kl"] == pytest.approx(np.mean(divergences))
    assert found["g_kl"] == pytest.approx((divergences[a] + divergences[A + b]) / 2)
    assert found["jsd"] == pytest.approx(np.mean(jensen))


def test_the_deviation_cell_by_cell() -> None:
    own = incompatible()
    c = np.array([[own.given_second[b, a] - own.given_first[a, b] for b in range(B)] for a in range(A)])
    total = np.log(np.exp(c).sum())
    squares = [
        (c[a, b] + total - np.log(np.exp(c[a]).sum()) - np.log(np.exp(c[:, b]).sum())) ** 2
        for a in range(A)
        for b in range(B)
    ]
    assert deviation(own) == pytest.approx(np.mean(squares))


# Asking


DNA = dna_model()
ENCODING = DNA.tokenizer.encode("ACGTTGACCA")
ALPHABET = DNA.rows.space.ordinary.astype(np.int32)
PAIR = Pair(ENCODING, 2, 5)


def logits(ids: NDArray[np.int32], at: int) -> Doubles:
    DNA.rows.model.eval().set_attn_implementation("sdpa")
    with torch.no_grad():
        found = DNA.rows.model(input_ids=torch.tensor(ids[None].astype(np.int64))).logits
    return np.asarray(found[0, at, ALPHABET.astype(np.int64)].double())


def naive_rows() -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Logits by separate calls of the model itself."""
    hidden = ENCODING.ids.copy()
    hidden[[PAIR.i, PAIR.j]] = DNA.rows.space.mask
    sides = []
    for known, asked in ((PAIR.i, PAIR.j), (PAIR.j, PAIR.i)):
        rows = []
        for symbol in ALPHABET:
            ids = hidden.copy()
            ids[known] = symbol
            rows.append(logits(ids, asked))
        sides.append(np.stack(rows))
    return logits(hidden, PAIR.i), logits(hidden, PAIR.j), *sides


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_a_model_is_asked_everything_in_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joints, "_BLOCK", block * len(ALPHABET))
    [own] = pair_conditionals(Conditionals(DNA.rows), [PAIR], ALPHABET)
    rows = naive_rows()
    for found, expected in zip(own[:4], rows, strict=True):
        normal = expected - np.logaddexp.reduce(expected, axis=-1, keepdims=True)
        assert found == pytest.approx(normal, abs=1e-4)
    assert own.given_first + own.scale_first[:, None] == pytest.approx(rows[2], abs=1e-4)
    assert own.given_second + own.scale_second[:, None] == pytest.approx(rows[3], abs=1e-4)


def test_large_tables_are_held_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    [double] = pair_conditionals(Conditionals(DNA.rows), [PAIR], ALPHABET)
    monkeypatch.setattr(joints, "_DOUBLES", 1)
    [single] = pair_conditionals(Conditionals(DNA.rows), [PAIR], ALPHABET)
    assert single.given_first.dtype == np.float32
    for name, make in METHODS.items():
        assert make(single) == pytest.approx(make(double), abs=1e-4), name
        assert make(single).dtype == np.float32, name


class Table:
    """Answers as a model does whose conditionals are those of a joint, in a sequence of two tokens."""

    def __init__(self, joint: Doubles) -> None:
        self.joint = joint

    def ask(self, queries: Iterable[Query], want: Sequence[Any]) -> Iterator[Answer]:
        for query in queries:
            assert query.asked_in is not None
            assert query.substituted is not None
            assert query.substituted_in is not None
            assert query.substitutes is not None
            put = dict(zip(query.substituted_in.tolist(), query.substitutes.tolist(), strict=True))
            rows = []
            for at, copy in zip(query.asked.tolist(), query.asked_in.tolist(), strict=True):
                own = self.joint if at == 0 else self.joint.T
                row = own[:, put[copy]] if copy in put else own.sum(axis=1)
                rows.append(np.log(row / row.sum()))
            yield Answer(key=None, values={"rows": np.stack(rows), "normaliser": np.zeros(len(rows))})


def test_all_that_are_no_candidates_are_one_symbol() -> None:
    joint = shares(3, 9, 9)
    joint /= joint.sum()
    model: Any = Table(joint)
    alphabet = np.arange(9, dtype=np.int32)
    pair = Pair(DNA.tokenizer.encode("ACG"), 0, 1)
    every = [tried] = top_candidates(model, [pair], alphabet, 4)
    [own] = pair_conditionals(model, [pair], alphabet, every)
    first, second = joint.sum(axis=1), joint.sum(axis=0)
    assert tried.first.tolist() == [*sorted(np.argsort(-first)[:4]), OTHERS]
    assert tried.second.tolist() == [*sorted(np.argsort(-second)[:4]), OTHERS]
    lumps = [[[at] for at in ids[:-1]] + [sorted(set(range(9)) - {*ids})] for ids in tried]
    expected = np.array([[joint[np.ix_(a, b)].sum() for b in lumps[1]] for a in lumps[0]])
    for name in ("ag", "hcb", "chain"):
        assert np.exp(METHODS[name](own)) == pytest.approx(expected, abs=1e-9), name
    assert deviation(own) == pytest.approx(0, abs=1e-20)
    rare = int(first.argmin())
    pair.encoding.ids[0] = rare
    [tried] = top_candidates(model, [pair], alphabet, 4, observed=True)
    assert rare in tried.first
    assert len(tried.first) == 5


def test_two_that_are_no_candidates_are_independent_where_nothing_is_left() -> None:
    other = np.log([0.5, 0.3, 0.2])
    assert np.exp(joints._row_of_others(np.log(0.4), other, np.log([0.2, 0.5]))) == pytest.approx(
        [0.1 / 0.4, 0.15 / 0.4, 0.15 / 0.4]
    )
    row = np.array([0.4, 0.15, 0.1 * 0.2])
    assert np.exp(joints._row_of_others(np.log(0.1), other, np.log([0.8, 0.5]))) == pytest.approx(
        row / row.sum()
    )


def test_candidates_in_full_are_no_candidates() -> None:
    [tried] = top_candidates(Conditionals(DNA.rows), [PAIR], ALPHABET, len(ALPHABET))
    assert tried == (ALPHABET, ALPHABET)

"""Conditionals against a toy model whose every probability is computed by hand, one query at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqmlm.engine import conditionals as module
from seqmlm.engine import reductions
from seqmlm.engine.conditionals import Answer, Conditionals, Query
from seqmlm.engine.layout import Documents
from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.reductions import (
    Block,
    Candidates,
    Entropy,
    Rank,
    Reduction,
    Rows,
    Sample,
    TargetLogProb,
    TopIds,
    top,
    union,
)
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.errors import NotFiniteError, TrainingError, UsageError

SPACE = TokenSpace(size=23, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))


class Toy(nn.Module):
    """logits at p = own[id_p] + place[position_p] + mean over the document of (shared[id] + channel).

    Packed documents must not see each other, as in a real model; raises `error` above `limit` tokens.
    """

    layers = None

    def __init__(
        self, probability: str = "ordinary", limit: int | None = None, error: Exception | None = None
    ):
        super().__init__()
        make = torch.Generator().manual_seed(0)
        self.space, self.probability, self.model = SPACE, probability, None
        self.own = nn.Parameter(torch.randn(SPACE.size, SPACE.size, generator=make))
        self.shared = nn.Parameter(torch.randn(SPACE.size, SPACE.size, generator=make) * 3)
        self.place = nn.Parameter(torch.randn(64, SPACE.size, generator=make))
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Dropout(0.5).eval()
        self.limit, self.error = limit, error
        self.batches: list[int] = []

    def dense(self, ids: Tensor, positions: Tensor, channel: Tensor | None) -> Tensor:
        extra = 0 if channel is None else channel.mean() * torch.arange(SPACE.size)
        logits = self.own[ids] + self.place[positions] + self.shared[ids].mean(0) + extra
        if self.probability == "ordinary":
            logits = logits.masked_fill(torch.from_numpy(SPACE.is_special), -torch.inf)
        return logits

    def forward(self, batch: PackedBatch, *, output: str = "loss", layers: object = None) -> Tensor:
        assert output == "logits"
        assert not torch.is_grad_enabled()
        if self.limit is not None and batch.tokens > self.limit:
            assert self.error is not None
            raise self.error
        self.batches.append(batch.tokens)
        bounds = batch.cu_seq_lens.tolist()
        channel = batch.channels.get("time")
        parts = [
            self.dense(
                batch.input_ids[0, a:b],
                batch.position_ids[0, a:b],
                None if channel is None else channel[0, a:b],
            )
            for a, b in pairwise(bounds)
        ]
        return self.dropout(self.frozen(torch.cat(parts)))[batch.asked]


@pytest.fixture(autouse=True)
def _any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is no transformers model; its positions reach to 64."""
    monkeypatch.setattr(module, "position_capacity", lambda model: 64)


CANDIDATES = (7, 5, 20, 11)


def everything(k: int) -> list[Reduction]:
    return [TargetLogProb(), Entropy(), Rank(), *top(k), Rows(), Candidates(CANDIDATES)]


def sequence(rng: np.random.Generator, length: int, **extra: Any) -> Encoding:
    ids = np.concatenate([[3], rng.integers(5, SPACE.size, length - 2), [4]]).astype(np.int32)
    groups = np.concatenate([[-1], np.arange(length - 2), [-1]]).astype(np.int32)
    return Encoding(ids=ids, groups=groups, **extra)


def some_queries(count: int, seed: int = 0) -> list[Query]:
    """Queries of every kind: plain, several variants, restricted, with substitutions and own targets."""
    rng, queries = np.random.default_rng(seed), []
    for number in range(count):
        length = int(rng.integers(4, 20))
        extra: dict[str, Any] = {"channels": {"time": rng.random(length).astype(np.float32)}}
        if number % 3 == 0:
            extra["positions"] = rng.integers(0, 64, length).astype(np.int32)
        encoding = sequence(rng, length, **extra)
        variants = 1 if number % 2 else int(rng.integers(1, 5))
        asked_in = np.sort(np.concatenate([np.arange(variants), rng.integers(0, variants, 3)])).astype(
            np.int32
        )
        masked_in = rng.integers(0, variants, 5).astype(np.int32)
        queries.append(
            Query(
                encoding=encoding,
                masked=rng.integers(0, length, 5).astype(np.int32),
                masked_in=None if number % 2 else masked_in,
                asked=rng.integers(0, length, len(asked_in)).astype(np.int32),
                asked_in=None if number % 2 else asked_in,
                **substitutions(rng, number, length, variants),
                allowed=rng.permutation(SPACE.ordinary)[: number % 7 + 1] if number % 5 == 0 else None,
                targets=rng.integers(5, SPACE.size, len(asked_in)).astype(np.int32) if number % 4 else None,
                key=number,
            )
        )
    return queries


def substitutions(rng: np.random.Generator, number: int, length: int, variants: int) -> dict[str, Any]:
    """None, some in every variant, or some in a variant each."""
    if number % 4:
        return {}
    places = rng.permutation(length)[:3].astype(np.int32)
    given = {"substituted": places, "substitutes": rng.integers(5, SPACE.size, 3).astype(np.int32)}
    return given if number % 8 else {**given, "substituted_in": rng.integers(0, variants, 3).astype(np.int32)}


def by_hand(toy: Toy, query: Query, top: int) -> Answer:
    """One query, one masked copy at a time, no packing, every distribution in full."""
    log_probs, entropy, ranks, top_ids, top_values, rows = [], [], [], [], [], []
    targets = query.encoding.ids[query.asked] if query.targets is None else query.targets
    columns = list(range(SPACE.size)) if query.allowed is None else query.allowed.tolist()
    for number, (position, target) in enumerate(zip(query.asked, targets, strict=True)):
        variant = 0 if query.asked_in is None else query.asked_in[number]
        ids = query.encoding.ids.copy()
        if query.substituted is not None:
            inside = np.zeros(3) if query.substituted_in is None else query.substituted_in
            for where, token, own in zip(query.substituted, query.substitutes, inside, strict=True):
                if query.substituted_in is None or own == variant:
                    ids[where] = token
        for m, where in enumerate(query.masked):
            if query.masked_in is None or query.masked_in[m] == variant:
                ids[where] = SPACE.mask
        own = query.encoding.positions
        positions = torch.arange(len(ids)) if own is None else torch.from_numpy(own.astype(np.int64))
        channel = torch.from_numpy(query.encoding.channels["time"]) if query.encoding.channels else None
        with torch.no_grad():
            logits = toy.dense(torch.from_numpy(ids.astype(np.int64)), positions, channel)[position, columns]
        p = torch.softmax(logits.double(), -1).numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            log_p = np.log(p)
            entropy.append(-np.nansum(p * log_p))
        own_p = p[columns.index(target)] if target in columns else 0.0
        log_probs.append(np.log(own_p) if own_p else -np.inf)
        ranks.append(int((p > own_p).sum()))
        order = [i for i in np.argsort(-p) if p[i] > 0][:top]
        top_ids.append([columns[i] for i in order] + [-1] * (top - len(order)))
        top_values.append([log_p[i] for i in order] + [-np.inf] * (top - len(order)))
        rows.append(log_p)
    named = [[log_p[columns.index(c)] if c in columns else -np.inf for c in CANDIDATES] for log_p in rows]
    return Answer(
        key=query.key,
        values={
            "log_prob": np.array(log_probs),
            "entropy": np.array(entropy),
            "rank": np.array(ranks),
            "top_ids": np.array(top_ids),
            "top_log_probs": np.array(top_values),
            "rows": np.array(rows),
            "candidates": np.array(named),
        },
    )


def assert_same(got: Answer, expected: Answer) -> None:
    assert got.key == expected.key
    assert got.values.keys() - {"sample"} == expected.values.keys() - {"sample"}
    for name, value in expected.values.items():
        np.testing.assert_allclose(got.values[name], value, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("probability", ["ordinary", "full"])
@pytest.mark.parametrize(("budget", "lookahead"), [(1, 1), (37, 6), (16384, 8192)])
def test_every_answer_equals_the_one_by_hand(probability: str, budget: int, lookahead: int) -> None:
    toy, queries = Toy(probability), some_queries(60)
    ask = Conditionals(toy, tokens_per_batch=budget, lookahead=lookahead)
    answers = list(ask.ask(queries, everything(6)))
    for query, answer in zip(queries, answers, strict=True):
        assert_same(answer, by_hand(toy, query, top=6))
    assert ask.statistics.queries == 60
    assert ask.statistics.forwards == len(toy.batches)
    assert ask.statistics.tokens == sum(toy.batches)


def test_only_what_is_wanted_comes_back() -> None:
    (answer,) = Conditionals(Toy()).ask(some_queries(1))
    assert answer.values.keys() == {"log_prob"}
    (answer,) = Conditionals(Toy()).ask(some_queries(1), [Rank(), Entropy()])
    assert answer.values.keys() == {"rank", "entropy"}


def test_small_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few asked rows a forward (a query is cut up) and few rows a reduction."""
    queries, wanted = some_queries(40), [*everything(3), Sample(5)]
    whole = list(Conditionals(Toy()).ask(queries, wanted))
    monkeypatch.setattr(module, "LOGITS", 2 * SPACE.size)
    monkeypatch.setattr(reductions, "CHUNK", 2 * SPACE.size)
    monkeypatch.setattr(reductions, "CACHED", SPACE.size)
    toy = Toy()
    for a, b in zip(Conditionals(toy).ask(queries, wanted), whole, strict=True):
        assert_same(a, b)
    assert len(toy.batches) > 50


def test_the_input_is_read_no_further_than_the_look_ahead() -> None:
    read: list[int] = []

    def questions() -> Iterator[Query]:
        for query in some_queries(30):
            read.append(query.key)
            yield replace(query, masked_in=None, asked_in=None, substituted_in=None)

    answers = Conditionals(Toy(), lookahead=7).ask(questions())
    assert read == []
    for number, answer in enumerate(answers):
        assert answer.key == number
        assert len(read) <= 7 * (number // 7 + 1)
    assert len(read) == 30


def test_variants_count_against_the_look_ahead() -> None:
    encoding = sequence(np.random.default_rng(0), 12)
    places = np.arange(10, dtype=np.int32)
    many = Query(encoding=encoding, masked=places, masked_in=places, asked=places, asked_in=places)
    source = iter([many] * 9)
    next(iter(Conditionals(Toy(), lookahead=25).ask(source)))
    assert len(list(source)) == 6


def test_equal_questions_are_computed_once() -> None:
    rng = np.random.default_rng(1)
    encoding, at = sequence(rng, 9), np.array([4], dtype=np.int32)
    mutant = replace(encoding, ids=np.where(np.arange(9) == 4, 8, encoding.ids).astype(np.int32))
    query = Query(encoding=encoding, masked=at, asked=at)
    same = [
        query,
        Query(encoding=mutant, masked=at, asked=at),
        replace(query, targets=np.array([9], np.int32)),
    ]
    other = [
        replace(query, asked=np.array([5], np.int32)),
        replace(query, allowed=np.array([6, 7], np.int32)),
        replace(query, masked=np.array([4, 5], np.int32)),
        replace(query, encoding=replace(encoding, positions=np.arange(9, dtype=np.int32)[::-1].copy())),
    ]
    toy = Toy()
    ask = Conditionals(toy)
    answers = list(ask.ask([*same, *other, *same], [TargetLogProb(), Rank(), TopIds(2)]))
    assert ask.statistics.queries == ask.statistics.variants == 10
    assert ask.statistics.unique == 5
    for answer, query in zip(answers, [*same, *other, *same], strict=True):
        expected = by_hand(toy, query, top=2)
        for name, value in answer.values.items():
            np.testing.assert_allclose(value, expected.values[name], atol=2e-5)
    for first, again in zip(answers[:3], answers[7:], strict=True):
        assert np.array_equal(first.values["log_prob"], again.values["log_prob"])


def test_equal_digests_of_unlike_questions_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every digest is the same here: questions must still be told apart, by their tokens."""
    queries = some_queries(25)[1:]
    queries += [replace(query, allowed=SPACE.ordinary[:15]) for query in queries] + queries
    monkeypatch.setattr(Documents, "_digest", lambda self: np.zeros(len(self), dtype=np.uint64))
    toy = Toy()
    for query, answer in zip(queries, Conditionals(toy).ask(queries), strict=True):
        expected = by_hand(toy, query, top=1).values["log_prob"]
        np.testing.assert_allclose(answer.values["log_prob"], expected, atol=2e-5)


def test_packs_hold_similar_lengths_within_the_budget() -> None:
    toy = Toy()
    list(Conditionals(toy, tokens_per_batch=40).ask(some_queries(50)))
    assert max(toy.batches) <= 40
    assert sum(toy.batches[:-1]) > 0.6 * 40 * (len(toy.batches) - 1)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("MPS backend out of memory"),
        MemoryError(),
    ],
)
def test_out_of_memory_halves_the_budget_and_keeps_the_answers(error: Exception) -> None:
    queries = some_queries(40)
    expected = list(Conditionals(Toy()).ask(queries))
    toy = Toy(limit=60, error=error)
    ask = Conditionals(toy, tokens_per_batch=400)
    for a, b in zip(ask.ask(queries), expected, strict=True):
        np.testing.assert_allclose(a.values["log_prob"], b.values["log_prob"], atol=1e-5)
    assert 25 <= ask.tokens_per_batch <= 60


def test_a_sequence_that_does_not_fit_alone_is_an_error_with_a_remedy() -> None:
    toy = Toy(limit=10, error=RuntimeError("out of memory"))
    query = Query(encoding=sequence(np.random.default_rng(0), 12), masked=np.array([1]), asked=np.array([1]))
    with pytest.raises(TrainingError, match=r"single sequence of 12 tokens; use .*windows"):
        list(Conditionals(toy).ask([query] * 3))


def test_other_errors_pass_through_and_the_mode_comes_back() -> None:
    toy = Toy(limit=0, error=RuntimeError("shapes do not match"))
    toy.train()
    toy.frozen.eval()
    with pytest.raises(RuntimeError, match="shapes"):
        list(Conditionals(toy).ask(some_queries(3)))
    assert toy.training
    assert toy.dropout.training
    assert not toy.frozen.training


def test_between_answers_the_model_is_as_the_caller_left_it() -> None:
    toy = Toy().train()
    for _ in Conditionals(toy, lookahead=2).ask(some_queries(6)):
        assert toy.training
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("want", [[TargetLogProb()], [Entropy()], [TopIds(1)], [Rows()], [Sample(1)]])
def test_an_answer_that_is_no_number_is_an_error(want: list[Reduction], value: float) -> None:
    toy = Toy()
    encoding, place = sequence(np.random.default_rng(0), 8), np.array([2], dtype=np.int32)
    query = Query(encoding=encoding, masked=place, asked=place)
    next(Conditionals(toy).ask([query], want))
    toy.place.data[:, encoding.ids[2]] = value
    if value == -torch.inf and not isinstance(want[0], TargetLogProb):
        next(
            Conditionals(toy).ask([query], want)
        )  # a token that never comes; its surprisal would be infinite
        return
    with pytest.raises(NotFiniteError, match=r"weights are damaged.* precision fp32"):
        next(Conditionals(toy).ask([query], want))


GOOD = Query(
    encoding=sequence(np.random.default_rng(0), 8), masked=np.array([1, 2]), asked=np.array([1]), key="k"
)
BAD: dict[str, dict[str, list[int]]] = {
    "outside a sequence of 8 tokens": {"masked": [8]},
    "asked position -1": {"asked": [-1]},
    "at least one position": {"asked": []},
    "both or neither": {"masked_in": [0, 0]},
    "must be ascending": {"asked_in": [1, 0], "asked": [1, 2], "masked_in": [0, 0]},
    "1 entries for 2 masked": {"asked_in": [0], "masked_in": [0]},
    "without a position in 'asked'": {"asked_in": [0], "masked_in": [0, 1]},
    "substituted: a position outside a sequence of 8": {"substituted": [9], "substitutes": [5]},
    "substitutes: an id outside": {"substituted": [3], "substitutes": [23]},
    "substituted, substitutes: set both or neither": {"substituted": [3]},
    "same number of entries": {"substituted": [3], "substitutes": [5, 6]},
    "substituted_in: refers to a variant": {"substituted": [3], "substitutes": [5], "substituted_in": [1]},
    "occurs twice": {"substituted": [3, 3], "substitutes": [5, 6]},
    "targets: 2 entries for 1": {"targets": [5, 6]},
    "targets: an id outside": {"targets": [23]},
    "each only once": {"allowed": [5, 5]},
    "contain at least one": {"allowed": []},
    "allowed: an id outside": {"allowed": [-1]},
    "must not contain special tokens": {"allowed": [0, 5]},
}


@pytest.mark.parametrize("message", BAD)
def test_a_question_that_makes_no_sense_is_named(message: str) -> None:
    wrong = {name: np.array(values, dtype=np.int32) for name, values in BAD[message].items()}
    with pytest.raises(UsageError, match=message):
        list(Conditionals(Toy()).ask([GOOD, replace(GOOD, **wrong)]))


def test_queries_with_other_channels_do_not_mix() -> None:
    other = replace(GOOD, encoding=replace(GOOD.encoding, channels={"time": np.zeros(8, dtype=np.float32)}))
    with pytest.raises(UsageError, match="same channels"):
        list(Conditionals(Toy()).ask([GOOD, other]))


def test_a_sequence_beyond_the_model_is_refused() -> None:
    long = Query(encoding=sequence(np.random.default_rng(0), 65), masked=np.array([1]), asked=np.array([1]))
    with pytest.raises(UsageError, match="65 positions and the model has 64"):
        list(Conditionals(Toy()).ask([long]))


@pytest.mark.parametrize("arguments", [{"tokens_per_batch": 0}, {"lookahead": 0}])
def test_budgets_below_one_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Conditionals(Toy(), **arguments)


def test_what_cannot_be_read_together_is_refused() -> None:
    ask = Conditionals(Toy())
    with pytest.raises(UsageError, match="at least 1"):
        TopIds(0)
    with pytest.raises(UsageError, match="cannot be requested together"):
        ask.ask([GOOD], [Candidates((5, 6)), Candidates((7,))])
    with pytest.raises(UsageError, match="outside the vocabulary"):
        list(ask.ask([GOOD], [Candidates((5, 23))]))


def test_wishes_become_one() -> None:
    assert union([Rank(), TopIds(2)], [TopIds(5), Rank()], [TopIds(3)]) == (Rank(), TopIds(5))
    assert union(top(0), [Entropy()]) == (Entropy(),)
    assert len({Sample(1), Sample(1), Sample(2), Entropy(), Entropy()}) == 3


class Second(Reduction):
    """The second most probable token's log-probability: no code but this class knows of it."""

    name = "second"

    def apply(self, block: Block) -> Tensor:
        return torch.log_softmax(block.logits, -1).sort(-1, descending=True).values[:, :2].amin(-1)


def test_a_reduction_from_elsewhere_is_answered_like_the_own_ones() -> None:
    queries = [query for query in some_queries(40) if query.allowed is None]
    toy = Toy()
    for query, answer in zip(queries, Conditionals(toy).ask(queries, [Second()]), strict=True):
        rows = np.sort(by_hand(toy, query, top=1).values["rows"], axis=1)
        np.testing.assert_allclose(answer.values["second"], rows[:, -2], atol=2e-5)


def drawn(queries: list[Query], seed: int = 3, **settings: Any) -> list[list[int]]:
    answers = Conditionals(Toy(), **settings).ask(queries, [Sample(seed), Entropy()])
    return [answer.values["sample"].tolist() for answer in answers]


def test_draws_do_not_depend_on_what_is_asked_together() -> None:
    queries = [replace(query, stream=7 * n) for n, query in enumerate(some_queries(60))]
    queries = [replace(query, encoding=replace(query.encoding, channels={})) for query in queries]
    expected = drawn(queries)
    assert drawn(queries, tokens_per_batch=1, lookahead=1) == expected
    assert drawn(queries, tokens_per_batch=37, lookahead=6) == expected
    assert drawn(queries[::-1])[::-1] == expected
    assert [drawn([query])[0] for query in queries] == expected
    assert drawn(queries, seed=4) != expected
    for query, ids in zip(queries, expected, strict=True):
        assert set(ids) <= set(SPACE.ordinary.tolist() if query.allowed is None else query.allowed.tolist())


def test_equal_queries_draw_apart_and_equal_streams_alike() -> None:
    """Without a stream the number of the query counts; what is computed for equal queries is still one."""
    places = np.arange(1, 9, dtype=np.int32)
    query = Query(encoding=sequence(np.random.default_rng(0), 10), masked=places, asked=places)
    numbered = drawn([query] * 50, lookahead=7)
    assert len({tuple(ids) for ids in numbered}) > 40
    assert drawn([query] * 50) == numbered
    assert drawn([replace(query, stream=n) for n in range(50)]) == numbered
    assert len({tuple(ids) for ids in drawn([replace(query, stream=8)] * 50)}) == 1
    ask = Conditionals(Toy())
    list(ask.ask([query] * 50, [Sample(0)]))
    assert ask.statistics.unique == 1


def test_draws_follow_the_distribution() -> None:
    """4,000 draws of one distribution: every share within five standard deviations."""
    place = np.array([3], dtype=np.int32)
    query = Query(encoding=sequence(np.random.default_rng(0), 10), masked=place, asked=place)
    n, toy = 4000, Toy()
    counts = np.bincount([ids[0] for ids in drawn([query] * n)], minlength=SPACE.size)
    p = np.exp(by_hand(toy, query, top=1).values["rows"][0])
    assert (np.abs(counts - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9).all()

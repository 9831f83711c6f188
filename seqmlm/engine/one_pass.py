"""What lets a model be scored in one pass where nothing follows from its training: a fit, or a head.

**A fit.** Where training breaks the assumptions of `seqmlm.engine.correction.derive`, a single number in its
place still takes most of the bias away: the one for which corrected log-probabilities are nearest to exact
ones. It is an approximation, and says how good: error and rank correlation on the positions it was fitted to.

**A head** reads masked conditionals from the states of an input in which nothing is masked. One-fell-swoop
scoring (Kantroo et al. 2024, arXiv:2407.07265): the encoder stays as it is; a small network learns, from
positions asked exactly, to say of each hidden state of the unmasked input what the model says where that
position is masked. It changes the state, h + W2 gelu(W1 norm(h)), and the model's own head reads the result:
a few thousand positions teach that much, while a new projection to a vocabulary of thousands would need far
more. W2 begins at 0, so training begins at the model's unmasked outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from seqmlm.engine.conditionals import Conditionals, evaluating
from seqmlm.engine.cones import ConeBatch, Layers
from seqmlm.engine.correction import Correction
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Rows, TargetLogProb
from seqmlm.engine.types import Bools, Encoding, Floats, Longs, Sequences, TokenSpace
from seqmlm.engine.units import Doubles, pll_queries
from seqmlm.errors import DataError

# Nats taken from a seen token's logit while asking: probabilities near 1 keep their digits in float32.
_ASIDE = 30.0
_CLASS_POSITIONS = 32
"""Positions a token class needs for a number of its own."""
_HIGHEST = 40.0

# Probabilities that may be kept of the positions asked exactly: 256 MiB.
_KEPT = 1 << 26


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """A fitted correction and how well it does where it was fitted.

    Args:
        correction: of kind "fitted".
        positions: it was fitted to.
        rmse: root mean squared difference of the surprisals to exact ones, in bits.
        spearman: rank correlation of the surprisals with exact ones; NaN where one side is constant.
        raw_rmse: the error without any correction, in bits.
        derived_rmse: the error of the correction that follows from training, in bits; None where none does.
    """

    correction: Correction
    positions: int
    rmse: float
    spearman: float
    raw_rmse: float
    derived_rmse: float | None = None


def fit(
    conditionals: Conditionals,
    encodings: Sequences | Sequence[Encoding],
    *,
    bias: Floats | None = None,
    derived: Correction | None = None,
    n: int = 256,
    seed: int = 0,
) -> Fit:
    """Fit what is subtracted from a seen token's logit, by least squares on log-probabilities.

    One number for all tokens; where the encodings have token classes, also one for each class that has enough
    of the positions, given to the tokens that are mostly of that class.

    Args:
        conditionals: of the model.
        encodings: normal sequences, none longer than the model.
        bias: (V,) nats, as in `Correction`, for both sides alike.
        derived: a correction to be measured at the same positions, or None.
        n: positions to ask exactly, at most; fewer where the sequences are short.
        seed: of their choice.

    Raises:
        DataError: nothing to ask in the encodings.
    """
    chosen = sample(encodings, conditionals.space, n, seed)
    if not chosen:
        raise DataError(
            "no positions to fit a one-pass correction to: the sequences hold no ordinary tokens",
            remedy="give normal sequences with units that the model knows",
        )
    exact = _exact(conditionals, chosen, bias)
    odds = _odds(conditionals, chosen, bias)
    tokens = np.concatenate([one.ids[places] for one, places in chosen]).astype(np.int64)
    everywhere = least_squares(odds, exact)
    seen = np.where(conditionals.space.is_special, 0.0, everywhere)
    for own, members in _classes(chosen, conditionals.space):
        if np.count_nonzero(own) >= _CLASS_POSITIONS:
            seen[members] = least_squares(odds[own], exact[own])
    fitted = _log_sigmoid(odds - seen[tokens])
    given = None if derived is None or derived.seen is None else _log_sigmoid(odds - derived.seen[tokens])
    return Fit(
        correction=Correction(seen=seen.astype(np.float32), bias=bias, kind="fitted"),
        positions=len(exact),
        rmse=_rmse(fitted, exact),
        spearman=spearman(fitted, exact),
        raw_rmse=_rmse(_log_sigmoid(odds), exact),
        derived_rmse=None if given is None else _rmse(given, exact),
    )


def least_squares(odds: Doubles, log_probs: Doubles) -> float:
    """The c in [0, 40] nats that minimizes the squared error of log sigmoid(odds - c) against `log_probs`.

    The error has one valley, or several where positions disagree much: a grid finds the deepest, then
    golden-section search its floor.

    Args:
        odds: (N,) log-odds of the seen token. log_probs: (N,) natural log of its masked conditional.
    """

    def error(c: float) -> float:
        return float(np.mean((_log_sigmoid(odds - c) - log_probs) ** 2))

    step = 0.25
    grid = np.arange(0.0, _HIGHEST + step, step)
    best = float(grid[int(np.argmin([error(c) for c in grid]))])
    low, high = max(0.0, best - step), min(_HIGHEST, best + step)
    ratio = (np.sqrt(5) - 1) / 2
    while high - low > 1e-6:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if error(left) <= error(right) else (left, high)
    return float((low + high) / 2)


def spearman(a: Doubles, b: Doubles) -> float:
    """Rank correlation, ties at their mean rank; NaN where a side is constant."""
    ranks = []
    for values in (a, b):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[place])
    if any(np.ptp(one) == 0 for one in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _rmse(a: Doubles, b: Doubles) -> float:
    """Bits, of natural logarithms."""
    return float(np.sqrt(np.mean((a - b) ** 2)) / np.log(2))


def _log_sigmoid(x: Doubles) -> Doubles:
    return -np.logaddexp(0.0, -x)


Sample = list[tuple[Encoding, Longs]]


def sample(encodings: Sequences | Sequence[Encoding], space: TokenSpace, n: int, seed: int) -> Sample:
    """About n positions of random sequences, a tenth of each sequence's at most (one at least)."""
    rng = np.random.default_rng(seed)
    found: Sample = []
    left = n
    for number in rng.permutation(len(encodings)).tolist():
        encoding = encodings[number]
        places = np.flatnonzero((encoding.groups >= 0) & ~space.is_special[encoding.ids])
        if len(places):
            share = min(left, max(-(-len(places) // 10), -(-n // len(encodings))), len(places))
            found.append((encoding, np.sort(rng.choice(places, share, replace=False))))
            left -= share
        if left <= 0:
            break
    return found


def _hidden(chosen: Sample, space: TokenSpace) -> Iterator[Query]:
    """Each position asked with itself and the rest of its unit hidden."""
    for encoding, places in chosen:
        yield from pll_queries(encoding, space, flags(encoding, places))


def _exact(conditionals: Conditionals, chosen: Sample, bias: Floats | None) -> Doubles:
    """(N,) natural log-probability of each position with itself and the rest of its unit hidden."""
    answers = conditionals.ask(_hidden(chosen, conditionals.space), correction=Correction(bias=bias))
    return np.concatenate([answer.values[TargetLogProb.name] for answer in answers]).astype(np.float64)


def _odds(conditionals: Conditionals, chosen: Sample, bias: Floats | None) -> Doubles:
    """(N,) log-odds of the observed token at each position with nothing hidden."""
    aside = np.where(conditionals.space.is_special, 0.0, _ASIDE).astype(np.float32)
    nothing = np.zeros(0, dtype=np.int32)
    queries = (Query(encoding=one, masked=nothing, asked=places.astype(np.int32)) for one, places in chosen)
    answers = conditionals.ask(queries, correction=Correction(seen=aside, bias=bias))
    low = np.concatenate([answer.values[TargetLogProb.name] for answer in answers]).astype(np.float64)
    low = np.minimum(low, -1e-7)  # a seen token more certain than any float32 softmax can say
    return low - np.log(-np.expm1(low)) + _ASIDE


def flags(encoding: Encoding, places: Longs) -> Bools:
    """(L,) True at the places."""
    flags = np.zeros(len(encoding), dtype=np.bool_)
    flags[places] = True
    return flags


def _classes(chosen: Sample, space: TokenSpace) -> Iterator[tuple[Bools, Longs]]:
    """For each token class: which of the N positions are of it (N,), and the tokens mostly of it."""
    if any(encoding.classes is None for encoding, _ in chosen):
        return
    of = np.concatenate([one.classes[places] for one, places in chosen if one.classes is not None])
    ids = np.concatenate([one.ids for one, _ in chosen])
    classes = np.concatenate([one.classes for one, _ in chosen if one.classes is not None])
    known = ~space.is_special[ids] & (classes >= 0)
    numbers = np.unique(classes[known])
    counts = np.zeros((space.size, len(numbers)), dtype=np.int64)
    np.add.at(counts, (ids[known], np.searchsorted(numbers, classes[known])), 1)
    mostly = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)
    for place, number in enumerate(numbers.tolist()):
        yield of == number, np.flatnonzero(mostly == place)


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """How a head is trained.

    Args:
        positions: asked exactly, at most; fewer where sequences are short or the vocabulary is large (256 MiB
            of probabilities are kept).
        epochs, batch, learning_rate: of AdamW, the rate falling to 0 in a line.
        held_out: share of the positions that only measure.
        seed: of positions, weights and order.
    """

    positions: int = 4096
    epochs: int = 20
    batch: int = 128
    learning_rate: float = 1e-3
    held_out: float = 0.1
    seed: int = 0


class Change(nn.Module):
    """(Q, H) hidden states as if their positions had been masked."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = states + self.down(nn.functional.gelu(self.up(self.norm(states))))
        return out


class HeadRows(nn.Module):
    """A model whose answers pass through a trained head; asked like `MaskedRows`.

    Args:
        rows: the model, unchanged.
        change: the trained part.
    """

    def __init__(self, rows: MaskedRows, change: Change) -> None:
        super().__init__()
        self.rows, self.change = rows, change

    @property
    def model(self) -> Any:
        return self.rows.model

    @property
    def space(self) -> TokenSpace:
        return self.rows.space

    @property
    def probability(self) -> Literal["ordinary", "full"]:
        return self.rows.probability

    @property
    def layers(self) -> Layers | None:
        return self.rows.layers

    def forward(
        self,
        batch: PackedBatch | ConeBatch,
        *,
        output: Literal["logits", "hidden"],
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """(Q, V) fp32 as of `MaskedRows`, in which nothing should be masked; or the model's hidden states."""
        if output == "hidden":
            hidden: Tensor = self.rows(batch, output="hidden", layers=layers)
            return hidden
        return self.rows.logits(self.change(self.rows(batch, output="hidden")))


class Trained(NamedTuple):
    """A trained head and how well it does on positions it was not trained on.

    Args:
        facts: settings; positions; rmse (bits) and spearman of the surprisals against exact ones.
    """

    change: Change
    facts: dict[str, Any]


class _Lessons(NamedTuple):
    """What P positions teach.

    Args:
        states: (P, H) hidden states of the unmasked input.
        taught: (P, K) log-probabilities with the position masked, over the possible tokens.
        observed: (P,) column of the token that stands there.
    """

    states: Tensor
    taught: Tensor
    observed: Tensor


def train(
    conditionals: Conditionals,
    encodings: Sequences | Sequence[Encoding],
    config: HeadConfig,
    *,
    bias: Floats | None = None,
) -> Trained:
    """Train a head on normal sequences; the same one for the same seed, thread count and device.

    Args:
        conditionals: of the model, which stays as it is.
        encodings: none longer than the model.
        bias: (V,) nats, as in `seqmlm.engine.correction.Correction`, of what is taught.

    Raises:
        DataError: fewer than two positions to ask.
    """
    rows, space = conditionals.rows, conditionals.space
    if not isinstance(rows, MaskedRows):
        raise TypeError("a head is trained on a model, not on another head")
    chosen = sample(encodings, space, min(config.positions, _KEPT // space.size), config.seed)
    asked = sum(len(places) for _, places in chosen)
    if asked < 2:
        raise DataError(
            "no positions to train a one-pass head on: the sequences hold no ordinary tokens",
            remedy="give normal sequences with units that the model knows",
        )
    possible = _possible(rows)
    lessons = _lessons(conditionals, chosen, possible.cpu().numpy(), bias)
    order = torch.from_numpy(np.random.default_rng(config.seed).permutation(asked))
    held = order[: max(1, int(asked * config.held_out))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        change = Change(lessons.states.shape[1]).to(conditionals.device)
    with evaluating(rows), torch.enable_grad():
        _descend(rows, change, lessons, order[len(held) :], possible, config)
    own = _Lessons(*(part[held.to(part.device)] for part in lessons))
    with evaluating(rows):
        said = _log_softmax(rows, change(own.states), possible)
    learnt, true = (
        one.gather(1, own.observed[:, None])[:, 0].double().cpu().numpy() for one in (said, own.taught)
    )
    facts = {
        **asdict(config),
        "positions": asked,
        "rmse": _rmse(learnt, true),
        "spearman": spearman(learnt, true),
    }
    return Trained(change.eval().requires_grad_(False), facts)


def restored(rows: MaskedRows, tensors: Mapping[str, Tensor]) -> HeadRows:
    """The model with a saved head (`Change.state_dict`)."""
    change = Change(tensors["norm.weight"].shape[0])
    change.load_state_dict(dict(tensors))
    return HeadRows(rows, change.eval().requires_grad_(False))


def _descend(
    rows: MaskedRows, change: Change, lessons: _Lessons, order: Tensor, possible: Tensor, config: HeadConfig
) -> None:
    """Minimize the cross-entropy to what was taught; the model's own parameters stay as they are."""
    optimizer = torch.optim.AdamW(change.parameters(), lr=config.learning_rate)
    total = max(1, config.epochs * -(-len(order) // config.batch))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    shuffled = np.random.default_rng([config.seed, 1])
    for _ in range(config.epochs):
        turn = order[torch.from_numpy(shuffled.permutation(len(order)))].to(lessons.states.device)
        for part in torch.split(turn, config.batch):
            log_probs = _log_softmax(rows, change(lessons.states[part]), possible)
            loss = -(lessons.taught[part].exp() * log_probs).sum(-1).mean()
            gradients = torch.autograd.grad(loss, list(change.parameters()))
            for parameter, gradient in zip(change.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            schedule.step()


def _log_softmax(rows: MaskedRows, states: Tensor, possible: Tensor) -> Tensor:
    return torch.log_softmax(rows.logits(states)[:, possible], -1)


def _possible(rows: MaskedRows) -> Tensor:
    """(K,) ids inside the model's probability space."""
    outside = set(rows.excluded.tolist())
    ids = [i for i in range(rows.space.size) if i not in outside]
    return torch.tensor(ids, device=next(rows.parameters()).device)


def _lessons(conditionals: Conditionals, chosen: Sample, possible: Longs, bias: Floats | None) -> _Lessons:
    queries = _hidden(chosen, conditionals.space)
    answers = conditionals.ask(queries, [Rows()], correction=Correction(bias=bias))
    taught = np.concatenate([answer.values[Rows.name][:, possible] for answer in answers])
    observed = np.concatenate([one.ids[places] for one, places in chosen])
    column = np.searchsorted(possible, observed)
    states = conditionals.hidden([one for one, _ in chosen], at=[places for _, places in chosen])
    parts = (np.concatenate([own[:, 0] for own in states]), taught, column.astype(np.int64))
    return _Lessons(*(torch.from_numpy(part).to(conditionals.device) for part in parts))

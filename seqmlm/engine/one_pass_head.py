"""A head that reads masked conditionals from the states of an input in which nothing is masked.

One-fell-swoop scoring (Kantroo et al. 2024, arXiv:2407.07265): the encoder stays as it is; a small network
learns, from positions asked exactly, to say of each hidden state of the unmasked input what the model says
where that position is masked. It changes the state, h + W2 gelu(W1 norm(h)), and the model's own head reads
the result: a few thousand positions teach that much, while a new projection to a vocabulary of thousands
would need far more. W2 begins at 0, so training begins at the model's unmasked outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqmlm.engine.conditionals import Conditionals, evaluating
from seqmlm.engine.correction import Correction
from seqmlm.engine.correction_fit import Sample, flags, sample, spearman
from seqmlm.engine.packing import Document, PackedBatch, pack
from seqmlm.engine.query import Query
from seqmlm.engine.types import Encoding, Floats, Sequences, TokenSpace
from seqmlm.engine.units import pll_queries
from seqmlm.errors import DataError

if TYPE_CHECKING:
    from seqmlm.engine.model import MaskedRows

# Probabilities that may be kept of the positions asked exactly: 256 MiB.
_KEPT = 1 << 26
_SEQUENCES = 16  # unmasked sequences of one forward pass


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

    def forward(self, batch: PackedBatch, *, output: Literal["logits"]) -> Tensor:
        """(Q, V) fp32 as of `MaskedRows`; nothing in the batch should be masked."""
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
    if isinstance(rows, HeadRows):
        raise TypeError("a head is trained on a model, not on another head")
    chosen = sample(encodings, space, min(config.positions, _KEPT // space.size), config.seed)
    asked = sum(len(places) for _, places in chosen)
    if asked < 2:
        raise DataError(
            "no positions to train a one-pass head on: the sequences hold no ordinary tokens",
            remedy="give normal sequences with units that the model knows",
        )
    possible = _possible(rows)
    lessons = _lessons(conditionals, chosen, possible, bias)
    order = torch.from_numpy(np.random.default_rng(config.seed).permutation(asked))
    held = order[: max(1, int(asked * config.held_out))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        change = Change(lessons.states.shape[1]).to(conditionals.device)
    with evaluating(rows), torch.enable_grad():
        _fit(rows, change, lessons, order[len(held) :], possible, config)
    own = _Lessons(*(part[held.to(part.device)] for part in lessons))
    with evaluating(rows):
        said = _log_softmax(rows, change(own.states), possible)
    learnt, true = (
        one.gather(1, own.observed[:, None])[:, 0].double().cpu().numpy() for one in (said, own.taught)
    )
    facts = {
        **asdict(config),
        "positions": asked,
        "rmse": float(np.sqrt(np.mean((learnt - true) ** 2)) / np.log(2)),
        "spearman": spearman(learnt, true),
    }
    return Trained(change.eval().requires_grad_(False), facts)


def restored(rows: MaskedRows, tensors: Mapping[str, Tensor]) -> HeadRows:
    """The model with a saved head (`Change.state_dict`)."""
    change = Change(tensors["norm.weight"].shape[0])
    change.load_state_dict(dict(tensors))
    return HeadRows(rows, change.eval().requires_grad_(False))


def _fit(
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


def _lessons(conditionals: Conditionals, chosen: Sample, possible: Tensor, bias: Floats | None) -> _Lessons:
    rows, device = conditionals.rows, conditionals.device

    def queries() -> Iterator[Query]:
        for encoding, places in chosen:
            yield from pll_queries(encoding, conditionals.space, flags(encoding, places))

    kept = possible.cpu().numpy()
    answers = conditionals.ask(queries(), full=True, correction=Correction(bias=bias))
    taught = np.concatenate([_columns(answer.rows, kept) for answer in answers])
    observed = np.concatenate([one.ids[places] for one, places in chosen])
    column = np.searchsorted(kept, observed)
    states = []
    with evaluating(rows):
        for first in range(0, len(chosen), _SEQUENCES):
            documents = [
                Document(ids=one.ids, asked=places, positions=one.positions, channels=one.channels)
                for one, places in chosen[first : first + _SEQUENCES]
            ]
            states.append(rows(pack(documents).to(device), output="hidden").float())
    return _Lessons(
        torch.cat(states), torch.from_numpy(taught).to(device), torch.from_numpy(column).long().to(device)
    )


def _columns(rows: Floats | None, kept: NDArray[np.int64]) -> Floats:
    assert rows is not None
    return rows[:, kept]

"""A linear masked model: p(x_i | rest) = softmax(h_i + sum over j of J_ij(., x_j)), for rows of one length.

On the columns of a protein family it is the Potts model of GREMLIN (Kamisetty et al. 2013) and of plmDCA
(Ekeberg et al. 2013); `seqmlm.engine.pseudolikelihood` trains it.

States are the ordinary symbols that occur in the training data: 20 for clean protein alignments. A gap, like
[MASK] or any special token, is none of them: it is not predicted and tells nothing of other columns, so that
stretches of gaps, which come together in alignments, do not pass for dependence.

    L  columns    A  states
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from seqmlm.engine import foreign
from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.types import Longs, TokenSpace
from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.parsing import Share, share

MODEL_TYPE = "seqmlm-linear"
"""What config.json calls it."""

MOST_COUPLINGS = 1 << 28
"""Numbers in J (1 GiB of fp32); three times that is in memory, and thirty times while it is trained."""

_CHUNK = 1 << 24  # elements of one piece of work

Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """The penalty that keeps couplings small, and the weights of sequences.

    Args:
        penalty: "l2" adds the sum of their squares, "l1" of their absolute values, which leaves most at 0.
        fields: weight of the squares of h.
        couplings: weight of J; None for .2 x (L - 1) under l2 (GREMLIN's), and under l1 for
            .05 x sqrt(N log(L A)), N being the sum of the weights of sequences.
        identity: sequences that share at least this part of their columns share one weight; 1 lets each count
            fully, copies apart.
    """

    penalty: Literal["l2", "l1"] = "l2"
    fields: float = 0.01
    couplings: float | None = None
    identity: Share = 0.8

    def __post_init__(self) -> None:
        numbers = (self.fields, 0.0 if self.couplings is None else self.couplings)
        if self.penalty not in ("l2", "l1"):
            raise UsageError(f"model.overrides.penalty must be l2 or l1, not {self.penalty!r}")
        if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
            raise UsageError("model.overrides.fields and .couplings are weights of 0 or more")
        if not isinstance(self.identity, int | float) or not 0 < self.identity <= 1:
            raise UsageError("model.overrides.identity must lie above 0, up to 1")

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Penalty:
        """The penalty that the settings `model.overrides` of a linear model describe.

        Raises:
            UsageError: an unknown name, or a value that makes no sense.
        """
        names = [setting.name for setting in fields(cls)]
        for name in values:
            if name not in names:
                raise UsageError(f"a linear model has no setting {name!r}{nearest(str(name), names)}")
        if isinstance(identity := values.get("identity"), str):
            with suppress(ValueError):
                values = {**values, "identity": share(identity)}
        return cls(**values)

    def coupling_weight(self, shape: Shape) -> float:
        """The weight of the couplings J in the penalty, for a model of this shape."""
        if self.couplings is not None:
            return self.couplings
        if self.penalty == "l2":
            return 0.2 * (shape.columns - 1)
        return 0.05 * math.sqrt(shape.sequences * math.log(shape.columns * len(shape.symbols)))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The columns and states of a linear model; kept in config.json.

    Args:
        columns: L, tokens of a sequence between its start and end token.
        lead, trail: tokens in front of the columns and behind them (0 or 1).
        symbols: (A,) the ids of the states, ascending.
        sequences: effective number of training sequences, the sum of their weights.
    """

    columns: int
    lead: int
    trail: int
    symbols: tuple[int, ...]
    sequences: float
    model_type: str = MODEL_TYPE

    def __post_init__(self) -> None:
        if not (self.columns >= 1 and self.symbols and list(self.symbols) == sorted(set(self.symbols))):
            raise UsageError("a linear model has at least one column, and its states ascend")
        size = self.columns * (self.columns - 1) // 2 * len(self.symbols) ** 2
        if size > MOST_COUPLINGS:
            raise UsageError(
                f"a linear model of {self.columns} columns and {len(self.symbols)} states has {size:,} "
                f"couplings, more than the {MOST_COUPLINGS:,} that fit; use fewer columns, or --size tiny"
            )

    @property
    def length(self) -> int:
        """Tokens of a sequence, start and end included."""
        return self.lead + self.columns + self.trail

    @property
    def hidden_size(self) -> int:
        """Numbers behind each answer."""
        return len(self.symbols)

    def states(self, ids: NDArray[np.integer] | Tensor, size: int) -> Tensor:
        """Token ids, of any shape, as states; A for what is none.

        Args:
            size: of the vocabulary.
        """
        tokens = torch.as_tensor(ids).long()
        table = torch.full((size,), len(self.symbols), device=tokens.device)
        table[torch.tensor(self.symbols, device=tokens.device)] = torch.arange(
            len(self.symbols), device=tokens.device
        )
        return table[tokens]


class Potts(nn.Module):
    """The parameters; what a folder keeps.

    Attributes:
        fields: (L, A) h.
        couplings: (L (L - 1) / 2, A, A) J_ij of all i < j, in the order (0, 1), (0, 2) ... (1, 2) ...
    """

    def __init__(self, config: Shape) -> None:
        super().__init__()
        self.config = config
        length, states = config.columns, config.hidden_size
        self.fields = nn.Parameter(torch.zeros(length, states))
        self.couplings = nn.Parameter(torch.zeros(length * (length - 1) // 2, states, states))

    def full_couplings(self) -> Tensor:
        """(L, A, L, A) J, symmetric, 0 where i = j."""
        return spread(self.couplings, self.config.columns)

    def save_pretrained(self, directory: Path) -> None:
        """Write config.json and model.safetensors."""
        values = {**asdict(self.config), "architectures": ["LinearMaskedModel"]}
        (directory / foreign.CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def spread(couplings: Tensor, columns: int) -> Tensor:
    """(L, A, L, A) from (L (L - 1) / 2, A, A)."""
    states = couplings.shape[-1]
    i, j = torch.triu_indices(columns, columns, 1, device=couplings.device)
    out = couplings.new_zeros(columns, columns, states, states)
    out = out.index_put((i, j), couplings).index_put((j, i), couplings.transpose(1, 2))
    return out.permute(0, 2, 1, 3)


class LinearRows(nn.Module):
    """A linear masked model for packed rows; asked as `seqmlm.engine.model.MaskedRows` is.

    Symbols that never occurred in training have together the probability of one sequence more, 1 / (N + 1),
    in equal parts; the states share the rest.

    Args:
        model: its parameters.
        space: the vocabulary.
    """

    excluded: Tensor
    probability: Literal["ordinary"] = "ordinary"
    channels = None
    layers = None
    has_hidden_states: ClassVar[bool] = False

    def __init__(self, model: Potts, space: TokenSpace) -> None:
        super().__init__()
        symbols = np.array(model.config.symbols)
        if symbols[-1] >= space.size or space.is_special[symbols].any():
            raise UsageError("the states of a linear model are ordinary ids of its vocabulary")
        self.model, self.space = model, space
        self.register_buffer("excluded", torch.tensor(sorted(space.special)), persistent=False)
        self._unseen = np.setdiff1d(space.ordinary, symbols)
        self._kept: tuple[tuple[Any, ...], Tensor] | None = None

    @property
    def columns(self) -> int:
        """Columns of the rows that it reads, without start and end."""
        edges = sum(token is not None for token in (self.space.start, self.space.end))
        return self.model.config.length - edges

    @property
    def weights_per_token(self) -> int:
        """About how many weights a token is multiplied by: sums over columns for each state."""
        return self.model.fields.numel()

    def forward(
        self,
        batch: Any,
        *,
        output: Literal["loss", "logits", "hidden"] = "loss",
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Loss or logits at the asked positions, see `MaskedRows.forward`; masked tokens tell nothing.

        Raises:
            UsageError: hidden states, which it does not have; a sequence of another length; a start or end
                token that is asked about; a loss without targets.
        """
        assert isinstance(batch, PackedBatch)
        if output == "hidden":
            raise UsageError(
                "a linear model has no hidden states: use a model of --size tiny, small or base for that"
            )
        logits = self._logits(batch)
        if output == "logits":
            return logits
        if batch.targets is None:
            raise UsageError("this packed batch has no targets: use output='logits'")
        nll = -torch.log_softmax(logits, -1).gather(1, batch.targets[:, None])[:, 0]
        return (nll if batch.weights is None else nll * batch.weights).sum()

    def _logits(self, batch: PackedBatch) -> Tensor:
        """(Q, V) fp32, -inf at special ids."""
        shape = self.model.config
        check_length(batch.lengths, shape.length)
        ids = batch.input_ids[0].view(-1, shape.length)[:, shape.lead : shape.lead + shape.columns]
        states = shape.states(ids, self.space.size)
        document, column = batch.asked // shape.length, batch.asked % shape.length - shape.lead
        if len(column) and (int(column.min()) < 0 or int(column.max()) >= shape.columns):
            raise UsageError("a start or end token has no probability: ask about columns alone")
        state_logits = self.model.fields[column] + self._sums(states, document, column)
        out = state_logits.new_full((len(state_logits), self.space.size), -math.inf, dtype=torch.float32)
        out = out.index_copy(1, torch.tensor(shape.symbols, device=state_logits.device), state_logits.float())
        if len(self._unseen):
            unseen_logits = torch.logsumexp(state_logits.float(), 1) - math.log(
                shape.sequences * len(self._unseen)
            )
            unseen = torch.from_numpy(self._unseen).to(state_logits.device).long()
            out = out.index_copy(1, unseen, unseen_logits[:, None].expand(-1, len(unseen)).contiguous())
        return out

    def _sums(self, states: Tensor, document: Tensor, column: Tensor) -> Tensor:
        """(Q, A) what all columns of its sequence (D, L) add to the field of each asked one."""
        length = self.model.config.columns
        table, width = self._table(), len(self.model.config.symbols) + 1
        first = (torch.arange(length, device=states.device) * width + states) * length
        sums = [
            nn.functional.embedding_bag(first[d] + c[:, None], table, mode="sum")
            for d, c in zip(
                *(torch.split(index, max(1, _CHUNK // length)) for index in (document, column)), strict=True
            )
        ]
        return torch.cat(sums) if sums else table.new_zeros(0, width - 1)

    def _table(self) -> Tensor:
        """(L (A + 1) L, A): what state b (A: none) in column j adds to column i, at (j (A + 1) + b) L + i."""
        couplings = self.model.couplings
        key = (couplings._version, couplings.data_ptr(), couplings.device, couplings.dtype)
        if not torch.is_grad_enabled() and self._kept is not None and self._kept[0] == key:
            return self._kept[1]
        full = self.model.full_couplings().permute(2, 3, 0, 1)  # (L_j, A_b, L_i, A_a)
        table = torch.cat([full, full.new_zeros(len(full), 1, *full.shape[2:])], dim=1)
        table = table.reshape(-1, full.shape[-1])
        if not torch.is_grad_enabled():
            self._kept = (key, table)
        return table


def check_length(lengths: Collection[int], length: int) -> None:
    """Refuse sequences of another length than a linear model's.

    Raises:
        UsageError: there is one.
    """
    wrong_length = next((tokens for tokens in lengths if tokens != length), None)
    if wrong_length is not None:
        raise UsageError(
            f"a sequence of {wrong_length} tokens for a linear model of {length}, start and end included: it "
            "reads aligned sequences, all of one length; for others train a model of --size tiny, small or "
            "base"
        )


def load(reference: str | Path, space: TokenSpace) -> LinearRows | None:
    """The linear model of a folder; None where it is another kind of model.

    Raises:
        StateError: it is damaged, or does not fit the vocabulary.
    """
    if not Path(reference).is_dir():
        return None
    values = foreign.settings(reference)
    if values is None or values.get("model_type") != MODEL_TYPE:
        return None
    try:
        settings = {setting.name: values[setting.name] for setting in fields(Shape)}
        shape = Shape(**{**settings, "symbols": tuple(map(int, settings["symbols"]))})
        model, tensors = Potts(shape), foreign.Weights(reference).tensors()
        model.load_state_dict(tensors)
        return LinearRows(model, space).eval()
    except (LookupError, TypeError, ValueError, RuntimeError, UsageError) as error:
        reason = " ".join(str(error).split())
        raise StateError(
            f"{reference} is no linear model that can be used ({reason}); copy it again from where it is "
            "whole, or train it again"
        ) from None


# What is read of a trained model


def zero_sum(model: Potts) -> Doubles:
    """(L, A, L, A) the couplings in the gauge where sums over the states of either column are 0.

    Of all couplings that give the same probabilities these are the smallest (Weigt et al. 2009).
    """
    full: Doubles = model.full_couplings().detach().double().cpu().numpy()
    full = full - full.mean(axis=1, keepdims=True)
    return np.asarray(full - full.mean(axis=3, keepdims=True))


def coupling_norms(model: Potts) -> Doubles:
    """(L, L) Frobenius norms of the couplings of two columns in the zero-sum gauge, 0 on the diagonal."""
    return np.asarray(np.sqrt((zero_sum(model) ** 2).sum(axis=(1, 3))))


def columns_of(model: Potts, tokens: int) -> Longs:
    """(T,) the column of each token of a sequence, -1 for the start and end token.

    Raises:
        UsageError: a sequence of another length.
    """
    shape = model.config
    check_length([tokens], shape.length)
    return np.array([*[-1] * shape.lead, *range(shape.columns), *[-1] * shape.trail], dtype=np.int64)

"""A linear masked model: p(x_i | rest) = softmax(h_i + sum over j of J_ij(., x_j)), for rows of one length.

On the columns of a protein family it is the Potts model of GREMLIN (Kamisetty et al. 2013) and of plmDCA
(Ekeberg et al. 2013). `seqmlm.engine.pseudolikelihood` trains it.

States are the ordinary symbols that occur in the training data: 20 for clean protein alignments. A gap,
[MASK] or any other special token is not a state. It is not predicted and does not affect other columns. Runs
of gaps are common in alignments. They would otherwise look like dependence.

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
"""The type of this model in config.json."""

MOST_COUPLINGS = 1 << 28
"""Largest number of couplings in J (1 GiB of fp32).

Memory use is three times that, and thirty times that in training.
"""

_CHUNK = 1 << 24  # number of elements that are processed together

Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """The penalty that keeps couplings small, and the weights of sequences.

    Args:
        penalty: "l2" adds the sum of the squared couplings. "l1" adds the sum of their absolute values,
            which leaves most of them at 0.
        fields: factor of the sum of squares of h; 0 or more.
        couplings: factor of the penalty on J; 0 or more. For l2, None is .2 x (L - 1), as in GREMLIN. For
            l1, None is .05 x sqrt(N log(L A)), where N is the sum of the weights of sequences.
        identity: fraction of equal columns, above 0 up to 1, from which sequences share one weight. With 1,
            each sequence has weight 1.

    Raises:
        UsageError: a setting is out of range.
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
            raise UsageError("model.overrides.fields and .couplings must be numbers of 0 or more")
        if not isinstance(self.identity, int | float) or not 0 < self.identity <= 1:
            raise UsageError(f"model.overrides.identity must be above 0 and at most 1, not {self.identity!r}")

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Penalty:
        """The penalty according to the settings `model.overrides` of a linear model.

        Raises:
            UsageError: a name is unknown, or a value is not valid.
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
        """The factor of the penalty on the couplings J, for a model of this shape."""
        if self.couplings is not None:
            return self.couplings
        if self.penalty == "l2":
            return 0.2 * (shape.columns - 1)
        return 0.05 * math.sqrt(shape.sequences * math.log(shape.columns * len(shape.symbols)))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The columns and states of a linear model, stored in config.json.

    Args:
        columns: L, the number of tokens between start and end token.
        lead, trail: number of tokens before and after the columns (0 or 1).
        symbols: (A,) ids of the states, ascending.
        sequences: effective number of training sequences, the sum of their weights.
        model_type: the type of the model in config.json.

    Raises:
        UsageError: there is no column, the states do not ascend, or there are too many couplings.
    """

    columns: int
    lead: int
    trail: int
    symbols: tuple[int, ...]
    sequences: float
    model_type: str = MODEL_TYPE

    def __post_init__(self) -> None:
        if not (self.columns >= 1 and self.symbols and list(self.symbols) == sorted(set(self.symbols))):
            raise UsageError("a linear model needs at least one column, and states in ascending order")
        size = self.columns * (self.columns - 1) // 2 * len(self.symbols) ** 2
        if size > MOST_COUPLINGS:
            raise UsageError(
                f"a linear model of {self.columns} columns and {len(self.symbols)} states has {size:,} "
                f"couplings, but at most {MOST_COUPLINGS:,} fit; use fewer columns, or --size tiny"
            )

    @property
    def length(self) -> int:
        """Number of tokens of a sequence, including start and end."""
        return self.lead + self.columns + self.trail

    @property
    def hidden_size(self) -> int:
        """Number of values that each prediction is computed from: the number of states."""
        return len(self.symbols)

    def states(self, ids: NDArray[np.integer] | Tensor, size: int) -> Tensor:
        """The state of each token id, of the same shape; A for tokens that are not states.

        Args:
            ids: token ids, of any shape.
            size: size of the vocabulary.
        """
        tokens = torch.as_tensor(ids).long()
        table = torch.full((size,), len(self.symbols), device=tokens.device)
        table[torch.tensor(self.symbols, device=tokens.device)] = torch.arange(
            len(self.symbols), device=tokens.device
        )
        return table[tokens]


class Potts(nn.Module):
    """The parameters of a linear model, which are stored in its folder.

    Attributes:
        fields: (L, A) h.
        couplings: (L (L - 1) / 2, A, A) J_ij for all i < j, in the order (0, 1), (0, 2) ... (1, 2) ...
    """

    def __init__(self, config: Shape) -> None:
        super().__init__()
        self.config = config
        length, states = config.columns, config.hidden_size
        self.fields = nn.Parameter(torch.zeros(length, states))
        self.couplings = nn.Parameter(torch.zeros(length * (length - 1) // 2, states, states))

    def full_couplings(self) -> Tensor:
        """(L, A, L, A) J, symmetric, 0 for i = j."""
        return spread(self.couplings, self.config.columns)

    def save_pretrained(self, directory: Path) -> None:
        """Write config.json and model.safetensors into a folder."""
        values = {**asdict(self.config), "architectures": ["LinearMaskedModel"]}
        (directory / foreign.CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def spread(couplings: Tensor, columns: int) -> Tensor:
    """(L, A, L, A) couplings from (L (L - 1) / 2, A, A)."""
    states = couplings.shape[-1]
    i, j = torch.triu_indices(columns, columns, 1, device=couplings.device)
    out = couplings.new_zeros(columns, columns, states, states)
    out = out.index_put((i, j), couplings).index_put((j, i), couplings.transpose(1, 2))
    return out.permute(0, 2, 1, 3)


class LinearRows(nn.Module):
    """A linear masked model for packed rows, with the interface of `seqmlm.engine.model.MaskedRows`.

    Symbols that do not occur in the training data have a total probability of 1 / (N + 1), as if one more
    sequence had been seen. They share it equally. The states share the rest.

    Args:
        model: the parameters.
        space: the vocabulary.

    Raises:
        UsageError: a state is a special id, or is not in the vocabulary.
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
            raise UsageError("the states of a linear model must be ordinary ids of its vocabulary")
        self.model, self.space = model, space
        self.register_buffer("excluded", torch.tensor(sorted(space.special)), persistent=False)
        self._unseen = np.setdiff1d(space.ordinary, symbols)
        self._kept: tuple[tuple[Any, ...], Tensor] | None = None

    @property
    def columns(self) -> int:
        """Number of columns of the rows that it reads, without start and end."""
        edges = sum(token is not None for token in (self.space.start, self.space.end))
        return self.model.config.length - edges

    @property
    def weights_per_token(self) -> int:
        """Approximate number of weights per token: sums over columns for each state."""
        return self.model.fields.numel()

    def forward(
        self,
        batch: Any,
        *,
        output: Literal["loss", "logits", "hidden"] = "loss",
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Loss or logits at the queried positions; see `MaskedRows.forward`.

        Masked tokens do not affect other columns.

        Raises:
            UsageError: hidden states are requested, which a linear model does not have. Also for a sequence
                of another length, a query for a start or end token, or a loss without targets.
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
        """(Q, V) fp32 logits, -inf at special ids."""
        shape = self.model.config
        check_length(batch.lengths, shape.length)
        ids = batch.input_ids[0].view(-1, shape.length)[:, shape.lead : shape.lead + shape.columns]
        states = shape.states(ids, self.space.size)
        document, column = batch.asked // shape.length, batch.asked % shape.length - shape.lead
        if len(column) and (int(column.min()) < 0 or int(column.max()) >= shape.columns):
            raise UsageError("a start or end token has no probability; query only columns")
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
        """(Q, A) sum of the couplings of all columns of a sequence (D, L), for each queried column."""
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
        """(L (A + 1) L, A) term of state b in column j for column i, in row (j (A + 1) + b) L + i.

        b = A is for tokens that are not states; its terms are 0.
        """
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
    """Refuse sequences whose length differs from the length that a linear model reads.

    Args:
        lengths: numbers of tokens.
        length: number of tokens that the model reads.

    Raises:
        UsageError: a length differs.
    """
    wrong_length = next((tokens for tokens in lengths if tokens != length), None)
    if wrong_length is not None:
        raise UsageError(
            f"a sequence has {wrong_length} tokens, but this linear model reads only {length}; align all to "
            "one length, or train with --size tiny, small or base"
        )


def load(reference: str | Path, space: TokenSpace) -> LinearRows | None:
    """The linear model in a folder, or None if the folder has another kind of model.

    Raises:
        StateError: the model is damaged, or does not fit the vocabulary.
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
            f"{reference} is not a usable linear model ({reason}); copy it again from an intact folder, "
            "or train it again"
        ) from None


# Values computed from a trained model


def zero_sum(model: Potts) -> Doubles:
    """(L, A, L, A) couplings in the gauge where the sums over the states of either column are 0.

    They have the smallest norm among all couplings that give the same probabilities (Weigt et al. 2009).
    """
    full: Doubles = model.full_couplings().detach().double().cpu().numpy()
    full = full - full.mean(axis=1, keepdims=True)
    return np.asarray(full - full.mean(axis=3, keepdims=True))


def coupling_norms(model: Potts) -> Doubles:
    """(L, L) Frobenius norms of the couplings of two columns in the zero-sum gauge; 0 on the diagonal."""
    return np.asarray(np.sqrt((zero_sum(model) ** 2).sum(axis=(1, 3))))


def columns_of(model: Potts, tokens: int) -> Longs:
    """(T,) column of each token of a sequence; -1 for the start and end token.

    Args:
        model: the model.
        tokens: number of tokens of the sequence.

    Raises:
        UsageError: the sequence has another length.
    """
    shape = model.config
    check_length([tokens], shape.length)
    return np.array([*[-1] * shape.lead, *range(shape.columns), *[-1] * shape.trail], dtype=np.int64)

"""Attention over packed rows: a function for transformers that never attends across documents.

A packed row (1, T) contains D documents one after another. The encoders of transformers do not know this: if
they get only `position_ids`, every token attends to the whole row. `packed_attention` is therefore
registered with transformers' `AttentionInterface` under the name "seqmlm". A `RowLayout` tells it where the
documents are. The layout is built once for each batch and passed to the layers as a keyword argument of the
model.

Two kernels compute the same numbers:

* "varlen": `torch.nn.attention.varlen.varlen_attn` (flash attention), on CUDA in bf16 or fp16;
* "grouped": everywhere else. Documents of similar length form one padded block of (N, heads, M, head size),
  which one call of `scaled_dot_product_attention` processes.

With short documents, one call for each document would be slow because of the overhead of each call. It takes
3 times as long as grouped calls at 25 tokens. One call for all documents would waste time on padding if
lengths differ.
`group_by_length` balances the two. The index tensors are built once for each batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface

from seqmlm.engine.types import Longs, ranges
from seqmlm.errors import UsageError

NAME = "seqmlm"

Move = Callable[[Tensor], Tensor]


class _MoveRows(torch.autograd.Function):
    """Move rows into slots, or out of them; the gradients move in the opposite direction."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, move: Move, move_gradients: Move) -> Tensor:
        ctx.move_gradients = move_gradients
        return move(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.move_gradients(grads[0]), None, None


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: Grouping, *, scaling: float | None, dropout: float
) -> Tensor:
    """Exact attention within documents, with one SDPA call for each group of documents of similar length.

    Args:
        query, key, value: (T, heads, head size) of one row.
        plan: from `RowLayout.plan`, for all tokens.
        scaling: factor on the attention scores; None for head size ** -0.5.
        dropout: probability of dropping an attention weight, 0 to 1.

    Returns:
        (T, heads, head size).
    """
    moves = ((plan.to_queries, plan.to_rows), *[(plan.to_keys, plan.sum_keys)] * 2)
    inputs: list[Tensor] = [
        _MoveRows.apply(tokens, *move)  # type: ignore[no-untyped-call]
        for tokens, move in zip((query, key, value), moves, strict=True)
    ]
    sizes = [(g.blocks * g.queries, g.blocks * g.keys) for g in plan.groups]
    split = [
        torch.split(slots, [size[kind] for size in sizes])
        for slots, kind in zip(inputs, (0, 1, 1), strict=True)
    ]
    outputs = []
    for group, *parts in zip(plan.groups, *split, strict=True):
        q, k, v = (part.unflatten(0, (group.blocks, -1)).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    slots = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    rows: Tensor = _MoveRows.apply(slots, plan.to_rows, plan.to_slots)  # type: ignore[no-untyped-call]
    return rows


# The number of groups differs between batches: compiled code would be recompiled for each batch.
_grouped_eager: Callable[..., Tensor] = torch.compiler.disable(  # type: ignore[no-untyped-call]
    grouped_attention
)


@cache
def _varlen() -> Callable[..., Any] | None:
    """The varlen kernel of torch, or None if this version has no varlen kernel with windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has_windows = {"scale", "window_size"} <= set(inspect.signature(varlen_attn).parameters)
    return varlen_attn if has_windows else None


def attention_path(device: torch.device, dtype: torch.dtype, head_size: int = 64) -> str:
    """The kernel that packed rows use, and the reason for it.

    Args:
        device: device of queries, keys and values.
        dtype: their type; under autocast, the type that autocast computes in.
        head_size: number of features of one head.

    Returns:
        "varlen: ..." or "grouped: ...".
    """
    if device.type != "cuda":
        return f"grouped: {device.type} has no varlen kernel"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"grouped: the varlen kernel computes in bf16 or fp16, not {dtype}"
    if head_size % 8 or head_size > 256:
        return f"grouped: the varlen kernel takes heads of 8, 16 ... 256 features, not {head_size}"
    if _varlen() is None:
        return f"grouped: torch {torch.__version__} has no varlen kernel with windows"
    return "varlen: flash attention over cu_seq_lens"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    layout: RowLayout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Exact attention within each document of one packed row, without attention across documents.

    transformers calls this function under the name "seqmlm".

    Args:
        module: the attention module; its settings arrive as the other arguments.
        query, key, value: (1, heads, T, head size).
        attention_mask: must be None, because a packed row has no padding.
        scaling: factor on the attention scores; None for head size ** -0.5.
        dropout: probability of dropping an attention weight (0 outside training).
        sliding_window: tokens to each side plus one, as in transformers; None for all tokens.
        layout: boundaries of the documents.

    Returns:
        (1, T, heads, head size), and None in place of the attention weights.

    Raises:
        UsageError: no layout, a padded batch, or dropout that the kernel does not support.
    """
    if layout is None or attention_mask is not None:
        raise UsageError(
            "the attention of this model expects packed rows, but got a padded batch; call the model through "
            "MaskedRows, or run model.set_attn_implementation('sdpa') first"
        )
    window = None if sliding_window is None else sliding_window - 1
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    q, k = q.to(v.dtype), k.to(v.dtype)
    if attention_path(v.device, v.dtype, v.shape[-1]).startswith("varlen"):
        if dropout > 0:
            raise UsageError(
                f"the varlen kernel of this device does not support attention dropout ({dropout}); set "
                "the model's attention dropout to 0, or train in fp32"
            )
        kernel, sides = _varlen(), (-1, -1) if window is None else (window, window)
        assert kernel is not None
        cu, longest = layout.cu_seq_lens, layout.max_length
        out = kernel(q, k, v, cu, cu, longest, longest, scale=scaling, window_size=sides)
        return out[None], None
    plan = layout.plan(v.shape[-1] * v.shape[-2], window)
    return _grouped_eager(q, k, v, plan, scaling=scaling, dropout=dropout)[None], None


AttentionInterface.register(NAME, packed_attention)


# Cost of one more attention call for a width (heads x head size) of 256, in the same unit as `block_cost`.
_CALL_COST = 10_000
# Cost of moving the queries, keys and values of a row into slots, and its results out of them.
_GATHER_COST = 30
_FEWEST_QUERIES = 16
_NONE = -1


@dataclass(frozen=True, eq=False)
class Group:
    """N blocks that are padded to the same size and attended to in one call.

    Args:
        blocks: N, the number of blocks.
        queries, keys: A and M, the number of query slots and key slots of each block.
        mask: True where a query may attend: (N, 1, 1 or A, M), or (1, 1, A, M) for all blocks together. None
            if each query may attend to all keys.
    """

    blocks: int
    queries: int
    keys: int
    mask: Tensor | None

    @property
    def is_shared(self) -> bool:
        """Whether one mask applies to all blocks."""
        return self.mask is not None and len(self.mask) < self.blocks

    @cached_property
    def bias(self) -> Tensor | None:
        """The mask as fp32 terms to add to the attention scores: 0 where a query may attend, else -inf."""
        if self.mask is None:
            return None
        return torch.zeros(self.mask.shape, device=self.mask.device).masked_fill_(~self.mask, float("-inf"))


@dataclass(frozen=True, eq=False)
class Grouping:
    """The slots of tokens in attention calls: P query slots and K key slots, over all groups in order.

    Args:
        groups: the calls.
        queries: (P,) token that each query slot reads; None if slot i reads token i.
        outputs: (R,) slot that contains the result of each requested row.
        rows: (P,) row of each query slot (0 for padded slots); the inverse of `outputs`.
        padding: query slots without a row.
        keys: (K,) token that each key slot reads; None if slot i reads token i.
        sources: key slots that read token 0, followed by those that read token 1, and so on.
        offsets: (T,) index in `sources` where the slots of each token begin; None if every token has exactly
            one slot.
    """

    groups: tuple[Group, ...]
    queries: Tensor | None
    outputs: Tensor
    rows: Tensor
    padding: Tensor
    keys: Tensor | None
    sources: Tensor
    offsets: Tensor | None

    def to_queries(self, tokens: Tensor) -> Tensor:
        """The query slots (P, ...) of the tokens (T, ...)."""
        return tokens if self.queries is None else tokens.index_select(0, self.queries)

    def to_keys(self, tokens: Tensor) -> Tensor:
        """The key slots (K, ...) of the tokens (T, ...)."""
        return tokens if self.keys is None else tokens.index_select(0, self.keys)

    def to_rows(self, slots: Tensor) -> Tensor:
        """The requested rows (R, ...) from the query slots (P, ...)."""
        return slots if self.queries is None else slots.index_select(0, self.outputs)

    def to_slots(self, rows: Tensor) -> Tensor:
        """The query slots (P, ...) of the rows (R, ...), 0 where padded; the gradient of `to_rows`."""
        if self.queries is None:
            return rows
        return rows.index_select(0, self.rows).index_fill_(0, self.padding, 0)

    def sum_keys(self, slots: Tensor) -> Tensor:
        """The sums (T, ...) of all key slots (K, ...) that read each token; the gradient of `to_keys`."""
        if self.keys is None:
            return slots
        if self.offsets is None:
            return slots.index_select(0, self.sources)
        sums = F.embedding_bag(self.sources, slots.flatten(1), self.offsets, mode="sum")
        return sums.view(-1, *slots.shape[1:])


@dataclass(eq=False)
class RowLayout:
    """The documents of one packed row. All layers share its plans.

    Args:
        cu_seq_lens: (D + 1,) int32 offsets of the documents, on the device of the model.
        lengths: number of tokens of each of the D documents, at least 1.
    """

    cu_seq_lens: Tensor
    lengths: tuple[int, ...]
    _plans: dict[tuple[int, int | None], Grouping] = field(default_factory=dict, repr=False)

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest document."""
        return max(self.lengths)

    def plan(self, width: int, window: int | None, query_tokens: Tensor | None = None) -> Grouping:
        """The attention calls for a width and a window.

        Args:
            width: heads x head size.
            window: number of tokens to each side that a token attends to; None for all.
            query_tokens: (R,) tokens whose attention is needed; None for all tokens in order. Plans for None
                are cached.
        """
        if window is not None and self.max_length - 1 <= window:
            window = None
        if query_tokens is not None:
            return _plan(self.lengths, width, window, query_tokens.cpu().numpy(), self.cu_seq_lens.device)
        if (width, window) not in self._plans:
            self._plans[width, window] = _plan(self.lengths, width, window, None, self.cu_seq_lens.device)
        return self._plans[width, window]


def call_cost(width: int) -> int:
    """Cost of one more attention call for a width (heads x head size), in the same unit as `block_cost`."""
    return _CALL_COST * 256 // max(width, 1)


def block_cost(queries: int, keys: int) -> int:
    """Cost of a block: work for each query, plus work for each pair of query and key (measured on CPU)."""
    return queries * (40 + keys)


def group_by_length(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Split documents into groups of similar length, from the longest to the shortest.

    A group grows while its padding is cheaper than another call. If the documents are sorted by descending
    length and have few different lengths, each length gets its own group. In this case the slots are the
    tokens in order, and no token has to be moved.

    Args:
        lengths: number of tokens of each document.
        width: heads x head size.

    Returns:
        For each group, a list of document indices.
    """
    budget = call_cost(width)
    groups: list[list[int]] = []
    sizes = np.asarray(lengths)
    changes = np.flatnonzero(np.diff(sizes)) + 1
    if (np.diff(sizes) <= 0).all() and len(changes) * budget <= _GATHER_COST * int(sizes.sum()):
        return [part.tolist() for part in np.split(np.arange(len(sizes)), changes)] if len(sizes) else []
    longest = waste = 0
    for document in sorted(range(len(lengths)), key=lambda d: (-lengths[d], d)):
        length = lengths[document]
        extra = block_cost(longest, longest) - block_cost(length, length)
        if not groups or waste + extra > budget:
            groups.append([])
            longest, waste, extra = length, 0, 0
        groups[-1].append(document)
        waste += extra
    # With one document per call, the slots in row order are the tokens, and no token has to be moved.
    return groups if len(groups) < len(lengths) else sorted(groups)


def _plan(
    lengths: Sequence[int], width: int, window: int | None, query_tokens: Longs | None, device: torch.device
) -> Grouping:
    sizes = np.asarray(lengths, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    whole_documents, cut_documents = list(range(len(sizes))), []
    if window is not None and query_tokens is None:
        cut_documents = [d for d in whole_documents if _worth_cutting(lengths[d], window)]
        whole_documents = [d for d in whole_documents if not _worth_cutting(lengths[d], window)]
    blocks: list[tuple[Longs, Longs]] = []
    if cut_documents:
        blocks.append(_window_blocks(starts[cut_documents], sizes[cut_documents], window or 0))
    for members in group_by_length([lengths[d] for d in whole_documents], width):
        chosen = np.array(whole_documents)[members]
        keys = _padded_tokens(starts[chosen], sizes[chosen])
        rows = keys if query_tokens is None else _rows_by_document(starts, chosen, sizes, query_tokens)
        if rows.shape[1]:
            blocks.append((rows, keys))
    return _make_grouping(blocks, int(sizes.sum()), window, query_tokens, device)


def _worth_cutting(length: int, window: int) -> bool:
    """Whether a document is cheaper as blocks with windows than as a whole with a mask."""
    step = max(window, _FEWEST_QUERIES)
    return -(-length // step) * block_cost(step, step + 2 * window) < block_cost(length, length)


def _padded_tokens(starts: Longs, sizes: Longs) -> Longs:
    """(N, longest) tokens of N documents; -1 in the padding of shorter documents."""
    offsets = np.arange(sizes.max())
    return np.where(offsets < sizes[:, None], starts[:, None] + offsets, _NONE)


def _window_blocks(starts: Longs, sizes: Longs, window: int) -> tuple[Longs, Longs]:
    """(N, A) queries and (N, A + 2 windows) keys of documents cut into N blocks; -1 outside a document."""
    step = max(window, _FEWEST_QUERIES)
    counts = -(-sizes // step)
    document = np.repeat(np.arange(len(sizes)), counts)
    first, last = starts[document][:, None], (starts + sizes)[document][:, None]
    begin = first + ranges(np.zeros_like(counts), counts)[:, None] * step
    queries = begin + np.arange(step)
    keys = begin + np.arange(-window, step + window)
    return (
        np.where(queries < last, queries, _NONE),
        np.where((keys >= first) & (keys < last), keys, _NONE),
    )


def _rows_by_document(starts: Longs, chosen: Longs, sizes: Longs, query_tokens: Longs) -> Longs:
    """(N, most) indices into `query_tokens` of the tokens in each chosen document, padded with -1."""
    document = np.searchsorted(starts, query_tokens, side="right") - 1
    order = np.argsort(document, kind="stable")
    counts = np.bincount(document, minlength=len(sizes))
    begins = (np.cumsum(counts) - counts)[chosen]
    offsets = np.arange(counts[chosen].max())
    inside = offsets < counts[chosen][:, None]
    if not inside.any():
        return np.empty((len(chosen), 0), dtype=np.int64)
    return np.where(inside, order[np.where(inside, begins[:, None] + offsets, 0)], _NONE)


def _make_grouping(
    blocks: list[tuple[Longs, Longs]],
    tokens: int,
    window: int | None,
    query_tokens: Longs | None,
    device: torch.device,
) -> Grouping:
    """The plan for (rows, keys) blocks; a row is a token, or an index into `query_tokens`."""

    def tensor(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    groups, row_parts, query_parts, key_parts = [], [], [], []
    for rows, keys in blocks:
        queries = rows if query_tokens is None else np.where(rows == _NONE, _NONE, query_tokens[rows])
        mask = _mask(queries, keys, window)
        groups.append(Group(len(rows), rows.shape[1], keys.shape[1], None if mask is None else tensor(mask)))
        row_parts.append(rows.ravel())
        query_parts.append(queries.ravel())
        key_parts.append(keys.ravel())
    empty = [np.empty(0, dtype=np.int64)]
    rows, queries, keys = (np.concatenate(arrays or empty) for arrays in (row_parts, query_parts, key_parts))
    filled = np.flatnonzero(rows != _NONE)
    outputs = np.empty(tokens if query_tokens is None else len(query_tokens), dtype=np.int64)
    outputs[rows[filled]] = filled
    real = np.flatnonzero(keys != _NONE)
    counts = np.bincount(keys[real], minlength=tokens)
    sources = real[np.argsort(keys[real], kind="stable")]
    each_key_once = len(real) == tokens and bool((counts == 1).all())
    queries_in_order = (
        len(queries) == tokens and bool((queries == np.arange(tokens)).all()) and query_tokens is None
    )
    keys_in_order = len(keys) == tokens and bool((keys == np.arange(tokens)).all())
    return Grouping(
        groups=tuple(groups),
        queries=None if queries_in_order else tensor(np.maximum(queries, 0)),
        outputs=tensor(outputs),
        rows=tensor(np.maximum(rows, 0)),
        padding=tensor(np.flatnonzero(rows == _NONE)),
        keys=None if keys_in_order else tensor(np.maximum(keys, 0)),
        sources=tensor(sources),
        offsets=None if each_key_once else tensor(np.cumsum(counts) - counts),
    )


def _mask(queries: Longs, keys: Longs, window: int | None) -> NDArray[np.bool_] | None:
    """(N, 1, 1 or A, M) mask from tokens (N, A) and (N, M); None if every query may attend to all keys."""
    real = keys != _NONE
    if window is None or keys.shape[1] - 1 <= window:
        return None if bool(real.all()) else real[:, None, None, :]
    near: NDArray[np.bool_] = np.abs(queries[:, :, None] - keys[:, None, :]) <= window
    allowed: NDArray[np.bool_] = near & real[:, None, :]
    # A query slot without a token would attend to nothing and give NaN. It attends to the first key instead.
    allowed[:, :, 0] |= queries == _NONE
    return allowed[:, None]


def compile_layers(module: nn.Module) -> None:
    """Compile each transformer layer in place, for rows of any number of tokens.

    The names of parameters do not change. Attention runs uncompiled in the middle of its layer. Its code
    depends on document lengths, which are Python integers and differ in every row. The compiler would
    recompile it for each row until it gives up.
    """
    uncompiled = torch.compiler.disable(packed_attention)  # type: ignore[no-untyped-call]
    AttentionInterface.register(NAME, uncompiled)
    for part in module.modules():
        if isinstance(part, nn.ModuleList):
            for layer in part:
                layer.compile(dynamic=True)

"""Ask a masked language model for p(token | the rest) or for hidden states: the only place that does this.

Queries are processed in a bounded look-ahead. Equal queries are computed once. The rest are packed by length
into a token budget. They are computed as differences from their sequences if that is cheaper
(`seqmlm.engine.cones`). Answers are returned in the order of the queries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqmlm.engine.backbones import position_capacity
from seqmlm.engine.cones import ConeBatch
from seqmlm.engine.device import autocast, compute_dtype, is_out_of_memory, resolve_precision
from seqmlm.engine.layout import Layout, lay_out
from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reductions import Reduced, Reduction, TargetLogProb, reduce_logits, union
from seqmlm.engine.types import Encoding, Floats, Longs, Precision
from seqmlm.errors import NotFiniteError, TrainingError, UsageError

if TYPE_CHECKING:
    from seqmlm.engine.linear import LinearRows
    from seqmlm.engine.model import MaskedRows

__all__ = ["Answer", "Conditionals", "ForwardStatistics", "Query", "evaluation_mode"]

# Largest number of logits in one forward pass (256 MiB of fp32), and of values kept for one look-ahead.
LOGITS = 1 << 26
# Tokens of one forward pass: enough to keep a GPU busy; on a CPU (True), few enough to stay in its caches.
TOKENS_PER_BATCH = {False: 16384, True: 4096}
# The same if only hidden states are requested: nearly as fast, with less memory.
STATE_TOKENS_PER_BATCH = {False: 16384, True: 2048}
# Token ids of all masked copies that are laid out together (16 MiB).
WINDOW_TOKENS = 1 << 22

TARGET: tuple[Reduction, ...] = (TargetLogProb(),)


@dataclass(slots=True)
class ForwardStatistics:
    """Counts of the queries so far, their masked copies, and the computations for them.

    Args:
        queries: number of queries.
        variants: number of masked copies in these queries.
        unique: number of distinct documents that were computed.
        forwards: number of forward passes.
        tokens: number of tokens in documents that were computed whole. A copy computed as a difference
            counts as the number of tokens that it costs.
    """

    queries: int = 0
    variants: int = 0
    unique: int = 0
    forwards: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """How one kind of request is computed.

    Args:
        compute: (batch, its layout, its first document, the document after its last) -> the values to keep.
        per: name of each value -> whether it belongs to a row or to a target.
        rows_limit: largest number of queried rows in one forward pass.
        width: number of values kept for each queried position.
        tokens: largest number of tokens in one forward pass, whatever the budget is.
        is_random: whether answers are random. Equal queries then get separate answers.
        copies: whether sequences may be computed as differences from each other (`seqmlm.engine.cones`).
    """

    compute: Callable[[PackedBatch | ConeBatch, Layout, int, int], list[Reduced]]
    per: Mapping[str, Literal["row", "target"]]
    rows_limit: int
    width: int
    tokens: float = float("inf")
    is_random: bool = False
    copies: bool = False


class Conditionals:
    """Answers queries with one model.

    Args:
        rows: the masked or linear model. It is used in evaluation mode without gradients. Its own mode is
            restored after each look-ahead.
        tokens_per_batch: token budget of one forward pass; None for a default that suits the device. It is
            halved, permanently, when memory runs out.
        device: device to compute on; the model is moved there. None for the current device of the model.
        precision: "fp32" is exact to rounding. "bf16" changes log-probabilities by up to some hundredths.
            "auto" is bfloat16 on a GPU that supports it, else float32.
        lookahead: number of masked copies that are de-duplicated and packed together. The input is read this
            far ahead of the answers.

    Attributes:
        statistics: counts of the queries so far.
        on_forward: function that is called after each forward pass.

    Raises:
        UsageError: `tokens_per_batch` or `lookahead` is below 1.
    """

    def __init__(
        self,
        rows: MaskedRows | LinearRows,
        *,
        tokens_per_batch: int | None = None,
        device: torch.device | str | None = None,
        precision: Precision = "fp32",
        lookahead: int = 8192,
    ) -> None:
        if (tokens_per_batch is not None and tokens_per_batch < 1) or lookahead < 1:
            raise UsageError("tokens_per_batch and lookahead must be at least 1")
        self.rows = rows if device is None else rows.to(device)
        self.space = rows.space
        self.device = next(rows.parameters()).device
        self.precision = resolve_precision(precision, self.device)
        self.dtype = compute_dtype(self.precision, self.device)
        self.tokens_per_batch = tokens_per_batch or TOKENS_PER_BATCH[self.device.type == "cpu"]
        self.lookahead = lookahead
        self.statistics = ForwardStatistics()
        self.on_forward: Callable[[], object] = lambda: None
        self._capacity = position_capacity(rows.model)

    def ask(
        self,
        queries: Iterable[Query],
        want: Collection[Reduction] = TARGET,
    ) -> Iterator[Answer]:
        """Answer queries lazily and in order.

        An answer does not depend on the other queries, except for rounding.

        Args:
            queries: the queries.
            want: the values to compute from each distribution; see `seqmlm.engine.reductions`.

        Raises:
            UsageError: a query refers to positions or tokens that do not exist, or is longer than the model
                allows. Also if two different reductions have the same name.
            TrainingError: a single sequence does not fit into memory.
        """
        reductions = union(want)

        def compute(batch: PackedBatch | ConeBatch, layout: Layout, start: int, stop: int) -> list[Reduced]:
            logits = self.rows(batch, output="logits")
            return self._reduce(logits, layout, start, stop, reductions)

        request = _Request(
            compute=compute,
            per={reduction.name: reduction.per for reduction in reductions},
            rows_limit=max(1, LOGITS // self.space.size),
            width=max(1, sum(reduction.width(self.space.size) for reduction in reductions)),
            is_random=any(reduction.is_random for reduction in reductions),
            copies=True,
        )
        return self._answers(queries, request)

    def hidden_states(
        self,
        sequences: Iterable[Encoding],
        *,
        layers: Sequence[int] = (-1,),
        at: Iterable[NDArray[np.integer]] | None = None,
    ) -> Iterator[Floats]:
        """Hidden states of unmasked sequences, lazily and in order; equal sequences are computed once.

        Args:
            sequences: the sequences; none is longer than the model allows.
            layers: K layers: 0 for the embeddings, n for the output of layer n, negative numbers counted
                from the last layer (as in `hidden_states` of transformers). The head reads the last layer,
                which is also the cheapest.
            at: (A,) positions of each sequence, at least one; None for all positions of every sequence.

        Yields:
            (A, K, H) fp32 for each sequence.

        Raises:
            UsageError: a position or a layer does not exist, or a sequence is longer than the model allows.
            TrainingError: a single sequence does not fit into memory.
        """
        chosen = tuple(layers)
        last_only = chosen == (-1,)

        def compute(batch: PackedBatch | ConeBatch, layout: Layout, start: int, stop: int) -> list[Reduced]:
            states = self.rows(batch, output="hidden", layers=None if last_only else chosen)
            rows = np.arange(layout.first_row[start], layout.first_row[stop])
            shape = (len(rows), len(chosen), states.shape[-1])
            layer_states = states.float().reshape(shape)
            sound = torch.isfinite(layer_states).flatten(1).all(-1)
            return [Reduced(rows, rows[:0], {"hidden": layer_states}, sound)]

        def queries() -> Iterator[Query]:
            none = np.zeros(0, dtype=np.int32)
            everywhere = repeat(None)
            for encoding, places in zip(sequences, everywhere if at is None else at, strict=at is not None):
                positions = np.arange(len(encoding)) if places is None else places
                yield Query(encoding=encoding, masked=none, asked=positions.astype(np.int32))

        width = max(1, len(chosen)) * int(self.rows.model.config.hidden_size)
        request = _Request(
            compute=compute,
            per={"hidden": "row"},
            rows_limit=max(1, LOGITS // width),
            width=width,
            tokens=STATE_TOKENS_PER_BATCH[self.device.type == "cpu"],
        )
        return (answer.values["hidden"] for answer in self._answers(queries(), request))

    def _answers(self, queries: Iterable[Query], request: _Request) -> Iterator[Answer]:
        """Collect queries into look-aheads, and answer each look-ahead."""
        window: list[Query] = []
        variants = tokens = asked_rows = number = 0
        for query in queries:
            window.append(query)
            count = query.variants
            variants, asked_rows = variants + count, asked_rows + len(query.asked)
            tokens += count * len(query.encoding)
            crowded = tokens >= WINDOW_TOKENS or asked_rows >= LOGITS // request.width
            if variants >= self.lookahead or len(window) >= self.lookahead or crowded:
                yield from self._answer(window, variants, number, request)
                number += len(window)
                window, variants, tokens, asked_rows = [], 0, 0, 0
        if window:
            yield from self._answer(window, variants, number, request)

    def _answer(self, queries: list[Query], variants: int, number: int, request: _Request) -> list[Answer]:
        layout = lay_out(
            queries,
            self.space,
            rows_limit=request.rows_limit,
            capacity=self._capacity,
            first_number=number,
            is_random=request.is_random,
            layers=self.rows.layers if request.copies else None,
        )
        special = (ids is not None and self.space.is_special[ids].any() for ids in layout.allowed)
        if self.rows.probability == "ordinary" and any(special):
            raise UsageError(
                "allowed must not contain special tokens: they have no probability in the space 'ordinary'"
            )
        self.statistics.queries += len(queries)
        self.statistics.variants += variants
        self.statistics.unique += len(layout.documents)
        with evaluation_mode(self.rows), autocast(self.device, self.dtype):
            reduced = self._forwards(layout, request)
        self._check_finite(layout, reduced)
        return _assemble_answers(queries, layout, reduced, request.per)

    def _check_finite(self, layout: Layout, reduced: list[Reduced]) -> None:
        """Raise NotFiniteError if an answer is NaN or infinite.

        A target outside the probability space has a log-probability of -inf, which is allowed.
        """
        sound = bool(torch.cat([block.sound for block in reduced]).all())
        target_log_probs = [
            (block.pairs, block.values[TargetLogProb.name])
            for block in reduced
            if TargetLogProb.name in block.values and len(block.pairs)
        ]
        # Combine the packs first, so that the device is waited for only once.
        minima = [log_probs.min() for _, log_probs in target_log_probs]
        if sound and minima and float(torch.stack(minima).min()) == -torch.inf:
            impossible = [pairs[torch.isneginf(p).cpu().numpy()] for pairs, p in target_log_probs]
            sound = not self._has_probability(layout, np.concatenate(impossible)).any()
        if not sound:
            raise NotFiniteError(
                "a score is not a finite number: the model's weights are damaged, or too large for "
                f"{self.precision}; copy it again, or use precision fp32"
            )

    def _has_probability(self, layout: Layout, pairs: Longs) -> NDArray[np.bool_]:
        """(P,) True if the target of a pair is in the probability space."""
        column = layout.pair_column[pairs]
        if self.rows.probability == "full":
            return np.asarray(column >= 0)
        document = np.searchsorted(layout.first_row, layout.pair_row[pairs], side="right") - 1
        unrestricted = np.array([ids is None for ids in layout.allowed])[layout.documents.group[document]]
        return np.asarray((column >= 0) & ~(unrestricted & self.space.is_special[column]))

    def _forwards(self, layout: Layout, request: _Request) -> list[Reduced]:
        """Compute the packs of a layout, longest documents first; halve the budget when memory runs out."""
        reduced: list[Reduced] = []
        start = 0
        while start < len(layout.documents):
            stop = self._pack_end(layout, start, request)
            part = self._try_forward(layout, start, stop, request)
            if part is None:
                self._halve(layout, start, stop)
                continue
            reduced += part
            start = stop
        return reduced

    def _pack_end(self, layout: Layout, start: int, request: _Request) -> int:
        """Index after the last document of the pack that begins at document `start`.

        All documents of a pack are of one kind. A pack respects both budgets, but has at least one document.
        """
        cost = layout.first_cost[start] + min(self.tokens_per_batch, request.tokens)
        rows = layout.first_row[start] + request.rows_limit
        by_cost = np.searchsorted(layout.first_cost, cost, side="right") - 1
        by_rows = np.searchsorted(layout.first_row, rows, side="right") - 1
        stop = max(start + 1, int(min(by_cost, by_rows)))
        return min(stop, layout.narrow) if start < layout.narrow else stop

    def _try_forward(self, layout: Layout, start: int, stop: int, request: _Request) -> list[Reduced] | None:
        """The results of one forward pass, or None if memory ran out.

        The tensors of a failed pass are freed when this method returns.
        """
        try:
            batch = layout.batch(start, stop)
            if self.device.type == "cuda":
                batch = batch.pin_memory()
            batch = batch.to(self.device, non_blocking=True)
            reduced = request.compute(batch, layout, start, stop)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        self.statistics.forwards += 1
        self.statistics.tokens += round(layout.cost(start, stop))
        self.on_forward()
        return reduced

    def _reduce(
        self, logits: Tensor, layout: Layout, start: int, stop: int, want: Sequence[Reduction]
    ) -> list[Reduced]:
        """The reductions `want` of documents start..stop-1, numbered as in the layout."""
        first, last = layout.first_row[start], layout.first_row[stop]
        a, b = np.searchsorted(layout.pair_row, [first, last])
        documents = layout.documents
        groups = np.repeat(documents.group[start:stop], documents.asked.sizes[start:stop])
        allowed: dict[int, Tensor | None] = {}
        for group in np.unique(groups).tolist():
            ids = layout.allowed[group]
            allowed[group] = None if ids is None else torch.from_numpy(ids.astype(np.int64)).to(self.device)
        reduced = reduce_logits(
            logits,
            groups,
            layout.pair_row[a:b] - first,
            layout.pair_column[a:b],
            allowed,
            want,
            None if layout.draw is None else layout.draw[a:b],
        )
        return [Reduced(block.rows + first, block.pairs + a, block.values, block.sound) for block in reduced]

    def _halve(self, layout: Layout, start: int, stop: int) -> None:
        tokens = int(layout.first_token[stop] - layout.first_token[start])
        if stop - start == 1:
            raise TrainingError(
                f"out of memory on {self.device} with a single sequence of {tokens} tokens; use shorter "
                "windows or a smaller model, or free memory on the device"
            )
        cost = int(layout.first_cost[stop] - layout.first_cost[start])
        self.tokens_per_batch = max(1, min(self.tokens_per_batch, cost) // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Context with evaluation mode and no gradients; it restores the mode of every submodule.

    The modes are also restored after an exception. PyTorch's inference mode is not used. A module may keep a
    tensor that it makes, such as a table of positions or a gathered shard. Training could not use this
    tensor after inference mode.
    """
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for submodule, mode in modes:
            submodule.training = mode


def _assemble_answers(
    queries: list[Query],
    layout: Layout,
    reduced: list[Reduced],
    per: Mapping[str, Literal["row", "target"]],
) -> list[Answer]:
    """Distribute the results of the distinct documents over the queries."""
    values = {}
    for name, kind in per.items():
        places = [block.rows if kind == "row" else block.pairs for block in reduced]
        slots = layout.row if kind == "row" else layout.pair
        values[name] = _ordered_values([block.values[name] for block in reduced], places)[slots]
    bounds = layout.first_slot.tolist()
    answers = []
    for query, stream, a, b in zip(queries, layout.streams.tolist(), bounds, bounds[1:], strict=False):
        query_values = {name: array[a:b] for name, array in values.items()}
        for name, array in query_values.items():
            if array.dtype == object:  # widths differ between queries, but not within one query
                query_values[name] = np.stack(array.tolist())
        answers.append(Answer(key=query.key, values=query_values, stream=stream))
    return answers


def _ordered_values(parts: list[Tensor], places: list[Longs]) -> NDArray[Any]:
    """(N, ...) values of all parts in the order of their places 0..N-1; (N,) arrays if widths differ."""
    place = np.concatenate(places)
    if len({part.shape[1:] for part in parts}) == 1:
        joined: NDArray[Any] = torch.cat(parts).cpu().numpy()
        if (place[1:] > place[:-1]).all():
            return joined
        ordered = np.empty_like(joined)
        ordered[place] = joined
        return ordered
    ragged = np.empty(len(place), dtype=object)
    for part_places, part in zip(places, parts, strict=True):
        for at, row in zip(part_places.tolist(), part.cpu().numpy(), strict=True):
            ragged[at] = row
    return ragged

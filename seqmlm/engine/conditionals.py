"""The one place where a masked language model is asked p(token | the rest).

Queries stream through a bounded look-ahead: equal ones are computed once, the rest is packed by length into a
token budget, and answers come back in the order of the questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqmlm.engine.backbones import position_capacity
from seqmlm.engine.correction import Correction, Corrector
from seqmlm.engine.device import Precision, autocast, compute_dtype, is_out_of_memory, resolved
from seqmlm.engine.layout import Layout, lay_out
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.reduction import Reduced, Wanted, reduce
from seqmlm.errors import TrainingError, UsageError

if TYPE_CHECKING:
    from seqmlm.engine.model import MaskedRows
    from seqmlm.engine.one_pass_head import HeadRows

__all__ = ["Answer", "Conditionals", "Query", "Statistics", "evaluating"]

# Elements of one forward's logits (256 MiB of fp32), and of the rows that `full` keeps of one look-ahead.
LOGITS = 1 << 26
# Tokens of one forward: enough to keep a GPU busy, and on a CPU (True) few enough to stay in its caches.
TOKENS = {False: 16384, True: 4096}
# Token ids of the masked copies laid out at once (16 MiB).
WINDOW_TOKENS = 1 << 22


@dataclass(slots=True)
class Statistics:
    """What has been asked so far: queries and their masked copies; what was computed for them."""

    queries: int = 0
    variants: int = 0
    unique: int = 0
    forwards: int = 0
    tokens: int = 0


class Conditionals:
    """Answers queries with one model.

    Args:
        rows: the model, alone or with a head for one pass; used in evaluation mode without gradients, its
            mode is restored after each look-ahead.
        tokens_per_batch: token budget of one forward, None for what suits the device; halved when memory
            runs out, and kept at that.
        device: where to compute; the model is moved there. Default: where the model is.
        precision: "fp32" is exact to rounding; "bf16" changes log-probabilities by up to some hundredths;
            "auto" is bfloat16 on a GPU that has it, else float32.
        lookahead: masked copies considered together for de-duplication and packing; also how far the input is
            read ahead of the answers.
    """

    def __init__(
        self,
        rows: MaskedRows | HeadRows,
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
        self.precision = resolved(precision, self.device)
        self.dtype = compute_dtype(self.precision, self.device)
        self.tokens_per_batch = tokens_per_batch or TOKENS[self.device.type == "cpu"]
        self.lookahead = lookahead
        self.statistics = Statistics()
        self._capacity = position_capacity(rows.model)
        self._rows_limit = max(1, LOGITS // self.space.size)

    def ask(
        self,
        queries: Iterable[Query],
        *,
        entropy: bool = False,
        ranks: bool = False,
        top: int = 0,
        full: bool = False,
        correction: Correction | None = None,
    ) -> Iterator[Answer]:
        """Answer queries lazily and in order; results do not depend on what is asked together (to rounding).

        Args:
            entropy, ranks, top, full: what `Answer` holds beside log_probs; `top` is the k of top-k.
            correction: of the logits, before anything is read from them.

        Raises:
            UsageError: a query that names positions or tokens that are not there, or is longer than the
                model.
            TrainingError: a single sequence does not fit into memory.
        """
        if top < 0:
            raise UsageError(f"top must be at least 0, not {top}")
        wanted = Wanted(entropy=entropy, ranks=ranks, top=top, full=full)
        corrector = None if correction is None else Corrector(correction, self.device)
        window: list[Query] = []
        variants = tokens = asked = 0
        for query in queries:
            window.append(query)
            count = query.variants
            variants, asked = variants + count, asked + len(query.asked)
            tokens += count * len(query.encoding)
            crowded = tokens >= WINDOW_TOKENS or (full and asked >= self._rows_limit)
            if variants >= self.lookahead or len(window) >= self.lookahead or crowded:
                yield from self._answer(window, variants, wanted, corrector)
                window, variants, tokens, asked = [], 0, 0, 0
        if window:
            yield from self._answer(window, variants, wanted, corrector)

    def _answer(
        self, queries: list[Query], variants: int, wanted: Wanted, corrector: Corrector | None
    ) -> list[Answer]:
        layout = lay_out(queries, self.space, rows_limit=self._rows_limit, capacity=self._capacity)
        self._check_allowed(layout)
        self.statistics.queries += len(queries)
        self.statistics.variants += variants
        self.statistics.unique += len(layout.documents)
        with evaluating(self.rows), autocast(self.device, self.dtype):
            blocks = self._forwards(layout, wanted, corrector)
        return _assemble(queries, layout, blocks, wanted)

    def _check_allowed(self, layout: Layout) -> None:
        if self.rows.probability == "full":
            return
        for allowed in layout.allowed:
            if allowed is not None and self.space.is_special[allowed].any():
                raise UsageError("allowed: special tokens have no probability in the ordinary space")

    def _forwards(self, layout: Layout, wanted: Wanted, corrector: Corrector | None) -> list[Reduced]:
        """Run the packs of a layout, longest documents first; halve the budget when memory runs out."""
        allowed = {
            group: None if ids is None else torch.from_numpy(ids.astype(np.int64)).to(self.device)
            for group, ids in enumerate(layout.allowed)
        }
        blocks: list[Reduced] = []
        start = 0
        while start < len(layout.documents):
            stop = self._cut(layout, start)
            block = self._try_forward(layout, start, stop, allowed, wanted, corrector)
            if block is None:
                self._halve(layout, start, stop)
                continue
            blocks.append(block)
            start = stop
        return blocks

    def _cut(self, layout: Layout, start: int) -> int:
        """Where the pack that begins at document `start` ends: within both budgets, one at least."""
        tokens = layout.first_token[start] + self.tokens_per_batch
        rows = layout.first_row[start] + self._rows_limit
        by_tokens = np.searchsorted(layout.first_token, tokens, side="right") - 1
        by_rows = np.searchsorted(layout.first_row, rows, side="right") - 1
        return max(start + 1, int(min(by_tokens, by_rows)))

    def _try_forward(
        self,
        layout: Layout,
        start: int,
        stop: int,
        allowed: dict[int, Tensor | None],
        wanted: Wanted,
        corrector: Corrector | None,
    ) -> Reduced | None:
        """One forward, or None where memory ran out; the failed one's tensors are free when this returns."""
        first, last = layout.first_row[start], layout.first_row[stop]
        a, b = np.searchsorted(layout.pair_row, [first, last])
        documents = layout.documents
        groups = np.repeat(documents.group[start:stop], documents.count[start:stop])
        try:
            batch = documents.batch(start, stop)
            if self.device.type == "cuda":
                batch = batch.pin_memory()
            batch = batch.to(self.device, non_blocking=True)
            logits = self.rows(batch, output="logits")
            if corrector is not None:
                logits = corrector(logits, batch.input_ids[0, batch.asked])
            present = {int(g): allowed[int(g)] for g in np.unique(groups)}
            row, column = layout.pair_row[a:b] - first, layout.pair_column[a:b]
            block = reduce(
                logits,
                torch.from_numpy(groups),
                torch.from_numpy(row),
                torch.from_numpy(column),
                present,
                wanted,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        self.statistics.forwards += 1
        self.statistics.tokens += int(layout.first_token[stop] - layout.first_token[start])
        return block

    def _halve(self, layout: Layout, start: int, stop: int) -> None:
        tokens = int(layout.first_token[stop] - layout.first_token[start])
        if stop - start == 1:
            raise TrainingError(
                f"out of memory on {self.device} with a single sequence of {tokens} tokens; cut sequences "
                "into shorter windows, take a smaller model, or free memory on the device"
            )
        self.tokens_per_batch = max(1, min(self.tokens_per_batch, tokens) // 2)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; every submodule's own mode comes back, also after an exception.

    No inference mode: a tensor that a module makes under it and keeps (a table of positions, a gathered
    shard) could not be used in training afterwards.
    """
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for submodule, mode in modes:
            submodule.training = mode


def _assemble(queries: list[Query], layout: Layout, blocks: list[Reduced], wanted: Wanted) -> list[Answer]:
    """Spread the results of the distinct documents over the queries that asked for them."""
    fields: dict[str, NDArray[Any]] = {"log_probs": _joined([b.log_probs for b in blocks])[layout.pair]}
    if wanted.ranks:
        fields["ranks"] = _joined([b.ranks for b in blocks])[layout.pair]
    if wanted.entropy:
        fields["entropy"] = _joined([b.entropy for b in blocks])[layout.row]
    if wanted.top:
        fields["top_ids"] = _joined([b.top_ids for b in blocks])[layout.row]
        fields["top_log_probs"] = _joined([b.top_log_probs for b in blocks])[layout.row]
    full = _full_rows(blocks, int(layout.first_row[-1])) if wanted.full else []
    bounds = layout.first_slot.tolist()
    answers = []
    for query, a, b in zip(queries, bounds, bounds[1:], strict=False):
        values = {name: value[a:b] for name, value in fields.items()}
        if wanted.full:
            values["rows"] = np.stack([full[i] for i in layout.row[a:b]])
        answers.append(Answer(key=query.key, **values))
    return answers


def _joined(parts: Sequence[Tensor | None]) -> NDArray[Any]:
    joined: NDArray[Any] = torch.cat([part for part in parts if part is not None]).cpu().numpy()
    return joined


def _full_rows(blocks: list[Reduced], total: int) -> list[NDArray[np.float32]]:
    """The log-probabilities of every row; widths differ where the allowed sets do."""
    full: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * total
    first = 0
    for block in blocks:
        for places, table in block.rows:
            for place, row in zip(places.tolist(), table.cpu().numpy(), strict=True):
                full[first + place] = row
        first += sum(len(places) for places, _ in block.rows)
    return full

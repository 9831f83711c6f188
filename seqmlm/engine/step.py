"""The gradient of one global batch: accumulated over micro-batches, whatever the memory, on all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqmlm.engine.device import (
    autocast,
    is_out_of_memory,
    random_state,
    random_state_kept,
    release_memory,
    set_random_state,
)
from seqmlm.engine.distributed import Processes
from seqmlm.engine.feed import GlobalBatch
from seqmlm.engine.packing import PackedBatch, split
from seqmlm.errors import TrainingError


@dataclass(frozen=True, eq=False)
class Sums:
    """Scalars on the device: loss (nats) of this process's rows; loss weight, masked tokens of all rows."""

    loss: Tensor
    weight: Tensor
    masked: Tensor


class GradientStep:
    """Leaves in `.grad` the gradient of (sum of losses / sum of weights) over a global batch.

    Memory that runs out halves `micro_tokens`, and the whole batch is redone from clean gradients and the
    same random state: the global batch never changes. A process that fails while gradients are exchanged
    cannot be waited for; so under DDP, whenever a micro-batch is larger than any that went well before, all
    processes first finish alone, agree that memory sufficed, and exchange in a tiny pass of weight 0.

    Args:
        module: what is called, wrapped for the processes; returns the summed loss of a packed batch.
        dtype: that of the matrix products.
        micro_tokens: largest micro-batch in tokens; None computes each row at once.
        on_event: told ("out_of_memory", {...}) when the budget is halved.
    """

    def __init__(
        self,
        module: nn.Module,
        processes: Processes,
        *,
        dtype: torch.dtype,
        micro_tokens: int | None,
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._module, self._processes, self._dtype = module, processes, dtype
        self.micro_tokens = micro_tokens
        self._on_event = on_event
        self._proven = 0  # tokens of the largest micro-batch known to fit
        self._sums = torch.float32 if processes.device.type == "mps" else torch.float64

    def __call__(self, batch: GlobalBatch) -> Sums:
        """Compute the gradient.

        Raises:
            TrainingError: out of memory with single documents already, or where no redo is possible.
        """
        start = random_state(self._processes.device)
        while True:
            micros = self._micro_batches(batch)
            largest = self._largest(batch, micros)
            alone = self._processes.world > 1 and not self._processes.sharded and largest > self._proven
            sums, failure = self._accumulate(batch, micros, alone)
            failed = self._processes.largest([failure is not None])[0] if alone else failure is not None
            if not failed:
                if alone:
                    self._exchange(micros[0])
                self._proven = max(self._proven, largest)
                return sums
            if self._processes.world > 1 and not alone:
                raise TrainingError(
                    f"out of memory while processes exchange: {failure}; lower micro_tokens or tokens per "
                    "batch and resume from the last checkpoint"
                )
            self._halve(micros, largest, failure)
            set_random_state(self._processes.device, start)

    def _micro_batches(self, batch: GlobalBatch) -> list[PackedBatch]:
        if self.micro_tokens is None:
            return batch.mine
        return [part for row in batch.mine for part in split(row, self.micro_tokens)]

    def _largest(self, batch: GlobalBatch, micros: list[PackedBatch]) -> int:
        """Tokens of the largest micro-batch of any process: known from the plan unless rows are cut."""
        if self.micro_tokens is None:
            return max(row.tokens for row in batch.rows)
        return self._processes.largest([max(micro.tokens for micro in micros)])[0]

    def _passes(self, batch: GlobalBatch, micros: list[PackedBatch]) -> int:
        """How many forwards this process makes: under FSDP2 each is a meeting of all, so as many as any."""
        if not self._processes.sharded:
            return len(micros)
        if self.micro_tokens is None:
            return -(-len(batch.rows) // self._processes.world)
        return self._processes.largest([len(micros)])[0]

    def _accumulate(
        self, batch: GlobalBatch, micros: list[PackedBatch], alone: bool
    ) -> tuple[Sums, str | None]:
        """Forward and backward of every micro-batch; returns the sums, and how memory failed, if it did."""
        self._module.zero_grad(set_to_none=True)
        device, counts = self._processes.device, self._counts(batch)
        sums = Sums(torch.zeros((), dtype=self._sums, device=device), counts[0], counts[1])
        # A batch without a masked token has no loss: dividing by 1 keeps it 0 instead of NaN.
        share = self._processes.world / torch.where(sums.weight > 0, sums.weight, 1.0)
        passes = self._passes(batch, micros)
        for number in range(passes):
            micro, real = micros[min(number, len(micros) - 1)], number < len(micros) and not batch.idle
            last = number == passes - 1 and not alone
            try:
                loss = self._pass(micro, share.float() if real else 0.0, synchronise=last)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return sums, str(error).partition("\n")[0]  # the error itself would keep its tensors alive
            if real:
                sums.loss.add_(loss)
        return sums, None

    def _counts(self, batch: GlobalBatch) -> Tensor:
        """(2,) loss weight and masked tokens of all rows; counted before they are sent to the device."""
        rows = [] if batch.idle else batch.mine
        weight = sum(
            float(len(row.asked)) if row.weights is None else float(row.weights.sum(dtype=torch.float64))
            for row in rows
        )
        counts = torch.tensor([weight, sum(len(row.asked) for row in rows)], dtype=self._sums)
        return self._processes.sum(counts.to(self._processes.device, non_blocking=True))

    def _pass(self, micro: PackedBatch, share: Tensor | float, *, synchronise: bool) -> Tensor:
        """One forward and backward; returns the summed loss."""
        device = self._processes.device
        with self._processes.gradients(self._module, synchronise=synchronise):
            with autocast(device, self._dtype):
                loss: Tensor = self._module(micro.to(device, non_blocking=True))
            self._processes.accelerator.backward(loss * share)
        return loss.detach()

    def _exchange(self, micro: PackedBatch) -> None:
        """Exchange the gathered gradients, in a pass of one document that adds nothing to them."""
        with random_state_kept(self._processes.device):
            self._pass(split(micro, 1)[0], 0.0, synchronise=True)

    def _halve(self, micros: list[PackedBatch], largest: int, failure: str | None) -> None:
        before = min(self.micro_tokens or largest, largest)
        if self._processes.largest([max(len(micro.lengths) for micro in micros)])[0] == 1:
            raise TrainingError(
                f"out of memory with single documents of up to {largest} tokens ({failure}); "
                "use a smaller max_length or model, and resume from the last checkpoint"
            )
        self.micro_tokens, self._proven = max(before // 2, 1), 0
        self._module.zero_grad(set_to_none=True)
        release_memory(self._processes.device)
        reason = failure or "another process ran out of memory"
        detail = {"micro_tokens": self.micro_tokens, "before": before, "reason": reason}
        self._on_event("out_of_memory", detail)

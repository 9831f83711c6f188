"""One or several processes with the same interface: data parallel (DDP) or sharded (FSDP2).

Each process computes the gradients of its share of a global batch. Both DDP and FSDP2 average them over the
processes. A loss that was divided by the global count is therefore first multiplied by the number of
processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from seqmlm.engine.types import Sharding
from seqmlm.errors import TrainingError, UsageError


class Processes:
    """The processes of one training.

    Args:
        device: "auto" uses the accelerator of the machine, if there is one.
        sharding: "fsdp2" divides parameters, gradients and optimizer state among the processes.

    Raises:
        UsageError: a launcher started several processes that are not connected. Each would train its own
            model into the same folder.
    """

    def __init__(self, device: Literal["auto", "cpu"] = "auto", sharding: Sharding = "none") -> None:
        cpu = device == "cpu" or not torch.accelerator.is_available()
        # The loop sets the precision. Accelerate would wrap `forward` permanently, also for evaluations.
        self.accelerator = Accelerator(cpu=cpu, mixed_precision="no")
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.world: int = self.accelerator.num_processes
        launched = int(os.environ.get("WORLD_SIZE", "1"))
        if launched > 1 and self.world == 1:
            raise UsageError(
                f"WORLD_SIZE is {launched}, but Accelerate sees a single process; start with torchrun or "
                "accelerate launch and create no Accelerator before training, or unset WORLD_SIZE"
            )
        self.sharded = sharding == "fsdp2" and self.world > 1

    @property
    def is_main(self) -> bool:
        """Whether this process reports results and writes files."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module to call in training; it shares its parameters with `module`, which is on the device."""
        if self.sharded:
            return shard(module, self.device, self.world)
        return cast(nn.Module, self.accelerator.prepare_model(module))

    @contextmanager
    def gradients(self, module: nn.Module, *, synchronise: bool) -> Iterator[None]:
        """Context of one forward and backward pass.

        Args:
            module: the wrapped module.
            synchronise: whether to exchange gradients between processes; otherwise they only accumulate
                locally.
        """
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(synchronise)
            yield
            return
        local_only = isinstance(module, DistributedDataParallel) and not synchronise
        with module.no_sync() if local_only else nullcontext():  # type: ignore[operator]
            yield

    def forget_forward(self, module: nn.Module) -> None:
        """Reset the module after a forward pass without a backward pass.

        Otherwise FSDP2 would keep the parameters of the root gathered and lose gradients.
        """
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, computed in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, values: Sequence[int]) -> list[int]:
        """Element-wise maximum over all processes."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return cast(list[int], tensor.tolist())

    def from_main(self, value: int) -> int:
        """The value of the main process, in every process."""
        tensor = torch.tensor(value if self.is_main else 0, dtype=torch.int64, device=self.device)
        return int(self.sum(tensor))

    def text_from_main(self, text: str) -> str:
        """The text of the main process, in every process."""
        if self.world == 1:
            return text
        content = text.encode()
        size = self.from_main(len(content))
        shared = torch.zeros(size, dtype=torch.uint8)
        if self.is_main:
            shared = torch.tensor(list(content), dtype=torch.uint8)
        shared = shared.to(self.device)
        dist.broadcast(shared, src=0)
        return bytes(shared.tolist()).decode()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Gather a CPU tensor from every process, in the order of the ranks. All must have the same shape."""
        if self.world == 1:
            return [tensor]
        on_device = tensor.to(self.device)
        parts = [torch.empty_like(on_device) for _ in range(self.world)]
        dist.all_gather(parts, on_device)
        return [part.cpu() for part in parts]

    def agree(self, error: Exception | None) -> None:
        """Wait for all processes. If one has failed, all raise an error, so that none waits forever.

        Raises:
            Exception: the error of this process, or a TrainingError if another process has failed.
        """
        failed = self.largest([error is not None])[0]
        if error is not None:
            raise error
        if failed:
            raise TrainingError("another training process failed; see its message")


def shard(module: nn.Module, device: torch.device, world: int) -> nn.Module:
    """Shard a module with FSDP2: each transformer layer is its own unit, and the root is the rest.

    A layer is a member of a module list. Parameters stay float32, and gradients are therefore added in
    float32.
    """
    mesh = init_device_mesh(device.type, (world,))
    for part in list(module.modules()):
        if isinstance(part, nn.ModuleList):
            for layer in part:
                fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float | None) -> Tensor:
    """Scale gradients down to a total norm of at most `limit`.

    Returns:
        The norm before scaling, a scalar on the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if limit is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm

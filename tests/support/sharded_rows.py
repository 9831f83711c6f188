"""Two gloo processes, DDP and FSDP2, on `MaskedRows`: gradients as safetensors for the test to compare.

    python sharded_rows.py FOLDER

The parent imports torch once and forks, so that the test pays for one import.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import encoders
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import pack

NAMES = ("modernbert", "esm-learned-token-dropout")


def batches() -> list[list[int]]:
    """Lengths of each rank's row."""
    return [[5, 30, 12], [41, 7, 12, 60]]


def gradients(rows: MaskedRows) -> dict[str, Tensor]:
    full = {}
    for name, parameter in rows.named_parameters():
        if parameter.grad is not None:
            grad = parameter.grad
            full[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone().contiguous()
    return full


def work(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    batch = pack(encoders.documents(batches()[rank], seed=rank))
    for name in NAMES:
        for kind in ("ddp", "fsdp2", "fsdp2-layers"):
            rows = MaskedRows(encoders.encoder(name), encoders.SPACE).train()
            root: nn.Module = rows
            if kind == "ddp":
                root = DistributedDataParallel(rows)
            else:
                if kind == "fsdp2-layers":
                    for part in list(rows.modules()):
                        if isinstance(part, nn.ModuleList):
                            for layer in part:
                                fully_shard(layer, mesh=mesh)
                fully_shard(rows, mesh=mesh)
            root(batch).backward()
            found = gradients(rows)
            if rank == 0:
                save_file(found, folder / f"{name}-{kind}.safetensors")
    dist.destroy_process_group()


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(rank, folder)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    failed = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(failed))


if __name__ == "__main__":
    main()

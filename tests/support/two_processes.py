"""Run by torchrun: every scenario of tests/exact/test_distributed.py, one after the other, results as JSON.

torchrun --nproc-per-node 2 two_processes.py FOLDER
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import tiny_training as tiny
import torch
from torch import Tensor, nn

from seqmlm.engine import durable
from seqmlm.engine.packing import PackedBatch
from seqmlm.errors import SeqmlmError

RANK = int(os.environ["RANK"])


class OnRankOne(tiny.TinyRows):
    """Does something in the second process only, in the n-th forward of training."""

    def __init__(self, call: int, action: Callable[[PackedBatch, Tensor], Tensor]) -> None:
        super().__init__(dropout=0.0)
        self.call, self.action, self.calls = call, action, 0

    def forward(self, batch: PackedBatch) -> Tensor:
        loss = super().forward(batch)
        self.calls += 1
        return self.action(batch, loss) if RANK == 1 and self.calls >= self.call else loss


def terminate_once(batch: PackedBatch, loss: Tensor) -> Tensor:
    if not getattr(terminate_once, "done", False):
        terminate_once.done = True
        os.kill(os.getpid(), signal.SIGTERM)
    return loss


def little_memory(batch: PackedBatch, loss: Tensor) -> Tensor:
    if batch.tokens > 40:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return loss


def nan_once(batch: PackedBatch, loss: Tensor) -> Tensor:
    if not getattr(nan_once, "done", False):
        nan_once.done = True
        return loss * float("nan")
    return loss


def no_space(handle: IO[bytes], data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def evaluate(rows: nn.Module) -> dict[str, float]:
    """A forward without gradients, as evaluation does it."""
    batch = tiny.dataset()[tiny.make_planner().next_row()]
    with torch.no_grad():
        return {"loss": float(rows(batch))}


def train(folder: Path, rows: nn.Module, resume: bool = False, **changes: Any) -> dict[str, Any]:
    training, seen = tiny.make_loop(folder, rows, **changes)
    try:
        result = training.run(resume)
    except SeqmlmError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {
        "status": result.status,
        "signal": result.signal,
        "steps": result.steps,
        "resumed_from": result.resumed_from,
        "losses": seen.losses,
        "norms": [report.grad_norm for report in seen.reports],
        "masked": [report.masked for report in seen.reports],
        "tokens": result.tokens,
        "skipped": [report.step for report in seen.reports if report.skipped],
        "events": seen.events,
        "evaluations": seen.evaluations,
    }


def main(root: Path) -> None:
    torch.set_num_threads(1)
    durable.DISK.sync = lambda path: None  # type: ignore[method-assign]
    still = {"dropout": 0.0}
    results = {
        "plain": train(root / "plain", tiny.TinyRows(**still)),
        "one_row": train(root / "one_row", tiny.TinyRows(**still), rows_per_batch=1, loader_workers=1),
        "weighted": train(
            root / "weighted", tiny.TinyRows(**still), dataset=tiny.dataset(tiny.Periodic(weighted=True))
        ),
        "modernbert": train(root / "modernbert", tiny.modernbert(0.0)),
        "head": train(root / "head", tiny.headed(), dataset=tiny.Classes()),
        "pairs": train(root / "pairs", tiny.headed(pairs=True), dataset=tiny.Classes(pairs=True)),
        "dropout": train(root / "dropout", tiny.TinyRows(dropout=0.3)),
        "killed": train(root / "dropout_killed", OnRankOneDropout()),
        "resumed": train(root / "dropout_killed", tiny.TinyRows(dropout=0.3), resume=True),
        "memory": train(root / "memory", OnRankOne(1, little_memory)),
        "nan": train(root / "nan", OnRankOne(5, nan_once)),
    }
    for name, rows in {"sharded": tiny.TinyRows(**still), "sharded_modernbert": tiny.modernbert(0.0)}.items():
        results[name] = train(
            root / name, rows, sharding="fsdp2", evaluate=evaluate, evaluate_every=6, max_steps=8
        )
    results["sharded_resumed"] = train(
        root / "sharded", tiny.TinyRows(**still), resume=True, sharding="fsdp2"
    )
    durable.DISK.write = no_space  # type: ignore[method-assign, assignment]
    results["full"] = train(root / "full", tiny.TinyRows(**still))
    (root / f"rank{RANK}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


class OnRankOneDropout(OnRankOne):
    """Dropout, and a SIGTERM to the second process during the fifth step."""

    def __init__(self) -> None:
        super().__init__(5, terminate_once)
        for layer in self.layers:
            layer.dropout.p = 0.3


if __name__ == "__main__":
    main(Path(sys.argv[1]))

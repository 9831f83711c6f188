"""`train --dry-run`: read the data, run one batch, and estimate the time and memory of the training."""

from __future__ import annotations

import math
from typing import Any

import psutil
import torch

from seqmlm.engine.backbones import parameter_count
from seqmlm.engine.loop import measured_speed
from seqmlm.errors import UsageError
from seqmlm.training.assemble import Training
from seqmlm.training.corpus import CorpusReader
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import Console, expected_steps
from seqmlm.training.pretrain import Pretraining
from seqmlm.training.sizing import sized_plan

MEBIBYTE = 2**20
# AdamW keeps the weight, its gradient and two moments.
COPIES_OF_WEIGHTS = 4


def dry_run(request: TrainRequest, console: Console) -> dict[str, Any]:
    """Estimate a training from its data and one measured batch. Creates no run and trains nothing.

    The result has statistics of data and tokens, the fill of the packed rows, and the number of parameters.
    It also has the measured seconds per step, and estimates of memory and time.
    """
    job = Pretraining(request, console)
    if job.plan.config.model.is_linear:
        raise UsageError(
            "a linear model has no batches that --dry-run could measure: train it with --max-time, and "
            "continue with --resume and a longer time"
        )
    corpus = CorpusReader(job.plan.config, job.domain, job.workspace).corpus(job.console.message)
    training = Training(sized_plan(job.plan, corpus, job.processes, job.console.message).config, corpus)
    model = training.config.model
    size = {"size": model.size if model.init is None else "as loaded"}
    report = _data_report(training) | size | _batch_report(training, job.processes.device)
    step = report["seconds_per_step"]
    steps = round(expected_steps(training.loop, step=step, epoch=report["steps_per_epoch"]))
    return report | {"steps": steps, "estimated_minutes": round(steps * step / 60, 1)}


def _data_report(training: Training) -> dict[str, Any]:
    """Counts of the data, the vocabulary and the parameters."""
    statistics = training.corpus.statistics
    return {
        "corpora": ", ".join(statistics),
        **{name: sum(part[name] for part in statistics.values()) for name in ("records", "tokens", "units")},
        "length_quantiles": next(iter(statistics.values()))["length_quantiles"],
        "vocabulary": training.corpus.tokenizer.space.size,
        "parameters": parameter_count(training.trained_model.model),
    }


def _batch_report(training: Training, device: torch.device) -> dict[str, Any]:
    """Measure the time and memory of one batch, in two steps whose result is discarded."""
    batches = [training.dataset[training.planner.next_row()] for _ in range(training.loop.rows_per_batch)]
    idle_bytes, peak_bytes = psutil.Process().memory_info().rss, 0

    def measure_memory(*_: Any) -> None:
        nonlocal peak_bytes
        peak_bytes = max(peak_bytes, psutil.Process().memory_info().rss - idle_bytes)

    # Between forward and backward, all activations are in memory. In the second step, both moments are too.
    hook = training.trained_model.register_forward_hook(measure_memory)
    speed = measured_speed(
        training.trained_model, [*batches, *batches], training.loop, device, seconds=math.inf
    )
    hook.remove()
    weights = 4 * parameter_count(training.trained_model.model)
    needed = max(weights * COPIES_OF_WEIGHTS, weights + peak_bytes)
    if device.type == "cuda":
        needed = torch.cuda.max_memory_allocated()
    tokens = sum(batch.tokens for batch in batches)
    epoch_tokens = int(training.corpus.train.lengths.sum())
    capacity = training.loop.rows_per_batch * training.planner.tokens_per_row
    return {
        "tokens_per_step": tokens,
        "masked_per_step": sum(len(batch.asked) for batch in batches),
        "fill": round(tokens / capacity, 3),
        "steps_per_epoch": max(1, round(epoch_tokens / max(1, tokens))),
        "device": str(device),
        "seconds_per_step": round(tokens / speed, 3),
        "tokens_per_second": round(speed),
        "estimated_memory_mib": round(needed / MEBIBYTE),
    }

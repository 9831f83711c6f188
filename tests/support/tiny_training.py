"""A model and data so small that a training of a dozen steps takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqmlm.engine.backbones import build
from seqmlm.engine.heads import LabelledRows
from seqmlm.engine.labels import HeadConfig, Labels
from seqmlm.engine.loop import Loop, LoopConfig, LoopResult, Observer, StepReport
from seqmlm.engine.masking.base import Corruptor, MaskingConfig
from seqmlm.engine.masking.uniform import Uniform
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import PackedBatch, PackedRow, RowDataset, RowPlanner, pack
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.types import SPECIAL_GROUP, Encoding, TokenSpace

SPACE = TokenSpace(size=16, pad=0, mask=3, unk=None, start=1, end=2, special=(0, 1, 2, 3))
TOKENS_PER_ROW = 64


class Periodic:
    """Sequences that repeat a short pattern: something to learn."""

    def __init__(self, count: int = 60, seed: int = 0, weighted: bool = False) -> None:
        self._weighted = weighted
        rng = np.random.default_rng(seed)
        self._ids = []
        for _ in range(count):
            pattern = rng.integers(4, SPACE.size, size=rng.integers(2, 5))
            body = np.resize(pattern, rng.integers(4, 22))
            self._ids.append(np.concatenate([[1], body, [2]]).astype(np.int32))
        self.lengths = np.array([len(ids) for ids in self._ids], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Encoding:
        ids = self._ids[index]
        groups = np.arange(len(ids), dtype=np.int32)
        groups[[0, -1]] = SPECIAL_GROUP
        weights = np.linspace(0.1, 2.0, len(ids), dtype=np.float32) if self._weighted else None
        return Encoding(ids=ids, groups=groups, weights=weights)


class Layer(nn.Module):
    """Mixes each token with the mean of its document; exact for packed rows."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, document: Tensor, lengths: Tensor) -> Tensor:
        normed = self.norm(hidden)
        sums = torch.zeros(len(lengths), normed.shape[-1], dtype=normed.dtype, device=normed.device)
        means = sums.index_add(0, document, normed) / lengths[:, None]
        mixed = self.mix(torch.cat([normed, means[document]], dim=-1))
        return hidden + self.dropout(torch.tanh(mixed))


class TinyRows(nn.Module):
    """What the loop needs of `MaskedRows`, in a few matrices: a packed batch -> summed loss in nats."""

    def __init__(self, width: int = 16, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(SPACE.size, width)
        self.place = nn.Embedding(32, width)
        self.layers = nn.ModuleList(Layer(width, dropout) for _ in range(layers))
        self.head = nn.Linear(width, SPACE.size, bias=True)
        self.head.weight = self.embed.weight  # tied, as in real models

    def forward(self, batch: PackedBatch) -> Tensor:
        lengths = torch.tensor(batch.lengths, device=batch.input_ids.device)
        document = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        hidden = self.embed(batch.input_ids[0]) + self.place(batch.position_ids[0])
        for layer in self.layers:
            hidden = layer(hidden, document, lengths)
        logits = self.head(hidden[batch.asked]).float()
        assert batch.targets is not None
        losses = nn.functional.cross_entropy(logits, batch.targets, reduction="none")
        return losses.sum() if batch.weights is None else (losses * batch.weights).sum()


def modernbert(dropout: float = 0.1) -> MaskedRows:
    """A real encoder: two layers, one with local attention, dropout everywhere."""
    torch.manual_seed(0)
    small = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = build(ModelConfig(size="tiny", max_length=64, dropout=dropout, overrides=small), SPACE)
    return MaskedRows(model, SPACE)


class Memory(Observer):
    """Keeps everything it hears."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.checkpoints: list[tuple[int, Path]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.evaluations.append((step, dict(metrics)))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.checkpoints.append((step, path))

    def on_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        self.events.append((kind, dict(detail)))

    @property
    def losses(self) -> list[float]:
        return [report.loss for report in self.reports]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


def settings(**changes: Any) -> LoopConfig:
    """A dozen steps on the CPU in float32."""
    values: dict[str, Any] = {
        "max_steps": 12,
        "learning_rate": 3e-2,
        "rows_per_batch": 3,
        "device": "cpu",
        "precision": "fp32",
        "checkpoint_every_steps": 4,
        "checkpoint_every_seconds": 1e9,
        **changes,
    }
    return LoopConfig(**values)


def dataset(sequences: Periodic | None = None) -> RowDataset:
    sequences = Periodic() if sequences is None else sequences
    return RowDataset(
        sequences, Corruptor(MaskingConfig(), Uniform(rate=0.15, space=SPACE), SPACE, None, seed=5)
    )


class Classes:
    """Rows of the same sequences with a class each, read at all of their tokens.

    Args:
        pairs: the class is that of a sequence and the next one, embedded apart.
    """

    def __init__(self, *, pairs: bool = False) -> None:
        self._apart = (0, 1) if pairs else (0,)

    def __getitem__(self, row: PackedRow) -> PackedBatch:
        documents, own = [], Periodic()
        for sample in row.samples:
            for step in self._apart:
                encoding = own[(sample + step) % len(own)]
                asked = np.arange(len(encoding))
                weights = np.full(len(asked), 1 / len(asked) / len(self._apart), dtype=np.float32)
                label = Labels(asked, asked == 0, weights, np.array([[sample % 3]], dtype=np.float32))
                documents.append(label.document(encoding, sample))
        return pack(documents)


def headed(*, pairs: bool = False) -> LabelledRows:
    """A tiny encoder with a head of three classes."""
    rows = modernbert(0.0)
    torch.manual_seed(2)
    return LabelledRows(rows, HeadConfig(kind="class", outputs=3, pairs=pairs, dropout=0.0))


def make_planner() -> RowPlanner:
    return RowPlanner(Periodic().lengths, tokens_per_row=TOKENS_PER_ROW, seed=7, lookahead=4)


def make_loop(directory: Path, rows: nn.Module | None = None, **changes: Any) -> tuple[Loop, Memory]:
    """A loop over 60 short sequences (about 5 batches an epoch), and its observer; see `settings`."""
    observer = changes.pop("observer", None) or Memory()
    data = changes.pop("dataset", None) or dataset()
    evaluate, goal = changes.pop("evaluate", None), changes.pop("goal", None)
    planner = changes.pop("planner", None) or make_planner()
    model = TinyRows() if rows is None else rows
    config = settings(**changes)
    loop = Loop(
        model, data, planner, config, directory=directory, observer=observer, evaluate=evaluate, goal=goal
    )
    return loop, observer


def trained(
    directory: Path, rows: nn.Module | None = None, *, resume: bool = False, **changes: Any
) -> tuple[LoopResult, Memory]:
    """What a training of `make_loop` came to, and its observer."""
    loop, observer = make_loop(directory, rows, **changes)
    return loop.run(resume), observer

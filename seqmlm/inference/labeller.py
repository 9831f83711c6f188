"""A fine-tuned model at work: from encodings to classes, values or tags of records and their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from scipy.special import expit, log_softmax, softmax
from torch import Tensor, nn

from seqmlm.engine.conditionals import Conditionals, evaluating
from seqmlm.engine.heads import LabelledRows, best_path
from seqmlm.engine.labels import Labels
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.types import Floats
from seqmlm.errors import StateError
from seqmlm.inference.model_folder import HEAD, LoadedModel
from seqmlm.inference.pieces import HeadCard, Piece, at_once

_TOGETHER = 256  # sequences whose outputs are held


class Labeller:
    """Predicts with an encoder and its head; `ask` asks the encoder, and is made anew for None."""

    def __init__(self, rows: LabelledRows, card: HeadCard, ask: Conditionals | None = None) -> None:
        self.rows, self.card = rows, card
        self.ask = ask or Conditionals(rows.rows)

    @classmethod
    def load(cls, model: LoadedModel, ask: Conditionals) -> Labeller:
        """The head of a model folder.

        Raises:
            UsageError: the model has none.
            StateError: it is damaged.
        """
        card = HeadCard.of(model)
        rows: Any = model.rows
        made = LabelledRows(rows, card.config)
        file = Path(model.path) / HEAD
        try:
            restore_module(_head(made), load(file.read_bytes()))
        except (OSError, SafetensorError) as error:
            raise StateError(f"{file} cannot be read: {error}; copy the model again") from None
        return cls(made.eval().to(ask.device), card, ask)

    def saved(self) -> dict[str, bytes]:
        """The file with the head's own weights, by name."""
        return {HEAD: save(module_tensors(_head(self.rows)))}

    def outputs(self, sequences: Iterable[Sequence[Piece]], counts: Sequence[int]) -> Iterator[Floats]:
        """(N, K) logits or values of each sequence of pieces, before temperature and scale; N labels each, of
        which one that no piece reads has NaN."""
        return self._read(sequences, counts, self.rows.scores)

    def features(self, sequences: Iterable[Sequence[Piece]], counts: Sequence[int]) -> Iterator[Floats]:
        """(N, H) what outputs are a linear function of; arguments as of `outputs`."""
        return self._read(sequences, counts, self.rows.pooled)

    def _read(
        self, sequences: Iterable[Sequence[Piece]], counts: Sequence[int], read: Callable[..., Tensor]
    ) -> Iterator[Floats]:
        listed = [list(one) for one in sequences]
        flat = [piece for one in listed for piece in one]
        states = self.ask.hidden((one.encoding for one in flat), at=(one.labels.asked for one in flat))
        each = zip(listed, counts, strict=True)
        while some := list(islice(each, _TOGETHER)):
            with evaluating(self.rows):  # which looks at every module: too slow for each record
                found = [self._joined(own, count, states, read) for own, count in some]
            yield from found

    def _joined(
        self, own: Sequence[Piece], count: int, states: Iterator[Floats], read: Callable[..., Tensor]
    ) -> Floats:
        """(N, K) of one sequence, from the states of its pieces, which are the next ones."""
        total: Floats | None = None
        weight = np.zeros((count, 1), dtype=np.float32)
        for some in at_once(own, self.card):
            share = np.float32(1.0 if self.card.of_parts else len(some) / len(own))
            found = self._through(read, [next(states)[:, 0] for _ in some], [one.labels for one in some])
            total = np.zeros((count, found.shape[1]), dtype=np.float32) if total is None else total
            total[some[0].numbers] += share * found
            weight[some[0].numbers] += share
        if total is None:
            return np.full((count, len(self.card.names)), np.nan, dtype=np.float32)
        return np.where(weight > 0, total, np.float32(np.nan))

    def _through(
        self, read: Callable[..., Tensor], hidden: Sequence[Floats], labels: Sequence[Labels]
    ) -> Floats:
        given = (hidden, [one.first for one in labels], [one.weights for one in labels])
        found = read(*(torch.from_numpy(np.concatenate(one)).to(self.ask.device) for one in given))
        values: Floats = found.float().cpu().numpy()
        return values

    def probabilities(self, outputs: Floats) -> Floats:
        """(N, K) probabilities of classes from logits; values in their own units."""
        if self.card.kind == "value":
            return np.asarray(outputs * np.array(self.card.scale) + np.array(self.card.center))
        warm = outputs / self.card.temperature
        return np.asarray(expit(warm) if self.card.kind == "multilabel" else softmax(warm, axis=1))

    def chain(self, outputs: Floats) -> list[str]:
        """(N,) tags of neighbouring parts: the most probable ones that can follow each other."""
        if not len(outputs):
            return []
        begin, steps, end = (np.zeros(len(self.card.names)) for _ in range(3))
        steps = allowed_steps(self.card.names)
        begin = np.where(steps[-1] == 0, 0.0, -np.inf)
        if self.rows.crf is not None:
            chain = {name: one.detach().cpu().numpy() for name, one in self.rows.crf.named_parameters()}
            begin, steps, end = begin + chain["begin"], steps[:-1] + chain["transitions"], chain["end"]
        else:
            outputs, steps = log_softmax(outputs, axis=1), steps[:-1]
        return [self.card.names[one] for one in best_path(outputs, steps, begin, end)]


def _head(rows: LabelledRows) -> nn.Module:
    """What is not in the encoder's own file."""
    return nn.ModuleDict({"classifier": rows.classifier} | ({} if rows.crf is None else {"crf": rows.crf}))


def allowed_steps(names: Sequence[str]) -> NDArray[np.float64]:
    """(K + 1, K) 0 where a tag may follow another one, or (last row) begin; -inf where it may not.

    I-X follows B-X or I-X, E-X too; S, B and O stand anywhere. Other names follow each other freely.
    """
    steps = np.zeros((len(names) + 1, len(names)))
    if not all(name == "O" or name[1:2] == "-" for name in names) or "O" not in names:
        return steps
    inside = {"I", "E"}
    for column, name in enumerate(names):
        if name[:1] in inside and any(one.startswith("B-") for one in names):
            for row, before in enumerate([*names, "O"]):
                if before[2:] != name[2:] or before[:1] not in ("B", "I"):
                    steps[row, column] = -np.inf
    return steps

"""Predict with a fine-tuned model: from encodings to classes, values or tags of records and their parts."""

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

from seqmlm.engine.conditionals import Conditionals, evaluation_mode
from seqmlm.engine.heads import LabelledRows, best_path
from seqmlm.engine.labels import Labels
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.types import Floats
from seqmlm.errors import StateError
from seqmlm.inference.model_folder import HEAD, LoadedModel
from seqmlm.inference.pieces import HeadCard, Piece, pieces_read_together

_TOGETHER = 256  # number of sequences whose outputs are in memory


class Labeller:
    """Predicts with an encoder and its head. `ask` calls the encoder.

    None creates new conditionals for it.
    """

    def __init__(self, rows: LabelledRows, card: HeadCard, ask: Conditionals | None = None) -> None:
        self.rows, self.card = rows, card
        self.ask = ask or Conditionals(rows.rows)

    @classmethod
    def load(cls, model: LoadedModel, ask: Conditionals) -> Labeller:
        """Load the head of a model folder.

        Raises:
            UsageError: the model has no head.
            StateError: the file of the head is damaged.
        """
        card = HeadCard.of(model)
        rows: Any = model.rows
        labelled = LabelledRows(rows, card.config)
        file = Path(model.path) / HEAD
        try:
            restore_module(_head(labelled), load(file.read_bytes()))
        except (OSError, SafetensorError) as error:
            raise StateError(f"{file} cannot be read: {error}; copy the model again") from None
        return cls(labelled.eval().to(ask.device), card, ask)

    def saved(self) -> dict[str, bytes]:
        """The files with the weights of the head, by name."""
        return {HEAD: save(module_tensors(_head(self.rows)))}

    def outputs(self, sequences: Iterable[Sequence[Piece]], counts: Sequence[int]) -> Iterator[Floats]:
        """Logits or values (N, K) of each sequence of pieces, before temperature and scale.

        A sequence has N labels. A label that no piece reads has NaN.

        Args:
            sequences: the pieces of each sequence.
            counts: the number of labels N of each sequence.
        """
        return self._head_outputs(sequences, counts, self.rows.scores)

    def features(self, sequences: Iterable[Sequence[Piece]], counts: Sequence[int]) -> Iterator[Floats]:
        """The features (N, H) of which the outputs are a linear function. Arguments as for `outputs`."""
        return self._head_outputs(sequences, counts, self.rows.pooled_states)

    def _head_outputs(
        self, sequences: Iterable[Sequence[Piece]], counts: Sequence[int], head: Callable[..., Tensor]
    ) -> Iterator[Floats]:
        listed = [list(sequence) for sequence in sequences]
        flat = [piece for sequence in listed for piece in sequence]
        states = self.ask.hidden_states(
            (piece.encoding for piece in flat), at=(piece.labels.asked for piece in flat)
        )
        remaining = zip(listed, counts, strict=True)
        while chunk := list(islice(remaining, _TOGETHER)):
            # evaluation_mode visits every module, which would be too slow for each record
            with evaluation_mode(self.rows):
                outputs = [self._average_pieces(pieces, count, states, head) for pieces, count in chunk]
            yield from outputs

    def _average_pieces(
        self, pieces: Sequence[Piece], count: int, states: Iterator[Floats], head: Callable[..., Tensor]
    ) -> Floats:
        """The averaged output (N, K) of one sequence. The states of its pieces are next in `states`."""
        total: Floats | None = None
        weight = np.zeros((count, 1), dtype=np.float32)
        for group in pieces_read_together(pieces, self.card):
            share = np.float32(1.0 if self.card.of_parts else len(group) / len(pieces))
            output = self._apply(head, [next(states)[:, 0] for _ in group], [piece.labels for piece in group])
            total = np.zeros((count, output.shape[1]), dtype=np.float32) if total is None else total
            total[group[0].numbers] += share * output
            weight[group[0].numbers] += share
        if total is None:
            return np.full((count, len(self.card.names)), np.nan, dtype=np.float32)
        return np.where(weight > 0, total, np.float32(np.nan))

    def _apply(
        self, head: Callable[..., Tensor], hidden: Sequence[Floats], labels: Sequence[Labels]
    ) -> Floats:
        columns = (hidden, [label.first for label in labels], [label.weights for label in labels])
        output = head(*(torch.from_numpy(np.concatenate(column)).to(self.ask.device) for column in columns))
        values: Floats = output.float().cpu().numpy()
        return values

    def probabilities(self, outputs: Floats) -> Floats:
        """Probabilities (N, K) of classes from logits. Values are returned in their own units."""
        if self.card.kind == "value":
            return np.asarray(outputs * np.array(self.card.scale) + np.array(self.card.center))
        warm = outputs / self.card.temperature
        return np.asarray(expit(warm) if self.card.kind == "multilabel" else softmax(warm, axis=1))

    def chain(self, outputs: Floats) -> list[str]:
        """The most probable valid sequence of tags (N,) for neighbouring parts."""
        if not len(outputs):
            return []
        begin, steps, end = (np.zeros(len(self.card.names)) for _ in range(3))
        steps = allowed_steps(self.card.names)
        begin = np.where(steps[-1] == 0, 0.0, -np.inf)
        if self.rows.crf is not None:
            chain = {
                name: parameter.detach().cpu().numpy() for name, parameter in self.rows.crf.named_parameters()
            }
            begin, steps, end = begin + chain["begin"], steps[:-1] + chain["transitions"], chain["end"]
        else:
            outputs, steps = log_softmax(outputs, axis=1), steps[:-1]
        return [self.card.names[number] for number in best_path(outputs, steps, begin, end)]


def _head(rows: LabelledRows) -> nn.Module:
    """A module with the parameters of the head, which are not in the file of the encoder."""
    return nn.ModuleDict({"classifier": rows.classifier} | ({} if rows.crf is None else {"crf": rows.crf}))


def allowed_steps(names: Sequence[str]) -> NDArray[np.float64]:
    """(K + 1, K) 0 if a tag may follow another tag, or start (last row), and -inf if it may not.

    I-X and E-X follow B-X or I-X. S, B and O may be anywhere. Names of other forms may follow each other
    freely.
    """
    steps = np.zeros((len(names) + 1, len(names)))
    if not all(name == "O" or name[1:2] == "-" for name in names) or "O" not in names:
        return steps
    inside = {"I", "E"}
    for column, name in enumerate(names):
        if name[:1] in inside and any(tag.startswith("B-") for tag in names):
            for row, previous in enumerate([*names, "O"]):
                if previous[2:] != name[2:] or previous[:1] not in ("B", "I"):
                    steps[row, column] = -np.inf
    return steps

"""Evaluation during and after training: the same masked units for every masker, beside the unigram floor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.masking.corrupt import Corruptor
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.types import Sequences
from seqmlm.engine.units import Units
from seqmlm.evaluation.bits import masked_bits, memorization_gap
from seqmlm.tasks.corpus import sequence_indices

FINAL_FACTOR = 4


class Evaluator:
    """Bits per unit on validation sequences; callable, as the loop wants it.

    Args:
        validation: held-out sequences.
        train: sequences trained on, for the memorization gap.
        unigram: (K,) add-one unigram probabilities of the training split, see `Units.frequencies`.
        records: validation sequences read each time (the final evaluation reads four times as many).
        corruptor: the training's; where its masks are static, the memorization gap is reported too.
        seed: of the masked positions, so that every evaluation of a run asks the same questions.
        tokens_per_batch: budget of a forward pass.
        units: how units are hidden and read back.
    """

    def __init__(
        self,
        validation: Sequences,
        train: Sequences,
        unigram: NDArray[np.float64],
        *,
        records: int,
        corruptor: Corruptor,
        seed: int,
        tokens_per_batch: int,
        units: Units,
    ) -> None:
        self.units = units
        self.validation, self.train, self.unigram = validation, train, unigram
        self.records, self.corruptor, self.seed = records, corruptor, seed
        self.tokens_per_batch = tokens_per_batch

    def __call__(self, rows: MaskedRows) -> dict[str, float]:
        return self._measure(rows, self.records)

    def final(self, rows: MaskedRows) -> dict[str, float]:
        """The evaluation after training, on more sequences."""
        return self._measure(rows, FINAL_FACTOR * self.records)

    def _measure(self, rows: MaskedRows, records: int) -> dict[str, float]:
        ask = Conditionals(rows, tokens_per_batch=self.tokens_per_batch)
        chosen: Sequence[int] = sequence_indices(self.validation, records)
        report = masked_bits(
            ask, self.validation, chosen, unigram=self.unigram, seed=self.seed, units=self.units
        )
        values = {
            "eval/loss": report.loss,
            "eval/bits_per_unit": report.bits_per_unit,
            "eval/unigram_bits_per_unit": report.unigram_bits_per_unit,
        }
        if not self.corruptor.config.dynamic:
            seen = sequence_indices(self.train, records)
            values["train/memorization_gap"] = memorization_gap(ask, self.train, seen, self.corruptor)
        return values

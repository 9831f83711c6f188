"""A training put together for its data: model, masker, planner, settings of the loop, and evaluation.

The evaluation asks every model the same masked units, whatever its masker, and reports the unigram beside it.
It asks the engine itself and opens no session: a model in training has no folder, and stays on the device of
its process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import nn

from seqmlm.engine.backbones import build, widened
from seqmlm.engine.channels import InputChannels, channels_of
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.durable import replace_file
from seqmlm.engine.linear import LinearRows, Penalty
from seqmlm.engine.loop import Goal
from seqmlm.engine.masking.base import Corruptor
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.packing import Augmentation, RowDataset, RowPlanner
from seqmlm.engine.pseudolikelihood import Aligned, prepared
from seqmlm.engine.schedule import LoopConfig
from seqmlm.engine.types import Sequences
from seqmlm.engine.units import Units
from seqmlm.errors import StateError, UsageError
from seqmlm.evaluation.bits import memorization_gap, unigram, unit_bits
from seqmlm.inference import model_folder
from seqmlm.inference.model_folder import load_tokenizer, make_masker
from seqmlm.tasks.config import (
    AFTERWARDS,
    LEARNING_RATES,
    SECOND_STAGE_LEARNING_RATE,
    TOKENS_PER_BATCH,
    PretrainConfig,
    seconds,
)
from seqmlm.tasks.corpus import Corpus, sequence_indices

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from seqmlm.tokenizers.base import Tokenizer

FINAL_FACTOR = 4
"""The evaluation after a training reads so many times the sequences of one on the way."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of a training that has not begun; `aligned` are the data of a linear model, else None."""

    rows: MaskedRows | LinearRows
    corpus: Corpus
    corruptor: Corruptor
    planner: RowPlanner
    dataset: RowDataset
    loop: LoopConfig
    evaluator: Evaluator
    aligned: Aligned | None = None


def assemble(config: PretrainConfig, corpus: Corpus) -> Parts:
    """Build everything a training needs for its data; trains nothing.

    Args:
        config: resolved; the initial model, if any, is a folder or hub id.
        corpus: what it trains on.

    Raises:
        UsageError: an option unknown to masker or model, or a window longer than the model's positions.
    """
    tokens_per_row = row_length(config)
    space = corpus.tokenizer.space
    rows: MaskedRows | LinearRows
    if config.model.is_linear:
        rows, aligned = prepared(corpus.train, space, Penalty.of(config.model.overrides))
    else:
        rows, aligned = new_model(config, corpus), None
    frequencies = unigram(corpus.token_counts, space)
    masker = make_masker(config.masking, corpus.tokenizer)
    corruptor = Corruptor(config.masking, masker, space, frequencies, config.seed)
    units = corpus.tokenizer.units
    evaluator = Evaluator(
        corpus.validation,
        corpus.train,
        units.frequencies(corpus.token_counts),
        records=config.train.evaluation_records,
        corruptor=corruptor,
        seed=config.seed,
        tokens_per_batch=tokens_per_row,
        units=units,
    )
    return Parts(
        rows=rows,
        corpus=corpus,
        corruptor=corruptor,
        planner=RowPlanner(
            corpus.train.lengths, tokens_per_row=tokens_per_row, seed=config.seed, moving=corpus.train
        ),
        dataset=RowDataset(
            corpus.train, corruptor, augmentation=augmentation(config, corpus), seed=config.seed
        ),
        loop=loop_config(config),
        evaluator=evaluator,
        aligned=aligned,
    )


def augmentation(config: PretrainConfig, corpus: Corpus) -> Augmentation | None:
    """The tokenizer's equivalent forms of a sequence; None if it has none, or they are switched off."""
    tokenizer = corpus.tokenizer
    return tokenizer.augment if tokenizer.augments and config.train.augment else None


def new_model(config: PretrainConfig, corpus: Corpus) -> MaskedRows:
    """The model before its first step: the same one whenever settings and data are the same."""
    torch.manual_seed(config.seed)
    init, tokenizer = config.model.init, corpus.tokenizer
    space = tokenizer.space
    if init is not None:
        model = _initial(init, tokenizer)
        channels = model_folder.load_channels(init, model)
    else:
        model = build(config.model, space, unigram(corpus.token_counts, space))
        wanted = channels_of(tokenizer.channels)
        channels = InputChannels(wanted, model.get_input_embeddings().embedding_dim) if wanted else None
    return MaskedRows(model, space, probability=_probability(init), channels=channels)


def _initial(init: str, tokenizer: Tokenizer) -> PreTrainedModel:
    """The initial model; where its tokenizer has grown, with weights for the new ids, which begin as those
    of what it did not know."""
    if (card := model_folder.read_card(Path(init))) is not None and card.head:
        raise UsageError(
            f"{init} was fine-tuned: its masked-LM head has not changed with its body; --init its parent"
        )
    if not tokenizer.grows:
        return model_folder.load_weights(init, tokenizer.space)
    before = load_tokenizer(init)
    model = model_folder.load_weights(init, before.space)
    known = len(before.tokens)
    return widened(model, tokenizer.space.size, known=known, like=tokenizer.unfamiliar[0])


def _probability(init: str | None) -> Literal["ordinary", "full"]:
    """A model keeps the probability space it was trained in; an imported one has the full softmax."""
    if init is None:
        return "ordinary"
    card = model_folder.read_card(Path(init))
    return "full" if card is None else card.probability


def batch_tokens(config: PretrainConfig) -> int:
    """Tokens of one optimizer step: as set, else by size, and one window at least."""
    tokens = config.train.tokens_per_batch or TOKENS_PER_BATCH[config.model.size]
    return max(tokens, config.model.max_length)


def row_length(config: PretrainConfig) -> int:
    """Tokens of a packed row: enough to use a processor or an accelerator fully, and at least one window."""
    if config.train.tokens_per_row is not None:
        return config.train.tokens_per_row
    comfortable = 65536 if torch.cuda.is_available() else 4096
    rows = -(-batch_tokens(config) // comfortable)
    return max(config.model.max_length, -(-batch_tokens(config) // rows))


def loop_config(config: PretrainConfig) -> LoopConfig:
    """The loop's own settings from the user's.

    Raises:
        UsageError: a duration, limit or rate that cannot be used.
    """
    train = config.train
    rate = train.learning_rate
    if rate is None:
        rate = SECOND_STAGE_LEARNING_RATE if config.model.init else LEARNING_RATES[config.model.size]
    every = train.evaluate_every
    if every is None:
        every = max(1, train.max_steps // 10) if train.max_steps else 100
    same = {one.name: getattr(train, one.name) for one in fields(LoopConfig) if hasattr(train, one.name)}
    settled = {
        "max_seconds": None if train.max_time is None else (1 - AFTERWARDS) * seconds(train.max_time),
        "learning_rate": rate,
        "rows_per_batch": max(1, round(batch_tokens(config) / row_length(config))),
        "evaluate_every": every,
        "seed": config.seed,
    }
    return LoopConfig(**{**same, **settled})


# Evaluation: bits per unit, during a training and after it


class Evaluator:
    """Bits per unit on validation sequences; callable, as the loop wants it.

    Args:
        validation: held-out sequences.
        train: sequences trained on, for the memorization gap.
        unigram: (K,) add-one unigram probabilities of the training split, see `Units.frequencies`.
        records: validation sequences read each time (the final evaluation reads four times as many).
        corruptor: the training's; if its masks are static, the memorization gap is reported too.
        seed: of the masked positions, so that every evaluation of a run masks the same units.
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

    def __call__(self, rows: MaskedRows | LinearRows) -> dict[str, float]:
        """The evaluation during training."""
        return self._measure(rows, self.records)

    def final(self, rows: MaskedRows | LinearRows, tokens: int | None = None) -> dict[str, float]:
        """The evaluation after training, on more sequences: so many tokens, where their number is given."""
        records = FINAL_FACTOR * self.records
        if tokens is not None:
            records = min(
                records, max(_FEWEST, int(tokens / max(1.0, float(self.validation.lengths.mean()))))
            )
        return self._measure(rows, records)

    def _measure(self, rows: MaskedRows | LinearRows, records: int) -> dict[str, float]:
        ask = Conditionals(rows, tokens_per_batch=self.tokens_per_batch)
        chosen: Sequence[int] = sequence_indices(self.validation, records)
        report = unit_bits(
            ask, self.validation, chosen, unigram=self.unigram, seed=self.seed, units=self.units
        ).report()
        values = {
            "eval/loss": report.loss,
            _BITS: report.bits_per_unit,
            "eval/unigram_bits_per_unit": report.unigram_bits_per_unit,
        }
        if not self.corruptor.config.dynamic:
            seen = sequence_indices(self.train, records)
            values["train/memorization_gap"] = memorization_gap(ask, self.train, seen, self.corruptor)
        return values


_BITS = "eval/bits_per_unit"
FEWEST_BITS = Goal(_BITS)
_FEWEST = 32  # sequences of the last evaluation of a training, however short


def linear_told(parts: Parts, world: int) -> str:
    """What the data of a linear model are; refuses several processes, of which it uses one.

    Raises:
        UsageError: there are several.
    """
    if world > 1:
        raise UsageError("a linear model is trained by one process: start seqmlm without torchrun")
    assert isinstance(parts.rows, LinearRows)
    shape = parts.rows.model.config
    return (
        f"linear: {shape.columns} columns of {len(shape.symbols)} states, {len(parts.corpus.train):,} rows "
        f"that weigh as much as {shape.sequences:.0f} different ones; gaps are no state"
    )


class Best:
    """An evaluator that keeps the best weights so far in a file of the run.

    Of few data a long training memorizes: its last weights predict new data worse than earlier ones.

    Args:
        evaluator: measures, on the same data each time.
        file: where the weights are kept.
        goal: which of its metrics says how good the weights are.
        worth: by which share earlier weights must be better to be taken: evaluations are of few records.
        resume: whether the training goes on, so that what is kept there counts.
        writes: whether this process writes the file; all see the same metrics.
    """

    def __init__(
        self,
        evaluator: Callable[[Any], dict[str, float]],
        file: Path,
        goal: Goal,
        *,
        worth: float = 0.0,
        resume: bool,
        writes: bool = True,
    ) -> None:
        self._evaluator, self._file, self.goal, self._worth = evaluator, file, goal, worth
        self._writes = writes
        self.value: float | None = None
        if resume and file.is_file():
            with suppress(SafetensorError, ValueError, TypeError), safe_open(file, "pt") as kept:
                self.value = float((kept.metadata() or {})["value"])

    def __call__(self, rows: nn.Module) -> dict[str, float]:
        values = self._evaluator(rows)
        value = values.get(self.goal.metric, math.nan)  # where it cannot be had, nothing is better
        if self.goal.better(value, self.value):
            self.value = value
            if not self._writes:
                return values
            try:
                replace_file(self._file, save(module_tensors(rows), {"value": repr(self.value)}))
            except OSError as error:
                raise StateError(f"cannot write {self._file}: {error}; free space, then --resume") from None
        return values

    def restore(self, rows: nn.Module) -> float | None:
        """Give a trained model the weights that were kept, if they are better.

        Returns:
            The metric of the last weights where others took their place; else None.

        Raises:
            StateError: the file is of another model.
            OSError, SafetensorError: it cannot be read.
        """
        if self.value is None:
            return None
        last = self._evaluator(rows).get(self.goal.metric, math.nan)
        if not self.goal.better(self.value, last * (1 + self._worth if self.goal.more else 1 - self._worth)):
            self.value = last
            return None
        restore_module(rows, load(self._file.read_bytes()))
        return last

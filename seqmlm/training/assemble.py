"""The parts of a training for given data: model, masker, planner, loop settings and evaluation.

The evaluation uses the same masked units for every model, whatever its masker. It also reports the result of
unigram frequencies for comparison. It calls the engine directly, without a session, because a model in
training has no folder and stays on the device of its process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from seqmlm import plugins
from seqmlm.config import to_dict
from seqmlm.data.splits import evenly, nested
from seqmlm.engine import checkpoint
from seqmlm.engine.backbones import build, widen_vocabulary
from seqmlm.engine.channels import InputChannels, channels_of
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.distributed import Processes
from seqmlm.engine.linear import LinearRows, Penalty
from seqmlm.engine.loop import Goal, LoopResult
from seqmlm.engine.masking.base import Corruptor
from seqmlm.engine.masking.lexicon import Lexicon
from seqmlm.engine.masking.position import Position
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.optimizer import restore_module
from seqmlm.engine.packing import PackedRow, RowDataset, RowPlanner
from seqmlm.engine.pseudolikelihood import AlignedSequences, LinearLoop, prepare
from seqmlm.engine.shapes import FROM_NEIGHBOURS, LAYERS, PATTERN_KEYS
from seqmlm.errors import UsageError
from seqmlm.evaluation.bits import (
    BitsReport,
    UnitBits,
    concatenate_bits,
    memorization_gap,
    unigram,
    unit_bits,
)
from seqmlm.inference import model_folder
from seqmlm.inference.maskers import make_masker
from seqmlm.inference.model_folder import load_tokenizer
from seqmlm.tasks.deadline import TimeAfterTraining
from seqmlm.tokenizers.base import Growing
from seqmlm.tracking import TrackedRun
from seqmlm.training.config import PretrainConfig
from seqmlm.training.corpus import Corpus
from seqmlm.training.neighbour_embeddings import set_neighbour_embeddings
from seqmlm.training.objective import BEST, Best, Evaluate, Objective
from seqmlm.training.observers import Console, Recorder
from seqmlm.training.resume import CHECKPOINTS
from seqmlm.training.run import TrainingRun

if TYPE_CHECKING:
    from seqmlm.tokenizers.base import Tokenizer

Probability = Literal["ordinary", "full"]

FINAL_FACTOR = 4
"""The evaluation after training reads this many times as many sequences as an evaluation during training."""

PROBED = 2000
"""Largest number of training sequences, evenly spread, in which the masker must hide something."""


class Training(Objective):
    """A training for given data. Each part is created at first use.

    If `config` has an initial model, it is a folder or hub id.

    Attributes:
        loop: settings of the loop. They are replaced when the share of the time limit for steps is known.
    """

    def __init__(self, config: PretrainConfig, corpus: Corpus) -> None:
        self.config, self.corpus, self.loop = config, corpus, config.loop()

    @cached_property
    def _linear(self) -> tuple[LinearRows, AlignedSequences] | None:
        if not self.config.model.is_linear:
            return None
        return prepare(self.corpus.train, self.corpus.tokenizer.space, self._penalty)

    @property
    def _penalty(self) -> Penalty:
        return Penalty.from_settings(self.config.model.overrides)

    @cached_property
    def trained_model(self) -> MaskedRows | LinearRows:
        """The model that is trained: a masked model with its space and channels, or a linear model."""
        return self.new_model() if self._linear is None else self._linear[0]

    def new_model(self) -> MaskedRows:
        """The model before its first step. The same settings and data always give the same model."""
        torch.manual_seed(self.config.seed)
        model, tokenizer = self.config.model, self.corpus.tokenizer
        if model.init is not None:
            return _initial_model(model.init, tokenizer)
        space, inputs = tokenizer.space, channels_of(tokenizer.channels)
        body = build(model, space, unigram(self.corpus.token_counts, space))
        if model.initialization in FROM_NEIGHBOURS:
            set_neighbour_embeddings(body.get_input_embeddings().weight, self.corpus.train, space)
        channels = InputChannels(inputs, body.get_input_embeddings().embedding_dim) if inputs else None
        return MaskedRows(body, space, probability="ordinary", channels=channels)

    @cached_property
    def corruptor(self) -> Corruptor:
        """The masker with its rates of hidden, replaced and kept units."""
        tokenizer, masking = self.corpus.tokenizer, self.config.masking
        frequencies = unigram(self.corpus.token_counts, tokenizer.space)
        masker = make_masker(masking, tokenizer)
        return Corruptor(masking, masker, tokenizer.space, frequencies, self.config.seed)

    @cached_property
    def planner(self) -> RowPlanner:
        """The plan of the packed rows, epoch by epoch."""
        train, size = self.corpus.train, self.config.row_tokens
        return RowPlanner(train.lengths, tokens_per_row=size, seed=self.config.seed, moving=train)

    @cached_property
    def dataset(self) -> RowDataset:
        """The packed rows with their masks.

        Equivalent forms of sequences are included if the tokenizer knows any.
        """
        tokenizer = self.corpus.tokenizer
        augmentation = tokenizer.units.facts.augment if self.config.train.augment else None
        return RowDataset(self.corpus.train, self.corruptor, augmentation=augmentation, seed=self.config.seed)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the model on validation sequences."""
        return Evaluator(self)

    def check(self, world: int) -> None:
        """Create the parts of the training, and refuse more processes than a batch has rows.

        Raises:
            UsageError: there are too many processes, or the masker or model does not know an option. Or a
                window has more tokens than the model has positions, or the masker hides nothing.
        """
        if self._linear is not None and world > 1:
            raise UsageError("a linear model is trained by one process: start seqmlm without torchrun")
        _ = self.trained_model, self.dataset, self.evaluator
        if self._linear is None:
            self._check_masks()
        rows = self.loop.rows_per_batch
        if rows < world:
            tokens = rows * self.planner.tokens_per_row
            raise UsageError(
                f"a batch of {tokens} tokens is {rows} row(s) for {world} processes: raise "
                f"train.tokens_per_batch, or --set train.tokens_per_row={max(1, tokens // world)}"
            )

    def _check_masks(self) -> None:
        """Refuse a masker that hides nothing, such as a lexicon of words that do not occur in the data."""
        lengths = self.corpus.train.lengths
        rows = [PackedRow(0, (n,), int(lengths[n])) for n in evenly(len(lengths), PROBED)]
        if not any(len(self.dataset[row].asked) for row in rows):
            raise UsageError(
                f"masker {self.config.masking.masker!r} hides nothing in {len(rows):,} training sequences: "
                "use a lexicon of words in the data (seqmlm lexicon finds some), or another masker"
            )

    def evaluation(self, run: TrainingRun, processes: Processes) -> Best | Evaluate:
        """The evaluator. If the best weights must be kept, it is wrapped in a `Best`.

        Two cases use the last weights. Maskers that hide selected places train something that the evaluation
        does not measure, because it masks units anywhere. Several processes would have to agree on the best.
        """
        if processes.world > 1 or isinstance(self.corruptor.masker, Lexicon | Position):
            return self.evaluator
        return Best(self.evaluator, run.directory / BEST, FEWEST_BITS, worth=0.01, resume=run.resume)

    def train(
        self, run: TrainingRun, processes: Processes, tracked: TrackedRun | None, console: Console
    ) -> LoopResult:
        if self._linear is not None:
            directory = run.directory / CHECKPOINTS
            observer = None if tracked is None else Recorder(tracked, console, self.loop, None)
            options: dict[str, Any] = {"directory": directory, "observer": observer, "falls": _BITS}
            loop = LinearLoop(*self._linear, self._penalty, self.loop, evaluate=self.evaluator, **options)
            return loop.run(resume=run.resume)
        outcome = super().train(run, processes, tracked, console)
        if self.best is not None and self.best.replaced is not None:
            console.message(
                f"kept earlier weights: {self.best.value:.3f} bits per {self.corpus.unit} instead of "
                f"{self.best.replaced:.3f}, because the last weights had begun to memorize. Train "
                "for a shorter time, or on more data"
            )
        return outcome

    def gather(self, path: Path) -> None:
        """Load the whole model from a checkpoint. Needed when this process has only a shard of it."""
        self.trained_model = self.new_model()
        restore_module(self.trained_model, checkpoint.open_checkpoint(path).tensors("model"))

    def card(self, name: str, run_id: str | None, steps: int) -> model_folder.Card:
        """The card for the folder of the model, without its metrics."""
        config, corpus, rows = self.config, self.corpus, self.trained_model
        linear, cuts = self._linear is not None, plugins.domain(config.domain).reading.cuts
        return model_folder.Card(
            domain=config.domain,
            unit=corpus.unit,
            tokenizer=corpus.tokenizer.name,
            max_length=rows.model.config.length if linear else config.model.max_length,
            probability=rows.probability,
            sensitive=config.data.sensitive,
            channels=rows.channels.description() if rows.channels is not None else {},
            masking={} if linear else to_dict(config.masking),
            reading={name: option for name, option in config.data.options.items() if linear or name in cuts},
            languages=_languages(config.model.init, corpus),
            seed=config.seed,
            parent=config.model.init,
            dataset=corpus.fingerprint,
            run_name=name,
            run_id=run_id,
            steps=steps,
        )

    def sentence(self) -> str:
        """A sentence about the shape of a new model. It is empty for a model that is loaded."""
        model = self.config.model
        if self._linear is not None:
            shape = self._linear[0].model.config
            return (
                f"linear: {shape.columns} columns with {len(shape.symbols)} states each, gaps excluded; "
                f"its {len(self.corpus.train):,} rows count as {shape.sequences:.0f}, because similar rows "
                "get less weight"
            )
        if model.init is not None or PATTERN_KEYS & set(model.overrides):
            return ""
        return f"attention: {LAYERS[model.layers]}. Change: --set model.layers=..."


def _languages(init: str | None, corpus: Corpus) -> tuple[str, ...]:
    """Languages of the training data and of the parent model. Empty if the parent's languages are unknown."""
    parent = None if init is None else model_folder.read_card(Path(init))
    inherited: Sequence[str] = () if parent is None else parent.languages
    return () if init is not None and not inherited else tuple(sorted(corpus.languages.union(inherited)))


def _initial_model(init: str, tokenizer: Tokenizer) -> MaskedRows:
    """Load the initial model, with the probability space of its training.

    An imported model has the full softmax. If the tokenizer has new ids, their weights start as the weights
    of its unknown units.

    Raises:
        UsageError: the model was fine-tuned.
    """
    card = model_folder.read_card(Path(init))
    if card is not None and card.head:
        raise UsageError(
            f"{init} was fine-tuned, so its masked-LM head no longer matches its encoder: give --init the "
            "model that it was fine-tuned from"
        )
    grows = isinstance(tokenizer, Growing)
    parent_tokenizer = load_tokenizer(init) if grows else tokenizer
    model = model_folder.load_weights(init, parent_tokenizer.space)
    if grows:
        size, known_ids = tokenizer.space.size, len(parent_tokenizer.tokens)
        model = widen_vocabulary(model, size, trained_ids=known_ids, like=tokenizer.units.facts.unfamiliar[0])
    space: Probability = "full" if card is None else card.probability
    channels = model_folder.load_channels(init, model)
    return MaskedRows(model, tokenizer.space, probability=space, channels=channels)


# Evaluation: bits per unit, during a training and after it


class Evaluator:
    """Measures bits per unit on validation sequences. The loop calls it with a model.

    Every evaluation of a training masks the same units. With static masks, the memorization gap is reported
    too.
    """

    def __init__(self, training: Training) -> None:
        config, self.corpus, self.corruptor = training.config, training.corpus, training.corruptor
        self.seed, self.records, self.tokens = config.seed, config.train.evaluation_records, config.row_tokens
        self._unigram = self.corpus.unigram

    def __call__(self, rows: MaskedRows | LinearRows) -> dict[str, float]:
        """Evaluate the model during training."""
        return self._metrics(rows, self.records)

    def final(self, rows: MaskedRows | LinearRows, time_left: TimeAfterTraining) -> dict[str, float]:
        """Evaluate the model after training, on more sequences, as long as the time limit allows."""
        # With static masks, the training sequences are evaluated too, twice.
        phase = time_left.phase("evaluation", _SHARE if self.corruptor.config.dynamic else _SHARE / 3)
        ask, validation = self.ask(rows), self.corpus.validation
        indices = evenly(len(validation), FINAL_FACTOR * self.records)
        parts, sequences, tokens = list[UnitBits](), 0, 0
        order = [indices[place] for place in nested(len(indices))]
        for batch in _batches(order, validation.lengths, self.tokens):
            parts.append(self._bits(ask, batch))
            sequences, tokens = sequences + len(batch), tokens + int(validation.lengths[batch].sum())
            if phase.ends_after(sequences / len(indices)):
                break
        facts = phase.settle("the final evaluation", speed=tokens / max(phase.seconds, 1e-9))
        time_left.set_speed(facts["speed"])
        return self._report(rows, concatenate_bits(parts).report(), sequences)

    def _metrics(self, rows: MaskedRows | LinearRows, records: int) -> dict[str, float]:
        bits = self._bits(self.ask(rows), evenly(len(self.corpus.validation), records))
        return self._report(rows, bits.report(), records)

    def _bits(self, ask: Conditionals, indices: Sequence[int]) -> UnitBits:
        validation, units = self.corpus.validation, self.corpus.tokenizer.units
        return unit_bits(ask, validation, indices, unigram=self._unigram, seed=self.seed, units=units)

    def _report(self, rows: MaskedRows | LinearRows, bits: BitsReport, records: int) -> dict[str, float]:
        """Metrics by name. With static masks, the memorization gap uses as many training sequences."""
        values = {
            "eval/loss": bits.loss,
            _BITS: bits.bits_per_unit,
            "eval/unigram_bits_per_unit": bits.unigram_bits_per_unit,
        }
        if not self.corruptor.config.dynamic:
            ask, train = self.ask(rows), self.corpus.train
            indices = evenly(len(train), records)
            values["train/memorization_gap"] = memorization_gap(ask, train, indices, self.corruptor)
        return values

    def ask(self, rows: MaskedRows | LinearRows) -> Conditionals:
        """The conditionals of a model, with forward passes of as many tokens as a training row."""
        return Conditionals(rows, tokens_per_batch=self.tokens)


_BITS = "eval/bits_per_unit"
FEWEST_BITS = Goal(_BITS)
_SHARE = 0.2  # share of the time after the last step that is for the final evaluation


def _batches(indices: Sequence[int], lengths: NDArray[np.integer], tokens: int) -> Iterator[list[int]]:
    """Group indices into batches of about `tokens` tokens. Each batch has at least one index."""
    batch, size = list[int](), 0
    for index in indices:
        batch.append(index)
        size += int(lengths[index])
        if size >= tokens:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

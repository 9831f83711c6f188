"""Which size a limit of time is for, where the user names none: measured on the data, before there is a run.

A larger model learns more from a token, and sees fewer tokens in the same time. So every size takes a few
steps of the real training, a second in all, and the largest one is taken that would see enough: so many
tokens a parameter, so many optimizer steps, and not few data again and again. The numbers are rules of thumb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from seqmlm.engine.backbones import body_parameter_count
from seqmlm.engine.device import is_out_of_memory, random_state_kept, release_memory
from seqmlm.engine.distributed import Processes
from seqmlm.engine.loop import measured_speed
from seqmlm.engine.shapes import SIZES
from seqmlm.training.assemble import Training
from seqmlm.training.config import PretrainConfig
from seqmlm.training.corpus import Corpus
from seqmlm.training.launch import Plan

MEASURED_SECONDS = 1.0
"""For all sizes together; one step of each size that is measured at least."""

TOKENS_PER_PARAMETER = 10.0
"""Tokens that a size must see for each parameter of its layers, to be better than the next smaller one.

From one seed, bits a word of English novels after the same processor time of one thread, as
`benchmarks/studies/recipe.py --only text --arms nearby` measures it (the smallest has 2 layers x 64):

    parameters      15 s    30 s    60 s    120 s    240 s
     0.07 million  10.19    9.41    8.85    8.01     7.62
     0.56 (tiny)   10.82   10.10    9.08    8.38     7.78
     3.35 (small)                  11.14             9.55

Tiny saw 0.3, 0.6, 1.2, 2.3 and 4.7 tokens a parameter in these times, and the smaller model was ahead in all
of them, by .63, .69, .23, .37 and .16 bits. So the number lies above 4.7; where, was not measured. Published
optima for language models are about 20 (Hoffmann et al. 2022).
"""

STEPS = 300
"""Optimizer steps at least: in the same table tiny took 89, 156, 328, 620 and 1,293."""

PASSES = 16
"""Passes over the data that count: later ones teach little (Muennighoff et al. 2023: the worth of repeated
tokens falls with a constant of about 15 passes). Not measured here."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A size, and what it asks of a training.

    Args:
        parameters: of the body.
        batch, epoch: tokens of an optimizer step, and of one pass over the data.
        most_tokens: tokens after which another limit ends the training; infinite if there is none.
    """

    size: str
    parameters: int
    batch: int
    epoch: float
    most_tokens: float = math.inf

    @classmethod
    def of(cls, config: PretrainConfig, corpus: Corpus) -> Candidate:
        """The size of these settings, for these data."""
        train, epoch = config.train, float(corpus.train.lengths.sum())
        limits = [
            *([] if train.max_steps is None else [train.max_steps * config.batch_tokens]),
            *([] if train.epochs is None else [train.epochs * epoch]),
        ]
        parameters = body_parameter_count(config.model, corpus.tokenizer.space)
        return cls(
            size=config.model.size,
            parameters=parameters,
            batch=config.batch_tokens,
            epoch=epoch,
            most_tokens=min(limits, default=math.inf),
        )

    @property
    def tokens_needed(self) -> float:
        """Tokens below which a smaller size is better."""
        return max(TOKENS_PER_PARAMETER * self.parameters, STEPS * self.batch)

    @property
    def repeats_data(self) -> bool:
        """Whether the data are too few for this size, for how long it may train."""
        return PASSES * self.epoch < self.tokens_needed

    def tokens_trained(self, tokens: float) -> float:
        """How many of so many tokens it trains on before another limit ends the training."""
        return min(tokens, self.most_tokens)

    def trains_enough(self, tokens: float) -> bool:
        """Whether the size sees all the tokens that it needs in a time that suffices for `tokens` tokens."""
        return not self.repeats_data and self.tokens_trained(tokens) >= self.tokens_needed


@dataclass(frozen=True)
class Choice:
    """The size taken, and the tokens it would see; the next larger one, which does not suit, and its own."""

    size: str
    sees: float
    larger: Candidate | None = None
    larger_sees: float = 0.0

    def sentence(self, limit: str) -> str:
        """The size and the reason for it, in one line.

        >>> Choice("tiny", 2_100_000).sentence("5m")
        'size: tiny (5m is enough for about 2.1 million tokens; no size is larger). Override with --size'
        """
        larger, why = self.larger, "no size is larger"
        if larger is not None and not self.larger_sees:
            why = f"'{larger.size}' does not fit in memory"
        elif larger is not None:
            passes = f", more than {PASSES} passes over the data" if larger.repeats_data else ""
            why = f"'{larger.size}' needs {_rounded(larger.tokens_needed)}{passes}"
        sees = f"{limit} is enough for about {_rounded(self.sees)} tokens"
        return f"size: {self.size} ({sees}; {why}). Override with --size"


def _rounded(tokens: float) -> str:
    """A number of tokens with three digits."""
    if tokens >= 1e6:
        return f"{float(f'{tokens / 1e6:.3g}'):,g} million"
    return f"{float(f'{tokens:.3g}'):,.0f}"


def choose(candidates: Sequence[Candidate], time: float, speed: Callable[[str], float]) -> Choice:
    """The largest size that would see enough tokens within some seconds; the smallest one if none would.

    Args:
        candidates: at least one, the smallest first.
        speed: tokens per second of a size; not asked of sizes too large even at the speed of a smaller one.
    """
    largest, *larger_sizes = candidates
    tokens = time * speed(largest.size)
    sees = largest.tokens_trained(tokens)
    for larger in larger_sizes:
        # No larger model is faster: where even this is not enough, nothing need be measured.
        if larger.trains_enough(tokens):
            tokens = min(tokens, time * speed(larger.size))
        if not larger.trains_enough(tokens):
            return Choice(largest.size, sees, larger, larger.tokens_trained(tokens))
        largest, sees = larger, larger.tokens_trained(tokens)
    return Choice(largest.size, sees)


def sized_plan(
    agreed: Plan,
    corpus: Corpus,
    processes: Processes,
    say: Callable[[str], None],
    *,
    spent: float | None = None,
) -> Plan:
    """The plan for the size that suits its time, chosen by the main process; unchanged if the size is named.

    Leaves no trace: models, optimizers and the state of random generators are thrown away. All processes of
    the training must call this.

    Args:
        agreed: with the plan of every size as `candidates`, if there is a choice.
        say: told in one sentence what was chosen and why.
        spent: seconds of the limit that are not for steps. Default: `AFTERWARDS` of it.
    """
    if not agreed.candidates:
        return agreed
    plans = {plan.config.model.size: plan for plan in agreed.candidates}
    size_name = ""
    if processes.is_main:
        limit = str(agreed.config.train.max_time).strip()
        time = agreed.config.loop(spent).training_seconds
        assert time is not None
        with random_state_kept(processes.device):
            candidates = [Candidate.of(plan.config, corpus) for plan in plans.values()]
            choice = choose(candidates, time, lambda size: _speed(plans[size].config, corpus, processes))
        size_name = choice.size
        say(choice.sentence(limit if limit[-1].isalpha() else f"{limit}s"))
    return plans[processes.text_from_main(size_name)]


def _speed(config: PretrainConfig, corpus: Corpus, processes: Processes) -> float:
    """Tokens per second of all processes; 0 where a row needs more memory than there is."""
    training = Training(config, corpus)
    batches = (training.dataset[training.planner.next_row()] for _ in count())
    try:
        tokens_per_second = measured_speed(
            training.trained_model,
            batches,
            training.loop,
            processes.device,
            seconds=MEASURED_SECONDS / len(SIZES),
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        tokens_per_second = 0.0
    del training, batches
    release_memory(processes.device)
    return tokens_per_second * processes.world

"""Select the largest model size that a time limit allows, if the user sets no size.

A larger model learns more from each token, but sees fewer tokens in the same time. Therefore a few real
training steps are measured for the sizes, in about a second altogether. The selected size is the largest that
would see enough tokens and take enough optimizer steps. It must not read the same data too many times. The
limits are rules of thumb.
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
"""Seconds of measurement for all sizes together. Each measured size takes at least one step."""

TOKENS_PER_PARAMETER = 10.0
"""Training tokens that a size needs per parameter of its layers, to be better than the next smaller size.

The table shows bits per word of English novels after the same processor time of one thread, with one seed. It
comes from `benchmarks/studies/recipe.py --only text --arms nearby`. The smallest model has 2 layers x 64.

    parameters      15 s    30 s    60 s    120 s    240 s
     0.07 million  10.19    9.41    8.85    8.01     7.62
     0.56 (tiny)   10.82   10.10    9.08    8.38     7.78
     3.35 (small)                  11.14             9.55

Tiny saw 0.3, 0.6, 1.2, 2.3 and 4.7 tokens per parameter in these times. The smaller model was better each
time, by .63, .69, .23, .37 and .16 bits. Therefore the number is above 4.7. Its value was not measured.
Published optima for language models are about 20 (Hoffmann et al. 2022).
"""

STEPS = 300
"""Smallest number of optimizer steps. In the same table, tiny took 89, 156, 328, 620 and 1,293 steps."""

PASSES = 16
"""Largest number of useful passes over the data.

Later passes teach little: the value of repeated tokens falls with a constant of about 15 passes (Muennighoff
et al. 2023). This was not measured here.
"""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model size and the training that it needs.

    Args:
        size: name of the size.
        parameters: number of parameters of the body.
        batch: tokens of an optimizer step.
        epoch: tokens of one pass over the data.
        most_tokens: tokens after which another limit ends the training. Infinite without such a limit.
    """

    size: str
    parameters: int
    batch: int
    epoch: float
    most_tokens: float = math.inf

    @classmethod
    def of(cls, config: PretrainConfig, corpus: Corpus) -> Candidate:
        """The candidate for the size of these settings, with these data."""
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
        """Number of tokens below which a smaller size is better."""
        return max(TOKENS_PER_PARAMETER * self.parameters, STEPS * self.batch)

    @property
    def repeats_data(self) -> bool:
        """Whether the data are too few for this size, even with the largest useful number of passes."""
        return PASSES * self.epoch < self.tokens_needed

    def tokens_trained(self, tokens: float) -> float:
        """The number of tokens it trains on if the time allows `tokens`; another limit may end it earlier."""
        return min(tokens, self.most_tokens)

    def trains_enough(self, tokens: float) -> bool:
        """Whether the size sees all tokens that it needs, if the time allows `tokens`."""
        return not self.repeats_data and self.tokens_trained(tokens) >= self.tokens_needed


@dataclass(frozen=True)
class Choice:
    """The selected size and the tokens it would see, and the same for the next larger size."""

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
    """Select the largest size that would see enough tokens within a time. If none would, select the smallest.

    Args:
        candidates: sizes, the smallest first. At least one.
        time: seconds for training steps.
        speed: measures the tokens per second of a size. It is not called for sizes that are too large even at
            the speed of a smaller size.
    """
    largest, *larger_sizes = candidates
    tokens = time * speed(largest.size)
    sees = largest.tokens_trained(tokens)
    for larger in larger_sizes:
        # A larger model is never faster. If even this speed is not enough, nothing needs to be measured.
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
    """The plan for the size that suits its time limit, selected by the main process.

    If the size is set, the plan is returned unchanged. Models, optimizers and changes of random generators
    are discarded. All processes of the training must call this function.

    Args:
        agreed: the plan, with the plan of every size as `candidates` if there is a choice.
        corpus: the training data.
        processes: the processes of the training.
        say: receives a sentence with the selected size and the reason.
        spent: seconds of the limit that are not for steps. Default: the share `AFTERWARDS` of the limit.
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
    """Tokens per second of all processes. 0 if a row needs more memory than the device has."""
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

"""Which size a limit of time is for, where the user names none: measured on the data, before there is a run.

A larger model learns more from a token, and sees fewer tokens in the same time. So every size takes a few
steps of the real training, a second in all, and the largest one is taken that would see enough.

What is enough is a rule of thumb (`TOKENS_PER_PARAMETER`, `STEPS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seqmlm.engine.backbones import SIZES, body_parameter_count
from seqmlm.engine.device import is_out_of_memory, random_state_kept, release_memory
from seqmlm.engine.distributed import Processes
from seqmlm.engine.loop import measured_speed
from seqmlm.engine.packing import PackedBatch
from seqmlm.tasks.assemble import Parts, assemble, batch_tokens
from seqmlm.tasks.config import PretrainConfig, seconds
from seqmlm.tasks.corpus import Corpus
from seqmlm.tasks.launch import Plan

MEASURED_SECONDS = 1.0
"""For all sizes together; one step of each size that is measured at least."""

TOKENS_PER_PARAMETER = 2.0
STEPS = 200


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A size, and what it asks of a training.

    Args:
        size: its name.
        parameters: of the body.
        batch: tokens of an optimizer step.
        most: tokens after which the training ends by another limit; infinite if there is none.
    """

    size: str
    parameters: int
    batch: int
    most: float = float("inf")

    @property
    def enough(self) -> float:
        """Tokens below which a smaller size is better."""
        return max(TOKENS_PER_PARAMETER * self.parameters, STEPS * self.batch)


@dataclass(frozen=True)
class Choice:
    """The size taken, the tokens it would see, and the next larger one, which would not see enough."""

    size: str
    sees: float
    larger: Candidate | None = None


def choose(candidates: Sequence[Candidate], time: float, speed: Callable[[str], float]) -> Choice:
    """The largest size that would see enough tokens; the smallest one if none would.

    Args:
        candidates: at least one, the smallest first.
        time: of the training, in seconds.
        speed: tokens per second of a size; not asked of sizes too large even at the speed of a smaller one.
    """
    taken, *others = candidates
    pace = speed(taken.size)
    sees = min(pace * time, taken.most)
    for larger in others:
        # No larger model is faster: where even this pace is not enough, nothing need be measured.
        if min(pace * time, larger.most) >= larger.enough:
            pace = min(pace, speed(larger.size))
        tokens = min(pace * time, larger.most)
        if tokens < larger.enough:
            return Choice(taken.size, sees, larger)
        taken, sees = larger, tokens
    return Choice(taken.size, sees)


def sized(agreed: Plan, corpus: Corpus, processes: Processes, say: Callable[[str], None]) -> Plan:
    """The plan for the size that suits its time, chosen by the main process; unchanged if the size is named.

    Leaves no trace: models, optimizers and the state of random generators are thrown away.

    Args:
        agreed: with the plan of every size as `candidates`, if there is a choice.
        corpus: the data of the training.
        processes: those of the training; all of them must call this.
        say: told in one sentence what was chosen and why.

    Raises:
        UsageError: see `assemble`.
    """
    if not agreed.candidates:
        return agreed
    plans = {plan.config.model.size: plan for plan in agreed.candidates}
    taken = ""
    if processes.is_main:
        limit = str(agreed.config.train.max_time)
        with random_state_kept(processes.device):
            candidates = [_candidate(plan.config, corpus) for plan in plans.values()]
            choice = choose(
                candidates, seconds(limit), lambda size: _speed(plans[size].config, corpus, processes)
            )
        taken = choice.size
        say(told(choice, limit if limit[-1].isalpha() else f"{limit}s", int(corpus.train.lengths.sum())))
    return plans[processes.text_from_main(taken)]


def told(choice: Choice, limit: str, epoch: int) -> str:
    """The choice in words.

    >>> told(Choice("tiny", 2_100_000), "5m", 1_000_000)
    'size: tiny (within 5m it sees about 2.1 million tokens, 2.1 passes over the data; --size names another)'
    """
    larger = choice.larger
    other = f"{larger.size} needs {_amount(larger.enough)}; " if larger is not None else ""
    return (
        f"size: {choice.size} (within {limit} it sees about {_amount(choice.sees)} tokens, "
        f"{_two_digits(choice.sees / epoch)} passes over the data; {other}--size names another)"
    )


def _amount(tokens: float) -> str:
    return f"{_two_digits(tokens / 1e6)} million" if tokens >= 1e6 else _two_digits(tokens)


def _two_digits(value: float) -> str:
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def _candidate(config: PretrainConfig, corpus: Corpus) -> Candidate:
    train, most = config.train, float("inf")
    if train.max_steps is not None:
        most = train.max_steps * batch_tokens(config)
    if train.epochs is not None:
        most = min(most, train.epochs * float(corpus.train.lengths.sum()))
    return Candidate(
        size=config.model.size,
        parameters=body_parameter_count(config.model, corpus.tokenizer.space),
        batch=batch_tokens(config),
        most=most,
    )


def _speed(config: PretrainConfig, corpus: Corpus, processes: Processes) -> float:
    """Tokens per second of all processes; 0 where a row needs more memory than there is."""
    parts = assemble(config, corpus)
    try:
        own = measured_speed(
            parts.rows, _batches(parts), parts.loop, processes.device, seconds=MEASURED_SECONDS / len(SIZES)
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        own = 0.0
    del parts
    release_memory(processes.device)
    return own * processes.world


def _batches(parts: Parts) -> Iterator[PackedBatch]:
    while True:
        yield parts.dataset[parts.planner.next_row()]

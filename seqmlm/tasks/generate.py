"""New sequences from a model: gaps are filled with what is drawn, again and again, and not with the best.

By mask-predict all gaps are drawn at once, and those one is least sure of again, fewer each time: fast. By
Gibbs sampling one unit after the other is drawn given all others (Wang and Cho 2019): slow, and closer to
what the model finds probable, though conditionals of a masked language model need not belong to one joint
distribution (Torroba Hennigen and Kim 2023).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TextIO

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.domains.holes import Prompt
from seqmlm.engine.durable import replace_file
from seqmlm.engine.types import Longs
from seqmlm.engine.units import Doubles
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.runner import Output
from seqmlm.inference.session import Session
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Schema, unwritable
from seqmlm.tasks.gaps import GapConfig, reading_holes

BATCH = 64
"""Sequences that are drawn together."""

_LENGTH = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(GapConfig):
    """What `seqmlm generate` can be told; `paths` are files of templates.

    Args:
        template: a sequence with gaps; what else stands in it stays.
        length: units of sequences that are nothing but gaps, "100" or, drawn evenly, "80-120".
        n: sequences, of each template.
        seed: of all draws.
        temperature: 1 draws what the model says, less what is more probable; 0 takes the most probable.
        method: "mask-predict" or "gibbs".
        rounds: of mask-predict; sweeps over all units of Gibbs sampling.
    """

    template: str | None = None
    length: str | None = None
    n: int = 1
    seed: int = 0
    temperature: float = 1.0
    method: Literal["mask-predict", "gibbs"] = "mask-predict"
    rounds: int = 10

    def check(self) -> None:
        if sum((self.template is not None, self.length is not None, bool(self.paths))) != 1:
            raise UsageError("say what to fill: one of --template, --length, or a file of templates")
        if self.n < 1 or self.rounds < 1 or not self.temperature >= 0:
            raise UsageError("--n and --rounds are at least 1, and --temperature is 0 or more")
        self.lengths()
        check_outputs({"--out": self.out}, inputs=[one for one in self.paths if one != "-"], streams=True)

    def lengths(self) -> tuple[int, int] | None:
        """The shortest and longest length.

        Raises:
            UsageError: no length.
        """
        if self.length is None:
            return None
        match = _LENGTH.fullmatch(self.length)
        low, high = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not 1 <= low <= high:
            raise UsageError(f"--length is a number or two, such as 100 or 80-120; got {self.length!r}")
        return low, high


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A sequence that was drawn: its name, the raw sequence, and what was put into its gaps."""

    name: str
    raw: Any
    texts: tuple[str, ...]


def generate(config: GenerateConfig, stdout: TextIO, *, rows: bool = False) -> int:
    """Draw sequences and write them as a file of the model's field.

    Args:
        config: how many, and of what.
        stdout: where they go when `config.out` is None.
        rows: JSON lines `id`, `text`, `filled` instead.

    Returns:
        How many were written.

    Raises:
        UsageError: a request that makes no sense, a template without a gap or longer than the model.
        DataError: templates that cannot be read or spelled.
        StateError: no such model, or an output that cannot be written.
    """
    config.check()
    session = config.open()
    cloze = Cloze(session)
    found = drawn(cloze, list(_prompts(config, session, cloze)), config)
    if rows:
        told = [
            {"id": one.name, "text": session.domain.spelled(one.raw), "filled": list(one.texts)}
            for one in found
        ]
        columns = Schema(columns={"id": "text", "text": "text", "filled": "json"})
        output = Output(config.out, columns, private=session.card.sensitive, stdout=stdout)
        with closing(output):
            output.begin(Problems())
            output.write(told)
            output.finish()
        return len(told)
    pieces = session.domain.written((one.name, one.raw) for one in found)
    if config.out is None:
        stdout.writelines(pieces)
    else:
        try:
            replace_file(
                config.out, "".join(pieces).encode(), mode=0o600 if session.card.sensitive else 0o666
            )
        except OSError as error:
            raise unwritable(config.out, error, resumable=False) from None
    return len(found)


def drawn(cloze: Cloze, prompts: Sequence[Prompt], config: GenerateConfig) -> list[Generated]:
    """Fill the gaps of sequences; what is drawn depends on the seed and on their numbers alone."""
    found: list[Generated] = []
    for first in range(0, len(prompts), BATCH):
        some = prompts[first : first + BATCH]
        draws, rounds, again = _Draws(config, first), config.rounds, None
        if config.method == "gibbs":
            rounds, again = 1 + rounds * max(sum(prompt.tokens) for prompt in some), draws.again
        texts = cloze.refined(some, rounds, draws.choose, again)
        for number, (prompt, own) in enumerate(zip(some, texts, strict=True), first + 1):
            raw = cloze.domain.filled(prompt, own).raw
            found.append(Generated(name=f"generated-{number}", raw=raw, texts=tuple(own)))
    return found


class _Draws:
    """Random numbers that depend on the seed, the number of a sequence and the round alone."""

    def __init__(self, config: GenerateConfig, first: int) -> None:
        self._config, self._first = config, first

    def choose(self, number: int, done: int, log_probs: Doubles) -> Longs:
        """Draw a symbol for each unit, by the Gumbel trick."""
        if not self._config.temperature:
            return np.asarray(log_probs.argmax(axis=1), dtype=np.int64)
        random = np.random.default_rng([self._config.seed, self._first + number, done])
        noise = random.gumbel(size=log_probs.shape)
        return np.asarray((log_probs / self._config.temperature + noise).argmax(axis=1), dtype=np.int64)

    def again(self, number: int, done: int, units: int) -> Longs:
        """One unit; in every sweep each once, in an order that is drawn."""
        sweep, place = divmod(done - 1, units)
        if sweep >= self._config.rounds:
            return np.zeros(0, dtype=np.int64)  # others are longer
        random = np.random.default_rng([self._config.seed, self._first + number, sweep, units])
        return np.asarray(random.permutation(units)[place : place + 1], dtype=np.int64)


def _prompts(config: GenerateConfig, session: Session, cloze: Cloze) -> Iterator[Prompt]:
    """What is filled, once for each sequence that is wanted."""
    lengths = config.lengths()
    if lengths is not None:
        sizes = np.random.default_rng([config.seed]).integers(*lengths, size=config.n, endpoint=True)
        yield from cloze.prompts([session.domain.blank(size) for size in sizes.tolist()])
        return
    if config.template is not None:
        session.check_text()
        raw = session.domain.of_text(config.template, config.options)
        found = cloze.prompts([raw], [repr(config.template)])
    else:
        options = {**reading_holes(session, config.format), **config.options}
        read = session.reader(config.paths, format=config.format, options=options)
        with Problems(config.on_error, sensitive=session.card.sensitive) as problems:
            every = [session.domain.prompt(record.raw, cloze.forms) for record in read(problems)]
        found = [prompt for prompt in every if prompt.holes]
        if not found:
            remedy = f"write {' or '.join(cloze.forms)} where one is"
            raise DataError("no sequence has a gap", source=", ".join(config.paths), remedy=remedy)
    yield from (prompt for prompt in found for _ in range(config.n))

"""New sequences from a model: gaps are filled with what is drawn, again and again, and not with the best.

By mask-predict all gaps are drawn at once, and those one is least sure of again, fewer each time: fast. By
Gibbs sampling one unit after the other is drawn given all others (Wang and Cho 2019): slow, and closer to
what the model finds probable, though conditionals of a masked language model need not belong to one joint
distribution (Torroba Hennigen and Kim 2023).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from seqmlm import plugins
from seqmlm.data.compressed import PACKED
from seqmlm.data.counts import People
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.holes import Prompt
from seqmlm.engine.types import Longs
from seqmlm.engine.units import Doubles
from seqmlm.errors import UsageError, number_of
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures
from seqmlm.rows.file import Row
from seqmlm.tasks.fill import gap_options, gapped_records
from seqmlm.tasks.task import Conclusion, NativeFormat, Output, ReadRows, Task, TaskConfig, read_records

if TYPE_CHECKING:
    from seqmlm.domains.field import Field

_LENGTH = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(TaskConfig):
    """Settings of `seqmlm generate`.

    Args:
        paths: files of sequences with gaps.
        out: write to this file: in the field's own format where its name ends so, such as .fasta; rows to
            one called .jsonl, .csv, .tsv or .parquet.
        template: a sequence with gaps, as `seqmlm fill` takes it; the rest stays.
        length: units of sequences that are all gaps: 100, or drawn from 80-120.
        n: sequences, of each template.
        seed: seed of the random draws.
        temperature: of the draws: 1 for what the model says, less for what is probable, 0 for the best.
        method: how gaps are filled: mask-predict (all at once, the least sure again) or gibbs (one by one).
        rounds: of mask-predict, or sweeps of Gibbs sampling over all units.
    """

    option_fields = (
        *("template", "length", "n", "seed", "temperature", "out", "resume", "shard"),
        "on_error",
    )
    metavar = "FILE"

    template: str | None = None
    length: str | None = None
    n: int = 1
    seed: int = 0
    temperature: float = 1.0
    method: Literal["mask-predict", "gibbs"] = "mask-predict"
    rounds: int = 10

    @classmethod
    def native(cls, domain: str | None = None) -> Mapping[str, Sequence[str]]:
        names = plugins.names("domains") if domain is None else [domain]
        return {name: sequence_endings(plugins.domain(name)) for name in names}

    def check(self) -> None:
        if sum((self.template is not None, self.length is not None, bool(self.paths))) != 1:
            raise UsageError("say what to fill: one of --template, --length, or a file of templates")
        if self.n < 1 or self.rounds < 1 or not self.temperature >= 0:
            raise UsageError("--n and rounds are at least 1, and --temperature is 0 or more")
        self.lengths()
        self.check_files()

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


def sequence_endings(field: Field) -> tuple[str, ...]:
    """Endings of files that hold generated sequences as the field has them, packed by bgzip or not."""
    endings = field.text.endings or next(iter(field.files.formats.values())).suffixes
    return tuple(f"{suffix}{packed}" for packed in ("", *PACKED) for suffix in endings)


class Draw(NamedTuple):
    """A sequence that is to be drawn: its number, from 0 on, and what it is drawn into, with its place.

    tokens: that the model sees of it.
    """

    number: int
    prompt: Prompt
    source: str | None
    line: int | None
    tokens: int = 0


class Generate(Task[GenerateConfig, Draw]):
    """Generate sequences: gaps are filled with what is drawn from the model, in several rounds.

    They are written as the field has them: lines of text, FASTA, sessions of a log, a table of events; with
    --json as JSON lines. Equal seeds give equal sequences. What is generated is what the model finds
    probable, and may repeat its training data; sequences about people go to a file that only you can read.

    Example: seqmlm generate enzymes --length 80-120 --n 10 --seed 1 --out new.fasta

    Example: seqmlm generate english --template 'The [MASK] sat on [MASK:3].' --n 5
    """

    Config = GenerateConfig

    def __init__(self, config: GenerateConfig, session: Session) -> None:
        super().__init__(config, session)
        name, file = session.domain.name, config.out or "FILE"
        self.output = Output(
            unit="sequence",
            json="rows",
            native={name: NativeFormat(sequence_endings(session.domain), self.native_text)},
            default_format=name,
            hint=f"next: seqmlm score {config.model} {file} says how usual they are",
        )
        self.cloze = Cloze(session)
        self._prompts: list[Prompt] = []  # each stands for `n` sequences, or one of a drawn length

    def records(self, problems: Problems) -> Iterable[Record]:
        if not self.config.paths:
            return []
        return read_records(
            self.session, self.config, problems, gap_options(self.session, self.config.format)
        )

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Draw]:
        """A prompt with its place for each sequence to make.

        Raises:
            UsageError, DataError: a template without a gap, files without any.
        """
        copies = 1 if self.config.length is not None else self.config.n
        for prompt, source, line in self._input_prompts(records, problems):
            self._prompts.append(prompt)
            first, tokens = (len(self._prompts) - 1) * copies, self.cloze.tokens(prompt)
            yield from (Draw(first + copy, prompt, source, line, tokens) for copy in range(copies))

    def cost(self, item: Draw) -> float:
        """Forward tokens: a copy of the sequence for each round, or for each draw of a Gibbs sampling."""
        draws = 1 + self.config.rounds * sum(item.prompt.tokens)
        return float(item.tokens * (draws if self.config.method == "gibbs" else self.config.rounds))

    def _input_prompts(
        self, records: Iterable[Record], problems: Problems
    ) -> Iterator[tuple[Prompt, str | None, int | None]]:
        config, domain, lengths = self.config, self.session.domain, self.config.lengths()
        if lengths is not None:
            sizes = np.random.default_rng([config.seed]).integers(*lengths, size=config.n, endpoint=True)
            prompts = self.cloze.prompts([domain.gaps.blank(size) for size in sizes.tolist()])
            yield from ((prompt, None, None) for prompt in prompts)
        elif config.template is not None:
            self.session.check_text()
            raw = domain.text.of_text(config.template, config.options)
            yield self.cloze.prompts([raw], [repr(config.template)])[0], None, None
        else:
            gapped = gapped_records(self.cloze, records, problems)
            yield from ((record.raw, record.source, record.line) for record in gapped)

    def rows(self, items: Sequence[Draw]) -> Iterator[list[Row]]:
        """A row for each sequence; what is drawn depends on the seed and on its number alone."""
        draws, rounds, next_units = _Draws(self.config, items), self.config.rounds, None
        if self.config.method == "gibbs":
            rounds, next_units = 1 + rounds * max(sum(draw.prompt.tokens) for draw in items), draws.gibbs_unit
        texts = self.cloze.refined([draw.prompt for draw in items], rounds, draws.choose, next_units)
        domain = self.session.domain
        for draw, gap_texts in zip(items, texts, strict=True):
            text = domain.text.text_of(domain.gaps.filled(draw.prompt, gap_texts).raw)
            yield [{"id": f"generated-{draw.number + 1}", "text": text, "filled": list(gap_texts)}]

    def native_text(self, rows: Iterator[Row]) -> Iterable[str]:
        """The text of a file of the field with the sequences."""
        domain, copies = self.session.domain, 1 if self.config.length is not None else self.config.n
        prompts = (prompt for prompt in self._prompts for _ in range(copies))
        filled = (
            (str(row["id"]), domain.gaps.filled(prompt, row["filled"]).raw)
            for prompt, row in zip(prompts, rows, strict=False)
        )
        return domain.text.file_text(filled)

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        return Conclusion(f"{number_of(items, self.output.unit)} generated")


class _Draws:
    """Random numbers that depend on the seed, the number of a sequence and the round alone."""

    def __init__(self, config: GenerateConfig, items: Sequence[Draw]) -> None:
        self._config, self._numbers = config, [draw.number for draw in items]

    def choose(self, number: int, done: int, log_probs: Doubles) -> Longs:
        """Draw a symbol for each unit, by the Gumbel trick."""
        if not self._config.temperature:
            return np.asarray(log_probs.argmax(axis=1), dtype=np.int64)
        random = np.random.default_rng([self._config.seed, self._numbers[number], done])
        noise = random.gumbel(size=log_probs.shape)
        return np.asarray((log_probs / self._config.temperature + noise).argmax(axis=1), dtype=np.int64)

    def gibbs_unit(self, number: int, done: int, units: int) -> Longs:
        """(0 or 1) the unit to draw next: every sweep visits each unit once, in random order."""
        sweep, place = divmod(done - 1, units)
        if sweep >= self._config.rounds:
            return np.zeros(0, dtype=np.int64)  # others are longer
        random = np.random.default_rng([self._config.seed, self._numbers[number], sweep, units])
        return np.asarray(random.permutation(units)[place : place + 1], dtype=np.int64)

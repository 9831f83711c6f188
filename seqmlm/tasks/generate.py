"""Generate sequences: draw units for the gaps at random from the model, in several rounds.

Mask-predict draws all gaps at once. Then it draws the least certain ones again, fewer in each round. It is
fast.

Gibbs sampling draws one unit after the other, given all others (Wang and Cho 2019). It is slow, but closer to
the model's distribution. The conditionals of a masked language model need not belong to one joint
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
        out: write the sequences to this file. Its ending selects the field's own format, such as .fasta, or
            rows in .jsonl, .csv, .tsv or .parquet.
        template: sequence with gaps, written as for `seqmlm fill`; the rest stays as it is.
        length: number of units of new sequences: a number such as 100, or a range such as 80-120.
        n: number of sequences per template.
        seed: seed of the random draws.
        temperature: temperature of the draws: 1 follows the model, lower values prefer likely units, 0 always
            takes the most likely unit.
        method: how to fill gaps: mask-predict (all at once, then the least certain again) or gibbs (one by
            one).
        rounds: rounds of mask-predict, or sweeps of Gibbs sampling over all units.
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
            raise UsageError("give exactly one of --template, --length, or a file of templates")
        if self.n < 1 or self.rounds < 1 or not self.temperature >= 0:
            raise UsageError("--n and rounds must be at least 1, and --temperature at least 0")
        self.lengths()
        self.check_files()

    def lengths(self) -> tuple[int, int] | None:
        """The shortest and the longest length, or None without `length`.

        Raises:
            UsageError: `length` is not a valid length or range.
        """
        if self.length is None:
            return None
        match = _LENGTH.fullmatch(self.length)
        low, high = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not 1 <= low <= high:
            raise UsageError(
                f"--length must be a number such as 100 or a range such as 80-120; got {self.length!r}"
            )
        return low, high


def sequence_endings(field: Field) -> tuple[str, ...]:
    """Endings of files with sequences in the field's own format, with and without bgzip compression."""
    endings = field.text.endings or next(iter(field.files.formats.values())).suffixes
    return tuple(f"{suffix}{packed}" for packed in ("", *PACKED) for suffix in endings)


class Draw(NamedTuple):
    """A sequence to draw: its number from 0, its prompt, and the source and line of the prompt.

    tokens: number of its tokens that the model sees.
    """

    number: int
    prompt: Prompt
    source: str | None
    line: int | None
    tokens: int = 0


class Generate(Task[GenerateConfig, Draw]):
    """Generate sequences: draw units for the gaps from the model, in several rounds.

    The output has the format of the field: lines of text, FASTA, sessions of a log, or a table of events.
    `--json` writes JSON lines. The same seed gives the same sequences. Generated sequences can repeat
    training data. Sequences about people are written to a file that only you can read.

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
            hint=f"next: see how unusual they are: seqmlm score {config.model} {file}",
        )
        self.cloze = Cloze(session)
        self._prompts: list[Prompt] = []  # one for `n` sequences, or one per sequence with a drawn length

    def records(self, problems: Problems) -> Iterable[Record]:
        if not self.config.paths:
            return []
        return read_records(
            self.session, self.config, problems, gap_options(self.session, self.config.format)
        )

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Draw]:
        """A prompt with its place for each sequence to draw.

        Raises:
            UsageError, DataError: the template, or no sequence in the files, has a gap.
        """
        copies = 1 if self.config.length is not None else self.config.n
        for prompt, source, line in self._input_prompts(records, problems):
            self._prompts.append(prompt)
            first, tokens = (len(self._prompts) - 1) * copies, self.cloze.tokens(prompt)
            yield from (Draw(first + copy, prompt, source, line, tokens) for copy in range(copies))

    def cost(self, item: Draw) -> float:
        """Forward tokens: one copy of the sequence per round, or per draw in Gibbs sampling."""
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
        """A row for each sequence. The drawn units depend only on the seed and the number of the sequence."""
        draws, rounds, next_units = _Draws(self.config, items), self.config.rounds, None
        if self.config.method == "gibbs":
            rounds, next_units = 1 + rounds * max(sum(draw.prompt.tokens) for draw in items), draws.gibbs_unit
        texts = self.cloze.refined([draw.prompt for draw in items], rounds, draws.choose, next_units)
        domain = self.session.domain
        for draw, gap_texts in zip(items, texts, strict=True):
            text = domain.text.text_of(domain.gaps.filled(draw.prompt, gap_texts).raw)
            yield [{"id": f"generated-{draw.number + 1}", "text": text, "filled": list(gap_texts)}]

    def native_text(self, rows: Iterator[Row]) -> Iterable[str]:
        """The sequences as text in the field's own format."""
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
    """Random numbers that depend only on the seed, the number of a sequence and the round."""

    def __init__(self, config: GenerateConfig, items: Sequence[Draw]) -> None:
        self._config, self._numbers = config, [draw.number for draw in items]

    def choose(self, number: int, done: int, log_probs: Doubles) -> Longs:
        """Draw a symbol for each unit with the Gumbel trick."""
        if not self._config.temperature:
            return np.asarray(log_probs.argmax(axis=1), dtype=np.int64)
        random = np.random.default_rng([self._config.seed, self._numbers[number], done])
        noise = random.gumbel(size=log_probs.shape)
        return np.asarray((log_probs / self._config.temperature + noise).argmax(axis=1), dtype=np.int64)

    def gibbs_unit(self, number: int, done: int, units: int) -> Longs:
        """(0 or 1) the unit to draw next. Every sweep visits each unit once, in random order."""
        sweep, place = divmod(done - 1, units)
        if sweep >= self._config.rounds:
            return np.zeros(0, dtype=np.int64)  # other sequences are longer
        random = np.random.default_rng([self._config.seed, self._numbers[number], sweep, units])
        return np.asarray(random.permutation(units)[place : place + 1], dtype=np.int64)

"""Fill gaps: candidates for each gap, and all gaps of a sequence filled together."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

from seqmlm.data.counts import People
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.holes import Prompt
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.cloze import Cloze, Guess, most_probable
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Table
from seqmlm.rows.file import Row
from seqmlm.tasks.task import Conclusion, Output, ReadRows, Task, TaskConfig, items_text, place, read_records


@dataclass(frozen=True, kw_only=True)
class GapsConfig(TaskConfig):
    """Settings of a command about gaps.

    Args:
        paths: a sequence with gaps, or files of sequences with gaps.
    """

    metavar: ClassVar[str] = "SEQUENCE|PATH|-"

    @property
    def sequence(self) -> str | None:
        """The sequence on the command line, or None if the command reads files."""
        only = self.paths[0] if len(self.paths) == 1 else "-"
        return None if only == "-" or os.path.exists(only) else only

    @property
    def input_paths(self) -> tuple[str, ...]:
        return () if self.sequence is not None else self.paths

    def check(self) -> None:
        if self.sequence is None:
            super().check()
        self.check_files()


ConfigT = TypeVar("ConfigT", bound=GapsConfig)


class Gaps(Task[ConfigT, Record]):
    """A task whose items are sequences with gaps: one from the command line, or all from files."""

    def __init__(self, config: ConfigT, session: Session) -> None:
        super().__init__(config, session)
        self.cloze = Cloze(session)
        self._typed = self._command_line_record()
        stdout: Literal["rows", "figures"] = "rows" if self._typed is None else "figures"
        self.output = Output(unit="sequence", stdout=stdout, json="rows")

    def _command_line_record(self) -> Record | None:
        """The record of the sequence on the command line, or None for files.

        Raises:
            UsageError: the text has no gap, and is not the name of a file.
        """
        text, domain = self.config.sequence, self.session.domain
        if (
            text is None
            or not self.session.tokenizer.traits.reads("")
            or domain.files.format_of(text) is not None
        ):
            return None
        raw = domain.text.of_text(text, self.config.options)
        prompt = domain.gaps.prompt(raw, self.cloze.forms)
        if not prompt.holes:
            gap = " or ".join(self.cloze.forms)
            raise UsageError(
                f"{text!r} has no gap, and no file has this name: write {gap} in place of a {domain.unit}"
            )
        return Record(id="", raw=raw, source="the command line", line=1)

    def records(self, problems: Problems) -> Iterable[Record]:
        if self._typed is not None:
            return [self._typed]
        return read_records(
            self.session, self.config, problems, gap_options(self.session, self.config.format)
        )

    def input_files(self) -> list[str]:
        return [] if self._typed is not None else super().input_files()

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """The records with a gap, as prompts.

        Raises:
            DataError: no record has a gap.
        """
        return gapped_records(self.cloze, records, problems)


@dataclass(frozen=True, kw_only=True)
class FillConfig(GapsConfig):
    """Settings of `seqmlm fill`.

    Args:
        top: number of candidates per gap.
        rounds: rounds in which several gaps are filled together (mask-predict). 1 fills them in one pass.
    """

    option_fields = ("top", "domain", *TaskConfig.option_fields)

    top: int = 5
    rounds: int = 10

    def check(self) -> None:
        if self.top < 1 or self.rounds < 1:
            raise UsageError("top and rounds are at least 1")
        super().check()


class Fill(Gaps[FillConfig]):
    """Fill the gaps of sequences: the most probable candidates per gap, and all gaps filled together.

    Write a gap as [MASK], or as [MASK:3] for three tokens. Proteins and DNA also accept _. In logs a gap is a
    line that is [MASK], in patient histories a code that is [MASK]. A backslash before it makes it normal
    text. `p` is the probability of a candidate while all gaps of the sequence are hidden.

    Example: seqmlm fill english 'the dog [MASK] the cat.' --top 5

    Example: seqmlm fill enzymes MKTAYIA_QRQISFVK --json
    """

    Config = FillConfig

    def cost(self, item: Record) -> float:
        """Forward tokens: a copy with all gaps hidden, and one copy per round if there are several gaps."""
        copies = 1 if len(item.raw.holes) == 1 else 1 + self.config.rounds
        return float(copies * self.cloze.tokens(item.raw))

    def rows(self, items: Sequence[Record]) -> Iterator[list[Row]]:
        """A row for each sequence: the filled sequence and the candidates for each gap."""
        prompts = [record.raw for record in items]
        guesses = self.cloze.guesses(self.cloze.opened(prompts), self.config.top)
        several = [number for number, units in enumerate(guesses) if len(units) > 1]
        together = self.cloze.refined(
            [prompts[number] for number in several], self.config.rounds, most_probable
        )
        joint = dict(zip(several, together, strict=True))
        for number, (record, units) in enumerate(zip(items, guesses, strict=True)):
            texts = joint[number] if number in joint else [units[0][0].text]
            filled = self.session.domain.text.text_of(self.session.domain.gaps.filled(record.raw, texts).raw)
            yield [{**place(record), "filled": filled, "masks": self._masks(record.raw, texts, units)}]

    def _masks(self, prompt: Prompt, texts: Sequence[str], guesses: Sequence[Sequence[Guess]]) -> list[Row]:
        """The gaps with their position, their filling and their candidates.

        A gap of several tokens has one list of candidates per token.
        """
        masks, units = list[Row](), iter(guesses)
        for hole, text in zip(prompt.holes, texts, strict=True):
            lists = [[self._candidate(guess) for guess in next(units)] for _ in range(hole.tokens)]
            mask: dict[str, Any] = {"start": hole.start, "end": hole.end, "text": text}
            masks.append(mask | ({"candidates": lists[0]} if hole.tokens == 1 else {"tokens": lists}))
        return masks

    def _candidate(self, guess: Guess) -> Row:
        description = self.session.tokenizer.spelling.meaning(guess.text)
        extra = {} if description is None else {"description": description}
        return {"text": guess.text, "p": math.exp(guess.log_prob), **extra}

    def figures(self, rows: Iterable[Row]) -> Figures:
        """The row of the sequence on the command line. Empty for files."""
        if self._typed is None:
            return {}
        (only,) = rows
        return {"filled": only["filled"], "masks": only["masks"]}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        return Conclusion(figures["filled"] if figures else f"filled the gaps of {items_text(self, items)}")

    def tables(self, figures: Figures) -> Iterator[Table]:
        rows = []
        for number, mask in enumerate(figures.get("masks", ()), 1):
            lists = [mask["candidates"]] if "candidates" in mask else mask["tokens"]
            for at, candidates in enumerate(lists, 1):
                name = str(number) if len(lists) == 1 else f"{number}, token {at}"
                for guess in candidates:
                    text = (
                        f"{guess['text']} {guess['description']}" if "description" in guess else guess["text"]
                    )
                    rows.append([name, text, f"{guess['p']:.2%}"])
        if rows:
            yield Table("", ["gap", "candidate", "p"], rows)


def gap_options(session: Session, format: str | None) -> dict[str, Any]:
    """The option that makes readers keep gaps in sequences. Empty if no reader of the field has it."""
    return {"holes": True} if "holes" in session.domain.files.options(format) else {}


def gapped_records(cloze: Cloze, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
    """Yield records with gaps as prompts. Records without gaps are skipped and counted.

    Raises:
        DataError: no record has a gap.
    """
    total = gapped = 0
    source = ""
    for record in records:
        prompt = cloze.domain.gaps.prompt(record.raw, cloze.forms)
        total, source = total + 1, record.source
        if prompt.holes:
            gapped += 1
            yield replace(record, raw=prompt)
        else:
            problems.note("a sequence without a gap, passed over")
    if total and not gapped:
        forms = " or ".join(cloze.forms)
        raise DataError("no sequence has a gap", source=source, remedy=f"write {forms} for each gap")

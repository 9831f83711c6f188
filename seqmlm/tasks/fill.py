"""What belongs into a gap: candidates for each, and all gaps of a sequence filled together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.holes import Prompt
from seqmlm.errors import UsageError
from seqmlm.inference.batches import Batch, Encoded
from seqmlm.inference.cloze import Cloze, Guess, most_probable
from seqmlm.inference.runner import Progress
from seqmlm.inference.session import Session
from seqmlm.streams.sinks import Fields, Schema
from seqmlm.tasks.gaps import GapConfig, Written, one_by_one, with_gaps, write_rows

COLUMNS = Schema(
    columns={"id": "text", "source": "text", "line": "integer", "filled": "text", "masks": "json"}
)


@dataclass(frozen=True, kw_only=True)
class FillConfig(GapConfig):
    """What `seqmlm fill` can be told.

    Args:
        top: candidates of each gap.
        rounds: in which all gaps are filled together; 1 for one pass.
    """

    top: int = 5
    rounds: int = 10

    def __post_init__(self) -> None:
        if self.top < 1 or self.rounds < 1:
            raise UsageError("--top and --rounds are at least 1")


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A sequence whose gaps were asked about.

    Args:
        prompt: the sequence.
        units: for each unit of its gaps, the most probable candidates of all while all gaps are hidden.
        texts: what fits into the gaps together, a text for each.
        whole: the sequence with these texts.
        meaning: the description of a candidate, where there is one, such as of a code.
    """

    prompt: Prompt
    units: tuple[tuple[Guess, ...], ...]
    texts: tuple[str, ...]
    whole: str
    meaning: Callable[[str], str | None]

    def masks(self) -> list[dict[str, Any]]:
        """The gaps, as JSON has them: where each is written, what it was filled with, and its candidates.

        A gap of several tokens has a list of candidates for each.
        """
        found, units = [], iter(self.units)
        for hole, text in zip(self.prompt.holes, self.texts, strict=True):
            own = [[self._candidate(guess) for guess in next(units)] for _ in range(hole.tokens)]
            told: dict[str, Any] = {"start": hole.start, "end": hole.end, "text": text}
            found.append(told | ({"candidates": own[0]} if hole.tokens == 1 else {"tokens": own}))
        return found

    def _candidate(self, guess: Guess) -> dict[str, Any]:
        known = self.meaning(guess.text)
        more = {} if known is None else {"description": known}
        return {"text": guess.text, "p": math.exp(guess.log_prob), **more}


class Filler:
    """Fills gaps with one model.

    Args:
        cloze: of the model.
        top, rounds: as of `FillConfig`.
    """

    def __init__(self, cloze: Cloze, *, top: int, rounds: int) -> None:
        self.cloze, self._top, self._rounds = cloze, top, rounds

    def filled(self, prompts: Sequence[Prompt]) -> list[Filled]:
        """Fill the gaps of some sequences.

        Raises:
            UsageError: a gap that cannot be one.
        """
        cloze = self.cloze
        guesses = cloze.guesses(cloze.opened(prompts), self._top)
        several = [number for number, own in enumerate(guesses) if len(own) > 1]
        joint = dict(
            zip(
                several,
                cloze.refined([prompts[number] for number in several], self._rounds, most_probable),
                strict=True,
            )
        )
        found = []
        for number, (prompt, own) in enumerate(zip(prompts, guesses, strict=True)):
            texts = joint[number] if number in joint else [own[0][0].text]
            whole = cloze.domain.spelled(cloze.domain.filled(prompt, texts).raw)
            units = tuple(map(tuple, own))
            meaning = cloze.session.tokenizer.meaning
            found.append(Filled(prompt=prompt, units=units, texts=tuple(texts), whole=whole, meaning=meaning))
        return found


def fill(config: FillConfig, stdout: TextIO, progress: Progress | None = None) -> Filled | Written:
    """Fill the gaps of a sequence that is named itself, or of those in files, a row for each.

    Args:
        config: the model, and how; `paths` are files, or one sequence with gaps.
        stdout: where rows go when `config.out` is None.
        progress: told what happens on the way.

    Raises:
        UsageError: a request that makes no sense, a gap that cannot be one.
        DataError: a sequence that cannot be spelled; one without a gap, under `on_error` "raise".
        StateError: no such model, or rows that cannot be written.
    """
    if len(config.paths) == 1 and config.paths[0] != "-" and not Path(config.paths[0]).exists():
        session = config.open()
        cloze, text = Cloze(session), config.paths[0]
        if session.tokenizer.reads("") and session.domain.format_of(text) is None:
            raw = session.domain.of_text(text, config.options)
            if session.domain.prompt(raw, cloze.forms).holes:
                return fill_text(cloze, raw, config)
    config.check()
    return fill_files(config, config.open(), stdout, progress)


def fill_text(cloze: Cloze, raw: Any, config: FillConfig) -> Filled:
    """Fill the gaps of one sequence.

    Raises:
        UsageError, DataError: as `fill`.
    """
    filler = Filler(cloze, top=config.top, rounds=config.rounds)
    return filler.filled(cloze.prompts([raw]))[0]


def fill_files(config: FillConfig, session: Session, stdout: TextIO, progress: Progress | None) -> Written:
    """Fill the gaps of the sequences in files, a row for each."""
    filler = Filler(Cloze(session), top=config.top, rounds=config.rounds)

    def answers(batch: Batch[Encoded], problems: Problems) -> list[tuple[Record, Filled]]:
        return one_by_one(batch, problems, lambda some: filler.filled([record.raw for record in some]))

    def rows(found: list[tuple[Record, Filled]]) -> list[Fields]:
        return [
            {
                "id": record.id,
                "source": record.source,
                "line": record.line,
                "filled": one.whole,
                "masks": one.masks(),
            }
            for record, one in found
        ]

    through = with_gaps(filler.cloze, lambda record: record.raw)
    return write_rows(config, session, COLUMNS, through, answers, rows, stdout, progress=progress)

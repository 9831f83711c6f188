"""Variants of a known sequence: their edits, and the interface of a field that lets them be scored.

A field declares `Variants` (`Field.variants`). It defines how its tables name variants, how they are checked,
and which cheap predictions are compared with the model's. The code that scores variants sees only edits of a
wild type.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from seqmlm.data.problems import Problems
from seqmlm.errors import DataError, UsageError


class Edit(NamedTuple):
    """Text that replaces the characters start..end-1 of the wild type, counted from 0."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant.

    Args:
        name: the name as spelled in its file.
        wildtype: the raw sequence of the wild type.
        edits: the edits, in order and without overlap; empty if nothing changes.
        source, line: its file and line.
        fields: the columns of its row.
        first: number of the wild type's first unit, as people count it.
        numbers: the number of every letter of the wild type, if that is a row of an alignment. Numbers of
            gaps have no meaning. None: the numbers count on from `first`.
        scored: whether a masked model can score it (a stop codon is not a unit).
        flank: number of units at each side of the edits that count in a PLL-delta; None: the whole sequence.
    """

    name: str
    wildtype: str
    edits: tuple[Edit, ...]
    source: str
    line: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    first: int = 1
    numbers: tuple[int, ...] | None = None
    scored: bool = True
    flank: int | None = None

    @property
    def substitutions(self) -> bool:
        """Whether units are exchanged one for one, so that the masked conventions apply."""
        return all(edit.end - edit.start == len(edit.text) == 1 for edit in self.edits)

    @property
    def mutant(self) -> str:
        """The raw sequence with all edits applied.

        >>> edits = (Edit(1, 2, "W"), Edit(3, 3, "GG"))
        >>> Variant(name="", wildtype="ACDE", edits=edits, source="", line=0).mutant
        'AWDGGE'
        """
        pieces, done = [], 0
        for edit in self.edits:
            pieces += [self.wildtype[done : edit.start], edit.text]
            done = edit.end
        return "".join([*pieces, self.wildtype[done:]])


def changes(wildtype: str, mutant: str) -> tuple[Edit, ...]:
    """The edits that turn one sequence into another.

    If the lengths are equal, each different letter is an edit. Otherwise one stretch is.

    >>> changes("ACDE", "AWDF"), changes("ACDE", "ACE")
    ((Edit(start=1, end=2, text='W'), Edit(start=3, end=4, text='F')), (Edit(start=2, end=3, text=''),))
    """
    if len(wildtype) == len(mutant):
        pairs = enumerate(zip(wildtype, mutant, strict=True))
        return tuple(Edit(place, place + 1, b) for place, (a, b) in pairs if a != b)
    shorter = min(len(wildtype), len(mutant))
    head = next((i for i in range(shorter) if wildtype[i] != mutant[i]), shorter)
    tail = next((i for i in range(shorter - head) if wildtype[-1 - i] != mutant[-1 - i]), shorter - head)
    return (Edit(head, len(wildtype) - tail, mutant[head : len(mutant) - tail]),)


@cache
def blosum62() -> Any:
    """Log-odds of replacing a residue by another, in half bits, by both letters (Henikoff, Henikoff 1992)."""
    from Bio.Align import substitution_matrices

    return substitution_matrices.load("BLOSUM62")


@dataclass(frozen=True, kw_only=True)
class VariantTable:
    """A file of variants, and its settings.

    Args:
        path: the file.
        wildtype: a file with the wild type sequence, or None if the table has it.
        sequence: the wild type sequence itself, if it is known.
        column: the column that has the names of the variants or the changed sequences; None: find it by name.
        first: the table's number for the first unit of the wild type; None: inferred.
        window: number of letters in the model's window, if wild types are cut from a longer sequence.
        copied: whether a copy of the table with the effects in it will be written.
        family: an alignment with a row that is or resembles the wild type.
        query: id of the row that is the wild type, if no sequence is named; None: the first row.
        columns: number of columns in the rows that the model reads, if it is linear; None: it reads
            sequences.
        genes: a file with the genes of the sequence from which wild types are cut.
    """

    path: str
    wildtype: str | None = None
    sequence: str | None = None
    column: str | None = None
    first: int | None = None
    window: int | None = None
    copied: bool = False
    family: str | None = None
    query: str | None = None
    columns: int | None = None
    genes: str | None = None


@dataclass(frozen=True, kw_only=True)
class Assay:
    """One table of a benchmark, with variants of one subject. Assays of a subject count together.

    Args:
        measured: column of the measurements; higher is fitter.
        kind: the property that was selected for. All kinds have equal weight.
    """

    name: str
    table: VariantTable
    measured: str
    subject: str
    kind: str


LEAVE_OUT = "correct it, or leave it out (--on-error skip)"


def bad_variant(reason: str, path: str, line: int, remedy: str = LEAVE_OUT) -> DataError:
    """The error for a variant that cannot be read or does not fit the wild type."""
    return DataError(reason, source=path, line=line, remedy=remedy)


def lower_names(fields: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a table by their names in lower case."""
    return {str(name).lower().removeprefix("\ufeff"): str(name) for name in fields}


Predict = Callable[[Variant], float | None]
"""A prediction without a model: the effect of a variant, higher is fitter; None if it cannot be predicted."""


def additive_prediction(worth: Callable[[str, int, str], float], letters: str) -> Predict:
    """A predictor that sums an effect over the exchanges of a variant; None for variants of other kinds.

    Args:
        worth: (wild type, place, new letter) -> effect of one exchange.
        letters: the letters that may be exchanged.

    >>> predict = additive_prediction(lambda wildtype, place, new: float(place), "ACGT")
    >>> edits = (Edit(1, 2, "A"), Edit(3, 4, "G"))
    >>> predict(Variant(name="", wildtype="ACGT", edits=edits, source="", line=0))
    4.0
    """

    def predict(variant: Variant) -> float | None:
        is_covered = variant.substitutions and all(
            {variant.wildtype[edit.start], edit.text} <= {*letters} for edit in variant.edits
        )
        if not is_covered:
            return None
        total = sum(worth(variant.wildtype, edit.start, edit.text) for edit in variant.edits)
        return None if math.isnan(total) else float(total)

    return predict


class Variants(ABC):
    """The variants of a field: how its files are read, and which predictions need no model.

    Attributes:
        letters: the letters that can be at one place. A map of all changes has a row for each.
        windows: whether every variant has its own wild type, a window. Such tables are read as a stream.
        columns: fields of a variant that its row repeats.
        display_columns: the subset of `columns` that people read next to the effect.
        counted: the column whose values are counted in a summary; "" for none.
        formats: formats for the copy of a table, with the endings of file names.
    """

    letters: str
    windows: ClassVar[bool] = False
    columns: Sequence[str] = ()
    display_columns: ClassVar[Sequence[str]] = ()
    counted: ClassVar[str] = ""
    formats: ClassVar[Mapping[str, Sequence[str]]] = {}

    @abstractmethod
    def table_variants(self, table: VariantTable, problems: Problems) -> Iterator[Variant]:
        """The variants of a file, in order.

        Args:
            table: the file.
            problems: receives variants that cannot be read or do not fit the wild type. It also notes
                inferences, such as how the table numbers the wild type, and variants without a score.

        Raises:
            UsageError: options that do not fit together.
            DataError: the file or column does not exist, or is not a table of variants; with "raise", also
                for bad variants.
        """

    @abstractmethod
    def rivals(self, wildtypes: Sequence[str], alignment: str | None) -> Mapping[str, Predict]:
        """Predictions that need no model, by name, for comparison on variants of some sequences.

        Raises:
            DataError: the alignment of related sequences cannot be read, or no wild type belongs to it.
        """

    def mirrored(self, variant: Variant) -> Variant | None:
        """The same variant on the other strand, if there is one. The effect is then the mean of both."""
        return None

    def copy(self, path: str, rows: Iterator[Mapping[str, Any]], note: str) -> Iterator[str]:
        """Yield a copy of a table with the effects of its variants, in one of `formats`, line by line.

        Args:
            rows: the effects in order (`line`, `effect`, the field's `columns`).
            note: one line that describes the effects.
        """
        raise NotImplementedError

    def assays(self, folder: Path) -> list[Assay]:
        """The assays of a benchmark for the field, from its folder or its reference file.

        Raises:
            UsageError: the field has no benchmark.
            DataError: the folder does not have the published layout.
        """
        raise UsageError("this field has no benchmark of variants")

"""Read features of sequences from BED and GFF3. Each line names a stretch of a sequence and its kind.

GFF3 is a table, and is read without a library: only places, types and names are needed. The format is defined
by the Sequence Ontology's specification, version 1.26.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from seqmlm.data.files import stem_suffix
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

FEATURES = (".bed", ".gff", ".gff3")
GFF_COLUMNS = "name a GFF3 file, plain or packed as .gz: columns divided by tabs, the last one ID=x;Name=y"

_MITOCHONDRION = ("M", "MT", "chrM", "chrMT")
_HEADINGS = ("#", "track", "browser")
_PLACE = re.compile(r"\s*\d{1,18}\s*")  # Python refuses to read numbers with thousands of digits


class Feature(NamedTuple):
    """A line about the bases `start` to `end` (from 0, half open) of a sequence."""

    name: str
    start: int
    end: int
    columns: list[str]


class Stretch(NamedTuple):
    """The bases `start` to `end` (from 0, half open) with a label."""

    start: int
    end: int
    label: str


def name_among(sequence: str, names: Container[str]) -> str | None:
    """The known name of a chromosome: chr1 may be 1, and chrM may be MT. None if it is not known."""
    stem = sequence.removeprefix("chr")
    aliases = _MITOCHONDRION if sequence in _MITOCHONDRION else ()
    return next((alias for alias in (sequence, stem, "chr" + stem, *aliases) if alias in names), None)


def bed_features(source: str, problems: Problems) -> Iterator[tuple[int, Feature]]:
    """Yield (line, feature) of BED, from 0 and half open. Other lines, and VCF files, go to `problems`."""
    for number, text in lines(source, problems):
        if text.startswith(("##fileformat=VCF", "#CHROM\t")):
            reason = "a VCF file where BED windows were expected"
            remedy = "BED lines are name, start, end; turn its places into windows around them"
            problems.bad(DataError(reason, source=source, line=number, remedy=remedy), text[:1000])
            return
        if not text.strip() or text.startswith(_HEADINGS):
            continue
        columns = text.split("\t") if "\t" in text else text.split()
        if len(columns) < 3 or not all(map(_PLACE.fullmatch, columns[1:3])):
            reason = "not a BED window: name, start and end are needed, the last two as whole numbers"
            remedy = "check that this is BED, not VCF or GFF"
            problems.bad(DataError(reason, source=source, line=number, remedy=remedy), text[:1000])
        else:
            yield number, Feature(columns[0], int(columns[1]), int(columns[2]), columns)


def gff_features(
    source: str, problems: Problems, is_selected: Callable[[str], bool] | None = None
) -> Iterator[tuple[int, Feature]]:
    """Yield (line, feature) of GFF3, whose places count from 1 and include the end.

    Args:
        source: the file.
        problems: receives lines that do not have nine columns, and selected features without a place.
        is_selected: whether features of a type are read. None reads all types.
    """
    for number, text in lines(source, problems):
        if text.startswith(("##FASTA", ">")):
            return
        if not text.strip() or text.startswith("#"):
            continue
        columns = text.split("\t")
        reason = "" if len(columns) == 9 else "not a line of nine columns"
        if not reason and is_selected is not None and not is_selected(columns[2]):
            continue
        if not reason and not (
            all(map(_PLACE.fullmatch, columns[3:5])) and 1 <= int(columns[3]) <= int(columns[4])
        ):
            reason = "a start and an end that are not places in a sequence"
        if reason:
            problems.bad(DataError(reason, source=source, line=number, remedy=GFF_COLUMNS), text[:1000])
        else:
            yield number, Feature(unquote(columns[0]), int(columns[3]) - 1, int(columns[4]), columns)


def labelled(source: str, problems: Problems, kinds: Sequence[str] = ()) -> dict[str, list[Stretch]]:
    """The labelled stretches of each sequence, in order and without overlap.

    A label is the name of a feature in BED (column 4), or its type in GFF3 (column 3). Overlapping features
    with the same label, such as the coding parts of two transcripts, become one stretch.

    Args:
        source: the file (also .gz, .zst).
        problems: receives lines that are not features, features without a label, and features that overlap a
            feature with another label. Notes features of other kinds.
        kinds: labels to use. Empty uses all labels.

    Raises:
        DataError: no feature is left, or a label in `kinds` has no feature.
    """
    reader, column = (bed_features, 3) if stem_suffix(source) == ".bed" else (gff_features, 2)
    stretches: dict[str, list[tuple[int, int, int, str]]] = {}
    skipped = Counter[str]()
    for line, feature in reader(source, problems):
        label = feature.columns[column].strip() if len(feature.columns) > column else ""
        reason = "a feature without a label" if label in ("", ".") else ""
        if reason or feature.start >= feature.end:
            remedy = f"give it a name in column {column + 1}, and an end after its start"
            reason = reason or "an empty feature"
            problems.bad(DataError(reason, source=source, line=line, remedy=remedy), feature.name)
        elif kinds and label not in kinds:
            skipped[label] += 1
        else:
            stretches.setdefault(feature.name, []).append((feature.start, feature.end, line, label))
    absent = {*kinds} - {label for labelled_parts in stretches.values() for *_, label in labelled_parts}
    if absent or not stretches:
        there = problems.quoted(", ".join(name for name, _ in skipped.most_common(20)))
        remedy = f"labels in the file: {there}" if there else "give lines that name places and labels"
        reason = "no feature has a label"
        if absent:
            reason = "no feature has the requested label" + problems.quoted(f" {min(absent)!r}")
        raise DataError(reason, source=source, remedy=remedy)
    problems.note("a feature of another kind, left out", skipped.total(), source=source)
    return {
        name: _without_overlap(labelled_parts, source, problems) for name, labelled_parts in stretches.items()
    }


def _without_overlap(
    features: Iterable[tuple[int, int, int, str]], source: str, problems: Problems
) -> list[Stretch]:
    stretches: list[Stretch] = []
    for start, end, line, label in sorted(features):
        if not stretches or stretches[-1].end <= start:
            stretches.append(Stretch(start, end, label))
        elif stretches[-1].label == label:
            stretches[-1] = stretches[-1]._replace(end=max(end, stretches[-1].end))
        else:
            named = problems.quoted(f" ({label} and {stretches[-1].label})")
            reason = f"a feature that overlaps a feature with another label{named}"
            remedy = "select the labels to use with --label"
            problems.bad(DataError(reason, source=source, line=line, remedy=remedy))
    return stretches

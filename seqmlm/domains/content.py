"""Recognise the kind of data in the first records of an input, and warn if the field does not read that kind.

A field declares the kinds that its records may be (`Reading.content`). Each recogniser below answers only
when it is sure. It uses the share of matching letters or lines, or the header of a table. Data of another
kind cause one warning, and reading continues.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record

NUCLEOTIDES, SEQUENCES, LOG, PATIENTS, CODE, PROSE = (
    *("nucleotides", "sequences", "log lines", "patient records", "source code", "prose"),
)

NEARLY_ALL = 0.95
"""Share of the letters or lines of a sample that must match a kind, from 0 to 1."""

_RECORDS, _CHARACTERS = 100, 20_000  # largest sample
_FEWEST_LETTERS, _FEWEST_LINES, _FEWEST_WORDS = 100, 5, 100

Lines = Sequence[str]


def _letters(lines: Lines) -> Counter[str]:
    return Counter(letter for line in lines for letter in line.upper() if letter.isalpha())


def _is_letter_run(lines: Lines) -> bool:
    """Whether nearly all lines are FASTA headers, or letters without anything between them."""
    plain = sum(line.startswith(">") or re.fullmatch(r"[A-Za-z*.-]{10,}", line) is not None for line in lines)
    return plain > NEARLY_ALL * len(lines)


def are_nucleotides(lines: Lines) -> bool:
    """Whether nearly all letters are A, C, G, T or U, and each of the four bases is common.

    No protein has so few different letters.
    """
    if not _is_letter_run(lines):
        return False
    counts = _letters([line for line in lines if not line.startswith(">")])
    total = counts.total()
    bases = [counts["A"], counts["C"], counts["G"], counts["T"] + counts["U"]]
    acgtn = sum(bases) + counts["N"]
    return (
        total >= _FEWEST_LETTERS and acgtn > NEARLY_ALL * total and min(bases) > (1 - NEARLY_ALL) * total / 2
    )


def are_sequences(lines: Lines) -> bool:
    """Whether the lines are long stretches of capital letters, with or without FASTA headers."""
    sequences = [line for line in lines if not line.startswith(">")]
    letters = "".join(sequences)
    capitals = letters.isupper() or len(sequences) < len(lines)
    return len(letters) >= _FEWEST_LETTERS and capitals and _is_letter_run(lines) and _long(sequences)


def _long(sequences: Lines) -> bool:
    return sum(map(len, sequences)) >= 20 * len(sequences)


_CLOCK = re.compile(
    r"(?:^\W{0,3}|\d[-/.]\d\d[T _,]+|\d{4}[:, _]|[A-Z][a-z]{2}\s+\d{1,2},?\s(?:\d{4}\s)?)\d\d:\d\d:\d\d"
    r"|^\d{6} \d{6} "  # HDFS
    r"|^- \d{10} \d{4}\.\d\d\.\d\d "  # supercomputers
)
"""A time of day after a date, or at the beginning of a line. Sentences can contain times elsewhere."""

_BEGIN = 80  # characters at the start of a line where logs write the time


def are_log_lines(lines: Lines) -> bool:
    """Whether nearly every line has a time of day, with seconds, at its beginning."""
    timed = sum(_CLOCK.search(line[:_BEGIN]) is not None for line in lines)
    return len(lines) >= _FEWEST_LINES and timed > NEARLY_ALL * len(lines)


_PEOPLE = frozenset(
    ("patient", "patient_id", "patientid", "patient_nbr", "subject_id", "person_id", "birthdate", "deathdate")
)
_CARE = frozenset(
    (
        *("encounter", "encounter_id", "encounterclass", "hadm_id", "icustay_id", "visit_occurrence_id"),
        *("icd9_code", "icd10_code", "icd_code", "reasoncode", "reasondescription", "code", "diag_1"),
        *("condition_concept_id", "drug_concept_id", "procedure_concept_id", "measurement_concept_id"),
        *("gender_concept_id", "race_concept_id", "year_of_birth", "dob", "dod", "drivers", "ssn", "race"),
    )
)
_CELLS = re.compile(r"[\w .#-]+")


def are_patient_records(lines: Lines) -> bool:
    """Whether the first line is the header of a patient table, or a JSON object with such fields."""
    names = {name.strip().strip("\"'").lower() for name in re.split("[,;\t|]", lines[0])}
    if lines[0].lstrip().startswith("{"):
        names = {name.lower() for name in re.findall(r'"(\w+)"\s*:', lines[0])}
    elif not all(_CELLS.fullmatch(name) for name in names):
        return False
    people, care = names & _PEOPLE, names & _CARE
    return bool(people and care) or len(people) > 1


_SIGNS = frozenset("{}[]()=;<>_\\/|@#$%^&*+~`")
_CODE_LINE = re.compile(
    r"""\s*(?:
      (?:from\s+[\w.]+\s+)?import\s+[\w.{*"'(] | (?:async\s+)?def\s+\w+\( | class\s+\w+[\s:({<]
    | (?:if|elif|while|for|with|except|try|else|finally)\b.*:\s*$ | return\b | raise\s+\w | @\w+
    | (?:public|private|protected|static|final|func|fn|function|package|var|let|const|struct|enum)\s+[\w*(<]
    | [#]include\b | [#]define\b | // | /\* | \*/ | [*]\s | [#]\s | [})\]]+[;,]?\s*$
    | [\w.\[\]'"*&>-]+\s(?:[-+*/|&%]|:)?=\s\S | [\w.]+\([^)]*\)\s*[;:]?\s*$
    | .*[;{}]\s*$ | .*[(\[]\s*$
    )""",
    re.VERBOSE,
)
_SURE_LINE = re.compile(
    r"\s*(?:(?:from\s+[\w.]+\s+)?import\s+[\w.{*]|(?:async\s+)?def\s+\w+\(|class\s+\w+[\s:({<]|return\b.*|"
    r"(?:public|private|protected|static|func|fn|function|var|let|const|struct)\s+\w+.*|#include\b|.*[;{]\s*$|"
    r"\}\s*$|(?:if|elif|while|for|with|try|except|else)\b.*:\s*$|\w+(?:\.\w+)*\s=\s\S)"
)
_CODE, _SURE = 0.5, 0.25


def are_source_code(lines: Lines) -> bool:
    """Whether most lines are statements or parts of statements, and many begin or end as only code does."""
    lines = [line for line in lines if not line.lstrip().startswith("{") or not line.rstrip().endswith("}")]
    if len(lines) < _FEWEST_LINES or are_log_lines(lines):
        return False
    likely = sum(_CODE_LINE.match(line) is not None for line in lines)
    sure = sum(_SURE_LINE.match(line) is not None for line in lines)
    return likely > _CODE * len(lines) and sure > _SURE * len(lines)


_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_SENTENCE_SIGNS = frozenset(".,;:!?'\"’‘“”„«»-–—()…[]_*&/`")


def are_prose(lines: Lines) -> bool:
    """Whether the lines are words and punctuation, with few digits and few repeated lines."""
    text = "\n".join(lines)
    solid = [sign for sign in text if not sign.isspace()]
    words = len(_WORD.findall(text))
    if words < _FEWEST_WORDS or not solid or len({*lines}) < NEARLY_ALL * len(lines):
        return False
    letters = sum(sign.isalpha() for sign in solid)
    plain = letters + sum(sign in _SENTENCE_SIGNS for sign in solid)
    code = sum(sign in _SIGNS for sign in solid)
    stops = len(re.findall(r"[^\W\d_][.,!?;](?=\s|$|[\"'’”])", text, flags=re.MULTILINE))
    is_clean = plain > 0.97 * len(solid) and code < 0.01 * len(solid)
    return is_clean and letters > 0.9 * len(solid) and stops > 0.02 * words and words > 3 * len(lines)


@dataclass(frozen=True)
class Kind:
    """A kind of data.

    Args:
        name: the name in a field's declaration and in warnings.
        domain: the name of the field that reads this kind.
        matches: returns whether nearly all lines of a sample are of this kind.
    """

    name: str
    domain: str
    matches: Callable[[Lines], bool]


KINDS = (
    Kind(PATIENTS, "ehr", are_patient_records),
    Kind(NUCLEOTIDES, "dna", are_nucleotides),
    Kind(SEQUENCES, "protein", are_sequences),
    Kind(LOG, "logs", are_log_lines),
    Kind(CODE, "code", are_source_code),
    Kind(PROSE, "text", are_prose),
)
"""All kinds, in order of priority: if several match a sample, the first one counts."""


def kind_of(sample: Iterable[str]) -> Kind | None:
    """The kind of some records' texts, or None if it is not certain.

    >>> kind_of(["ACGTTGCAAC" * 20]).name
    'nucleotides'
    """
    lines = [line for text in sample for line in text.splitlines() if line.strip()]
    return next((kind for kind in KINDS if kind.matches(lines)), None) if lines else None


def check_content(
    records: Iterator[Record],
    problems: Problems,
    domain: str,
    content: Sequence[str],
    text: Callable[[Any], str],
) -> Iterator[Record]:
    """Yield the records unchanged, and warn once if the first are of a kind that the field does not read.

    Args:
        problems: receives the warning.
        domain: the name of the field.
        content: the kinds that its records may be.
        text: returns the text of a raw sequence.
    """
    sample, size, source = list[str](), 0, ""
    waiting = True
    for record in records:
        if waiting:
            source = source or record.source
            sample.append(text(record.raw)[: _CHARACTERS - size])
            size += len(sample[-1])
            if len(sample) >= _RECORDS or size >= _CHARACTERS:
                waiting = False
                _warn(sample, problems, domain, content, source)
        yield record
    if waiting:
        _warn(sample, problems, domain, content, source)


def _warn(
    sample: Sequence[str], problems: Problems, domain: str, content: Sequence[str], source: str
) -> None:
    kind = kind_of(sample)
    if kind is not None and kind.name not in content:
        problems.warn(
            f"these data look like {kind.name}, not like data for domain {domain}: check the files, or use "
            f"--domain {kind.domain}",
            source=source,
        )

"""What small files of every format are made of: sequences, sentences, sources, patients, log lines."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

BEGIN = datetime(2024, 3, 1, tzinfo=UTC)


def _letters(alphabet: str, count: int, length: int) -> list[str]:
    draw = random.Random(count)
    return ["".join(draw.choices(alphabet, k=length + n % 7)) for n in range(count)]


DNA = _letters("ACGT", 40, 120)
PROTEINS = _letters("ACDEFGHIKLMNPQRSTVWY", 40, 60)
_PAIRS = [(a, b) for a in ("cat", "dog", "king") for b in ("house", "tree", "river")]
SENTENCES = [f"{n} the {a} sees a {b} near the {a} ." for n in range(5) for a, b in _PAIRS]
FUNCTION = '''def area_{n}(width, height):
    """Area number {n}."""
    if width < {n}:
        raise ValueError("too small")
    return width * height + {n}
'''
SOURCES = [FUNCTION.format(n=n) for n in range(30)]
_SHAPES = ("open session {} for user u{}", "read block {} of 4096 bytes", "close session {}")
MESSAGES = [_SHAPES[n % 3].format(n // 3, n // 3) for n in range(900)]
TIMES = [BEGIN + timedelta(seconds=7 * n) for n in range(len(MESSAGES))]


def events_of(person: int) -> Iterable[tuple[str, str]]:
    """Day and code of what is recorded of a patient."""
    draw = random.Random(person)
    for visit in range(4):
        day = (BEGIN + timedelta(days=30 * visit + person)).date().isoformat()
        for code in draw.sample(("I10", "E11", "J45", "M54", "K21"), 2):
            yield day, code


def saved(folder: Path, columns: Mapping[str, list[Any]], *words: Any) -> list[Any]:
    """A folder that `datasets` saved, with a train and a validation split, named as a data set."""
    import datasets

    datasets.disable_progress_bars()
    whole = datasets.Dataset.from_dict(dict(columns))
    few = len(whole) // 4
    splits = {"train": range(few, len(whole)), "validation": range(few)}
    made = datasets.DatasetDict({name: whole.select(rows) for name, rows in splits.items()})
    made.save_to_disk(str(folder / "saved"))
    return [f"hf:{folder / 'saved'}", *words]


def aligned(folder: Path, format: str, name: str, letters: list[str]) -> list[Any]:
    """An alignment, written by Biopython."""
    from Bio import AlignIO
    from Bio.Align import MultipleSeqAlignment
    from Bio.Seq import Seq
    from Bio.SeqRecord import SeqRecord

    width = max(map(len, letters))
    rows = [SeqRecord(Seq(s.ljust(width, "-")), id=f"row{n}") for n, s in enumerate(letters)]
    AlignIO.write([MultipleSeqAlignment(rows)], folder / name, format)
    return [folder / name]


def swissprot(names: Iterable[str], letters: Iterable[str]) -> str:
    """Entries of a UniProt flat file."""
    return "".join(
        f"ID   {name}_TEST               Reviewed;         {len(raw)} AA.\nAC   {name}; Q99999;\n"
        f"DE   RecName: Full=Protein of {name};\nOS   Escherichia coli.\n"
        f"SQ   SEQUENCE   {len(raw)} AA;  1 MW;  0123456789ABCDEF CRC64;\n     {raw}\n//\n"
        for name, raw in zip(names, letters, strict=True)
    )


def pdb(letters: str, chain: str = "A", step: float = 3.8) -> str:
    """The C-alpha and C-beta atoms of a chain stretched out along a line, `step` angstrom apart."""
    from Bio.SeqUtils import seq3

    lines = []
    for n, letter in enumerate(letters):
        for atom, y in (("CA", 0.0), *((("CB", 1.5),) if letter != "G" else ())):
            lines.append(
                f"ATOM  {len(lines) + 1:>5}  {atom:<3} {seq3(letter).upper()} {chain}{n + 1:>4}    "
                f"{n * step:>8.3f}{y:>8.3f}{0:>8.3f}  1.00  0.00           C"
            )
    return "\n".join([*lines, "TER", ""])

"""The data of each field of `alarms.py`: training files, held-out texts, and the faults planted in them."""

from __future__ import annotations

import ast
import csv
import gzip
import hashlib
import re
import sysconfig
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_faults import (
    Fault,
    foreign_insert,
    operands_swapped,
    segment_shuffled,
    substituted,
    variable_misused,
    words_swapped,
    wrong_operator,
    wrong_word,
)

HELD_BOOKS = ("Pride_and_Prejudice", "The_Adventures_of_Sherlock")
HELD_PACKAGES = ("asyncio", "email", "http", "json", "logging", "unittest")
LEFT_OUT = ("test", "idlelib", "site-packages", "dist-packages", "lib2to3", "__pycache__")
DNA_WINDOW = 126
CODE_VOCABULARY = 1024
SHARED = 12  # residues in a row that make a protein no longer held out


@dataclass(frozen=True, kw_only=True)
class Field:
    """The data of one field.

    Args:
        domain: its name.
        files: training files.
        texts: held-out normal texts, in a fixed order.
        faults: functions that plant a fault, by name.
        flags: settings of the training.
    """

    domain: str
    files: Sequence[Path]
    texts: Sequence[str]
    faults: Mapping[str, Fault]
    flags: dict[str, Any] = field(default_factory=dict)


def text(data: Path, out: Path) -> Field:
    """Books; two of them are held out, a paragraph a text."""
    books = sorted((data / "text" / "books").glob("*.txt.gz"))
    held = [book for book in books if book.name.startswith(HELD_BOOKS)]
    paragraphs = [
        " ".join(p.split())
        for book in held
        for p in gzip.decompress(book.read_bytes()).decode(errors="replace").split("\n\n")
    ]
    kept = [p for p in paragraphs if 80 <= len(p) <= 350 and p[0].isupper()]
    return Field(
        domain="text",
        files=[book for book in books if book not in held],
        texts=kept,
        faults={
            "words swapped": words_swapped,
            "wrong word": wrong_word([w for p in kept for w in re.findall(r"\b[a-z]+\b", p)]),
        },
        flags={"data": {"options": {"paragraphs": True}, "deduplicate": True}},
    )


def protein(data: Path, out: Path) -> Field:
    """Proteomes; the judged chains of FLIP's secondary structure set share nothing with them."""
    chains = _fasta(data / "protein" / "flip_secondary_structure" / "sequences.fasta.gz")
    short = [c for c in chains if 60 <= len(c) <= 160 and set(c) <= set("ACDEFGHIKLMNPQRSTVWY")]
    files = sorted((data / "protein" / "pretrain").glob("*.faa.gz"))
    kept = _unrelated(short, [sequence for file in files for sequence in _fasta(file)])
    return Field(
        domain="protein",
        files=files,
        texts=kept,
        faults={"substitutions": substituted("".join(kept), 5), "segment shuffled": segment_shuffled(20)},
    )


def dna(data: Path, out: Path) -> Field:
    """The first four fifths of E. coli K-12; windows of the last fifth are judged."""
    genome = "".join(_fasta(data / "dna" / "genomes" / "ecoli_k12_GCF_000005845.2.fna.gz")).upper()
    foreign = "".join(_fasta(data / "dna" / "genomes_1pct" / "A.thaliana.fa.gz")).upper()
    cut = len(genome) * 4 // 5
    file = out / "ecoli-train.fa"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(">train\n" + "\n".join(textwrap.wrap(genome[:cut], 80)) + "\n")
    windows = [genome[i : i + DNA_WINDOW] for i in range(cut + 1000, len(genome) - DNA_WINDOW, DNA_WINDOW)]
    return Field(
        domain="dna",
        files=[file],
        texts=[w for w in windows if set(w) <= set("ACGT")],
        faults={
            "foreign insert": foreign_insert(re.sub("[^ACGT]", "", foreign), 42),
            "3-mers shuffled": segment_shuffled(42, unit=3),
            "bases shuffled": segment_shuffled(42),
        },
        flags={"model": {"size": "tiny", "max_length": 128}},
    )


def code(data: Path, out: Path) -> Field:
    """The standard library; functions of some of its packages are judged."""
    root = Path(sysconfig.get_path("stdlib"))
    inside = [p for p in sorted(root.iterdir()) if p.name not in {*HELD_PACKAGES, *LEFT_OUT}]
    held = [p for name in HELD_PACKAGES for p in sorted((root / name).rglob("*.py"))]
    return Field(
        domain="code",
        files=[p for p in inside if p.suffix == ".py" or (p.is_dir() and (p / "__init__.py").exists())],
        # Three minutes see half a million tokens: 8,192 sub-words are learnt no better than their counts.
        flags={
            "tokenizer": {"vocabulary_size": CODE_VOCABULARY},
            "model": {"size": "tiny", "max_length": 256},
        },
        texts=[f for path in held for f in _functions(path)],
        faults={
            "wrong operator": wrong_operator,
            "operands swapped": operands_swapped,
            "variable misused": variable_misused,
        },
    )


def patients(data: Path, out: Path) -> tuple[Path, Path]:
    """The patients of Synthea in two folders: one for training, and one with a fifth of them for judging."""
    folders = (out / "synthea-train", out / "synthea-held")
    for table in sorted((data / "ehr" / "synthea_ibm").glob("*.csv.gz")):
        with gzip.open(table, "rt", newline="") as stream:
            head, *rows = list(csv.reader(stream))
        column = next(
            i for i, name in enumerate(head) if name.lower() in ("patient", "id") and _owns(head, name)
        )
        for held, folder in enumerate(folders):
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / table.name.removesuffix(".gz")).open("w", newline="") as sink:
                writer = csv.writer(sink)
                writer.writerow(head)
                writer.writerows(row for row in rows if _held(row[column]) == bool(held))
    return folders


FIELDS: dict[str, Callable[[Path, Path], Field]] = {
    "text": text,
    "protein": protein,
    "dna": dna,
    "code": code,
}


def _owns(head: Sequence[str], name: str) -> bool:
    """Whether the column names the patient: "PATIENT" where there is one, else the table's own id."""
    return name.lower() == "patient" or "patient" not in map(str.lower, head)


def _held(patient: str) -> bool:
    return hashlib.sha256(patient.encode()).digest()[0] < 51


def _fasta(path: Path) -> list[str]:
    with gzip.open(path, "rt") as stream:
        parts = stream.read().split(">")[1:]
    return ["".join(part.split("\n")[1:]) for part in parts]


def _unrelated(chains: Sequence[str], known: Sequence[str]) -> list[str]:
    """The chains that have no run of `SHARED` residues in common with a known sequence."""
    pieces = {c[i : i + SHARED] for c in chains for i in range(len(c) - SHARED + 1)}
    common = {
        piece
        for one in known
        for i in range(len(one) - SHARED + 1)
        if (piece := one[i : i + SHARED].upper()) in pieces
    }
    return [c for c in chains if not any(c[i : i + SHARED] in common for i in range(len(c) - SHARED + 1))]


def _functions(path: Path) -> list[str]:
    """The functions of a Python file that are 5 to 20 lines long, without their indentation."""
    source = path.read_text(encoding="utf-8", errors="replace")
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            piece = textwrap.dedent("\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])) + "\n"
            if 5 <= piece.count("\n") <= 20 and not piece.startswith("async"):
                found.append(piece)
    return found


def chosen(texts: Sequence[str], number: int, seed: int) -> list[str]:
    """Some of the texts, drawn without replacement; the order of the files does not matter."""
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[i] for i in order[:number].tolist()]

"""The data of each field of `calibration.py`: training files, held-out records, new groups, shifted data.

Held-out data of the same kind are separated by the groups that the product uses too. Groups are paragraphs,
proteins, stretches of a genome, packages, or patients. Logs are divided in order of time. A new group is
another book, another package, and so on. Users score such data next. It is not guaranteed that these data
are exchangeable with the earlier groups.
"""

from __future__ import annotations

import ast
import csv
import gzip
import json
import re
import shutil
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import (
    CODE_VOCABULARY,
    HELD_BOOKS,
    HELD_PACKAGES,
    LEFT_OUT,
    _fasta,
    patients,
)
from anomaly_field_data import protein as protein_field
from anomaly_logs import log_flags
from anomaly_sessions import bgl, hdfs, hdfs_raw, openstack, write_raw, write_sessions

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.splits import hash64
from seqmlm.domains.dna import REGION

Items = Sequence[Any]

PIECE = 504  # bases of a genome that are one record: four windows
TENTH = 10  # every tenth group is held out
SECTION = 8_000  # characters of a source file that are scored at most


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """The data of one field.

    Args:
        domain: its name.
        train: training files.
        held: records of the same kind, in a fixed order without meaning.
        new: records of other groups of the same kind, by name.
        shifted: records of other kinds of data, by name.
        write: writes records into the files of a folder, and returns the files to read.
        flags: settings of the training, for a number of minutes.
        options: options to read the files of `write`.
    """

    domain: str
    train: Sequence[Path]
    held: Items
    new: Mapping[str, Items]
    shifted: Mapping[str, Items]
    write: Callable[[Items, Path], Path]
    flags: dict[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def text(data: Path, out: Path, minutes: float) -> Kind:
    """Paragraphs of books, every tenth held out; two more books; German; source code."""
    options = {"paragraphs": True}
    books = sorted((data / "text" / "books").glob("*.txt.gz"))
    known = [book for book in books if not book.name.startswith(HELD_BOOKS)]
    kept, held = _parted(list(dict.fromkeys(r.raw for r in _read("text", known, **options))), lambda one: one)
    german = _read("text", sorted((data / "text" / "ud_de_gsd").glob("*.gz")))
    source = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_text().split("\n\n")
    return Kind(
        domain="text",
        train=[_paragraphs(kept, out / "text-train")],
        held=held,
        new={"other books": [r.raw for r in _read("text", set(books) - set(known), **options)]},
        shifted={
            "German": [r.raw for r in german],
            "code": [one for one in source if one.strip()],
        },
        write=_paragraphs,
        flags={"data": {"options": options, "deduplicate": True}},
        options=options,
    )


def protein(data: Path, out: Path, minutes: float) -> Kind:
    """Proteomes, every tenth protein held out; chains that share nothing with them; shuffled residues."""
    files = sorted((data / "protein" / "pretrain").glob("*.faa.gz"))
    everything = list(dict.fromkeys(sequence for file in files for sequence in _fasta(file)))
    kept, held = _parted(everything, lambda one: one)
    random = np.random.default_rng(0)
    shuffled = ["".join(random.permutation(list(one)).tolist()) for one in held]
    return Kind(
        domain="protein",
        train=[_sequences(kept, out / "protein-train")],
        held=held,
        new={"other chains": protein_field(data, out).texts},
        shifted={"residues shuffled": shuffled, "one residue repeated": ["A" * len(one) for one in held]},
        write=_sequences,
    )


def dna(data: Path, out: Path, minutes: float) -> Kind:
    """Four fifths of E. coli K-12, every tenth stretch held out; the last fifth; A. thaliana; C. elegans."""
    genomes, others = data / "dna" / "genomes", data / "dna" / "genomes_1pct"
    genome = "".join(_fasta(genomes / "ecoli_k12_GCF_000005845.2.fna.gz")).upper()
    cut = len(genome) * 4 // 5
    stretches = [genome[i : i + REGION] for i in range(0, cut, REGION)]
    kept, held = _parted(stretches, lambda one: one)
    foreign = {
        name: "".join(_fasta(others / f"{name}.fa.gz")).upper() for name in ("A.thaliana", "C.elegans")
    }
    return Kind(
        domain="dna",
        train=[_sequences(kept, out / "dna-train")],
        held=[piece for one in held for piece in _pieces(one)],
        new={"last fifth": _pieces(genome[cut + REGION :])},
        shifted={name: _pieces(one) for name, one in foreign.items()},
        write=_sequences,
        flags={"model": {"size": "tiny", "max_length": 128}},
    )


def code(data: Path, out: Path, minutes: float) -> Kind:
    """The standard library, every tenth module or package held out; six more packages; minified; Java."""
    root = Path(sysconfig.get_path("stdlib"))
    inside = [p for p in sorted(root.iterdir()) if p.name not in {*HELD_PACKAGES, *LEFT_OUT}]
    own = [p for p in inside if p.suffix == ".py" or (p.is_dir() and (p / "__init__.py").exists())]
    kept, held = _parted(own, lambda one: one.name)
    held_files = [f for p in held for f in ([p] if p.is_file() else _files(p))]
    new = [f for name in HELD_PACKAGES for f in _files(root / name)]
    java = data / "code" / "codesearchnet_functions_unlabelled" / "java.json.gz"
    functions = json.loads(gzip.decompress(java.read_bytes()))
    read = [(f.name, f.read_text(encoding="utf-8", errors="replace")) for f in held_files]
    return Kind(
        domain="code",
        train=kept,
        held=[(name, _section(source)) for name, source in read if source.strip()],
        new={"other packages": [(f.name, _section(s)) for f in new if (s := f.read_text()).strip()]},
        shifted={
            "minified": [(name, _section(short)) for name, source in read if (short := _minified(source))],
            "Java": [("f.java", _lines_of(" ".join(one["pl_tokens"]))) for one in functions],
        },
        write=_sources,
        flags={
            "tokenizer": {"vocabulary_size": CODE_VOCABULARY},
            "model": {"size": "tiny", "max_length": 256},
        },
    )


def ehr(data: Path, out: Path, minutes: float) -> Kind:
    """Synthea's patients, a fifth of them held out; another version of Synthea; real intensive care."""
    known, held = patients(data, out)
    other = {"Synthea, another version": "synthea_small_full", "MIMIC-III": "mimic3_demo"}
    return Kind(
        domain="ehr",
        train=[known],
        held=_subjects(held),
        new={},
        shifted={name: _subjects(data / "ehr" / folder) for name, folder in other.items()},
        write=_tables,
    )


def logs(data: Path, out: Path, minutes: float) -> Kind:
    """Normal sessions of raw HDFS messages in order of time: half, a tenth, two fifths; BGL."""
    task = hdfs_raw(data)

    def normal(records: Iterable[Any], labels: Iterable[bool]) -> list[Any]:
        return [one for one, abnormal in zip(records, labels, strict=True) if not abnormal]

    kept = normal(task.train, task.train_labels)
    return Kind(
        domain="logs",
        train=[write_raw(kept, out / "logs-train.jsonl")],
        held=_shuffled(normal(task.calibration, task.calibration_labels)),
        new={"the two fifths after": normal(task.test, task.labels)},
        shifted={"BGL": bgl(data).train},
        write=lambda items, path: write_raw(items, path.with_suffix(".jsonl")),
        flags=log_flags(minutes),
    )


def events(data: Path, out: Path, minutes: float) -> Kind:
    """DeepLog's sessions of HDFS event ids, the last tenth held out; LogRobust's normals; OpenStack."""
    task = hdfs(data)
    normal = [s for s, abnormal in zip(task.test, task.labels.tolist(), strict=True) if not abnormal]
    stack = openstack(data, "parisakalaki")
    return Kind(
        domain="logs",
        train=[write_sessions(task.train, out / "events-train.txt")],
        held=_shuffled(task.calibration),
        new={"LogRobust's normals": normal},
        shifted={
            "OpenStack": [s for s, bad in zip(stack.test, stack.labels.tolist(), strict=True) if not bad]
        },
        write=lambda items, path: write_sessions(items, path.with_suffix(".txt")),
        flags=log_flags(minutes),
    )


KINDS: dict[str, Callable[[Path, Path, float], Kind]] = {
    "text": text,
    "protein": protein,
    "dna": dna,
    "code": code,
    "ehr": ehr,
    "logs": logs,
    "events": events,
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A log in order of time.

    Args:
        train: its first part.
        later: the lines after it.
        options: options to read both.
    """

    train: Path
    later: Path
    options: Mapping[str, Any] = field(default_factory=dict)


def streams(data: Path, out: Path) -> dict[str, Stream]:
    """Normal HDFS sessions, half and half; windows of other logs, three fifths and two, without labels."""
    task = hdfs_raw(data)
    records = [*task.train, *task.calibration, *task.test]
    abnormal = np.concatenate([task.train_labels, task.calibration_labels, task.labels])
    normal = [one for one, bad in zip(records, abnormal.tolist(), strict=True) if not bad]
    half = len(normal) // 2
    found = {
        "hdfs": Stream(
            train=write_raw(normal[:half], out / "hdfs-first.jsonl"),
            later=write_raw(normal[half:], out / "hdfs-later.jsonl"),
        )
    }
    logs = data / "logs"
    for path in [
        *sorted((logs / "raw_streams").glob("*.gz")),
        *sorted((logs / "loghub_2k").glob("*.log.gz")),
    ]:
        lines = gzip.decompress(path.read_bytes()).decode(errors="replace").splitlines(keepends=True)
        name, cut = path.name.split(".")[0], len(lines) * 3 // 5
        found[name] = Stream(
            train=_written(out / f"{name}-first.log", "".join(lines[:cut])),
            later=_written(out / f"{name}-later.log", "".join(lines[cut:])),
            options={"session": "none", "window": 4},
        )
    return found


def drawn(items: Items, seed: int) -> list[Any]:
    """All items, in an order drawn with the seed."""
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items)).tolist()]


def _shuffled(items: Items) -> list[Any]:
    return drawn(items, 0)


def _read(domain: str, files: Iterable[Path], **options: Any) -> list[Any]:
    return list(plugins.domain(domain).read([str(f) for f in sorted(files)], Problems("skip"), **options))


def _parted(items: Items, key: Callable[[Any], str]) -> tuple[list[Any], list[Any]]:
    """The items to train on, and every tenth group, which is held out."""
    apart = [hash64(key(one), 1) % TENTH == 0 for one in items]
    parts: tuple[list[Any], list[Any]] = ([], [])
    for one, held in zip(items, apart, strict=True):
        parts[held].append(one)
    return parts


def _paragraphs(items: Items, path: Path) -> Path:
    return _written(path.with_suffix(".txt"), "\n\n".join(one.strip("\n") for one in items) + "\n")


def _sequences(items: Items, path: Path) -> Path:
    entries = ("\n".join([f">s{i}", *textwrap.wrap(one, 80)]) for i, one in enumerate(items))
    return _written(path.with_suffix(".fa"), "\n".join(entries) + "\n")


def _written(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def _pieces(genome: str) -> list[str]:
    """Stretches of a genome without unknown bases, far enough apart to be in different neighbourhoods."""
    found = [genome[i : i + PIECE] for i in range(0, len(genome) - PIECE, 2 * PIECE)]
    return [one for one in found if set(one) <= set("ACGT")]


def _sources(items: Items, path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    for number, (name, source) in enumerate(items):
        _written(path / f"{number:05d}" / name, source)
    return path


def _files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*.py")) if not set(p.parts) & set(LEFT_OUT)]


def _section(source: str) -> str:
    """The beginning of a file up to `SECTION` characters, cut before a statement of the outermost level."""
    if len(source) <= SECTION:
        return source
    at = max((m.start() for m in re.finditer(r"^\S", source[:SECTION], re.MULTILINE)), default=0)
    return source[: at or SECTION]


def _lines_of(source: str) -> str:
    return re.sub(r"([;{}])", r"\1\n", source)


class _Short(ast.NodeTransformer):
    """Names of one letter and a number."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return self._known.setdefault(name, f"a{len(self._known)}")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(id=self._name(node.id), ctx=node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return ast.Attribute(value=node.value, attr=self._name(node.attr), ctx=node.ctx)


def _minified(source: str) -> str:
    """The program without comments and with short names, indented by one space; "" if it has an error."""
    try:
        short = ast.unparse(ast.fix_missing_locations(_Short().visit(ast.parse(source))))
    except SyntaxError:
        return ""
    return re.sub(r"^( {4})+", lambda m: " " * (len(m[0]) // 4), short, flags=re.MULTILINE) + "\n"


def _subjects(folder: Path) -> list[tuple[Path, str]]:
    """(folder, patient) of all patients that have events."""
    found: dict[str, None] = {}
    for path, head, rows in _each(folder):
        if "patients" not in path.name.lower():
            found |= dict.fromkeys(row[_column(head)] for row in rows)
    return _shuffled([(folder, one) for one in sorted(found)])


def _tables(items: Items, path: Path) -> Path:
    """The tables of one folder with the rows of some patients."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (folder,) = {folder for folder, _ in items}
    wanted = {one for _, one in items}
    for table, head, rows in _each(folder):
        with (path / table.name.removesuffix(".gz")).open("w", newline="") as sink:
            writer = csv.writer(sink)
            writer.writerow(head)
            writer.writerows(row for row in rows if row[_column(head)] in wanted)
    return path


def _each(folder: Path) -> Iterable[tuple[Path, list[str], list[list[str]]]]:
    for table in sorted([*folder.glob("*.csv.gz"), *folder.glob("*.csv")]):
        opened = gzip.open if table.suffix == ".gz" else open
        with opened(table, "rt", newline="") as stream:
            head, *rows = list(csv.reader(stream))
        yield table, head, [row for row in rows if row]


def _column(head: Sequence[str]) -> int:
    """The column that names the patient."""
    names = [name.lower() for name in head]
    return next(names.index(name) for name in ("patient", "subject_id", "id") if name in names)

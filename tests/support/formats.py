"""A small file of every format: `FORMATS[domain][format](folder)` writes it and gives words for `train`."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Build = Callable[[Path], list[Any]]
PEOPLE = 40
BEGIN = datetime(2024, 3, 1, tzinfo=UTC)


def _lines(path: Path, lines: Iterable[str]) -> list[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [path]


def _letters(alphabet: str, count: int, length: int) -> list[str]:
    draw = random.Random(count)
    return ["".join(draw.choices(alphabet, k=length + n % 7)) for n in range(count)]


DNA = _letters("ACGT", 40, 120)
PROTEINS = _letters("ACDEFGHIKLMNPQRSTVWY", 40, 60)
_PAIRS = [(a, b) for a in ("cat", "dog", "king") for b in ("house", "tree", "river")]
SENTENCES = [f"{n} the {a} sees a {b} near the {a} ." for n in range(5) for a, b in _PAIRS]


def _parquet(folder: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": SENTENCES}), folder / "t.parquet")
    return [folder / "t.parquet"]


def _conllu(text: str) -> str:
    words = text.split()
    return "\n".join(f"{n}\t{w}\t_\tX\t_\t_\t{n - 1}\tdep\t_\t_" for n, w in enumerate(words, 1)) + "\n"


def _genbank(folder: Path, format: str = "genbank") -> list[Any]:
    from Bio import SeqIO
    from Bio.Seq import Seq
    from Bio.SeqRecord import SeqRecord

    records = [
        SeqRecord(Seq(s), id=f"g{n}", name=f"g{n}", annotations={"molecule_type": "DNA"})
        for n, s in enumerate(DNA)
    ]
    path = folder / ("g.gb" if format == "genbank" else "g.embl")
    SeqIO.write(records, path, format)
    return [path]


def _bed(folder: Path) -> list[Any]:
    (folder / "genome.fa").write_text("".join(f">c{n}\n{s}\n" for n, s in enumerate(DNA)))
    rows = [f"c{n}\t5\t100\tw{n}\t0\t{'+-'[n % 2]}" for n in range(len(DNA))]
    return [*_lines(folder / "w.bed", rows), "--option", f"genome={folder / 'genome.fa'}"]


FUNCTION = '''def area_{n}(width, height):
    """Area number {n}."""
    if width < {n}:
        raise ValueError("too small")
    return width * height + {n}
'''
SOURCES = [FUNCTION.format(n=n) for n in range(30)]


def _notebook(folder: Path) -> list[Any]:
    for n, source in enumerate(SOURCES):
        cell = {
            "cell_type": "code",
            "source": source.splitlines(keepends=True),
            "metadata": {},
            "outputs": [],
        }
        body = {"cells": [cell], "metadata": {"language_info": {"name": "python"}}, "nbformat": 4}
        (folder / f"n{n}.ipynb").write_text(json.dumps(body))
    return [*sorted(folder.glob("*.ipynb"))]


def _package(folder: Path) -> list[Any]:
    for n, source in enumerate(SOURCES):
        _lines(folder / f"part{n}" / "module.py", [source])
    return [folder, "--option", "near_duplicates=0"]


def _meds(folder: Path) -> list[Any]:
    from seqmlm.domains.ehr.sample import write

    write(folder, 200, 0)
    return [folder / "meds"]


def _synthea(folder: Path) -> list[Any]:
    from seqmlm.domains.ehr.sample import write

    write(folder, 200, 0)
    shutil.rmtree(folder / "meds")
    return [folder / "synthea"]


def _events(person: int) -> Iterable[tuple[str, str]]:
    draw = random.Random(person)
    for visit in range(4):
        day = (BEGIN + timedelta(days=30 * visit + person)).date().isoformat()
        for code in draw.sample(("I10", "E11", "J45", "M54", "K21"), 2):
            yield day, code


def _table(path: Path, header: str, rows: Iterable[str]) -> list[Any]:
    return _lines(path, [header, *rows])


def _long(folder: Path) -> list[Any]:
    rows = (f"{p},{day},{code}," for p in range(PEOPLE) for day, code in _events(p))
    return _table(folder / "e.csv", "patient_id,time,code,value", rows)


def _wide(folder: Path) -> list[Any]:
    rows = (f"{p},{p}-{n},{day},{code}" for p in range(PEOPLE) for n, (day, code) in enumerate(_events(p)))
    made = _table(folder / "w.csv", "patient_id,encounter_id,date,diagnosis", rows)
    return [*made, "--format", "wide", "--option", "time=date", "--option", "columns=diagnosis"]


def _omop(folder: Path) -> list[Any]:
    people = (f"{p},8507,{1950 + p}" for p in range(PEOPLE))
    _table(folder / "person.csv", "person_id,gender_concept_id,year_of_birth", people)
    rows = [(p, day, code) for p in range(PEOPLE) for day, code in _events(p)]
    concepts = {"I10": 320128, "E11": 201826, "J45": 317009, "M54": 194133, "K21": 318800}
    found = (f"{n},{p},{concepts[code]},{day}" for n, (p, day, code) in enumerate(rows))
    header = "condition_occurrence_id,person_id,condition_concept_id,condition_start_date"
    _table(folder / "condition_occurrence.csv", header, found)
    return [folder]


def _mimic(folder: Path) -> list[Any]:
    people = (f"{p},{p},M,1950-01-01 00:00:00,,,,0" for p in range(PEOPLE))
    header = "ROW_ID,SUBJECT_ID,GENDER,DOB,DOD,DOD_HOSP,DOD_SSN,EXPIRE_FLAG"
    _table(folder / "PATIENTS.csv", header, people)
    stays = [(p, n, day, code) for p in range(PEOPLE) for n, (day, code) in enumerate(_events(p))]
    rows = (f"{p},{p},{p * 100 + n},{day} 08:00:00,{day} 20:00:00,EMERGENCY" for p, n, day, _ in stays)
    _table(folder / "ADMISSIONS.csv", "ROW_ID,SUBJECT_ID,HADM_ID,ADMITTIME,DISCHTIME,ADMISSION_TYPE", rows)
    codes = (f"{p},{p},{p * 100 + n},1,{code}" for p, n, _, code in stays)
    _table(folder / "DIAGNOSES_ICD.csv", "ROW_ID,SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE", codes)
    return [folder]


def _fhir(folder: Path) -> list[Any]:
    lines = []
    for p in range(PEOPLE):
        lines.append(
            {"resourceType": "Patient", "id": f"p{p}", "gender": "female", "birthDate": "1960-01-01"}
        )
        for day, code in _events(p):
            system = "http://hl7.org/fhir/sid/icd-10-cm"
            lines.append(
                {
                    "resourceType": "Condition",
                    "subject": {"reference": f"Patient/p{p}"},
                    "code": {"coding": [{"system": system, "code": code}]},
                    "onsetDateTime": day,
                }
            )
    return _lines(folder / "all.ndjson", map(json.dumps, lines)) and [folder]


_SHAPES = ("open session {} for user u{}", "read block {} of 4096 bytes", "close session {}")
MESSAGES = [_SHAPES[n % 3].format(n // 3, n // 3) for n in range(900)]
TIMES = [BEGIN + timedelta(seconds=7 * n) for n in range(len(MESSAGES))]


def _log(shape: Callable[[datetime, str], str], *more: Any, name: str = "app.log") -> Build:
    def build(folder: Path) -> list[Any]:
        return [*_lines(folder / name, map(shape, TIMES, MESSAGES)), *more]

    return build


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


def _events_columns() -> dict[str, list[Any]]:
    rows = [(str(p), day, code) for p in range(PEOPLE) for day, code in _events(p)]
    return dict(zip(("patient_id", "time", "code"), map(list, zip(*rows, strict=True)), strict=True))


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


def _structures(folder: Path, mmcif: bool = False) -> list[Any]:
    for n, raw in enumerate(PROTEINS):
        (folder / f"p{n}.pdb").write_text(pdb(raw) + "END\n")
        if mmcif:
            from Bio.PDB import MMCIFIO, PDBParser

            writer = MMCIFIO()
            writer.set_structure(PDBParser(QUIET=True).get_structure("p", folder / f"p{n}.pdb"))
            writer.save(str(folder / f"p{n}.cif"))
            (folder / f"p{n}.pdb").unlink()
    return [folder]


FORMATS: Mapping[str, Mapping[str, Build]] = {
    "protein": {
        "fasta": lambda d: _lines(d / "p.fasta", [f">p{n}\n{s}" for n, s in enumerate(PROTEINS)]),
        "a3m": lambda d: _lines(d / "p.a3m", [f">p{n}\n{s[:60]}" for n, s in enumerate(PROTEINS)]),
        "stockholm": lambda d: aligned(d, "stockholm", "p.sto", PROTEINS),
        "clustal": lambda d: aligned(d, "clustal", "p.aln", PROTEINS),
        "swissprot": lambda d: _lines(
            d / "p.dat", [swissprot([f"P{n:05}" for n in range(len(PROTEINS))], PROTEINS)]
        ),
        "pdb": _structures,
        "mmcif": lambda d: _structures(d, mmcif=True),
        "huggingface": lambda d: saved(d, {"chain": PROTEINS}, "--option", "text=chain"),
    },
    "text": {
        "txt": lambda d: _lines(d / "t.txt", SENTENCES),
        "jsonl": lambda d: _lines(d / "t.jsonl", [json.dumps({"text": s}) for s in SENTENCES]),
        "csv": lambda d: _lines(d / "t.csv", ["id,text", *(f"{n},{s}" for n, s in enumerate(SENTENCES))]),
        "tsv": lambda d: _lines(d / "t.tsv", ["id\ttext", *(f"{n}\t{s}" for n, s in enumerate(SENTENCES))]),
        "parquet": _parquet,
        "huggingface": lambda d: saved(d, {"text": SENTENCES}),
        "conllu": lambda d: _lines(d / "t.conllu", map(_conllu, SENTENCES)),
    },
    "dna": {
        "fasta": lambda d: _lines(d / "d.fa", [f">d{n}\n{s}" for n, s in enumerate(DNA)]),
        "fastq": lambda d: _lines(d / "d.fq", [f"@d{n}\n{s}\n+\n{'I' * len(s)}" for n, s in enumerate(DNA)]),
        "genbank": _genbank,
        "embl": lambda d: _genbank(d, "embl"),
        "stockholm": lambda d: aligned(d, "stockholm", "d.sto", DNA),
        "huggingface": lambda d: saved(d, {"chain": DNA, "n": DNA}, "--option", "text=chain"),
        "bed": _bed,
    },
    "code": {
        "worktree": _package,
        "source": lambda d: [p for n, s in enumerate(SOURCES) for p in _lines(d / f"m{n}.py", [s])],
        "notebook": _notebook,
        "huggingface": lambda d: saved(
            d, {"a": SOURCES}, "--option", "text=a", "--option", "language=python"
        ),
        "json": lambda d: _lines(d / "c.jsonl", [json.dumps({"code": s}) for s in SOURCES]),
    },
    "ehr": {
        "meds": _meds,
        "synthea": _synthea,
        "events": _long,
        "huggingface": lambda d: saved(d, _events_columns()),
        "wide": _wide,
        "omop": _omop,
        "mimic3": _mimic,
        "fhir": _fhir,
    },
    "logs": {
        "plain": lambda d: _lines(d / "app.log", MESSAGES),
        "huggingface": lambda d: saved(d, {"line": MESSAGES}, "--option", "text=line"),
        "iso": _log(lambda t, m: f"{t.isoformat()} INFO app[7]: {m}"),
        "rfc3164": _log(lambda t, m: f"{t:%b %e %H:%M:%S} host app[7]: {m}", "--option", "year=2024"),
        "rfc5424": _log(lambda t, m: f"<34>1 {t:%Y-%m-%dT%H:%M:%S}Z host app 7 ID47 - {m}"),
        "json": _log(lambda t, m: json.dumps({"time": t.isoformat(), "message": m}), name="app.jsonl"),
        "journal": _log(
            lambda t, m: json.dumps({"__REALTIME_TIMESTAMP": str(int(t.timestamp() * 1e6)), "MESSAGE": m}),
            name="journal.jsonl",
        ),
        "docker": _log(
            lambda t, m: json.dumps({"log": m + "\n", "stream": "stdout", "time": f"{t:%Y-%m-%dT%H:%M:%S}Z"})
        ),
        "cri": _log(lambda t, m: f"{t:%Y-%m-%dT%H:%M:%S}.000000000Z stdout F {m}"),
        "csv": lambda d: _lines(
            d / "app.csv",
            ["time,message", *(f"{t.isoformat()},{m}" for t, m in zip(TIMES, MESSAGES, strict=True))],
        ),
        "access": _log(
            lambda t, m: f'10.0.0.1 - - [{t:%d/%b/%Y:%H:%M:%S} +0000] "GET /{m.split()[0]} HTTP/1.1" 200 51'
        ),
        "sessions": lambda d: _lines(d / "s.txt", [f"5 5 22 {n % 4 + 9} 11 9 11 9 26" for n in range(90)]),
        "window_by_time": _log(
            lambda t, m: f"{t.isoformat()} {m}", "--option", "window=5m", "--option", "step=1m"
        ),
    },
}

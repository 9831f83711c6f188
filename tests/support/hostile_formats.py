"""Every format in pieces that can be damaged one by one: a head, clean records, and a way to spell more.

A kind of damage (hostile_kinds.py) puts the pieces together otherwise than a program would. Every record
makes one row when it is scored with the words given here, so that what became of each can be counted.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from formats import DNA, MESSAGES, PROTEINS, SENTENCES, SOURCES, TIMES, events_of, pdb, swissprot

COUNT = 12
Spell = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Hostile:
    """A format in pieces.

    Args:
        domain, format: what `--domain` and `--format` take; no format for a command that takes none.
        name: of the file that is damaged, below the folder of the input.
        head, records, tail: its bytes.
        value: a further record with these bytes in what is scored.
        label: a further record with these bytes in its name, or in words beside it.
        time: a further record with these bytes where its time stands.
        beside: other files of the input.
        options: further words of the command line; "{}" is the folder.
        whole: a fault may cost the whole file.
        apart: a record of it may be split over several rows of its tables, so that what is left out is no
            record of its own.
        folder: the command line names the folder, not the file.
        files: each record is a file of its own, called `name` with its number for "{}".
        json: values are those of JSON.
        binary: no text at all.
        command: `score` or `pairs`.
        giant: bytes of a record of so many units, in parts.
        table: the clean records as a table of Arrow, where the file holds one.
        column: of that table, which is scored.
        prefix: what stands before the path on the command line.
    """

    domain: str
    format: str
    name: str
    _: KW_ONLY
    records: tuple[bytes, ...]
    value: Spell | None = None
    label: Spell | None = None
    time: Spell | None = None
    head: bytes = b""
    tail: bytes = b""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    whole: bool = False
    apart: bool = False
    folder: bool = False
    files: bool = False
    json: bool = False
    binary: bool = False
    command: str = "score"
    giant: Callable[[int], Iterator[bytes]] | None = None
    table: Callable[[], Any] | None = None
    column: str = "text"
    prefix: str = ""

    @property
    def key(self) -> str:
        return f"{self.domain}-{self.format}" if self.command == "score" else f"{self.command}-{self.format}"

    @property
    def lines(self) -> bool:
        """Whether a record has several lines, so that a fault may cost one of them alone."""
        return any(record.count(b"\n") > 1 for record in self.records)

    def file(self, records: Sequence[bytes] | None = None) -> bytes:
        """The bytes of the file with these records."""
        return self.head + b"".join(self.records if records is None else records) + self.tail


def _around(before: bytes, after: bytes = b"\n") -> Spell:
    return lambda given: before + given + after


def _long(before: bytes, unit: bytes, after: bytes = b"\n") -> Callable[[int], Iterator[bytes]]:
    def parts(units: int) -> Iterator[bytes]:
        yield before
        for begin in range(0, units, 1 << 16):
            yield unit * min(1 << 16, units - begin)
        yield after

    return parts


def _spelt(
    value: str | None = None, label: str | None = None, time: str | None = None, unit: str | None = None
) -> dict[str, Any]:
    """Further records, with § where bytes stand: in what is scored (or many of a unit), a name, a time."""
    parts = {"value": value, "label": label, "time": time}
    spelt = {name: text.encode().split("§".encode()) for name, text in parts.items() if text is not None}
    giant = {} if unit is None else {"giant": _long(spelt["value"][0], unit.encode(), spelt["value"][1])}
    return {name: _around(*pieces) for name, pieces in spelt.items()} | giant


def _lines(texts: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() + b"\n" for text in texts)


def _objects(values: Sequence[Any]) -> tuple[bytes, ...]:
    return _lines([json.dumps(value) for value in values])


# Text


def _conllu(text: str) -> bytes:
    words = "".join(f"{n}\t{w}\t_\tX\t_\t_\t{n - 1}\tdep\t_\t_\n" for n, w in enumerate(text.split(), 1))
    return words.encode() + b"\n"


def _table(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What a format of one Parquet file is made of."""
    import pyarrow as pa

    def table() -> Any:
        return pa.table(dict(columns))

    return {"table": table, "records": (parquet(table()),), "binary": True, "whole": True}


def parquet(table: Any, **options: Any) -> bytes:
    """A table of Arrow as a Parquet file."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def stream(table: Any) -> bytes:
    """A table of Arrow as its stream, which `datasets` saves."""
    import pyarrow as pa

    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _saved(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    """What a folder that `datasets` saved is made of: a file of Arrow, and two that describe it."""
    made = _table(columns)
    table = made["table"]()
    types = {name: {"dtype": "string", "_type": "Value"} for name in columns}
    name = "data-00000-of-00001.arrow"
    state: dict[str, Any] = {"_data_files": [{"filename": name}], "_fingerprint": "5eed"}
    state |= dict.fromkeys(("_format_columns", "_format_type", "_split"))
    state |= {"_format_kwargs": {}, "_output_all_columns": False}
    info = {"citation": "", "description": "", "features": types, "homepage": "", "license": ""}
    beside = {"state.json": json.dumps(state).encode(), "dataset_info.json": json.dumps(info).encode()}
    return made | {
        "name": name,
        "records": (stream(table),),
        "beside": beside,
        "folder": True,
        "prefix": "hf:",
    }


def _text(count: int) -> Iterator[Hostile]:
    sentences = SENTENCES[:count]
    yield Hostile(*("text", "txt", "t.txt"), records=_lines(sentences), **_spelt("§\n", unit="cat "))
    yield Hostile(
        *("text", "jsonl", "t.jsonl"),
        records=_objects([{"id": f"t{n}", "text": s} for n, s in enumerate(sentences)]),
        **_spelt('{"id": "v", "text": "§"}\n', '{"id": "§", "text": "a cat"}\n', unit="cat "),
        options=("--option", "id_field=id"),
        json=True,
    )
    for format, mark in (("csv", ","), ("tsv", "\t")):
        yield Hostile(
            *("text", format, f"t.{format}"),
            head=f"id{mark}text\n".encode(),
            records=_lines([f"t{n}{mark}{s}" for n, s in enumerate(sentences)]),
            **_spelt(f"v{mark}§\n", f"§{mark}a cat\n", unit="cat "),
            options=("--option", "id_column=id"),
        )
    yield Hostile(
        *("text", "conllu", "t.conllu"),
        records=tuple(map(_conllu, sentences)),
        **_spelt("1\t§\t_\tX\t_\t_\t0\troot\t_\t_\n\n", f"# sent_id = §\n{_conllu('a cat').decode()}"),
    )
    yield Hostile(
        *("text", "conll", "t.conll"),
        records=tuple("".join(f"{w}\tO\n" for w in s.split()).encode() + b"\n" for s in sentences),
        **_spelt("§\tO\n\n", "# sent_id = §\na\tO\ncat\tO\n\n"),
    )
    yield Hostile(*("text", "parquet", "t.parquet"), **_table({"text": sentences}))
    yield Hostile(domain="text", format="huggingface", **_saved({"text": sentences}))


def _sequences(domain: str, letters: Sequence[str], few: str, one: str) -> Iterator[Hostile]:
    """Tables of sequences."""
    for format, mark in (("csv", ","), ("tsv", "\t")):
        yield Hostile(
            *(domain, format, f"s.{format}"),
            head=f"id{mark}sequence\n".encode(),
            records=_lines([f"s{n}{mark}{s}" for n, s in enumerate(letters)]),
            **_spelt(f"v{mark}§\n", f"§{mark}{few}\n", unit=one),
        )


# Proteins


def _mmcif(letters: str) -> bytes:
    from Bio.PDB import MMCIFIO, PDBParser

    writer, out = MMCIFIO(), io.StringIO()
    writer.set_structure(PDBParser(QUIET=True).get_structure("p", io.StringIO(pdb(letters) + "END\n")))
    writer.save(out)
    return out.getvalue().encode()


def _protein(count: int) -> Iterator[Hostile]:
    proteins = [one[:30] for one in PROTEINS[:count]]
    for format, name in (("fasta", "p.fasta"), ("a3m", "p.a3m")):
        yield Hostile(
            *("protein", format, name),
            records=tuple(f">p{n}\n{s}\n".encode() for n, s in enumerate(proteins)),
            **_spelt(">v\n§\n", ">§\nMKVLAT\n", unit="M"),
        )
    yield Hostile(
        *("protein", "stockholm", "p.sto"),
        records=tuple(f"# STOCKHOLM 1.0\nrow{n} {s}\n//\n".encode() for n, s in enumerate(proteins)),
        **_spelt("# STOCKHOLM 1.0\nv §\n//\n", "# STOCKHOLM 1.0\n§ MKVLAT\n//\n"),
        whole=True,
    )
    yield Hostile(
        *("protein", "clustal", "p.aln"),
        head=b"CLUSTAL W (1.82) multiple sequence alignment\n\n",
        records=tuple(f"row{n:<12}{s}\n".encode() for n, s in enumerate(proteins)),
        **_spelt(f"v{' ' * 14}§\n", f"§ {proteins[0]}\n"),
        whole=True,
    )
    entries = [swissprot([f"P{n:05}"], [s]).encode() for n, s in enumerate(proteins)]
    before, _, after = entries[0].partition(proteins[0].encode())
    named = swissprot(["V00000"], ["MKVLAT"]).encode()
    yield Hostile(
        *("protein", "swissprot", "p.dat"),
        records=tuple(entries),
        value=_around(before, after),
        label=lambda given: named.replace(b"Protein of V00000", given),
    )
    for format, name in (("pdb", "p{}.pdb"), ("mmcif", "p{}.cif")):
        texts = [(pdb(s) + "END\n").encode() if format == "pdb" else _mmcif(s) for s in proteins]
        yield Hostile(
            *("protein", format, name),
            records=tuple(texts),
            value=lambda given, first=texts[0]: first.replace(b"ALA", given).replace(b"LEU", given),  # type: ignore[misc]
            label=lambda given, first=texts[0]: b"# " + given + b"\n" + first,  # type: ignore[misc]
            files=True,
            folder=True,
        )
    yield from _sequences("protein", proteins, "MKVLAT", "M")
    yield Hostile(
        *("protein", "huggingface", "data/train-00000.parquet"),
        options=("--option", "text=chain"),
        folder=True,
        prefix="hf:",
        column="chain",
        **_table({"chain": proteins, "more": proteins}),
    )


# Genomes


def _flat(format: str, bases: Sequence[str]) -> list[bytes]:
    from Bio import SeqIO
    from Bio.Seq import Seq
    from Bio.SeqRecord import SeqRecord

    made = []
    for n, letters in enumerate(bases):
        notes = {"molecule_type": "DNA"}
        record = SeqRecord(Seq(letters), id=f"g{n}", name=f"g{n}", description="words", annotations=notes)
        out = io.StringIO()
        SeqIO.write([record], out, format)
        made.append(out.getvalue().encode())
    return made


def _dna(count: int) -> Iterator[Hostile]:
    bases = [one[:40] for one in DNA[:count]]
    for format, name in (("fasta", "d.fa"), ("a3m", "d.a3m")):
        yield Hostile(
            *("dna", format, name),
            records=tuple(f">d{n}\n{s}\n".encode() for n, s in enumerate(bases)),
            **_spelt(">v\n§\n", ">§\nACGTAC\n", unit="A"),
        )
    yield Hostile(
        *("dna", "fastq", "d.fq"),
        records=tuple(f"@d{n}\n{s}\n+\n{'I' * len(s)}\n".encode() for n, s in enumerate(bases)),
        value=lambda given: b"@v\n" + given + b"\n+\n" + b"I" * len(given) + b"\n",
        label=_around(b"@", b"\nACGT\n+\nIIII\n"),
    )
    for format, name in (("genbank", "g.gb"), ("embl", "g.embl")):
        flat = _flat(format, bases)
        first = bases[0].lower().encode()
        shown = next(line for line in flat[0].splitlines() if first[:10] in line)
        yield Hostile(
            *("dna", format, name),
            records=tuple(flat),
            value=lambda given, one=flat[0], old=shown: one.replace(old, b"     " + given),  # type: ignore[misc]
            label=lambda given, one=flat[0]: one.replace(b"words", given),  # type: ignore[misc]
        )
    yield Hostile(
        *("dna", "stockholm", "d.sto"),
        records=tuple(f"# STOCKHOLM 1.0\nrow{n} {s}\n//\n".encode() for n, s in enumerate(bases)),
        **_spelt("# STOCKHOLM 1.0\nv §\n//\n", "# STOCKHOLM 1.0\n§ ACGTAC\n//\n"),
        whole=True,
    )
    yield Hostile(
        *("dna", "bed", "w.bed"),
        records=tuple(f"c{n}\t5\t30\tw{n}\t0\t{'+-'[n % 2]}\n".encode() for n in range(count)),
        **_spelt("c0\t§\t20\tv\t0\t+\n", "c0\t5\t20\t§\t0\t+\n"),
        beside={"genome.fa": b"".join(f">c{n}\n{s}\n".encode() for n, s in enumerate(bases))},
        options=("--option", "genome={}/genome.fa"),
    )
    yield from _sequences("dna", bases, "ACGTAC", "A")


# Source code


def _cells(source: bytes) -> bytes:
    cell = b'{"cell_type": "code", "source": [' + source + b'], "metadata": {}, "outputs": []}'
    return b'{"cells": [' + cell + b'], "metadata": {"language_info": {"name": "python"}}, "nbformat": 4}'


def _code(count: int) -> Iterator[Hostile]:
    sources = [text.encode() for text in SOURCES[:count]]
    for format in ("source", "worktree"):
        yield Hostile(
            *("code", format, "m{}.py"),
            records=tuple(sources),
            value=_around(b"x = 1\ny = '", b"'\n"),
            files=True,
            folder=True,
            options=("--option", "near_duplicates=0") if format == "worktree" else (),
            giant=_long(b"x = '", b"abc "),
        )
    yield Hostile(
        *("code", "notebook", "n{}.ipynb"),
        records=tuple(_cells(json.dumps(text.decode()).encode()) for text in sources),
        value=lambda given: _cells(b'"x = 1  # ' + given + b'"'),
        label=lambda given: b'{"' + given + b'": 1, ' + _cells(b'"x = 1"')[1:],
        files=True,
        folder=True,
        json=True,
    )
    yield Hostile(
        *("code", "json", "c.jsonl"),
        records=_objects([{"id": f"c{n}", "code": s.decode()} for n, s in enumerate(sources)]),
        **_spelt('{"id": "v", "code": "x = 1 # §"}\n', '{"id": "§", "code": "x = 1"}\n'),
        options=("--option", "id_field=id", "--option", "language=python"),
        json=True,
        giant=_long(b'{"id": "v", "code": "', b"abc ", b'"}\n'),
    )
    yield Hostile(
        *("code", "huggingface", "train.jsonl"),
        records=_objects([{"code": s.decode()} for s in sources]),
        value=_around(b'{"code": "x = 1 # ', b'"}\n'),
        options=("--option", "language=python", "--option", "text=code"),
        json=True,
        whole=True,
        folder=True,
        prefix="hf:",
    )


# Patients

CONCEPTS = {"I10": 320128, "E11": 201826, "J45": 317009, "M54": 194133, "K21": 318800}


def _fhir(person: int, events: Sequence[tuple[str, str]]) -> bytes:
    found: list[Any] = [
        {"resourceType": "Patient", "id": f"p{person}", "gender": "female", "birthDate": "1960-01-01"}
    ]
    for day, code in events:
        coding = [{"system": "http://hl7.org/fhir/sid/icd-10-cm", "code": code}]
        own = {"subject": {"reference": f"Patient/p{person}"}, "onsetDateTime": day}
        found.append({"resourceType": "Condition", "code": {"coding": coding}, **own})
    return b"".join(_objects(found))


def _ehr(count: int) -> Iterator[Hostile]:
    lives = [(person, list(events_of(person))) for person in range(count)]

    def joined(shape: Callable[[int, int, str, str], str]) -> tuple[bytes, ...]:
        """The lines of each patient."""
        return tuple(
            "".join(shape(p, n, day, code) + "\n" for n, (day, code) in enumerate(own)).encode()
            for p, own in lives
        )

    yield Hostile(
        *("ehr", "events", "e.csv"),
        head=b"patient_id,time,code,value\n",
        records=joined(lambda p, n, day, code: f"{p},{day},{code},"),
        **_spelt("v,2024-05-01,§,\n", "§,2024-05-01,I10,\n", time="v,§,I10,\n"),
        giant=_long(b"v,2024-05-01,", b"cat "),
    )
    yield Hostile(
        *("ehr", "wide", "w.csv"),
        head=b"patient_id,encounter_id,date,diagnosis\n",
        records=joined(lambda p, n, day, code: f"{p},{p}-{n},{day},{code}"),
        **_spelt("v,v-1,2024-05-01,§\n", "§,v-1,2024-05-01,I10\n", time="v,v-1,§,I10\n"),
        options=("--option", "time=date", "--option", "columns=diagnosis"),
    )
    yield Hostile(
        *("ehr", "fhir", "all.ndjson"),
        records=tuple(_fhir(*one) for one in lives),
        **_spelt(
            '{"resourceType": "Condition", "subject": {"reference": "Patient/v"}, "onsetDateTime": '
            '"2024-05-01", "code": {"coding": [{"system": "s", "code": "§"}]}}\n',
            '{"resourceType": "Patient", "id": "§", "gender": "female"}\n',
            time='{"resourceType": "Patient", "id": "v", "birthDate": "§"}\n',
        ),
        json=True,
        apart=True,
    )
    yield Hostile(
        *("ehr", "omop", "condition_occurrence.csv"),
        head=b"condition_occurrence_id,person_id,condition_concept_id,condition_start_date\n",
        records=joined(lambda p, n, day, code: f"{p * 100 + n},{p},{CONCEPTS[code]},{day}"),
        **_spelt("7,0,§,2024-05-01\n", "7,§,320128,2024-05-01\n", time="7,0,320128,§\n"),
        beside={
            "person.csv": b"person_id,gender_concept_id,year_of_birth\n"
            + b"".join(f"{p},8507,{1950 + p}\n".encode() for p in range(count))
        },
        folder=True,
        apart=True,
    )
    stays = "".join(
        f"{p},{p},{p * 100 + n},{day} 08:00:00,{day} 20:00:00,EMERGENCY\n"
        for p, own in lives
        for n, (day, _) in enumerate(own)
    )
    people = "".join(f"{p},{p},M,1950-01-01 00:00:00,,,,0\n" for p in range(count))
    yield Hostile(
        *("ehr", "mimic3", "DIAGNOSES_ICD.csv"),
        head=b"ROW_ID,SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE\n",
        records=joined(lambda p, n, day, code: f"{p},{p},{p * 100 + n},1,{code}"),
        **_spelt("7,0,0,1,§\n", "7,§,0,1,I10\n"),
        beside={
            "PATIENTS.csv": b"ROW_ID,SUBJECT_ID,GENDER,DOB,DOD,DOD_HOSP,DOD_SSN,EXPIRE_FLAG\n"
            + people.encode(),
            "ADMISSIONS.csv": b"ROW_ID,SUBJECT_ID,HADM_ID,ADMITTIME,DISCHTIME,ADMISSION_TYPE\n"
            + stays.encode(),
        },
        folder=True,
        apart=True,
    )
    yield Hostile(
        *("ehr", "synthea", "conditions.csv"),
        head=b"START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n",
        records=joined(lambda p, n, day, code: f"{day},,p{p},{p}-{n},{code},words"),
        **_spelt("2024-05-01,,p0,,§,words\n", "2024-05-01,,§,,I10,words\n", time="§,,p0,,I10,words\n"),
        beside={
            "patients.csv": b"Id,BIRTHDATE,DEATHDATE,RACE,GENDER\n"
            + b"".join(f"p{p},{1950 + p}-01-01,,white,M\n".encode() for p in range(count)),
            "encounters.csv": b"Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE,DESCRIPTION\n"
            + b"".join(
                f"{p}-{n},{day}T08:00:00Z,,p{p},ambulatory,185349003,words\n".encode()
                for p, own in lives
                for n, (day, _) in enumerate(own)
            ),
        },
        folder=True,
        apart=True,
    )
    flat = [(str(p), day, code) for p, own in lives for day, code in own]
    people, days, codes = map(list, zip(*flat, strict=True))
    yield Hostile(
        *("ehr", "huggingface", "e.parquet"),
        column="code",
        **_table({"patient_id": people, "time": days, "code": codes}),
    )
    yield Hostile(
        *("ehr", "meds", "data/train/0.parquet"),
        column="code",
        beside={"metadata/dataset.json": b'{"dataset_name": "a", "meds_version": "0.4.0"}\n'},
        folder=True,
        **_table(
            {
                "subject_id": [int(person) for person in people],
                "time": [datetime.fromisoformat(day) for day in days],
                "code": codes,
                "numeric_value": [1.5] * len(codes),
            }
        ),
    )


# Logs

APART = ("--option", "window=1", "--option", "multiline=off", "--option", "session=none")


def _logs(count: int) -> Iterator[Hostile]:
    log = list(zip(TIMES[:count], MESSAGES[:count], strict=True))
    day = f"{TIMES[0]:%Y-%m-%dT%H:%M:%S}"
    shapes = {  # format: what stands before a message, and after
        "plain": ("", ""),
        "iso": ("{0:%Y-%m-%dT%H:%M:%S}+00:00 INFO app[7]: ", ""),
        "syslog": ("{0:%b %e %H:%M:%S} host app[7]: ", ""),
        "syslog5424": ("<34>1 {0:%Y-%m-%dT%H:%M:%S}Z host app 7 ID47 - ", ""),
        "cri": ("{0:%Y-%m-%dT%H:%M:%S}.000000000Z stdout F ", ""),
        "access": ('10.0.0.1 - - [{0:%d/%b/%Y:%H:%M:%S} +0000] "GET /', ' HTTP/1.1" 200 51'),
    }
    for format, (before, after) in shapes.items():
        year = ("--option", "year=2024") if format == "syslog" else ()
        more = {"time": "§ INFO app[7]: open\n", "unit": "cat "} if format == "iso" else {}
        yield Hostile(
            *("logs", format, "app.log"),
            records=_lines([before.format(t) + m + after for t, m in log]),
            **_spelt(f"{before.format(TIMES[0])}§{after}\n", **more),
            options=(*APART, *year),
        )
    objects: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "jsonl": (
            lambda t, m: {"time": t.isoformat(), "message": m},
            _spelt(f'{{"time": "{day}Z", "message": "§"}}\n', time='{"time": "§", "message": "open"}\n'),
        ),
        "journal": (
            lambda t, m: {"__REALTIME_TIMESTAMP": str(int(t.timestamp() * 1e6)), "MESSAGE": m},
            _spelt('{"__REALTIME_TIMESTAMP": "1709251200000000", "MESSAGE": "§"}\n'),
        ),
        "docker": (
            lambda t, m: {"log": m + "\n", "stream": "stdout", "time": f"{t:%Y-%m-%dT%H:%M:%S}Z"},
            _spelt(f'{{"log": "§\\n", "stream": "stdout", "time": "{day}Z"}}\n'),
        ),
    }
    for format, (shape, spelt) in objects.items():
        records = _objects([shape(t, m) for t, m in log])
        yield Hostile(*("logs", format, "app.jsonl"), records=records, options=APART, json=True, **spelt)
    for format, mark in (("csv", ","), ("tsv", "\t")):
        yield Hostile(
            *("logs", format, f"app.{format}"),
            head=f"time{mark}message\n".encode(),
            records=_lines([f"{t.isoformat()}{mark}{m}" for t, m in log]),
            **_spelt(f"{day}Z{mark}§\n", time=f"§{mark}close session 1\n"),
            options=APART,
        )
    yield Hostile(
        *("logs", "sessions", "s.txt"),
        records=_lines([f"5 5 22 {n % 4 + 9} 11 9 11 9 26" for n in range(count)]),
        **_spelt("5 5 §\n", "§,5 5 22\n"),
    )


# Pairs


def _commands(count: int) -> Iterator[Hostile]:
    pairs = [(text, text.replace("sees", "see")) for text in SENTENCES[:count]]
    yield Hostile(
        *("text", "jsonl", "pairs.jsonl"),
        command="pairs",
        records=_objects([{"id": f"q{n}", "good": a, "bad": b} for n, (a, b) in enumerate(pairs)]),
        value=_around(b'{"id": "v", "bad": "a cat", "good": "', b'"}\n'),
        label=_around(b'{"bad": "a cat", "good": "the cat", "id": "', b'"}\n'),
        json=True,
    )
    yield Hostile(
        *("text", "csv", "pairs.csv"),
        command="pairs",
        head=b"id,good,bad\n",
        records=tuple(f"q{n},{a},{b}\n".encode() for n, (a, b) in enumerate(pairs)),
        **_spelt("v,a cat,§\n", "§,the cat,a cat\n"),
    )


@cache
def hostile_formats(count: int = COUNT) -> dict[str, Hostile]:
    """All of them with so many records each, at most 30, by `Hostile.key`."""
    makers = (_text, _protein, _dna, _code, _ehr, _logs, _commands)
    return {one.key: one for make in makers for one in make(count)}


FORMATS = {
    "text": ("txt", "jsonl", "csv", "tsv", "conllu", "conll", "parquet", "huggingface"),
    "protein": (
        *("fasta", "a3m", "stockholm", "clustal", "swissprot", "pdb", "mmcif", "csv", "tsv", "huggingface"),
    ),
    "dna": ("fasta", "a3m", "fastq", "genbank", "embl", "stockholm", "bed", "csv", "tsv"),
    "code": ("source", "worktree", "notebook", "json", "huggingface"),
    "ehr": ("events", "wide", "fhir", "omop", "mimic3", "synthea", "huggingface", "meds"),
    "logs": (
        *("plain", "iso", "syslog", "syslog5424", "cri", "access"),
        *("jsonl", "journal", "docker", "csv", "tsv", "sessions"),
    ),
    "pairs": ("jsonl", "csv"),
}
KEYS = tuple(f"{domain}-{format}" for domain, formats in FORMATS.items() for format in formats)
"""What `hostile_formats` makes: a test is named by one without making anything."""


def place(one: Hostile, folder: Path, parts: Sequence[bytes] | bytes | None = None) -> Path:
    """Write the format's files below a folder; the path that the command line names.

    Args:
        one: the format.
        folder: is made.
        parts: the bytes of the file, or where each record is a file, of these; None for the clean ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*one.beside, one.name):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, content in one.beside.items():
        (folder / name).write_bytes(content)
    if one.files:
        for number, content in enumerate(one.records if parts is None else parts):
            assert isinstance(content, bytes)
            (folder / one.name.format(f"{number:03}")).write_bytes(content)
    else:
        content = one.file() if parts is None else parts
        assert isinstance(content, bytes)
        (folder / one.name).write_bytes(content)
    return folder if one.folder else folder / one.name

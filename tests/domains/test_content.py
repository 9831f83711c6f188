"""Data of another field are refused or warned of by every field's readers; a field's own data are not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from fork_server import Run
from tiny_models import FAST

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.content import CODE, LOG, NUCLEOTIDES, PATIENTS, PROSE, SEQUENCES, check_content, kind_of
from seqmlm.errors import DataError

FIELDS = ("text", "protein", "dna", "code", "ehr", "logs")
ACCEPTED = {
    "text": {"code": CODE, "logs": LOG},
    "protein": {"dna": NUCLEOTIDES},
    "dna": {},
    "code": {"text": PROSE, "protein": SEQUENCES, "dna": NUCLEOTIDES, "logs": LOG},
    "ehr": {},
    "logs": {"text": PROSE, "protein": SEQUENCES, "dna": NUCLEOTIDES, "code": CODE, "ehr": PATIENTS},
}
"""By field, the data of others that its readers accept, and what these look like. They refuse all else."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The files of each field's built-in sample; of code, files one by one."""
    folder, found = tmp_path_factory.mktemp("samples"), {}
    for name in FIELDS:
        drawn = plugins.domain(name).sample.draw(folder / name, n=60)
        found[name] = [*map(str, drawn.files)]
    found["code"] = sorted(str(path) for path in (folder / "code").rglob("*.py"))[:20]
    return found


def outcome(field: str, paths: Sequence[str], **options: object) -> tuple[int, list[str]]:
    """Records that a field's readers give, and the warnings of their kind."""
    problems, told = Problems("skip"), list[str]()
    problems.listener = told.append
    try:
        records = sum(1 for _ in islice(plugins.domain(field).read(paths, problems, **options), 1000))  # type: ignore[arg-type]
    except DataError:
        return 0, told
    return records, [one for one in told if "look like" in one]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("data", FIELDS)
def test_data_of_another_field_are_refused_or_warned_of(
    field: str, data: str, samples: dict[str, list[str]]
) -> None:
    records, told = outcome(field, samples[data])
    kind = ACCEPTED[field].get(data)
    if field == data:
        assert records
        assert not told
    elif kind is None:
        assert not records, "readers accept it: say what it looks like"
    else:
        assert records
        [sentence] = told
        assert f"look like {kind}" in sentence
        assert f"domain {field}:" in sentence


SYNTHEA = "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n" + "2019-01-23,,8a,1f,65363002,Otitis media\n" * 30
OMOP = (
    "condition_occurrence_id,person_id,condition_concept_id,condition_start_date\n"
    + "1,2,44,2019-01-01\n" * 9
)
MIMIC = "row_id,subject_id,hadm_id,seq_num,icd9_code\n" + "112344,10006,142345,1,99591\n" * 30


@pytest.mark.parametrize("table", [SYNTHEA, OMOP, MIMIC], ids=["synthea", "omop", "mimic"])
def test_tables_of_patients_that_are_read_as_logs(table: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(table)
    records, told = outcome("logs", [str(tmp_path / "table.csv")])
    assert records
    assert f"look like {PATIENTS}" in told[0]


PROTEINS = {
    "silk": "GAGAGSGAGAGS" * 20,
    "antifreeze": "AATAATAATAAAKAAALTAANAAAAAATAATAR" * 8,
    "collagen": "GPPGPPGPAGPP" * 20,
    "glutamine": "Q" * 200 + "MATLEKLMKAFESLKSF",
    "glycine and cysteine": "GCCGCCGGCC" * 20,
}
BASES = {
    "genome": "ACGTTGCA" * 50,
    "RNA": "ACGUUGCA" * 50,
    "N": "N" * 500 + "ACGTTGCA" * 5,
    "IUPAC": "ACGTRYSWKMBDHVN" * 20,
    "soft-masked": "acgttgcaACGT" * 30,
    "AT-rich": "ATATATTAATAT" * 40,
}
SOURCES = {
    "docstring": '"""A module.\n\n'
    + "It explains at length what it does, in sentences, and why that is so.\n" * 20
    + '"""\n\nimport os\n\n\ndef size(path):\n    return os.stat(path).st_size\n',
    "licence": "# Licensed to nobody. You may not use this file, except if you do.\n" * 15
    + "import sys\n\nsys.exit(1)\n",
    "data": "NAMES = (\n" + "".join(f'    "name-{n}",\n' for n in range(200)) + ")\n",
    "clock": "".join(f'    at("12:{n:02}:00", job_{n})\n' for n in range(60)),
}
LOGS = {
    "json": '{"time": "2024-01-01T00:00:00Z", "level": "info", "msg": "user logged in", "user_id": 7}\n' * 50,
    "messages": "connection closed by peer\nsession opened for user root\n" * 50,
    "key=value": "level=info msg=started port=80\nlevel=warn msg=slow took=3s\n" * 50,
    "table": "time,level,message\n" + "2024-01-01 00:00:00,info,started\n" * 50,
    "traceback": "Traceback (most recent call last):\n  File a.py, line 3\n    main()\nValueError: x\n" * 20,
}
TEXTS = {
    "tutorial": "Call `open(path)` to read a file. It returns an object with `read()` and `close()`.\n"
    "If the file does not exist, `FileNotFoundError` is raised: catch it with `try: ... except`.\n\n"
    "    with open(path) as file:\n        text = file.read()\n\n"
    "Then print(text) shows it. Remember that `file.read()` returns a string, and not bytes.\n" * 8,
    "times": "At 12:30:00 the train left. Nobody was late. The next one, at 13:30:00, was full of people.\n"
    * 30,
    "headlines": "PRESIDENT SPEAKS TO CONGRESS\nRAIN IS EXPECTED IN THE NORTH\n" * 30,
    "words": "".join(f"word{n}\n" for n in range(200)),
    "numbers": "".join(f"{n} {n * n} {n**3}\n" for n in range(200)),
}


def _written(field: str, text: str, folder: Path) -> Path:
    suffix = {"text": ".txt", "code": ".py", "logs": ".log"}.get(field, ".fasta")
    file = folder / f"data{suffix}"
    if text.startswith("{"):
        file = file.with_suffix(".jsonl")
    file.write_text(f">a\n{text}\n>b\n{text}\n" if suffix == ".fasta" else text)
    return file


OWN = {"protein": PROTEINS, "dna": BASES, "code": SOURCES, "logs": LOGS, "text": TEXTS}


@pytest.mark.parametrize(("field", "name"), [(field, name) for field, texts in OWN.items() for name in texts])
def test_no_warning_of_unusual_data_of_the_field(field: str, name: str, tmp_path: Path) -> None:
    records, told = outcome(field, [str(_written(field, OWN[field][name], tmp_path))])
    assert records
    assert not told


@pytest.mark.parametrize("field", ["text", "protein", "dna", "code", "logs"])
def test_no_warning_of_real_data_of_the_field(field: str, real_data: Path) -> None:
    columns = {
        "sst2": {"column": "sentence"},
        "crows_pairs": {"column": "sent_more"},
        "winogender": {"column": "sentence"},
    }
    read = 0
    for path in sorted((real_data / field).rglob("*.gz"))[:60]:
        problems, told = Problems("skip"), list[str]()
        problems.listener = told.append
        try:
            records = plugins.domain(field).read([path], problems, **columns.get(path.parent.name, {}))
            read += sum(1 for _ in islice(records, 101))
        except DataError:
            continue  # not a file of the field
        assert not told, path
    assert read > 100


def test_little_is_not_judged() -> None:
    for texts in (["ACGT"], ["A dog.", "A cat."], ["12:00:00 a"], ["import os", "x = 1"], [], [""]):
        assert kind_of(texts) is None


def test_a_warning_is_given_while_the_first_records_are_read_and_once() -> None:
    told = list[str]()
    problems = Problems()
    problems.listener = told.append

    def records() -> list[Record]:
        return [Record(id=str(n), raw="ACGTTGCA" * 40, source="a.fa", line=n) for n in range(200)]

    read = 0
    for _ in check_content(iter(records()), problems, "protein", (SEQUENCES,), str):
        read += 1
        if told:
            break
    assert read <= 100
    [*check_content(iter(records()), problems, "protein", (SEQUENCES,), str)]
    assert len(told) == 1
    [reason] = problems.counts
    assert told == [f"warning: {reason}"]
    assert problems.places[reason] == "a.fa"


def test_a_warning_of_a_process_that_reads_ahead_is_told_here() -> None:
    told = list[str]()
    ours = Problems()
    ours.listener = told.append
    other = ours.for_worker()
    other.warn("strange data", source="a.fa")
    assert not told
    ours.add(other.take_counts())
    assert told == ["warning: strange data"]
    assert ours.counts == {"strange data": 1}


def test_commands_warn_of_foreign_data_and_of_few_records(
    seqmlm: Run, samples: dict[str, list[str]], tmp_path: Path
) -> None:
    """A protein model is made of DNA; each command that reads DNA then warns, too."""
    some = tmp_path / "some.fasta"
    some.write_text("".join(f">{n}\n{'ACGTTGCAGGAT'[n:]}{'ACGTAGCTTACG' * 3}\n" for n in range(12)))
    warning = f"warning: these data look like {NUCLEOTIDES}"
    trained = seqmlm(*("train", "--domain", "protein", some, *FAST, "--name", "m", "--max-steps", 2)).ok()
    assert f"look like {NUCLEOTIDES}" in trained.err
    before, _, after = trained.err.partition("step 1/")
    few = "warning: there are only"
    assert few in before
    assert few in after
    scored = seqmlm("score", "m", samples["dna"][0], "--out", tmp_path / "s.jsonl").ok()
    assert warning in scored.err.partition("scored ")[0]
    assert f"look like {NUCLEOTIDES}" in scored.err.partition("warnings: ")[2]
    assert warning in seqmlm("calibrate", "m", samples["dna"][0], "--mode", "one-pass").ok().err
    looked = seqmlm("data", "inspect", "--domain", "protein", samples["dna"][0], "--json").ok().json
    assert any(f"look like {NUCLEOTIDES}" in one for one in looked["problems"])

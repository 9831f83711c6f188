"""What a scoring is estimated to take: near what it takes, by its input alone, however that is stored."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tiny_domain_models import patients, patients_model
from tiny_models import protein_model, random_model
from written import written

from seqmlm.data import files
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.inference import estimate, record_batches
from seqmlm.inference.detector import Detector
from seqmlm.inference.estimate import Work, work_of
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.record_batches import forward_tokens
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session

MODES = (EXACT, ONE_PASS, Mode("partition", 4))


def work(session: Session, path: object, level: str | None = None, **settings: Any) -> Work:
    found = work_of(session, session.domain.level(level), MODES, [str(path)], **settings)
    assert found is not None
    return found


def tokens(session: Session, path: object, **settings: Any) -> float:
    return work(session, path, **settings).tokens["exact"]


def cost(session: Session, residues: int) -> float:
    """Of a protein, whose ends are not asked."""
    return forward_tokens(session.model)(residues + 2) * residues / (residues + 2)


@pytest.mark.parametrize("pattern", ["nearby.v1", "everywhere.v1"])
def test_an_input_costs_what_its_records_cost_equal_ones_once(pattern: str, fasta: Path) -> None:
    session = Session(protein_model(100, pattern))
    found = work(session, fasta)
    exact = sum(cost(session, 80 + n % 10) for n in range(40))
    screen = sum(82 + n % 10 for n in range(40))
    assert found.tokens == pytest.approx({"exact": exact, "one-pass": screen, "partition:4": 4 * screen})
    assert found.characters == sum(80 + n % 10 for n in range(40)) + 2 * 80


def repetitive(path: Path, form: str) -> float:
    """FASTA or FASTQ of 6,000 proteins or reads that pack well, stored so; bytes when unpacked."""
    source = np.random.default_rng(1)
    text = ""
    for n in range(6000):
        letters = "".join(source.choice(list("ACGT"), 40)) * 3
        text += f"@r{n}\n{letters}\n+\n{'I' * 120}\n" if "fastq" in path.name else f">r{n}\n{letters}\n"
    data = text.encode()
    pack = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}.get(form, bytes)
    path.write_bytes(b"".join(pack(data[at : at + 16_384]) for at in range(0, len(data), 16_384)))
    return len(data)


@pytest.mark.parametrize("name", ["a.fasta", "a.fasta.gz", "a.fasta.zst", "a.fastq", "a.fastq.gz"])
def test_the_rest_of_a_large_input_is_taken_to_be_like_its_beginning_however_it_is_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_batches, "BATCH_RECORDS", 64)
    monkeypatch.setattr(files, "_BLOCK", 1 << 14)
    monkeypatch.setattr("seqmlm.data.compressed._BLOCK", 1 << 14)
    monkeypatch.setattr("seqmlm.data.compressed._INPUT", 1 << 11)
    path = tmp_path / name
    unpacked = repetitive(path, name.rpartition(".")[2])
    session = Session(random_model("dna", BaseTokenizer(), max_length=130))
    whole = work(session, path)
    monkeypatch.setattr(estimate, "LOOK", 100_000)
    part = work(session, path)
    assert part.tokens == pytest.approx(whole.tokens, rel=0.1)
    assert part.characters == pytest.approx(6000 * 120, rel=0.1)
    if name.endswith(("gz", "zst")):
        assert path.stat().st_size < unpacked / 2, "its bytes on the disk tell of less than half of it"


def test_no_more_is_read_than_is_needed(fasta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "BATCH_RECORDS", 4)
    monkeypatch.setattr(estimate, "LOOK", 300)
    session = Session(protein_model(100))
    read: list[Record] = []
    reader = session.reader

    def watched(*given: Any, **options: Any) -> Any:
        def records(problems: Problems) -> Iterator[Record]:
            for record in reader(*given, **options)(problems):
                read.append(record)
                yield record

        return records

    monkeypatch.setattr(session, "reader", watched)
    assert tokens(session, fasta) > 0
    assert len(read) == 4


def test_pipes_are_not_read_for_it() -> None:
    session = Session(protein_model(100))
    assert work_of(session, session.domain.level(None), MODES, ["-"]) is None


def test_a_bad_input_is_for_the_scoring_to_refuse(tmp_path: Path) -> None:
    session = Session(protein_model(100))
    bad = written(tmp_path / "bad.fasta", ">p\n1234\n>q\nMKV\n")
    assert tokens(session, bad) == cost(session, 3)
    empty = written(tmp_path / "empty.fasta", "")
    assert work(session, empty) == Work({"exact": 0, "one-pass": 0, "partition:4": 0}, 0)


def test_an_input_is_read_as_the_request_says(tmp_path: Path) -> None:
    session = Session(protein_model(100))
    file = written(tmp_path / "p.fasta", ">a\nMKV\n>b\nMKVLAGMKVLAG\n")
    assert tokens(session, file) == cost(session, 3) + cost(session, 12)
    assert tokens(session, file, options={"max_bytes": 8}) == cost(session, 3)


def patient_files(count: int) -> tuple[LoadedModel, list[Record]]:
    return patients_model(), patients(count)


def strands(count: int) -> tuple[LoadedModel, list[Record]]:
    model = random_model("dna", BaseTokenizer(), max_length=100)
    raws = ["".join("ACGT"[(n * i * i + i) % 4] for i in range(80)) for n in range(1, count + 1)]
    return model, [Record(id=str(n), raw=raw, source="x", line=n) for n, raw in enumerate(raws, 1)]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("made", "level"), [(patient_files, "visit"), (patient_files, "visit-whole"), (strands, "window")]
)
def test_the_estimate_counts_what_a_level_asks(
    made: Any, level: str, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, records = made(5)
    session = Session(model)
    monkeypatch.setattr(session, "reader", lambda *_, **__: lambda problems: iter(records))
    file = written(tmp_path / "some", "some")
    estimated = work(session, file, level).tokens[str(mode)]
    detector = Detector(RecordScorer(session), model.domain.level(level), mode=mode)
    detector.unit_scores(detector.scorer.encoded(records, Problems()))
    assert estimated == pytest.approx(session.forward_tokens, rel=0.2)

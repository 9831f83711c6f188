"""Readers on real files: the counts are those of the catalogue that comes with them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_a3m, read_fasta
from seqmlm.data.readers.tables import read_csv, read_jsonl, read_tsv
from seqmlm.data.readers.text import read_txt
from seqmlm.data.record import Record
from seqmlm.domains.text.conllu import read_conllu

Read = Callable[..., Iterator[Record]]

CATALOGUE: list[tuple[str, Read, dict[str, Any], int]] = [
    ("text/ud_en_ewt/en_ewt-ud-train_rebuilt.conllu.gz", read_conllu, {}, 12_544),
    ("text/ud_en_ewt/en_ewt-ud-dev.conllu.gz", read_conllu, {}, 2_001),
    ("text/ud_en_ewt/en_ewt-ud-test.conllu.gz", read_conllu, {}, 2_077),
    ("text/ud_pud_parallel/de_pud-ud-test.conllu.gz", read_conllu, {}, 1_000),
    ("text/blimp/blimp.jsonl.gz", read_jsonl, {"field": "sentence_good"}, 67_000),
    ("text/sst2/train.tsv.gz", read_tsv, {"column": "sentence", "keep": ["label"]}, 67_349),
    ("text/stsb/de-dev.csv.gz", read_csv, {"column": "1", "header": False}, 1_500),
    ("text/crows_pairs/crows_pairs_anonymized.csv.gz", read_csv, {"column": "sent_more"}, 1_508),
    ("protein/pretrain/ecoli_k12_proteome.faa.gz", read_fasta, {}, 4_298),
    ("protein/pretrain/swissprot_archaea_prokka.faa.gz", read_fasta, {}, 2_872),
    ("protein/pretrain/swissprot_mitochondria_prokka.faa.gz", read_fasta, {}, 1_273),
    ("protein/flip_secondary_structure/sequences.fasta.gz", read_fasta, {}, 11_156),
    ("protein/contacts_extra/1ATG_A.mfa.gz", read_fasta, {}, 9_218),
    ("protein/contacts_extra/DHFR_ECOLI.a2m.gz", read_a3m, {}, 3_629),
    ("protein/contacts_extra/1a3a_1_A.a3m.gz", read_a3m, {}, 1_024),
]


@pytest.mark.parametrize(("name", "reader", "options", "count"), CATALOGUE, ids=[c[0] for c in CATALOGUE])
def test_counts(name: str, reader: Read, options: dict[str, Any], count: int, real_data: Path) -> None:
    problems = Problems()
    assert sum(1 for _ in reader(real_data / name, problems, **options)) == count
    assert problems.bad_count == 0


def lines_in_manifest(real_data: Path, folder: str) -> dict[str, int]:
    with (real_data / "MANIFEST.tsv").open(encoding="utf-8") as handle:
        rows = csv.DictReader(handle, delimiter="\t")
        return {row["path"]: int(row["lines"]) for row in rows if row["path"].startswith(folder)}


@pytest.mark.parametrize("folder", ["text/wikitext2/", "text/books/"])
def test_every_line_of_a_text_is_counted(folder: str, real_data: Path) -> None:
    for name, count in lines_in_manifest(real_data, folder).items():
        last = 0
        for record in read_txt(real_data / name, Problems()):
            assert record.raw.strip()
            last = record.line
        assert last <= count
        assert last > 0.99 * count  # blank lines may follow


def test_rows_of_an_alignment_have_one_length(real_data: Path) -> None:
    for path in sorted((real_data / "protein/contacts_pfam40/aln").glob("*.gz")):
        widths = {len(r.raw) for r in read_fasta(path, Problems(), gaps="keep")}
        assert len(widths) == 1
        whole = [r.raw for r in read_fasta(path, Problems("skip"))]
        assert all("-" not in raw and "." not in raw for raw in whole)


def test_rows_of_an_a3m_have_the_length_of_the_query(real_data: Path) -> None:
    for path in sorted((real_data / "protein/contacts_extra").glob("*.a?m.gz")):
        rows = list(read_a3m(path, Problems(), gaps="keep"))
        assert rows[0].meta["query"]
        assert {len(row.raw) for row in rows} == {len(rows[0].raw)}


def test_words_of_a_treebank_are_found_in_its_text(real_data: Path) -> None:
    for record in read_conllu(real_data / "text/ud_pud_parallel/de_pud-ud-test.conllu.gz", Problems()):
        for word, span in zip(record.meta["words"], record.meta["spans"], strict=True):
            surface = record.raw[slice(*span)]
            assert surface == word or len(set(record.meta["spans"])) < len(record.meta["words"])

"""The domains on real files: every protein spelled, every sentence with its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.text import TEXT
from seqmlm.tokenizers.residue import ResidueTokenizer


def test_the_proteome_of_e_coli(real_data: Path):
    path = real_data / "protein" / "pretrain" / "ecoli_k12_proteome.faa.gz"
    records = list(PROTEIN.read([path], Problems()))
    tokenizer = ResidueTokenizer()
    encodings = tokenizer.encode_batch([record.raw for record in records])
    assert len(records) == 4298
    assert all(PROTEIN.check(record, tokenizer, Problems()) for record in records)
    assert [len(encoding) for encoding in encodings] == [len(record.raw) + 2 for record in records]
    letters = np.concatenate([encoding.ids[1:-1] for encoding in encodings])
    assert "".join(tokenizer.tokens[i] for i in letters[:2000]) == "".join(r.raw for r in records)[:2000]
    with gzip.open(path, "rt") as handle:
        lines = handle.read().splitlines()
    assert all(lines[record.line - 1].startswith(">" + record.id) for record in records)


def test_an_alignment_and_a_folder_of_treebanks(real_data: Path):
    [alignment] = sorted((real_data / "protein" / "contacts_extra").rglob("1a3a*.a3m*"))[:1]
    rows = list(PROTEIN.read([alignment], Problems()))
    assert rows[0].meta["query"] is True
    assert all(PROTEIN.check(row, ResidueTokenizer(), Problems()) for row in rows)
    sentences = list(TEXT.read([real_data / "text" / "ud_pud_parallel"], Problems()))
    assert len(sentences) == 3000
    with gzip.open(sentences[0].source, "rt", encoding="utf-8") as handle:
        lines = handle.read().splitlines()
    assert all("# text = " + s.raw in lines[s.line - 1 : s.line + 5] for s in sentences[:1000])

"""DNA levels: both strands weigh the same, windows cover contigs, composition is subtracted and told."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scored_records
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord
from dnabert import KmerTokenizer
from tiny_models import random_model
from written import written

from seqmlm.anomaly.levels import WHOLE
from seqmlm.anomaly.values import Row
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna import DNA
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.bpe import DnaBpeTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.domains.dna.levels import BaseLevel, Composition, DnaLevel, RecordLevel, WindowLevel, windows
from seqmlm.domains.dna.nucleotides import own_range
from seqmlm.domains.dna.tokenizer import NucleotideTokenizer, reverse_complement
from seqmlm.engine.types import InMemory
from seqmlm.inference.detector import Detector, JudgedRow
from seqmlm.scoring.output import Tally, extent, line

SOURCE = random.Random(0)


def letters(length: int, alphabet: str = "ACGTacgt") -> str:
    return "".join(SOURCE.choices(alphabet, k=length))


TRAIN = [letters(80, "AACGT") for _ in range(30)]
TOKENIZERS: list[NucleotideTokenizer] = [
    BaseTokenizer(),
    KmerTokenizer(k=3),
    KmerBlockTokenizer(k=4),
    DnaBpeTokenizer.train(TRAIN, vocabulary_size=40),
]
every = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=[one.name for one in TOKENIZERS])
levels = pytest.mark.parametrize(
    "level", [RecordLevel(), BaseLevel(), WindowLevel()], ids=lambda level: level.name
)
TEXT = letters(230) + "NN" + letters(118)


def record(raw: str, **meta: object) -> Record:
    return Record(id="r", raw=raw, source="g.fa", line=1, meta=meta)


def detector(level: DnaLevel, tokenizer: NucleotideTokenizer = TOKENIZERS[0], **more: Any) -> Detector:
    return scored_records.detector(random_model("dna", tokenizer), level, **more)


def judged(tokenizer: NucleotideTokenizer, level: DnaLevel, one: Record) -> list[Row]:
    background = Composition.fit(InMemory(tokenizer.encode_batch(TRAIN)), tokenizer, seed=0)
    made = detector(level, tokenizer, background=background)
    return [found.row for found in made.judged_rows([one], Problems())]


@levels
def test_every_row_says_where_in_its_contig_it_lies(level: DnaLevel) -> None:
    for row in judged(BaseTokenizer(), level, record(TEXT[:120], contig="c", start=1000)):
        assert row.place == ("c", 1000 + row.start, 1000 + row.end)
        assert row.place == tuple(row.extra[name] for name in ("contig", "contig_start", "contig_end"))


@levels
@pytest.mark.parametrize("strand", ["+", "-"])
def test_written_places_are_those_of_the_contig(level: DnaLevel, strand: str) -> None:
    contig = letters(60) + TEXT[:150] + letters(60)
    raw = TEXT[:150] if strand == "+" else reverse_complement(TEXT[:150])
    one = record(raw, contig="c", start=60, strand=strand)
    found = detector(level).judged_rows([one], Problems())
    rows = [line(one, BaseTokenizer(), per_unit=True) for one in found]
    covered = set()
    for row in rows:
        assert (row["start"], row["end"]) == (row["contig_start"], row["contig_end"])
        assert row["strand"] == strand
        for unit in row["per_unit"]:
            there = contig[unit["start"] : unit["end"]]
            assert unit["unit"] == (there if strand == "+" else reverse_complement(there))
            covered.add(unit["start"])
    assert covered == set(range(60, 210))
    # A record that is no part of a contig is written as before: whole, without places.
    [alone] = detector(RecordLevel()).judged_rows([record(TEXT)], Problems())
    assert alone.row.place == ("r", 0, len(TEXT))
    assert "start" not in line(alone, BaseTokenizer())


@pytest.mark.parametrize("form", ["fasta", "genbank", "embl"])
def test_the_model_sees_both_sides_of_a_base_wherever_its_contig_was_cut(form: str, tmp_path: Path) -> None:
    contig = "".join(random.Random(6).choices("ACGT", k=1500))
    path = tmp_path / f"x.{form}"
    entry = SeqRecord(Seq(contig), id="c", name="c", description="d", annotations={"molecule_type": "DNA"})
    SeqIO.write([entry], path, form)
    tokenizer, longest = BaseTokenizer(), 66

    def fewest(**options: Any) -> int:
        """Bases that the model sees on the shorter side of a base it is asked, but for the contig's ends."""
        sides, asked = [], []
        for one in DNA.read([path], Problems(), format=form, block=300, **options):
            start = one.meta["start"]
            first, stop = own_range(one)
            encoding = tokenizer.encode(one.raw)
            for window, owned in WHOLE.windows(encoding, tokenizer, longest):
                shown = window.spans[window.groups >= 0, 0] + start
                low, high = int(shown.min()), int(shown.max())
                for base in (window.spans[owned, 0] + start).tolist():
                    if start + first <= base < start + stop:
                        asked.append(base)
                        sides += [base - low] * (low > 0) + [high - base] * (high < len(contig) - 1)
        assert sorted(asked) == list(range(len(contig)))
        return min(sides)

    amid = (longest - 2) // 4
    assert fewest(scoring=True) >= amid
    assert fewest(scoring=True, context=amid) >= amid
    assert fewest() == 0


def test_rows_are_of_a_blocks_own_bases(tmp_path: Path) -> None:
    path = written(tmp_path / "x.fa", ">c\n" + letters(1000) + "\n")
    made = detector(WindowLevel())

    def rows(**options: Any) -> list[tuple[object, ...]]:
        records = DNA.read([path], Problems(), block=230, **options)
        return [
            (one.row.id, one.row.place, one.row.length, one.row.extra["soft_masked"], len(one.scored_record))
            for one in made.judged_rows(records, Problems())
        ]

    for made.level in (WindowLevel(), RecordLevel()):
        assert rows(scoring=True) == rows()


def test_alarms_of_one_place_in_a_contig_are_one_incident() -> None:
    made, blocks = detector(WindowLevel()), [record(TEXT[:200], contig="c", start=200 * n) for n in range(3)]
    first, second, third = (list(made.judged_rows([one], Problems())) for one in blocks)

    def incidents(*alarmed: JudgedRow) -> int:
        tally = Tally()
        for one in alarmed:
            place = {"source": one.row.source, "place": extent(one)}
            tally.add({"units": 1, "score": 1.0, "alarm": True, **place})
        return tally.incidents()

    assert incidents(first[0], second[0]) == 2, "equal offsets in two blocks are two places"
    assert incidents(first[-1], second[0]) == 1, "they touch where the contig was cut"
    assert incidents(first[-1], third[0]) == 2


@every
@levels
def test_a_sequence_and_its_reverse_complement_have_the_same_scores(
    tokenizer: NucleotideTokenizer, level: DnaLevel
) -> None:
    forward, backward = (judged(tokenizer, level, record(raw)) for raw in (TEXT, reverse_complement(TEXT)))
    assert len(forward) == len(backward)
    for one, other in zip(forward, reversed(backward), strict=True):
        assert (one.start, one.end) == (len(TEXT) - other.end, len(TEXT) - other.start)
        assert one.statistics.keys() == level.statistics.keys()
        assert one.statistics == pytest.approx(other.statistics, abs=1e-5)
    # One strand alone does not have that.
    both = [record(TEXT), record(reverse_complement(TEXT))]
    pair = scored_records.scored(random_model("dna", tokenizer), both)
    assert abs(pair[0].surprisal.mean() - pair[1].surprisal.mean()) > 1e-3


@every
def test_windows_are_means_over_their_bases(tokenizer: NucleotideTokenizer) -> None:
    bases = judged(tokenizer, BaseLevel(), record(TEXT))
    for window in judged(tokenizer, WindowLevel(), record(TEXT)):
        inside = [one for one in bases if window.start <= one.start < window.end]
        assert window.length == len(inside)
        text = TEXT[window.start : window.end].upper()
        assert window.statistics["unknown"] == pytest.approx(1 - sum(map(text.count, "ACGT")) / len(text))
        for channel, value in window.statistics.items() - {("unknown", window.statistics["unknown"])}:
            assert value == pytest.approx(np.mean([one.statistics[channel] for one in inside]), abs=1e-9)
        masked = sum(letter.islower() for letter in TEXT[window.start : window.end])
        assert window.extra["soft_masked"] == pytest.approx(masked / 100, abs=6e-4)


@pytest.mark.parametrize("length", [1, 99, 100, 101, 150, 151, 1000])
def test_windows_cover_every_base_in_order(length: int) -> None:
    found = list(windows(length))
    assert found == sorted(set(found))
    assert {base for start, end in found for base in range(start, end)} == set(range(length))
    assert all(end - start == min(100, length) for start, end in found)


def test_windows_of_unknown_bases_are_left_out_but_a_record_has_a_row() -> None:
    tokenizer = TOKENIZERS[0]
    raw = letters(100) + "N" * 200 + letters(100)
    assert [one.start for one in judged(tokenizer, WindowLevel(), record(raw))] == [0, 50, 250, 300]
    [only] = judged(tokenizer, WindowLevel(), record("N" * 130))
    assert only.score is None
    assert only.length == 0


@every
def test_the_background_is_what_the_training_letters_say(tokenizer: NucleotideTokenizer) -> None:
    known = Composition.fit(InMemory(tokenizer.encode_batch(TRAIN)), tokenizer, seed=1)
    plain = Composition.fit(InMemory(BaseTokenizer().encode_batch(TRAIN)), BaseTokenizer(), seed=2)
    for one, other in zip(known.tables, plain.tables, strict=True):
        np.testing.assert_allclose(one, other)
    again = Composition.load(known.arrays(), tokenizer)
    np.testing.assert_array_equal(known.bits(TEXT), again.bits(TEXT))


def test_without_a_background_the_training_composition_says_nothing() -> None:
    [row] = detector(RecordLevel()).judged_rows([record(TEXT)], Problems())
    assert row.row.statistics.keys() == {"excess", "bits", "unknown"}

"""Variants of genomes: effects by hand on both strands, files, the reference, and a VCF that comes back."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from Bio import bgzf
from Bio.Seq import Seq
from dnabert import KmerTokenizer
from fork_server import Run
from numpy.typing import NDArray
from stopped import stop_at
from tiny_models import random_model
from written import written

from seqmlm.data.problems import Problems
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.bpe import DnaBpeTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.domains.dna.tokenizer import reverse_complement
from seqmlm.domains.dna.variants import FLANK, DNAVariants
from seqmlm.domains.variants import Edit, Variant, VariantTable
from seqmlm.errors import DataError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.session import Session
from seqmlm.inference.variants import VariantScorer
from seqmlm.tasks.variants import VariantsTask
from seqmlm.tokenizers.base import Tokenizer

RNG = np.random.default_rng(5)
CHR1 = "".join(RNG.choice(list("ACGT"), 300))
CHR2 = "".join(RNG.choice(list("acgt"), 40)) + "N" * 5 + "".join(RNG.choice(list("ACGT"), 90))
WINDOW = 41
HEAD = (
    '##fileformat=VCFv4.2\n##INFO=<ID=AF,Number=A,Type=Float,Description="x">\n'
    "##contig=<ID=1>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tS1\n"
)


def session(tokenizer: Tokenizer, max_length: int = 64) -> Session:
    return Session(random_model("dna", tokenizer, max_length=max_length))


def bpe() -> DnaBpeTokenizer:
    return DnaBpeTokenizer.train([CHR1 * 4], vocabulary_size=64)


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    path = tmp_path / "genome.fa"
    wrapped = "\n".join(CHR1[i : i + 50] for i in range(0, len(CHR1), 50))
    path.write_text(f">chr1 first\n{wrapped}\n>2\n{CHR2}\n")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dna") / "model"
    own = random_model("dna", BaseTokenizer(), max_length=WINDOW + 2)
    model_folder.write(folder, own.rows, own.tokenizer, own.card)
    return folder


def other(base: str) -> str:
    return {"A": "C", "C": "T", "G": "A", "T": "G", "N": "A"}[base]


def row(pos: int, alt: str = "", *, contig: str = "1", size: int = 1, info: str = ".", ref: str = "") -> str:
    """A line of a VCF whose reference bases are right."""
    own = ref or (CHR1 if contig.endswith("1") else CHR2).upper()[pos - 1 : pos - 1 + size]
    return f"{contig}\t{pos}\trs{pos}\t{own}\t{alt or other(own[0])}\t50\tPASS\t{info}\tGT\t0/1\n"


def vcf(folder: Path, *rows: str, name: str = "calls.vcf") -> Path:
    path = folder / name
    data = (HEAD + "".join(rows)).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(path: Path, reference: Path, on_error: Any = "raise") -> tuple[list[Variant], Problems]:
    problems = Problems(on_error)
    table = VariantTable(path=str(path), wildtype=str(reference), window=WINDOW)
    return list(DNAVariants().table_variants(table, problems)), problems


def by_hand(own: Session, text: str, masked: set[int], asked: int) -> np.ndarray[Any, Any]:
    """(4,) log-probabilities of the bases at a place, by one forward pass of transformers."""
    ids = own.tokenizer.encode(text).ids.astype(np.int64)
    first = own.tokenizer.encode("ACGT").ids[1:5]
    ids[[one + 1 for one in masked]] = own.tokenizer.space.mask
    with torch.no_grad():
        logits = bare_model()(torch.from_numpy(ids)[None]).logits[0, asked + 1].double()
    special = own.tokenizer.space.is_special
    logits = logits[: len(special)]  # the model's own vocabulary is padded
    logits[torch.from_numpy(special)] = -torch.inf
    return torch.log_softmax(logits, -1).numpy()[first]


@cache
def bare_model() -> Any:
    """The same weights, without anything of ours around them."""
    model = random_model("dna", BaseTokenizer()).rows.model
    model.set_attn_implementation("sdpa")
    return model.eval()


def snv(text: str, place: int, new: str) -> Variant:
    return Variant(
        name="", wildtype=text, edits=(Edit(place, place + 1, new),), source="", line=1, flank=FLANK
    )


def scorer(own: Session, *, pll: bool = False) -> VariantScorer:
    return VariantScorer(own, "ACGT", pll=pll, mirrored=DNAVariants().mirrored, windows=True)


def test_effects_are_the_mean_of_both_strands_by_hand():
    own, text = session(BaseTokenizer()), CHR1[:WINDOW]
    new = other(text[20])
    [found] = scorer(own).effects([snv(text, 20, new)])
    back = reverse_complement(text)
    for name, masked in (("masked", {20}), ("wt", set[int]())):
        forward = by_hand(own, text, masked, 20)
        reverse = by_hand(own, back, masked, 20)
        at = "ACGT".index
        one = forward[at(new)] - forward[at(text[20])]
        two = reverse[3 - at(new)] - reverse[3 - at(text[20])]
        assert abs(one - two) > 1e-3  # else one strand would do
        assert found[name] == pytest.approx((one + two) / 2, abs=1e-5)


def test_a_deletion_is_the_pll_delta_of_its_segment_by_hand():
    own, text = session(BaseTokenizer()), CHR1[:60]
    gone = Variant(name="", wildtype=text, edits=(Edit(30, 32, ""),), source="", line=1, flank=4)

    def segment(sequence: str, start: int, end: int) -> NDArray[np.float64]:
        """Log-probability, and the same above its expectation."""
        rows = [by_hand(own, sequence, {i}, i) for i in range(start, end)]
        there = np.array([row["ACGT".index(one)] for row, one in zip(rows, sequence[start:end], strict=True)])
        return np.array([there.sum(), (there - [(np.exp(row) * row).sum() for row in rows]).sum()])

    [found] = scorer(own).effects([gone])
    one = segment(gone.mutant, 26, 34) - segment(text, 26, 36)
    two = segment(reverse_complement(gone.mutant), 24, 32) - segment(reverse_complement(text), 24, 34)
    delta, above = (one + two) / 2
    assert found == pytest.approx({"pll_delta": delta, "pll_excess": above}, abs=1e-4)


@pytest.mark.parametrize("tokenizer", [BaseTokenizer(), KmerTokenizer(k=3), KmerBlockTokenizer(k=3), bpe()])
def test_any_tokenizer_and_either_strand(tokenizer: Tokenizer):
    own, text = session(tokenizer), CHR1[:WINDOW]
    variants = [
        snv(text, 20, other(text[20])),
        replace(snv(text, 20, "x"), edits=(Edit(20, 20, "GAT"),)),
        replace(snv(text, 20, "x"), edits=(Edit(19, 22, ""),)),
    ]
    forward = scorer(own, pll=True).effects(variants)
    mirrored = DNAVariants().mirrored
    back = scorer(own, pll=True).effects([mirrored(one) for one in variants])
    assert "masked" in forward[0]
    for one, two in zip(forward, back, strict=True):
        assert all(np.isfinite(value) and abs(value) > 1e-6 for value in one.values())
        assert one == pytest.approx(two, abs=1e-5)


def test_kmers_hide_a_base_with_all_tokens_that_show_it():
    """The base is read from the k-mers over it, which are [MASK] all: its own letter changes nothing."""
    own, text = session(KmerTokenizer(k=3)), CHR1[:WINDOW]
    old, new = text[20], other(text[20])
    [there] = scorer(own).effects([snv(text, 20, new)])
    changed = text[:20] + new + text[21:]
    [back] = scorer(own).effects([snv(changed, 20, old)])
    assert there["masked"] == pytest.approx(-back["masked"], abs=1e-5)


def test_conventions_of_single_letters_are_refused_for_others(seqmlm: Run, reference: Path, tmp_path: Path):
    own = random_model("dna", KmerTokenizer(k=3))
    model_folder.write(tmp_path / "kmers", own.rows, own.tokenizer, own.card)
    asked = vcf(tmp_path, row(100))
    given = ("variants", tmp_path / "kmers", asked, "--reference", reference)
    seqmlm(*given, "--set", "convention=wt").refused(2, "use masked, pll_delta or pll_excess")
    assert seqmlm(*given).code == 0


def test_windows_and_names(tmp_path: Path, reference: Path):
    rows = [row(1), row(100), row(300), row(60, contig="chr2"), row(10, contig="chr2")]
    found, _ = read(vcf(tmp_path, *rows, name="calls.vcf.gz"), reference)
    assert [one.line for one in found] == [5, 6, 7, 8, 9]
    first, middle, last, named, lower = found
    assert (first.wildtype, first.edits[0].start) == (CHR1[:WINDOW], 0)  # shifted, not padded
    assert (middle.wildtype, middle.edits[0].start) == (CHR1[79:120], 20)
    assert (last.wildtype, last.edits[0].start) == (CHR1[-WINDOW:], WINDOW - 1)
    assert (named.wildtype, named.fields["chrom"]) == (CHR2.upper()[39:80], "chr2")
    assert lower.wildtype == CHR2[:WINDOW].upper()
    assert middle.name == f"1:100{CHR1[99]}>{other(CHR1[99])}"


def test_lines_of_several_alleles_and_alleles_that_are_none(tmp_path: Path, reference: Path):
    base = CHR1[99]
    two = [one for one in "ACGT" if one != base][:2]
    rows = [
        row(100, f"{two[0]},{two[1]},*", info="AF=0.1,0.2,.;DB"),
        row(101, "<DEL>"),
        row(102, f"{CHR1[101]}[2:4["),
        row(103, "."),
        row(104, f"{CHR1[103]}GG"),
        row(105, CHR1[104], size=3),
        row(108, CHR1[107].lower()),
        row(110, "N"),
    ]
    found, problems = read(vcf(tmp_path, *rows), reference)
    assert [one.line for one in found[:2]] == [5, 5]
    assert [one.edits[0].text for one in found[:2]] == two
    assert [(one.fields["AF"], one.fields["DB"]) for one in found[:2]] == [("0.1", "1"), ("0.2", "1")]
    assert found[2].fields["AF"] is None
    assert [one.edits[0].text for one in found[2:4]] == ["GG", ""]
    assert found[3].edits[0].end - found[3].edits[0].start == 2
    assert (found[4].edits, found[4].scored) == ((), True)
    assert not found[5].scored
    assert problems.counts == {
        "an allele with N, or longer than half a window (20 bases): not scored": 1,
        "an allele that is not a sequence (*, <DEL>, a breakend, or missing): not scored": 4,
    }


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (row(100, ref=other(CHR1[99])), f"the reference has {CHR1[99]} at chr1:100, not"),
        (row(301, "A", ref="C"), "position 301 is outside chr1, which has 300 bases"),
        (row(0, "A", ref="C"), "position 0 is outside"),
        (row(5, contig="3", ref="A"), "a contig that the reference does not have: 3"),
        ("1\tx\t.\tA\tC\t.\t.\t.\n", "not a line of a VCF"),
        ("1\t5\t.\tA\tC\n", "not a line of a VCF"),
    ],
)
def test_bad_rows_name_their_line(tmp_path: Path, reference: Path, bad: str, told: str):
    path = vcf(tmp_path, row(50), bad, row(70))
    with pytest.raises(DataError, match=r"calls\.vcf:6: ") as error:
        read(path, reference)
    assert told in str(error.value)
    found, problems = read(path, reference, "skip")
    assert ([one.line for one in found], problems.bad_count) == ([5, 7], 1)


def test_a_code_for_several_bases_is_each_of_them(tmp_path: Path):
    reference = written(tmp_path / "genome.fa", f">chr1\n{CHR1[:99]}R{CHR1[100:149]}N{CHR1[150:]}\n")
    rows = [row(100, "T", ref="A"), row(100, "T", ref="G"), row(100, "T", ref="N")]
    found, problems = read(vcf(tmp_path, *rows, name="calls.vcf"), reference)
    assert [one.wildtype[20] for one in found] == ["A", "G", "N"]
    assert [one.scored for one in found] == [True, True, False]
    reason = "a position where the reference has a code for several bases: the base of the allele is used"
    assert problems.counts[reason]
    for wrong, told in ((row(100, "A", ref="T"), "has R at"), (row(150, "A", ref="C"), "has N at")):
        with pytest.raises(DataError, match=told):
            read(vcf(tmp_path, wrong), reference)


def test_contigs_of_one_name_are_refused(tmp_path: Path):
    reference = written(tmp_path / "genome.fa", ">chr1\nACGT\n>chr2\nACGT\n>chr1\nACGG\n")
    with pytest.raises(DataError, match=r"genome\.fa: two contigs of the genome have the name chr1"):
        read(vcf(tmp_path, row(1)), reference)


def test_another_genome(tmp_path: Path, reference: Path):
    wrong = [row(pos, ref=other(CHR1[pos - 1])) for pos in range(50, 56)]
    right = [row(pos) for pos in range(100, 200)]
    with pytest.raises(DataError, match=r"6 of the first 106 REF .* another assembly"):
        read(vcf(tmp_path, *right, *wrong), reference, "skip")
    found, problems = read(vcf(tmp_path, *right, *wrong[:5]), reference, "skip")  # 4.8 %
    assert (len(found), problems.bad_count) == (100, 5)
    with pytest.raises(DataError, match=r"none of the contigs .*\(7\) .* \(chr1, 2\)\. .*another assembly"):
        read(vcf(tmp_path, *(row(pos, contig="7", ref="A") for pos in range(9))), reference, "skip")


def test_tables(tmp_path: Path, reference: Path):
    path = tmp_path / "calls.tsv"
    path.write_text(f"CHROM\tPOS\tREF\tALT\tscore\nchr1\t100\t{CHR1[99]}\t{other(CHR1[99])}\t0.5\n")
    [one], _ = read(path, reference)
    assert (one.line, one.fields["score"], one.wildtype) == (2, "0.5", CHR1[79:120])
    path.write_text("CHROM\tPOS\tREF\nchr1\t100\tA\n")
    with pytest.raises(DataError, match="no column alt"):
        read(path, reference)
    (tmp_path / "bare.vcf").write_text(row(100))
    with pytest.raises(DataError, match="the VCF has no header"):
        read(tmp_path / "bare.vcf", reference)


def test_rivals():
    predict = DNAVariants().rivals(["ACGTACGTAAGT"], None)
    transition, transversion = snv("AACGT", 2, "T"), snv("AACGT", 2, "A")
    assert predict["transition"](transition) > predict["transition"](transversion)  # type: ignore[operator]
    # Both strands: AAG and CTT once, ACG and CGT twice each.
    assert predict["triplet frequencies"](transversion) == pytest.approx(np.log(2 / 5))
    with pytest.raises(UsageError, match="an alignment is only for proteins"):
        DNAVariants().rivals([], "family.a3m")


def lines_of(path: Path) -> Sequence[str]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return file.read().splitlines()


def test_rows_and_a_vcf_that_comes_back(seqmlm: Run, model: Path, reference: Path, tmp_path: Path):
    base = CHR1[99]
    two = [one for one in "ACGT" if one != base][:2]
    rows = [
        row(200),
        row(100, f"{two[0]},*,{two[1]}", info="AF=0.1,0.2,0.3"),
        row(101, "<DEL>", info="END=150"),
        row(104, f"{CHR1[103]}GG", info="DB;"),
        row(50, contig="chr2"),
    ]
    asked = vcf(tmp_path, *rows, name="calls.vcf.gz")
    given = ("variants", model, asked, "--reference", reference)
    done = seqmlm(*given).ok()
    told = [json.loads(line) for line in done.out.splitlines()]
    wanted = [("1", 200, other(CHR1[199])), ("1", 100, two[0]), ("1", 100, two[1])]
    assert [(one["chrom"], one["pos"], one["alt"]) for one in told[:3]] == wanted
    assert [one["convention"] for one in told] == ["masked", "masked", "masked", "pll_excess", "masked"]
    for name in ("scored.vcf.gz", "scored.vcf"):
        out = tmp_path / name
        done = seqmlm(*given, "--out", out)
        assert (done.code, done.out) == (0, ""), done.err
        before, after = lines_of(asked), lines_of(out)
        added = [one for one in after if one.startswith("##INFO=<ID=SEQMLM_")]
        names = ("SEQMLM_LLR", "SEQMLM_EXCESS")
        assert [one[11:].split(",")[:3] for one in added] == [[x, "Number=A", "Type=Float"] for x in names]
        assert "reference by model, masked for substitutions, pll_excess for" in added[0]
        kept = [one for one in after if one not in added]
        assert len(kept) == len(before)
        for old, new in zip(before, kept, strict=True):
            if old.startswith("#"):
                assert old == new
                continue
            first, second = old.split("\t"), new.split("\t")
            assert first[:7] + first[8:] == second[:7] + second[8:]
            assert second[7].startswith("" if first[7] == "." else first[7].rstrip(";"))
        info = [one.split("\t")[7] for one in kept if not one.startswith("#")]
        assert info[1].startswith("AF=0.1,0.2,0.3;SEQMLM_LLR=")
        values = info[1].rpartition("=")[2].split(",")
        assert values[1] == "."
        effects = [one["effect"] for one in told[1:3]]
        assert [float(values[0]), float(values[2])] == pytest.approx(effects, rel=1e-4)
        assert info[2] == "END=150"  # nothing to say
        name, value = info[3].split(";")[-1].split("=")
        assert (name, float(value)) == ("SEQMLM_EXCESS", pytest.approx(told[3]["effect"], rel=1e-4))
    with bgzf.open(str(tmp_path / "scored.vcf.gz"), "rb") as packed:  # refuses gzip that is not BGZF
        assert packed.readline().startswith(b"##fileformat")
    again, _ = read(tmp_path / "scored.vcf.gz", reference)
    assert len(again) == 5
    done = seqmlm("variants", model, out, "--reference", reference, "--out", tmp_path / "twice.vcf")
    assert (done.code, "already has SEQMLM_LLR" in done.err) == (3, True)
    assert not list(tmp_path.glob("twice*"))


@pytest.mark.parametrize("end", ["crash", "signal", "full disk"])
def test_an_interrupted_copy_is_resumed(
    seqmlm: Run, model: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
):
    monkeypatch.setattr("seqmlm.tasks.task.BATCH_RECORDS", 16)
    asked = vcf(tmp_path, *(row(20 + 7 * n) for n in range(38)))
    given = ("variants", model, asked, "--reference", reference, "--out")
    seqmlm(*given, tmp_path / "whole.vcf.gz").ok()
    error = SystemExit(9) if end == "crash" else None
    calls = stop_at(monkeypatch, VariantScorer, "effects", 0 if end == "full disk" else 3, error)

    def full(*given: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "scored.vcf.gz"
    with monkeypatch.context() as patched:
        if end == "full disk":
            patched.setattr("seqmlm.rows.file.replace_file", full)
        assert seqmlm(*given, out).code == {"crash": 9, "signal": 143, "full disk": 4}[end]
    assert not out.exists()
    done = seqmlm(*given, out, "--resume").ok()
    assert [len(one) for (one,) in calls[3:]] == ([] if end == "full disk" else [38 - 2 * 16])
    assert "scored 38 of 38 variants" in done.out + done.err
    assert lines_of(out) == lines_of(tmp_path / "whole.vcf.gz")
    assert [one.name for one in tmp_path.glob("scored*")] == ["scored.vcf.gz"]


def test_a_file_with_a_wrong_base_leaves_no_output(seqmlm: Run, model: Path, reference: Path, tmp_path: Path):
    out = tmp_path / "scored.vcf"
    seqmlm("variants", model, vcf(tmp_path, row(60)), "--reference", reference, "--out", out).ok()
    older, asked = out.read_text(), vcf(tmp_path, row(50), row(100, ref=other(CHR1[99])))
    done = seqmlm("variants", model, asked, "--reference", reference, "--out", out)
    assert (done.code, "calls.vcf:6: the reference has" in done.err) == (3, True)
    assert out.read_text() == older
    done = seqmlm(
        "variants", model, asked, "--reference", reference, "--out", out, "--on-error", "skip", "--resume"
    ).ok()
    assert f"1 × the reference has {CHR1[99]} at chr1:100, not {other(CHR1[99])}" in done.err
    assert len(lines_of(out)) == 4 + 2 + 2


def test_measurements_in_info(seqmlm: Run, model: Path, reference: Path, tmp_path: Path):
    rows = [row(pos, info=f"AF=0.{pos}" if pos % 3 else ".") for pos in range(100, 140)]
    asked, out = vcf(tmp_path, *rows), tmp_path / "rows.csv"
    done = seqmlm(
        "variants", model, asked, "--reference", reference, "--measured", "AF", "--json", "--out", out
    ).ok()
    assert done.json["measured"] == sum(pos % 3 > 0 for pos in range(100, 140))
    assert set(done.json["agreement"]) == {"model", "transition", "triplet frequencies"}
    header, *_ = csv.reader(out.read_text().splitlines())
    assert header[:7] == ["id", "source", "line", "chrom", "pos", "ref", "alt"]


def test_what_variants_do_to_proteins(seqmlm: Run, model: Path, reference: Path, tmp_path: Path):
    genes, out = tmp_path / "genes.gff3", tmp_path / "scored.vcf"
    genes.write_text("1\tx\tCDS\t91\t120\t.\t+\t0\tID=a;gene=b c\n")
    # Of bases of the gene, the first that is named is not.
    shift = row(90, f"{CHR1[89]}{CHR1[91]}", ref=CHR1[89:92])
    rows = [row(100, info="AF=.1"), shift, row(200), row(106), row(109), row(112)]
    given = ("variants", model, vcf(tmp_path, *rows), "--reference", reference, "--set", f"genes={genes}")
    done = seqmlm(*given).ok()
    assert re.search(r"by consequence: .*\b1 frameshift_variant", done.err), done.err
    told = [json.loads(line) for line in done.out.splitlines()]
    was, now = (str(Seq(one + CHR1[100:102]).translate()) for one in (CHR1[99], other(CHR1[99])))
    assert (told[0]["gene"], told[0]["change"]) == ("b c", f"p.{was}4{'=' if was == now else now}")
    assert [one["consequence"] for one in told[1:3]] == ["frameshift_variant", None]
    assert [one["gene"] for one in told[1:3]] == ["b c", None]
    seqmlm(*given, "--out", out).ok()
    info = [one.split("\t")[7] for one in lines_of(out) if not one.startswith("#")]
    assert "##INFO=<ID=SEQMLM_CODING,Number=A,Type=String" in out.read_text()
    assert info[0].split(";")[-1].startswith(f"SEQMLM_CODING={told[0]['consequence']}|b%20c|p.")
    assert info[1].endswith("SEQMLM_CODING=frameshift_variant|b%20c||")
    assert "SEQMLM_CODING" not in info[2]
    done = seqmlm(*given, "--measured", "qual", "--json").ok()
    assert "codon" in done.json["agreement"]
    assert done.json["counts"]["frameshift_variant"] == 1
    seqmlm(*given[:-1], "genes=none.gff3").refused(3, "none.gff3: no such file")


def test_on_a_terminal_a_variant_is_a_line_with_its_effect_first():
    row = {
        "id": "1:9A>C",
        "source": "a.vcf",
        "line": 7,
        "convention": "masked",
        "effect": -0.5,
        "masked": -0.5,
    }
    task: Any = SimpleNamespace(field=DNAVariants())
    assert VariantsTask.line(task, row) == "a.vcf:7  1:9A>C  -0.50 (masked)"
    told = {"gene": "b", "consequence": "missense_variant", "change": "p.K3T", "codon": -1.234}
    expected = "a.vcf:7  1:9A>C  -0.50 (masked)  b  missense_variant  p.K3T  codon -1.23"
    assert VariantsTask.line(task, row | told) == expected
    assert VariantsTask.line(task, {**row, "effect": None}) == "a.vcf:7  1:9A>C  no effect"


def test_requests_that_make_no_sense(seqmlm: Run, model: Path, reference: Path, tmp_path: Path):
    asked = vcf(tmp_path, row(100))
    table = written(tmp_path / "calls.csv", f"chrom,pos,ref,alt\n1,100,{CHR1[99]},{other(CHR1[99])}\n")
    (tmp_path / "empty.vcf").write_text(HEAD)
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (2, "--reference", (asked,)),
        (2, "one wild type", (asked, "--reference", reference, "--next", "2")),
        (2, "no scored VCF", (table, "--reference", reference, "--out", tmp_path / "out.vcf")),
        (2, "only for proteins", (asked, "--reference", reference, "--set", "first=2")),
        (3, "nowhere.fa: no such file", (asked, "--reference", tmp_path / "nowhere.fa")),
        (3, "no record", (tmp_path / "empty.vcf", "--reference", reference)),
        (3, "no record", (tmp_path / "empty.vcf", "--reference", reference, "--out", tmp_path / "o.vcf")),
    ]
    for code, told, given in cases:
        seqmlm("variants", model, *given).refused(code, told)
    assert not list(tmp_path.glob("o*.vcf"))

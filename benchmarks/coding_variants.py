"""Does a model of a genome know which changes in its genes matter, and does it help to know the genes?

A `tiny` model is trained on four fifths of the genome of E. coli K-12. `seqmlm variants --set genes=` scores
changes of single bases in coding sequences of the last fifth:

    kinds     random changes: new stops, and missense changes, compared with synonymous changes
    observed  bases that differ in E. coli O157:H7 Sakai, compared with as many random bases of these genes.
              The genes have no gap there and are 90 % identical. Selection left the observed changes.

The predictions are the model (`masked`, both strands), the codon and its residue (`codon`), and their sum
(`both`). Two more are the triplet of bases, and only the kind of consequence. Values are areas under the
curve, with intervals by gene.

    python benchmarks/coding_variants.py --data ../shared/data [--json FILE] [--quick]

Model and rows are kept under --out. An interrupted benchmark therefore continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_models import trained
from finetune_real import written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.features import gff_features
from seqmlm.data.rows import read_rows
from seqmlm.domains.dna.genes import MISSENSE, STOP, SYNONYMOUS
from seqmlm.domains.dna.tokenizer import reverse_complement
from seqmlm.domains.dna.variants import DNAVariants
from seqmlm.domains.variants import VariantTable
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import bootstrap_intervals
from seqmlm.tasks.run import run
from seqmlm.tasks.variants import VariantsConfig, VariantsTask

NAMES = ("ecoli_k12_GCF_000005845.2", "ecoli_o157_sakai_GCF_000008865.2")
HELD_OUT, ANCHOR, STEP, IDENTICAL = 0.2, 24, 12, 0.9
WORSE = {STOP: -2.0, MISSENSE: -1.0}


def letters(path: Path) -> dict[str, str]:
    """Contigs by name."""
    blocks = gzip.decompress(path.read_bytes()).decode().split(">")[1:]
    return {one.split()[0]: one.partition("\n")[2].replace("\n", "").upper() for one in blocks}


def observed(
    genes: list[tuple[int, int]], own: str, other: dict[str, str]
) -> dict[int, list[tuple[int, str]]]:
    """Places and bases that differ in the other genome, by gene, of those that it has without a gap."""
    anchors: dict[str, tuple[int, int]] = {}
    for number, (start, end) in enumerate(genes):
        for at in range(start, end - ANCHOR, STEP):
            anchors.setdefault(own[at : at + ANCHOR], (number, at))
    found: dict[int, list[tuple[int, str]]] = {}
    for text in (one for contig in other.values() for one in (contig, reverse_complement(contig))):
        for at in range(len(text) - ANCHOR):
            number, place = anchors.get(text[at : at + ANCHOR], (-1, 0))
            if number < 0 or number in found:
                continue
            start, end = genes[number]
            there = text[at - (place - start) : at - (place - start) + end - start]
            differ = [(start + n, b) for n, b in enumerate(there) if b != own[start + n]]
            if len(there) == end - start and len(differ) < (1 - IDENTICAL) * (end - start):
                found[number] = differ
    return found


def drawn(genes: list[tuple[int, int]], own: str, counts: Mapping[int, int], dice: random.Random) -> Any:
    """Draw (gene, place, base) at random, a number of them in each gene."""
    for number, count in counts.items():
        for _ in range(count):
            at = dice.randrange(*genes[number])
            yield number, at, dice.choice([one for one in "ACGT" if one != own[at]])


def judged(options: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """A row for each change: gene, set, consequence, and the score of each prediction."""
    folder = options.data / "dna" / "genomes"
    ((contig, own),) = letters(folder / f"{NAMES[0]}.fna.gz").items()
    cut = round((1 - HELD_OUT) * len(own))
    reference = Path(written(out / "genome.fa", f">{contig}\n{own}\n"))
    learnt = Path(written(out / "learnt.fa", f">{contig}\n{own[:cut]}\n"))
    gff = folder / f"{NAMES[0]}.gff.gz"
    places = (one for _, one in gff_features(str(gff), Problems(), lambda kind: kind == "CDS"))
    genes = [(one.start, one.end) for one in places if one.start >= cut and (one.end - one.start) % 3 == 0]
    seen = observed(genes, own, letters(folder / f"{NAMES[1]}.fna.gz"))
    dice = random.Random(0)
    natural = [(number, at, base) for number, some in seen.items() for at, base in some]
    natural = sorted(dice.sample(natural, min(len(natural), 100 if options.quick else 2000)))
    counts = {
        number: sum(one[0] == number for one in natural) for number in dict.fromkeys(n for n, *_ in natural)
    }
    every = [("observed", *one) for one in natural]
    every += [("random", *one) for one in drawn(genes, own, counts, dice)]
    table = out / f"changes{options.suffix}.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["chrom", "pos", "ref", "alt", "set", "number"])
        rows.writerows([contig, at + 1, own[at], base, name, number] for name, number, at, base in every)
    model = trained(out, "ecoli", "dna", [learnt], {}, 0, options.minutes)
    asked = {"model": str(model.path), "paths": (str(table),), "wildtype": str(reference), "genes": str(gff)}
    kept = out / f"rows{options.suffix}.jsonl"
    if not kept.exists():
        run("variants", VariantsTask, VariantsConfig(out=kept, **asked))
    variants = [
        *DNAVariants().table_variants(VariantTable(path=str(table), wildtype=str(reference)), Problems())
    ]
    triplets = DNAVariants().rivals([one.wildtype for one in variants], None)["triplet frequencies"]
    return [
        {
            "set": name,
            "gene": number,
            "consequence": row["consequence"],
            "model": row["effect"],
            "codon": row["codon"],
            "both": row["effect"] + row["codon"],
            "triplet": triplets(variant),
            "kind": WORSE.get(row["consequence"], 0.0 if row["consequence"] == SYNONYMOUS else -2.0),
        }
        for (name, number, _, _), (_, row), variant in zip(every, read_rows(str(kept)), variants, strict=True)
        if row["codon"] is not None  # of a start or a stop that is lost nothing is said
    ]


def areas(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The area under the curve of each comparison and prediction."""
    pairs = {
        "stop against synonymous": ("consequence", STOP, SYNONYMOUS),
        "missense against synonymous": ("consequence", MISSENSE, SYNONYMOUS),
        "random against observed": ("set", "random", "observed"),
    }
    found = {}
    for name, (key, worse, better) in pairs.items():
        some = [
            row for row in rows if row[key] in (worse, better) and (key == "set" or row["set"] == "random")
        ]
        labels = np.array([row[key] == worse for row in some])
        for prediction in ("model", "codon", "both", "triplet", "kind"):
            values = np.array([-row[prediction] for row in some])

            def told(weights: Any, labels: Any = labels, values: Any = values) -> Mapping[str, float]:
                return {"auroc": Detection(labels, values).curve(weights).auroc}

            own = bootstrap_intervals(told, [row["gene"] for row in some], draws=300)["auroc"]
            found[f"{name}: {prediction}"] = {**asdict(own), "n": [int(labels.sum()), int((~labels).sum())]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/coding_variants"))
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of training: 300 steps each")
    parser.add_argument("--quick", action="store_true", help="100 changes, half a minute")
    options = parser.parse_args()
    options.minutes = 0.5 if options.quick else options.minutes
    options.suffix = "-quick" if options.quick else ""
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found = areas(judged(options, out))
    for name, one in found.items():
        print(f"{name:<40} {one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]  {one['n']}")
    if options.json is not None:
        written(options.json, json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

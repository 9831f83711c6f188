"""Measure whether a model distinguishes deletions and insertions that a strain has kept from random ones.

Escherichia coli K-12 and O157:H7 Sakai differ by about 250 pure deletions and insertions of 1 to 130 bases.
There are 24 equal bases on each side. Each is compared with a change of the same kind and length at a random
place. A random deletion removes the bases there. A random insertion adds bases from another part of the
genome. AUROC is high if the changes that evolution kept get a better score. The columns are those of
`seqmlm variants`, from a model of four fifths of K-12. The baseline is a rule: the deleted or inserted bases
occur again next to the place (`repeat`).

    python benchmarks/indels.py --data ../shared/data            # ten minutes of training, three models
    python benchmarks/indels.py --data ../shared/data --quick    # two minutes, one model
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from seqmlm.domains.dna import DNA
from seqmlm.domains.dna.variants import FLANK
from seqmlm.domains.variants import Edit, Variant
from seqmlm.inference.session import Session
from seqmlm.inference.variants import WHOLE
from seqmlm.tasks.variants import scorer_of
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain

ANCHOR, LONGEST, WINDOW, BATCH = 24, 130, 256, 64
Place = tuple[int, int, str]
"""The first deleted base, the base after the last deleted one, and the inserted bases."""


def genome(path: Path) -> str:
    """The first sequence of a packed FASTA file."""
    with gzip.open(path, "rt") as file:
        return "".join(file.read().split(">")[1].split("\n")[1:]).upper()


def between(one: str, other: str) -> Iterator[Place]:
    """Pure deletions and insertions of `other` in coordinates of `one`, extended from unique anchors."""
    where: dict[str, int] = {}
    for at in range(len(other) - ANCHOR + 1):
        word = other[at : at + ANCHOR]
        where[word] = -1 if word in where else at
    at = ANCHOR
    while at < len(one) - WINDOW:
        there = where.get(one[at : at + ANCHOR], -1)
        if there < 0:
            at += 1
            continue
        a, b = at + ANCHOR, there + ANCHOR
        while a < len(one) - WINDOW and b < len(other) - WINDOW:
            if one[a] == other[b] or one[a + 1 : a + 9] == other[b + 1 : b + 9]:  # equal, or a substitution
                a, b = a + 1, b + 1
                continue
            sizes = range(1, LONGEST + 1)
            ahead = one[a : a + ANCHOR], other[b : b + ANCHOR]
            gone = next((n for n in sizes if one[a + n : a + n + ANCHOR] == ahead[1]), 0)
            new = next((n for n in sizes if other[b + n : b + n + ANCHOR] == ahead[0]), 0)
            if gone and (not new or gone <= new):
                yield a, a + gone, ""
                a += gone
            elif new:
                yield a, a, other[b : b + new]
                b += new
            else:
                break
        at = a + 1


def random_like(places: list[Place], text: str, rng: np.random.Generator) -> list[Place]:
    """A random change for each change, with the same kind and length, at any place."""
    found = []
    for start, end, new in places:
        at, source = (int(one) for one in rng.integers(WINDOW, len(text) - WINDOW, 2))
        found.append((at, at + end - start, text[source : source + len(new)]))
    return found


def effects(session: Session, text: str, places: list[Place]) -> NDArray[np.float64]:
    """(N, 2) the columns `WHOLE` of each change."""
    variants = []
    for start, end, new in places:
        first = max(0, min((start + end - WINDOW) // 2, len(text) - WINDOW))
        edits = (Edit(start - first, end - first, new),)
        own = text[first : first + WINDOW]
        variants.append(Variant(name="", wildtype=own, edits=edits, source="", line=1, flank=FLANK))
    scorer = scorer_of(session, DNA.variants(), "masked")
    some = [variants[at : at + BATCH] for at in range(0, len(variants), BATCH)]
    return np.array([[one[name] for name in WHOLE] for part in some for one in scorer.effects(part)])


def repeated(text: str, place: Place) -> bool:
    """Whether the deleted or inserted bases occur again next to the change."""
    start, end, new = place
    unit = new or text[start:end]
    return unit in (text[end : end + len(unit)], text[start - len(unit) : start])


def measured(data: Path, out: Path, seed: int, minutes: float) -> dict[str, Any]:
    """The AUROC of each column, and its correlation with the gained bases among the random changes."""
    k12 = genome(data / "dna" / "genomes" / "ecoli_k12_GCF_000005845.2.fna.gz")
    sakai = genome(data / "dna" / "genomes" / "ecoli_o157_sakai_GCF_000008865.2.fna.gz")
    train = out / "k12.fa"
    train.write_text(f">k12\n{k12[: len(k12) * 4 // 5]}\n")
    os.environ["SEQMLM_HOME"] = str(out / "workspace")
    name = f"k12-{minutes:g}-{seed}"
    flags = {"seed": seed, "data": {"paths": [str(train)]}, "train": {"max_time": f"{minutes}m"}}
    pretrain(TrainRequest(domain="dna", name=name, flags=flags, resume="auto"), SilentConsole())
    session = Session.open(name, expert="none")
    real = [*between(k12, sakai)]
    other = random_like(real, k12, np.random.default_rng(seed))
    gained = np.array([len(new) - (end - start) for start, end, new in real])
    found = np.concatenate([effects(session, k12, real), effects(session, k12, other)])
    truth, several = np.repeat([1, 0], len(real)), np.tile(np.abs(gained) > 1, 2)
    row: dict[str, Any] = {"seed": seed, "real": len(real), "longer than one": int(several.sum() // 2)}
    rule = np.array([repeated(k12, one) for one in (*real, *other)])
    for column, values in zip((*WHOLE, "repeat"), (*found.T, rule), strict=True):
        row[column] = {
            "auroc": roc_auc_score(truth, values),
            "auroc, longer than one": roc_auc_score(truth[several], values[several]),
            "pearson with bases gained": float(np.corrcoef(gained, values[len(real) :])[0, 1]),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/indels"))
    parser.add_argument("--quick", action="store_true", help="two minutes, one model")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    seeds, minutes = (1, 2.0) if options.quick else (3, 10.0)
    rows = []
    for seed in range(seeds):
        kept = out / f"{minutes:g}min-seed{seed}.json"
        if not kept.exists():
            kept.write_text(json.dumps(measured(options.data, out, seed, minutes)))
        rows.append(json.loads(kept.read_text()))
        print(json.dumps(rows[-1], indent=2))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Compare predictions of protein mutants by models of a family with frequencies of single columns.

The data are the RRM domain of PAB1 and the 3,658 aligned rows of its family, PF00076. Melamed et al. (2013)
measured 40,852 mutants with one or two changes. The row that is most similar to PAB1 gives the column of each
residue. The benchmark uses mutants whose positions all have a column. It compares the site-independent
prediction, BLOSUM62 and

    linear   `seqmlm train --size linear` on the rows, with gaps: the difference of energies, and the sum of
             log-ratios of single positions (the convention `masked`)

Values are Spearman's correlation with the measured fitness. The gain is the linear model minus the
site-independent prediction, with a bootstrap over positions (for two changes, the first position).

    python benchmarks/variants_real.py --data ../shared/data            # some minutes
    python benchmarks/variants_real.py --data ../shared/data --quick    # fewer iterations

The model is kept under --out. An interrupted benchmark therefore continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.tokenizer import STANDARD
from seqmlm.domains.protein.variants import _columns_of
from seqmlm.domains.variants import Edit, Variant
from seqmlm.engine.linear import LinearRows
from seqmlm.evaluation.intervals import bootstrap_weights, percentile_interval
from seqmlm.inference import model_folder
from seqmlm.tokenizers.base import encode_symbols
from seqmlm.training.launch import TrainRequest
from seqmlm.training.observers import SilentConsole
from seqmlm.training.pretrain import pretrain
from seqmlm.workspace import Workspace

Doubles = NDArray[np.float64]
FAMILY, FLOOR, DRAWS = "PF00076", "site-independent", 500


def measured(data: Path) -> tuple[str, list[tuple[list[tuple[int, str]], float]]]:
    """The wild type, and the changes (place, residue) and score of each mutant."""
    with gzip.open(data / "protein" / "dms" / "pab1_Melamed2013.tsv.gz", "rt") as file:
        rows = [
            (row["variant"].split(","), float(row["score"])) for row in csv.DictReader(file, delimiter="\t")
        ]
    letters = {int(one[1:-1]): one[0] for names, _ in rows for one in names}
    first, last = min(letters), max(letters)
    wildtype = "".join(letters.get(place, "X") for place in range(first, last + 1))
    found = [([(int(one[1:-1]) - first, one[-1]) for one in names], score) for names, score in rows]
    return wildtype, [one for one in found if all(new in STANDARD for _, new in one[0])]


def linear(rows: Path, out: Path, iterations: int) -> model_folder.LoadedModel:
    os.environ["SEQMLM_HOME"] = str(out / "workspace")
    run = f"{FAMILY}-linear-{iterations}"
    where = Workspace.locate().run_dir(run)
    if not (where / "result.json").exists():
        flags: dict[str, Any] = {
            "data": {"paths": [str(rows)], "options": {"gaps": "keep"}},
            "model": {"size": "linear"},
            "train": {"max_steps": iterations},
        }
        pretrain(TrainRequest(domain="protein", name=run, flags=flags, resume="auto"), SilentConsole())
    return model_folder.load(where / "model")


def effects(
    model: model_folder.LoadedModel,
    columns: dict[int, int],
    wildtype: str,
    mutants: list[list[tuple[int, str]]],
) -> dict[str, Doubles]:
    """log p of each mutant minus that of the wild type, and the sum of log-ratios of single places."""
    assert isinstance(model.rows, LinearRows)
    potts = model.rows.model
    fields = potts.fields.detach().double().numpy()
    couplings = potts.full_couplings().detach().double().numpy()
    ids = [encode_symbols(model.tokenizer, letter).ids[1] for letter in STANDARD]
    symbols = {symbol: number for number, symbol in enumerate(potts.config.symbols)}
    states = {letter: symbols[int(id)] for letter, id in zip(STANDARD, ids, strict=True)}
    own = {column: states[wildtype[place]] for place, column in columns.items()}
    alone = fields.copy()  # (L, A) the field that each place has of all others of the wild type
    for column, state in own.items():
        alone += couplings[:, :, column, state]
    energy, masked = np.zeros(len(mutants)), np.zeros(len(mutants))
    for number, changes in enumerate(mutants):
        there = [(columns[place], own[columns[place]], states[new]) for place, new in changes]
        masked[number] = sum(alone[c, new] - alone[c, old] for c, old, new in there)
        energy[number] = masked[number]
        for k, (c, old, new) in enumerate(there):
            for d, before, after in there[:k]:
                block = couplings[c, :, d]
                energy[number] += (
                    block[new, after] - block[new, before] - block[old, after] + block[old, before]
                )
    return {"linear, energy": energy, "linear, masked": masked}


def spearman(one: Doubles, another: Doubles, weights: Doubles | None = None) -> float:
    ranks = rankdata(one), rankdata(another)
    if weights is None:
        return float(np.corrcoef(*ranks)[0, 1])
    covariance = np.cov(*ranks, aweights=weights)
    return float(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/variants_real"))
    parser.add_argument("--quick", action="store_true", help="40 iterations")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows = out / f"{FAMILY}.fasta"
    packed = options.data / "protein" / "contacts_pfam40" / "aln" / f"{FAMILY}.fasta.gz"
    rows.write_bytes(gzip.decompress(packed.read_bytes()))
    wildtype, all_mutants = measured(options.data)
    aligned = [line for line in rows.read_text().splitlines() if not line.startswith(">")]
    columns = _columns_of(aligned, wildtype, str(rows))
    mapped = [one for one in all_mutants if all(place in columns for place, _ in one[0])]
    scores = np.array([score for _, score in mapped])
    print(f"{len(all_mutants):,} mutants, {len(mapped):,} of them at the {len(columns)} places of a column")
    predicted = effects(
        linear(rows, out, 40 if options.quick else 300), columns, wildtype, [changes for changes, _ in mapped]
    )
    variants = [
        Variant(
            name="",
            wildtype=wildtype,
            edits=tuple(Edit(place, place + 1, new) for place, new in sorted(changes)),
            source="",
            line=0,
        )
        for changes, _ in mapped
    ]
    for name, predict in PROTEIN.variants().rivals([wildtype], str(rows)).items():
        predicted[name] = np.array([predict(one) for one in variants], dtype=float)
    weights = bootstrap_weights(np.array([changes[0][0] for changes, _ in mapped]), DRAWS, 0)
    told = []
    for name, values in predicted.items():
        row: dict[str, Any] = {"prediction": name, "spearman": spearman(values, scores), "n": len(mapped)}
        if name.startswith("linear"):
            rival = predicted[FLOOR]
            drawn = np.array(
                [
                    spearman(values, scores, own) - spearman(rival, scores, own)
                    for own in map(weights, range(DRAWS))
                ]
            )
            gain = percentile_interval(row["spearman"] - spearman(rival, scores), drawn)
            row |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
        told.append(row)
        more = (
            f"  {row['gain']:+.4f} [{row['gain_low']:.4f}, {row['gain_high']:.4f}]" if "gain" in row else ""
        )
        print(f"{name:<20} {row['spearman']:.4f}{more}")
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

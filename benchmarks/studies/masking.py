"""Compare masks in training by the structure that the models learn, at an equal number of steps.

    text    UUAS of the maps (`cmi`) of a `tiny` model, compared with linked neighbours. The sentences are
            from the test part of EWT, have at most ten words and are not in the training data (every third).
    rna     F1 of the stems, and AUPRC, of the maps (`dependency`) of a `tiny` model. It is trained on
            unaligned tRNA and 5S rRNA, and tested on sequences from other clusters.

The arms mask 15, 30 or 50 % of units, about 30 % in spans, or 16 to 18 % in pairs of units. The distance in
a pair is drawn anew for each sequence. For text, one more arm masks 30 % of tokens, not of words. All other
settings are defaults, and the default masks 30 % of units. Differences to the default are paired by sentence
or cluster. Bootstrap intervals do not include the differences between seeds, which are larger. `theory.py`
measures the conditional mutual information of a Potts chain for some masks.

    PYTHONPATH=benchmarks python benchmarks/studies/masking.py \\
        --data ../shared/data [--part text] [--json FILE] [--quick]

Models, maps and results are kept under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import structure_dna
import structure_text
from anomaly_models import trained
from structure_maps import mapped

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.domains.text.conllu import read_conllu
from seqmlm.engine.masking.base import Outcome, RateMasker, number_units
from seqmlm.engine.types import Bools, Encoding
from seqmlm.evaluation.intervals import bootstrap_intervals, ratio
from seqmlm.structure.trees import chain

Row = dict[str, Any]

DEFAULT = "30 %"
ARMS: dict[str, Row] = {
    DEFAULT: {"rate": 0.3},
    "15 %": {"rate": 0.15},
    "50 %": {"rate": 0.5},
    "spans": {"masker": "span", "rate": 0.3},
    "pairs": {"masker": "pairs", "rate": 0.3},
}
TOKENS_ALONE = {"masker": "uniform", "rate": 0.3}
THIRD = 3  # every third sentence: the maps of all take twenty minutes of processor time an arm


class Pairs(RateMasker):
    """Select pairs of units at a distance that is drawn once per sequence; at least one pair.

    A unit far from the ends can be the first or the second unit of a pair. Other units can be one of them, or
    are in no pair. `rate` is the share of selected units far from the ends. About half of that share of all
    units is selected.
    """

    name: ClassVar[str] = "pairs.v1"
    outcome: ClassVar[Outcome] = "unit"

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) positions to predict."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        numbers, count = number_units(encoding.groups[eligible])
        if count:
            apart = 1 + int(rng.random() * (count - 1)) if count > 1 else 0
            firsts = rng.random(count - apart) < 1 - np.sqrt(1 - self.rate)
            if not firsts.any():
                firsts[int(rng.random() * len(firsts))] = True
            units = np.zeros(count, dtype=np.bool_)
            units[: count - apart] |= firsts
            units[apart:] |= firsts
            selected[eligible] = units[numbers]
        return selected


plugins.entries("maskers")["pairs.v1"] = EntryPoint("pairs.v1", "masking:Pairs", "seqmlm.maskers")


def text(data: Path, out: Path, seeds: int, *, quick: bool) -> Iterator[Row]:
    """Edges found in each sentence."""
    learnt, tests, _ = structure_text.english(data, out)
    known = {line.strip() for line in learnt[0].read_text(encoding="utf-8").splitlines()}
    known |= {str(record.raw) for record in read_conllu(learnt[1], Problems())}
    short = [one for one in structure_text.sentences(tests) if str(one.record.raw) not in known]
    short = short[:30] if quick else short[::THIRD]
    file = out / f"short{'-quick' if quick else ''}.conllu"
    structure_text.write_treebank(tests, file, {one.record.id for one in short})
    for seed in range(seeds):
        for arm, masks in {**ARMS, "tokens": TOKENS_ALONE}.items():
            flags = {**structure_text.FLAGS, "masking": masks}
            minutes = 0.1 if quick else 3
            name = f"english-{arm.replace(' %', '')}"
            model = trained(out, name, "text", list(learnt), flags, seed, minutes)
            to = out / f"{name}-{minutes:g}min-seed{seed}-cmi{'-quick' if quick else ''}"
            asked: Row = {"method": "cmi", "k": structure_text.SYMBOLS, "truth": file}
            mapped(to, model=str(model.path), paths=(str(file),), **asked)
            maps = structure_text.read_maps(to / "graphs")
            bank = [*structure_text.sentences([file], units=maps.units)]
            for one, tree in zip(bank, structure_text.found_in(bank, maps), strict=True):
                near = len(one.gold & chain(len(one.tags)))
                told = {"hits": len(one.gold & tree), "near": near, "sizes": len(one.gold)}
                yield {"seed": seed, "arm": arm, "id": one.record.id, **told}


def rna(data: Path, out: Path, seeds: int, *, quick: bool) -> Iterator[Row]:
    """Pairs found in each sequence."""
    os.environ["SEQMLM_HOME"] = str(out / "workspace")
    asked = structure_dna.Asked(data, out, seeds, quick)
    families = structure_dna.FAMILIES
    divided = {
        name: structure_dna.divided(structure_dna.family(asked, name), *families[name][1:])
        for name in families
    }
    texts = {one.id: one.letters for own in divided.values() for one in own.training}
    train = {"max_steps": 60 if quick else 6000, "tokens_per_batch": structure_dna.TOKENS, "augment": False}
    for seed in range(seeds):
        for arm, masks in ARMS.items():
            name = f"rna-{arm.replace(' %', '')}-{train['max_steps']}-{seed}"
            flags: Row = {"model": {"size": "tiny"}, "train": train, "seed": seed, "masking": masks}
            model = structure_dna.made(asked, name, texts, flags)
            for family, own in divided.items():
                some = own.test[: 3 if quick else None]
                kept = out / f"{name}-{family.replace(' ', '-')}"
                method = structure_dna.of_maps(asked, model, structure_dna.METHOD, some, kept)
                yield from structure_dna.figures(some, method, {"family": family, "arm": arm, "seed": seed})


def show_text(rows: list[Row]) -> None:
    sizes, near, found = ({}, {}, {})  # type: ignore[var-annotated]
    for row in rows:
        sizes[row["id"]], near[row["id"]] = row["sizes"], row["near"]
        found.setdefault(row["arm"], {}).setdefault(row["id"], []).append(row["hits"])
    every, own = (
        np.array([*sizes.values()]),
        {arm: np.array([np.mean(x) for x in one.values()]) for arm, one in found.items()},
    )
    own = {"neighbours": np.array([*near.values()], dtype=float), **own}
    print(f"\ntext: UUAS, less {DEFAULT}, less neighbours; {len(every)} sentences, {every.sum()} edges")
    for arm, hits in own.items():
        cells = (hits, hits - own[DEFAULT], hits - own["neighbours"])
        print(f"  {arm:<12}" + "   ".join(cell(ratio(one, every)) for one in cells))


def show_rna(rows: list[Row]) -> None:
    for family in structure_dna.FAMILIES:
        tables = {arm: structure_dna.table_of(rows, family, arm) for arm in ARMS}
        clusters = tables[DEFAULT][0]
        assert all(one == clusters for one, _ in tables.values())

        def told(weights: Any, tables: Any = tables) -> Mapping[str, float]:
            found = {}
            for arm, (_, table) in tables.items():
                f1, _, auprc, _ = structure_dna.scores(table, weights)
                found |= {f"{arm} F1": float(f1), f"{arm} AUPRC": float(auprc)}
            return found | {
                f"{name} less": found[name] - found[f"{DEFAULT} {name.split()[-1]}"] for name in found
            }

        own = bootstrap_intervals(told, clusters, draws=1000)
        print(f"\n{family}: F1, less {DEFAULT}, AUPRC, less {DEFAULT}; {len(clusters)} clusters")
        for arm in ARMS:
            names = (f"{arm} F1", f"{arm} F1 less", f"{arm} AUPRC", f"{arm} AUPRC less")
            print(f"  {arm:<12}" + "   ".join(cell(own[name]) for name in names))


def cell(one: Any) -> str:
    return f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]"


PARTS = {"text": (text, show_text), "rna": (rna, show_rna)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--part", choices=[*PARTS], action="append", help="default: both")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/masking"))
    parser.add_argument("--seeds", type=int, default=1, help="models of each arm")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="a few steps and sequences, no result")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    told = {}
    for part in options.part or PARTS:
        measure, show = PARTS[part]
        told[part] = [*measure(options.data, out, options.seeds, quick=options.quick)]
        show(told[part])
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

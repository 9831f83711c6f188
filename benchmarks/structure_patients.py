"""Measure whether the network of held-out patients links drugs with their conditions in Synthea.

    python benchmarks/structure_patients.py --data ../shared/data              # 2 minutes a model, 3 seeds
    python benchmarks/structure_patients.py --data ../shared/data --quick      # one seed, few patients

The pairs are a condition and a drug that 11 or more of the mapped patients both have. A pair is true if a
prescription names the condition as its reason. The models are those of `alarms.py`, trained on other
patients.
The baselines need no model:

- pointwise mutual information of having both;
- the number of mapped patients with both on one day;
- the number of visits of training patients with both, and its share of the visits with the condition or drug.

Intervals are bootstraps over pairs. All records of a code are hidden at once (`structure --together`).
Attention maps use the mean over the records. Results are kept for each seed and method under --out. An
interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import patients
from anomaly_models import trained
from attention_maps import Attention
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score
from structure_maps import mapped
from zeroshot_real import histories, visits

from seqmlm.evaluation.intervals import bootstrap_weights, percentile_interval
from seqmlm.structure.estimators import KINDS

Doubles = NDArray[np.float64]
METHODS = ("cpmi", "attention", "cmi")
"""The last method is for few patients: for all, it takes an hour a seed."""
SYMBOLS = 8
"""The number of symbols for each place in `cmi`."""
FEW = 60  # patients of --quick
DRAWS = 1000


def network(data: Path, out: Path, seed: int, minutes: float, method: str, *, quick: bool) -> list[Any]:
    """The links of the held-out patients' network, as the table has them."""
    model = trained(out, "ehr", "ehr", [patients(data, out)[0]], {}, seed, minutes)
    folder = held(data, out, quick=quick)
    to = out / f"network-{folder.name}-{minutes:g}min-seed{seed}-{method}"
    mapped(to, model=str(model.path), paths=(str(folder),), method=method, k=SYMBOLS, on_error="skip")
    with (to / "graphs" / "network.tsv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def held(data: Path, out: Path, *, quick: bool) -> Path:
    """The tables of held-out patients, or of only the first of them."""
    every, folder = patients(data, out)[1], out / "synthea-few"
    if not quick:
        return every
    folder.mkdir(exist_ok=True)
    with (every / "patients.csv").open(newline="") as file:
        kept = {row[0] for row, _ in zip(csv.reader(file), range(FEW + 1), strict=False)}
    for table in every.glob("*.csv"):
        with table.open(newline="") as file, (folder / table.name).open("w", newline="") as sink:
            head, *rows = csv.reader(file)
            csv.writer(sink).writerows([head, *(row for row in rows if kept & set(row))])
    return folder


def reasons(data: Path) -> set[tuple[str, str]]:
    """Condition and drug of every prescription with a reason."""
    with gzip.open(data / "ehr" / "synthea_ibm" / "medications.csv.gz", "rt", newline="") as file:
        rows = csv.DictReader(file)
        # The table has reasons as "10509002.0".
        return {(row["REASONCODE"].removesuffix(".0"), row["CODE"]) for row in rows if row["REASONCODE"]}


def together(folder: Path) -> dict[str, dict[tuple[str, str], float]]:
    """Visits with a condition and a drug: their number, and their share of visits with each of the two."""
    conditions, drugs, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for raw in histories(folder):
        for given, taken in visits(raw).values():
            conditions.update({bare(name) for name in given})
            drugs.update({bare(name) for name in taken})
            both.update(product({bare(name) for name in given}, {bare(name) for name in taken}))
    return {
        "training visits with both": {pair: float(count) for pair, count in both.items()},
        "of training visits with the condition": {p: count / conditions[p[0]] for p, count in both.items()},
        "of training visits with the drug": {p: count / drugs[p[1]] for p, count in both.items()},
    }


def one_day(folder: Path) -> Counter[tuple[str, str]]:
    """How many patients have a condition and a drug recorded on one day."""
    found = Counter[tuple[str, str]]()
    for raw in histories(folder):
        days: dict[int, tuple[set[str], set[str]]] = {}
        for one in raw.events:
            for place, kind in enumerate(("CONDITION//", "DRUG//")):
                if one.time is not None and one.code.startswith(kind):
                    days.setdefault(int(one.time // 86_400), (set(), set()))[place].add(bare(one.code))
        found.update({pair for given, taken in days.values() for pair in product(given, taken)})
    return found


def bare(code: str) -> str:
    """A code without its vocabulary."""
    return code.rpartition("//")[2]


def judged(links: Sequence[Mapping[str, str]], true: set[tuple[str, str]]) -> tuple[list[Any], Doubles]:
    """Links of a condition and a drug by name, and whether they are true.

    A network lists the strongest links first. The order by name is the same for all methods.
    """
    found = []
    for one in links:
        names = sorted((one["first"], one["second"]))
        if names[0].startswith("CONDITION//") and names[1].startswith("DRUG//"):
            found.append({**one, "pair": (bare(names[0]), bare(names[1]))})
    found.sort(key=lambda one: one["pair"])
    return found, np.array([one["pair"] in true for one in found], dtype=np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmarks/results/structure_patients"),
        help="where results are kept",
    )
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="training of one model")
    parser.add_argument("--quick", action="store_true", help="one seed, few patients")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    KINDS["attention"] = Attention
    true, rows = reasons(given.data), []
    likely = together(patients(given.data, out)[0])
    for seed in range(1 if given.quick else given.seeds):
        scores: dict[str, Doubles] = {}
        for method in METHODS if given.quick else METHODS[:-1]:
            links, labels = judged(
                network(given.data, out, seed, given.minutes, method, quick=given.quick), true
            )
            scores[method] = np.array([float(one["value"]) for one in links])
        daily = one_day(held(given.data, out, quick=given.quick))
        scores["mutual information of patients"] = np.array([abs(float(one["pmi"])) for one in links])
        scores["both on one day"] = np.array([float(daily[one["pair"]]) for one in links])
        for name, known in likely.items():
            scores[name] = np.array([known.get(one["pair"], 0.0) for one in links])
        rows += told(seed, labels, scores)
    for row in rows:
        print(json.dumps(row))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


def told(seed: int, labels: Doubles, scores: Mapping[str, Doubles]) -> list[dict[str, Any]]:
    """The AUPRC and AUROC of each method, and its gain in AUPRC over the best baseline."""
    rivals = {name: own for name, own in scores.items() if name not in METHODS}
    best = max(rivals, key=lambda name: average_precision_score(labels, rivals[name]))
    weights = bootstrap_weights(np.arange(len(labels)), DRAWS, 0)
    drawn = [weights(draw) for draw in range(DRAWS)]
    drawn = [one for one in drawn if 0 < (one * labels).sum() < one.sum()]
    found = []
    for name, own in scores.items():
        value = average_precision_score(labels, own)
        samples = np.array([average_precision_score(labels, own, sample_weight=one) for one in drawn])
        apart = samples - [average_precision_score(labels, rivals[best], sample_weight=one) for one in drawn]
        one, gain = (
            percentile_interval(value, samples),
            percentile_interval(value - average_precision_score(labels, rivals[best]), apart),
        )
        row = {"seed": seed, "asked": name, "pairs": len(labels), "true": int(labels.sum())}
        row |= {"auroc": roc_auc_score(labels, own), "auprc": value, "low": one.low, "high": one.high}
        found.append(
            {**row, "against": best, "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
        )
    return found


if __name__ == "__main__":
    main()

"""Compare maps of dependence with known structure, on real data. Each field has a part.

    pfam   contacts of 30 protein families from their alignments by the linear masked model (`--size linear`).
           The baselines are mutual information and inverse covariance of the same rows. For one family, an
           independent implementation of pseudolikelihood is compared too. Means of these maps are also
           measured: every second family selects which maps are combined, and the other families are judged.
           One masked model of all families (`tiny`, --minutes of training, none by default) gives maps
           (`jacobian`) that are means over 4 sequences of a family. The first of them has the structure

    python benchmarks/structure_real.py --data ../shared/data --part pfam           # 25 minutes on one thread
    python benchmarks/structure_real.py --data ../shared/data --part pfam --quick   # three small families
    python benchmarks/structure_real.py --data ../shared/data --part pfam --minutes 25       # an hour more

Maps are kept for each family and arm under --out. An interrupted benchmark continues at the point of
interruption.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anomaly_models import trained as trained_model
from inverse_covariance import inverse_covariance
from numpy.typing import NDArray
from structure_maps import edges, mapped

from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_fasta
from seqmlm.domains.protein.tokenizer import SPACE, TOKENS, ResidueTokenizer
from seqmlm.engine.linear import LinearRows, Penalty, coupling_norms, zero_sum
from seqmlm.engine.pseudolikelihood import AlignedSequences, LinearLoop, prepare
from seqmlm.engine.schedule import LoopConfig
from seqmlm.engine.types import InMemory
from seqmlm.evaluation.intervals import bootstrap_weights, percentile_interval
from seqmlm.structure.maps import apc

Row = dict[str, Any]
Doubles = NDArray[np.float64]

# Part (a): contacts of protein families

ROWS = 2000
"""The number of rows of an alignment, spread evenly over it. More rows cost more and change little."""
ITERATIONS = 40
"""Iterations of L-BFGS: the ranking of pairs converges long before the parameters do."""
CONTACT = 8.0
"""Angstrom between C-beta atoms."""
SEPARATIONS = (6, 24)
DRAWS = 2000
COMPARED = "PF00018"
"""The family for which an independent implementation is compared too."""
LINEAR = "linear masked model"
MASKED = "masked model of all families"
MASK_RATE = 0.3
SEQUENCES = 4
"""The number of sequences of a family in the mean map of the masked model."""


class Contacts:
    """The known distances between the columns of an alignment in one structure.

    Args:
        known: columns that have a residue there. Pairs farther apart than 12 A are not in `distances`.
        distances: between C-beta atoms, in A, by pair of columns.
    """

    def __init__(self, known: list[int], distances: Mapping[tuple[int, int], float]) -> None:
        self.known, self.distances = known, distances

    def precision(self, values: Doubles) -> Row:
        """Share of contacts among the L, and L / 5, best pairs at least so far apart; L columns are known."""
        found: Row = {}
        for separation in SEPARATIONS:
            pairs = [pair for pair in combinations(self.known, 2) if pair[1] - pair[0] >= separation]
            pairs.sort(key=lambda pair: -values[pair])
            hits = np.array([self.distances.get(pair, np.inf) < CONTACT for pair in pairs])
            for name, most in (("L", len(self.known)), ("L/5", max(1, len(self.known) // 5))):
                found[f"P@{name} >={separation}"] = float(hits[:most].mean())
            found[f"base rate >={separation}"] = float(hits.mean())
        return found


def residues(row: str) -> list[int]:
    """Columns in which a row of an alignment has a residue."""
    return [column for column, letter in enumerate(row) if letter not in "-."]


def rows_of(path: Path, most: int) -> list[str]:
    """Rows of an alignment with their gaps, spread evenly over it."""
    records = list(read_fasta(path, Problems(), gaps="keep"))
    chosen = np.unique(np.linspace(0, len(records) - 1, min(most, len(records))).astype(int))
    return [str(records[number].raw) for number in chosen]


class Family:
    """An alignment as a linear model sees it."""

    def __init__(self, path: Path, gap: str = "-") -> None:
        self.path = path
        rows = [re.sub("[-.]", gap, row) for row in rows_of(path, ROWS)]
        encodings = ResidueTokenizer().encode_batch(rows)
        self.rows: LinearRows
        self.data: AlignedSequences
        self.rows, self.data = prepare(InMemory(encodings), SPACE, Penalty())
        shape = self.rows.model.config
        self.columns, self.states, self.sequences = shape.columns, len(shape.symbols), shape.sequences
        self.number = len(encodings)

    def one_hot(self) -> Doubles:
        """(N, L, A), zeros where there is a gap."""
        hot = torch.nn.functional.one_hot(self.data.states, self.states + 1)[..., : self.states]
        return np.asarray(hot.double().numpy())


def trained(family: Family, penalty: Penalty, iterations: int) -> Doubles:
    """(L, L) the corrected map of couplings."""
    with tempfile.TemporaryDirectory() as folder:
        loop = LinearLoop(
            family.rows, family.data, penalty, LoopConfig(max_steps=iterations), directory=Path(folder)
        )
        loop.run()
    return corrected(coupling_norms(family.rows.model))


def corrected(values: Doubles) -> Doubles:
    """The average product correction without the diagonal, which is 0."""
    values = values.copy()
    np.fill_diagonal(values, np.nan)
    return np.nan_to_num(apc(values))


def mutual_information(family: Family) -> Doubles:
    """(L, L) corrected, of weighted counts, with one pseudocount a pair of columns; a gap is a state."""
    states, weights = family.states + 1, family.data.weights.numpy()
    flat = np.eye(states)[family.data.states.numpy()].reshape(family.number, -1)
    joint = ((flat * weights[:, None]).T @ flat).reshape(family.columns, states, family.columns, -1)
    joint = joint.transpose(0, 2, 1, 3) + 1 / states**2
    joint /= joint.sum(axis=(2, 3), keepdims=True)
    own, other = joint.sum(axis=3, keepdims=True), joint.sum(axis=2, keepdims=True)
    return corrected((joint * np.log(joint / (own * other))).sum(axis=(2, 3)))


def pseudolikelihood(family: Family) -> Doubles:
    """(L, L) by the linear masked model, with its own settings."""
    return trained(family, Penalty(), ITERATIONS)


@lru_cache(maxsize=1)
def with_gap_state(path: Path) -> tuple[Doubles, Doubles]:
    """(L, L) maps with the gap as a state: of all couplings, and of those between residues."""
    family = Family(path, gap="X")
    trained(family, Penalty(), ITERATIONS)
    couplings = zero_sum(family.rows.model)
    residue = [symbol != TOKENS.index("X") for symbol in family.rows.model.config.symbols]
    squares = couplings**2
    within = squares[:, residue][:, :, :, residue]
    everything, residues_alone = (corrected(np.sqrt(one.sum(axis=(1, 3)))) for one in (squares, within))
    return everything, residues_alone


STATES = ("a gap is a state", "a gap is a state, couplings of residues")


def _of_states(part: int, family: Family) -> Doubles:
    return with_gap_state(family.path)[part]


ARMS: Mapping[str, Callable[[Family], Doubles]] = {
    "mutual information": mutual_information,
    "inverse covariance": lambda family: inverse_covariance(family.data.states.numpy(), family.states),
    LINEAR: pseudolikelihood,
    **{name: partial(_of_states, part) for part, name in enumerate(STATES)},
}


def masked_model(out: Path, alignments: Mapping[str, Path], minutes: float) -> str:
    """The folder of one masked model of the rows of all these families, without their gaps."""
    name = "all-families" if len(alignments) > 3 else "three-families"
    path = out / f"{name}.fasta"
    if not path.exists():
        rows = (
            (f"{name}-{n}", row)
            for name, own in alignments.items()
            for n, row in enumerate(rows_of(own, ROWS))
        )
        letters = ((name, re.sub(r"[-.]", "", row).upper()) for name, row in rows)
        path.write_text("".join(f">{name}\n{own}\n" for name, own in letters if own))
    flags = {"masking": {"rate": MASK_RATE}, "model": {"size": "tiny", "layers": "everywhere"}}
    return str(trained_model(out, name, "protein", [path], flags, 0, minutes).path)


def by_masked_model(out: Path, model: str, name: str, first: str, rows: list[str]) -> Doubles:
    """(L, L) the mean map over a family's sequences, corrected; residues are those of the first one."""
    folder = out / f"masked-{name}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.fasta"
    path.write_text("".join(f">{n}\n{row}\n" for n, row in enumerate([first, *rows])))
    asked = {"method": "jacobian", "family": True, "sequences": SEQUENCES, "min_separation": 1}
    mapped(folder / "maps", model=model, paths=(str(path),), **asked)
    known = residues(first)
    values = np.zeros((len(first), len(first)))
    for row in edges(folder / "maps"):
        i, j = known[row["i"]], known[row["j"]]
        values[i, j] = values[j, i] = row["value"]
    return values


def independent(family: Family, penalty: Penalty) -> Doubles:
    """(L, L) the same map with only numpy and scipy, from parameters of 0."""
    from scipy.optimize import minimize

    hot, weights = family.one_hot(), family.data.weights.numpy()
    length, states = family.columns, family.states
    flat, known = hot.reshape(len(hot), -1), hot.sum(axis=2) * weights[:, None]
    upper = np.triu_indices(length, 1)
    couplings = penalty.coupling_weight(family.rows.model.config)

    def cost(values: Doubles) -> tuple[float, Doubles]:
        field = values[: length * states].reshape(length, states)
        pairs = values[length * states :].reshape(-1, states, states)
        full = np.zeros((length, length, states, states))
        full[upper], full[upper[::-1]] = pairs, pairs.transpose(0, 2, 1)
        matrix = full.transpose(0, 2, 1, 3).reshape(length * states, -1)
        logits = field + (flat @ matrix).reshape(hot.shape)
        logits -= logits.max(axis=2, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
        nll = -(log_p * hot * known[:, :, None]).sum()
        error = (np.exp(log_p) - hot) * known[:, :, None]
        slope = (flat.T @ error.reshape(len(hot), -1)).reshape(length, states, length, states)
        slope = slope.transpose(0, 2, 1, 3)
        of_pairs = slope[upper] + slope[upper[::-1]].transpose(0, 2, 1) + 2 * couplings * pairs
        of_field = error.sum(axis=0) + 2 * penalty.fields * field
        total = nll + penalty.fields * (field**2).sum() + couplings * (pairs**2).sum()
        return float(total), np.concatenate([of_field.ravel(), of_pairs.ravel()])

    size = length * states + len(upper[0]) * states**2
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-5}
    found = minimize(cost, np.zeros(size), jac=True, method="L-BFGS-B", options=options).x
    pairs = found[length * states :].reshape(-1, states, states)
    pairs = pairs - pairs.mean(axis=1, keepdims=True)
    pairs -= pairs.mean(axis=2, keepdims=True)
    norms = np.zeros((length, length))
    norms[upper] = np.sqrt((pairs**2).sum(axis=(1, 2)))
    return corrected(norms + norms.T)


def agreement(family: Family) -> Row:
    """The difference between the maps of both implementations with the same penalty."""
    penalty = Penalty()
    ours, theirs = trained(family, penalty, 3000), independent(family, penalty)
    upper = np.triu_indices(family.columns, 1)
    return {
        "correlation": float(np.corrcoef(ours[upper], theirs[upper])[0, 1]),
        "largest difference": float(np.abs(ours - theirs).max()),
        "largest value": float(theirs.max()),
    }


def pfam(given: argparse.Namespace) -> Iterator[Row]:
    """The contacts of families, the cheapest families first."""
    out, folder = given.out.resolve(), given.data / "protein" / "contacts_pfam40"
    distances: dict[str, dict[tuple[int, int], float]] = {}
    with gzip.open(folder / "contacts_cb.tsv.gz", "rt") as handle:
        for row in csv.DictReader(handle, delimiter="\t"):
            pair = int(row["col_i"]), int(row["col_j"])
            distances.setdefault(row["pfam"], {})[pair] = float(row["cb_dist"])
    with gzip.open(folder / "domain_sequences.tsv.gz", "rt") as handle:
        resolved = {row["pfam"]: row["aligned_seq"] for row in csv.DictReader(handle, delimiter="\t")}
    files = {path.name.partition(".")[0]: path for path in (folder / "aln").glob("*.fasta.gz")}
    names = sorted(files, key=lambda name: files[name].stat().st_size)
    names = names[:3] if given.quick else names
    model = masked_model(out, {name: files[name] for name in names}, given.minutes) if given.minutes else None
    for name in names:
        family, maps = None, dict[str, Doubles]()
        contacts = Contacts(residues(resolved[name]), distances[name])
        for arm, map_of in ARMS.items():
            kept = out / f"pfam-{name}-{arm.replace(' ', '-')}.npz"
            if not kept.exists():
                family = family or Family(files[name])
                began = time.perf_counter()
                values = np.nan_to_num(map_of(family))
                facts = [family.number, family.sequences, time.perf_counter() - began]
                np.savez_compressed(kept, map=values, facts=facts)
            with np.load(kept) as own:
                maps[arm], (count, effective, seconds) = own["map"], own["facts"].tolist()
            row = {"family": name, "arm": arm, "L": len(contacts.known)}
            row |= {"rows": count, "effective": round(effective), "seconds": seconds}
            yield row | contacts.precision(maps[arm])
        if model is not None:
            rows = rows_of(files[name], SEQUENCES - 1)
            maps[MASKED] = by_masked_model(out, model, name, resolved[name], rows)
            yield {"family": name, "arm": MASKED, **contacts.precision(maps[MASKED])}
        for arms in chain.from_iterable(
            combinations([arm for arm in maps if arm not in STATES], most) for most in (2, 3)
        ):
            joined = np.mean([maps[arm] / maps[arm].std() for arm in arms], axis=0)
            yield {"family": name, "arm": " + ".join(arms), **contacts.precision(joined)}
    kept = out / f"pfam-{COMPARED}-agreement.json"
    if not kept.exists() and not given.quick:
        kept.write_text(json.dumps(agreement(Family(files[COMPARED]))))
    if kept.exists():
        yield {"family": COMPARED, "arm": "agreement", **json.loads(kept.read_text())}


def show_pfam(rows: list[Row]) -> None:
    """Print means over families, gains with intervals over families, and the choice on half of them.

    Each map is divided by its standard deviation before maps are combined.
    """
    columns = [f"P@{k} >={s}" for s in SEPARATIONS for k in ("L", "L/5")]
    found = {(row["family"], row["arm"]): row for row in rows}
    names = sorted({row["family"] for row in rows if row["arm"] == LINEAR})
    arms = list(dict.fromkeys(row["arm"] for row in rows if row["arm"] != "agreement"))
    table = {arm: np.array([[found[name, arm][one] for one in columns] for name in names]) for arm in arms}
    print(f"{len(names)} families" + " " * 45 + "".join(f"{one:>13}" for one in columns))
    for arm, values in table.items():
        print(f"{arm:<55}" + "".join(f"{one:13.3f}" for one in values.mean(axis=0)))
    base = [np.mean([found[name, LINEAR][f"base rate >={s}"] for name in names]) for s in SEPARATIONS]
    print("base rate: " + ", ".join(f"{one:.3f} (>={s})" for one, s in zip(base, SEPARATIONS, strict=True)))
    show_gain("all families", names, columns, table, LINEAR, "inverse covariance")
    if len(names) > 3:
        best = max(arms, key=lambda arm: float(table[arm][::2, 0].mean()))
        other = {arm: values[1::2] for arm, values in table.items()}
        told = ", ".join(f"{one} {x:.3f}" for one, x in zip(columns, other[best].mean(axis=0), strict=True))
        print(f"chosen on {len(names[::2])} families: {best}; on the other {len(names[1::2])}: {told}")
        for rival in (LINEAR, "inverse covariance"):
            show_gain("the others", names[1::2], columns, other, best, rival)
    for row in rows:
        if row["arm"] == "agreement":
            print(f"{row['family']}, independent implementation: {row}")


def show_gain(
    whom: str, names: list[str], columns: list[str], table: Mapping[str, Doubles], arm: str, rival: str
) -> None:
    """Mean differences of two arms, paired by family."""
    gains = table[arm] - table[rival]
    weights = bootstrap_weights(names, DRAWS, 0)
    drawn = np.stack([weights(draw) for draw in range(DRAWS)])
    for number, column in enumerate(columns):
        own = percentile_interval(float(gains[:, number].mean()), drawn @ gains[:, number] / len(names))
        print(f"{whom}: {arm} less {rival}, {column}: {own.value:.3f} [{own.low:.3f}, {own.high:.3f}]")


PARTS: Mapping[str, tuple[Callable[[argparse.Namespace], Iterator[Row]], Callable[[list[Row]], None]]] = {
    "pfam": (pfam, show_pfam),
}
"""The functions that measure and print each part, by its name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="default: all; repeatable")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/structure_real"), help="where results are kept"
    )
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="a few minutes")
    parser.add_argument("--minutes", type=float, default=0.0, help="training of the masked model")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    every: list[Row] = []
    for part in given.part or PARTS:
        measure, show = PARTS[part]
        rows = []
        for row in measure(given):
            print(json.dumps(row), flush=True)
            rows.append(row)
        show(rows)
        every += [{"part": part, **row} for row in rows]
    if given.json:
        given.json.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()

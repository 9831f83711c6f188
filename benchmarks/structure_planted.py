"""Measure whether maps of trained masked models recover the structure planted in the samples of six fields.

    python benchmarks/structure_planted.py [--out FOLDER] [--json FILE] [--quick] [--field dna --field ehr]

For each field, a `tiny` model is trained on one draw of its sample (`seqmlm train`). Records of another draw
are mapped (`seqmlm structure`). Both draws have the same planted truth but not the same records. The
baselines are the distance of a pair, the share of true pairs, and pointwise mutual information by counts
(`pmi`). It counts units within ten units of each other. For proteins, it also counts aligned columns
(`columns`).

Means are over records, with a bootstrap over records. For `family`, `linear` and `columns` they are over
families. `network` maps all patients that PMI counts. The measures of its field are those of links between
codes, over all patients.

`null` maps sequences with shuffled units and compares them with other shuffles of the same sequence. The
share of pairs with p of at most .05 and .01 must not be larger than these rates. Codes of a visit cannot be
moved separately, so their field has no `null`.

Models, maps and results are kept under --out for each field, seed and arm. An interrupted benchmark continues
at the point of interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import structure_maps
from numpy.typing import NDArray

from seqmlm.data.problems import Problems
from seqmlm.domains.protein.sample import LETTERS
from seqmlm.domains.protein.structure import connected_pairs
from seqmlm.domains.samples import read_truth
from seqmlm.domains.structure import Decoded
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import ratio
from seqmlm.inference.maps import MapInput
from seqmlm.inference.session import Session
from seqmlm.structure.maps import apc, null_sequences
from seqmlm.tasks.structure import Structure, StructureConfig

Row = dict[str, Any]
Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]

HELD_OUT = 100
"""The number added to a seed for the draw that is mapped."""
ALPHAS = (0.05, 0.01)
NULLS = 9
"""The number of shuffles that each shuffled sequence is compared with."""


class Field(NamedTuple):
    """The settings of the benchmark for a field.

    Attributes:
        data: the file of its sample for training.
        steps: steps of training.
        records: number of mapped records.
        counted: number of records that pmi counts.
        arms: the settings of `seqmlm structure` by arm.
        null: the same for the maps of shuffled sequences.
        learnt, held_out: records drawn for training and for maps; None for the default of `seqmlm sample`.
        few: number of records that cmi and cpmi map, if these are expensive.
        nulled: number of shuffled records.
        options: options of training.
    """

    data: str
    steps: int
    records: int
    counted: int
    arms: Mapping[str, Row]
    null: Row | None
    learnt: int | None = None
    held_out: int | None = None
    few: int | None = None
    nulled: int = 8
    options: tuple[str, ...] = ()


CMI: Row = {}
CPMI: Row = {"method": "cpmi"}
JACOBIAN: Row = {"method": "jacobian"}
FAMILY: Row = {"method": "jacobian", "family": True, "apc": False}
NEAR: Row = {"distance": 20}
TOPK: Row = {"estimator": "topk", "k": 2}
"""All symbols of code would take a hundred times as many passes."""
APART: Row = {"together": False}
"""Hide the records of a code separately."""
BOTH: Mapping[str, Row] = {"cmi": CMI, "cpmi": CPMI}
FIELDS = {
    "text": Field("text.txt", 400, 40, 3000, BOTH, CPMI, nulled=40),
    "protein": Field(
        "protein.fasta",
        1200,
        15,
        3000,
        {"jacobian": JACOBIAN, **BOTH, "family": FAMILY, "linear": {"method": "couplings"}},
        JACOBIAN,
        learnt=9000,
        few=6,
    ),
    "dna": Field(
        "dna.fasta",
        1500,
        10,
        300,
        {"jacobian": JACOBIAN, **BOTH},
        JACOBIAN,
        learnt=6000,
        few=4,
        options=("--set", "model.layers=mixed"),
    ),
    "dna-genes": Field(
        "rna.genes",
        2000,
        30,
        300,
        {"jacobian": JACOBIAN, **BOTH},
        JACOBIAN,
        learnt=6000,
        few=10,
        options=("--set", "train.augment=false"),
    ),
    "code": Field("code", 400, 4, 40, {"cmi": TOPK | NEAR, "cpmi": CPMI | NEAR}, CPMI | {"distance": 5}),
    "code-formulas": Field(
        "formulas.jsonl",
        1500,
        40,
        3000,
        {"cmi": TOPK | {"k": 4}, "cpmi": CPMI},
        CPMI,
        learnt=6000,
        nulled=40,
    ),
    "ehr": Field(
        "meds",
        2500,
        40,
        400,
        {**BOTH, "apart": APART, "network": CPMI},
        None,
        learnt=4000,
        held_out=400,
    ),
    "logs": Field("jobs.trace", 300, 60, 2000, BOTH, CMI, nulled=40),
}
INDIRECT = ("protein", "ehr", "logs")


# Samples and models


def run(out: Path, *words: object) -> None:
    """Run a command of seqmlm with its workspace in `out`."""
    subprocess.run(
        [sys.executable, "-m", "seqmlm", *map(str, words)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SEQMLM_HOME": str(out), "OMP_NUM_THREADS": "1"},
    )


def sample(out: Path, field: str, seed: int, records: int | None = None) -> Path:
    """A draw of a field's sample."""
    folder = out / "samples" / f"{field}-{seed}"
    if not (folder / "truth.json").exists():
        size = [] if records is None else ["--n", records]
        run(out, "sample", "--domain", field.partition("-")[0], "--out", folder, "--seed", seed, *size)
    return folder


def model(out: Path, name: str, seed: int, data: Path, *options: object) -> str:
    """A trained model, its folder."""
    field, folder = name.partition("-")[0], out / "runs" / f"{name}-{seed}" / "model"
    if not folder.exists():
        words = ["--name", f"{name}-{seed}", "--set", f"seed={seed}", "--resume", "auto"]
        run(out, "train", "--domain", field, data, *words, *options)
    return str(folder)


def rows_of(fasta: Path) -> Iterator[tuple[str, str]]:
    """(id, letters)"""
    for entry in fasta.read_text().split(">")[1:]:
        name, *letters = entry.split("\n")
        yield name.split()[0], "".join(letters)


def families(fasta: Path, out: Path, most: int | None = None) -> list[Path]:
    """The families of a sample of proteins, each in a file of its own."""
    found: dict[str, list[str]] = {}
    for name, letters in rows_of(fasta):
        found.setdefault(name.rpartition("-")[0], []).append(f">{name}\n{letters}\n")
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for family, entries in sorted(found.items()):
        paths.append(out / f"{family}.fasta")
        paths[-1].write_text("".join(entries[:most]))
    return paths


def some(field: str, drawn: Path, most: int) -> list[Path]:
    """Files with the first records of a draw; for code, the shortest modules; for patients, one shard."""
    data = drawn / FIELDS[field].data
    path = drawn / f"first-{most}" / data.name  # ids of records have the file's name
    path.parent.mkdir(exist_ok=True)
    if field == "code":
        return sorted(data.rglob("*.py"), key=lambda one: (one.stat().st_size, one))[:most]
    if field == "ehr":
        return [data if most >= 400 else data / "data" / "held_out"]
    if field == "protein":
        return families(data, path.parent, most // 3)
    if field.startswith("dna"):
        path.write_text("".join(f">{name}\n{letters}\n" for name, letters in islice(rows_of(data), most)))
    elif field in ("text", "code-formulas"):
        path.write_text("".join(line + "\n" for line in data.read_text().splitlines()[:most]))
    else:
        jobs = read_truth(drawn, "seqmlm.sample.logs.v1", ("jobs",))["jobs"][:most]
        lines = data.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[at - 1] for at in sorted(at for job in jobs for at in job["lines"])))
    return [path]


# Maps


def auroc(labels: Bools, values: Doubles) -> float:
    """The area under the ROC curve; NaN if all pairs are of one kind."""
    return Detection(labels, values).curve().auroc if 0 < labels.sum() < len(labels) else float("nan")


def judged(separation: int, one: Decoded) -> Row | None:
    """The figures of the pairs of one record: all pairs, direct against indirect pairs, and the distance."""
    truth = one.truth
    if truth is None:
        return None
    first, second = one.dependence.finite_pairs(separation)
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    told = np.array([truth.covers is None or truth.covers(pair) for pair in pairs], dtype=np.bool_)
    labels = np.array([pair in truth.edges for pair in pairs], dtype=np.bool_)
    through = np.array([truth.kinds.get(pair) == "indirect" for pair in pairs], dtype=np.bool_)
    if not 0 < labels[told].sum() < told.sum():
        return None
    values = one.dependence.values[first, second]
    return figures(labels[told], through[told], values[told], (first - second)[told])


def figures(labels: Bools, through: Bools, values: Doubles, nearness: NDArray[np.int64]) -> Row:
    """The figures of P pairs.

    The arrays are (P,): whether pairs are true, whether they are indirect, their value, and minus their
    distance.
    """
    either = labels | through
    return {
        "auroc": auroc(labels, values),
        "auprc": Detection(labels, values).curve().average_precision,
        "distance": auroc(labels, nearness.astype(np.float64)),
        "base rate": float(labels.mean()),
        "direct against indirect": auroc(labels[either], values[either]),
    }


def mapped(
    reference: str, paths: Sequence[Path], drawn: Path, folder: Path, asked: Row
) -> tuple[Row, dict[str, Row]]:
    """The summary of `seqmlm structure`, and the figures of each record."""
    truth, given = drawn / "truth.json", tuple(map(str, paths))
    result = structure_maps.mapped(folder, model=reference, paths=given, truth=truth, **asked)
    config = StructureConfig(model=reference, paths=given, **asked)
    task = Structure(config, Session.open(reference, expert="none"))
    assert task.decoder is not None
    task.knows = task.decoder.truths(truth, Problems("skip"))
    found = task.decoded(structure_maps.edges(folder))
    every = ((one.record.id, judged(task.separation, one)) for one in found)
    told = {"measures": result.figures["measures"], "seconds": result.seconds}
    return told, {name: said for name, said in every if said is not None}


def shuffled(reference: str, paths: Sequence[Path], asked: Row, most: int) -> list[Row]:
    """The share of pairs of each shuffled record that are significant, by alpha."""
    config = StructureConfig(model=reference, paths=tuple(map(str, paths)), null=NULLS, seed=1, **asked)
    task, quiet, found = Structure(config, Session.open(reference, expert="none")), Problems("skip"), []
    for _, asked_of in islice(task.maps.encoded(task.records(quiet), quiet), most):
        null = next(null_sequences(asked_of.encodings[0], task.session.tokenizer.space, 1, seed=2))
        (made,) = task.maps.of([MapInput([null])])
        assert made.p is not None
        p = made.p[made.finite_pairs(task.separation)]
        found.append({f"p <= {alpha}": float((p <= alpha).mean()) for alpha in ALPHAS})
    return found


def columns(fasta: Sequence[Path], drawn: Path) -> dict[str, Row]:
    """Mutual information of aligned columns of each family, corrected as maps are: one record a family."""
    known = {
        one["name"]: one for one in read_truth(drawn, "seqmlm.sample.protein.v1", ("families",))["families"]
    }
    found = {}
    for path in fasta:
        rows = np.array([[LETTERS.index(one) for one in letters] for _, letters in rows_of(path)])
        hot = np.eye(len(LETTERS))[rows]
        joint = np.einsum("nia,njb->ijab", hot, hot) / len(hot) + 1 / len(LETTERS) ** 2 / len(hot)
        joint /= joint.sum(axis=(2, 3), keepdims=True)
        own, other = joint.sum(axis=3, keepdims=True), joint.sum(axis=2, keepdims=True)
        values = (joint * np.log(joint / own / other)).sum(axis=(2, 3))
        np.fill_diagonal(values, np.nan)
        name = path.stem
        first, second = np.triu_indices(len(values), 6)
        contacts = {tuple(pair) for pair in known[name]["contacts"]}
        joined = connected_pairs(contacts)
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        labels = np.array([pair in contacts for pair in pairs])
        through = np.array([pair in joined for pair in pairs])
        found[name] = figures(labels, through & ~labels, apc(values)[first, second], first - second)
    return found


# Results


def measured(out: Path, field: str, seed: int, arm: str) -> Row:
    """Measure one arm from the start."""
    own = FIELDS[field]
    drawn = sample(out, field, seed + HELD_OUT, own.held_out)
    learnt = sample(out, field, seed, own.learnt) / own.data
    paths = some(field, drawn, own.records)
    if arm == "columns":
        return {"records": columns(families(learnt, learnt.parent / "families"), drawn)}
    folder = out / "maps" / f"{field}-{seed}-{arm}"
    if arm == "linear":
        every: dict[str, Row] = {}
        for path in families(learnt, learnt.parent / "families"):
            reference = model(out, f"protein-{path.stem}", seed, path, "--size", "linear", "--max-steps", 60)
            one = next(held for held in some(field, drawn, 3) if held.stem == path.stem)
            every |= mapped(reference, [one], drawn, folder / path.stem, own.arms[arm])[1]
        return {"records": every}
    reference = model(out, field, seed, learnt, "--size", "tiny", "--max-steps", own.steps, *own.options)
    if arm == "null":
        assert own.null is not None
        return {"null": shuffled(reference, paths, own.null, own.nulled)}
    asked = own.arms.get(arm, {"method": "pmi"})
    if arm in BOTH and own.few is not None:
        paths = some(field, drawn, own.few)
    if arm == "family":
        paths = some(field, drawn, 60)
    if arm in ("pmi", "network"):
        paths = some(field, drawn, own.counted)
    summary, every = mapped(reference, paths, drawn, folder, asked)
    return {"records": every, "measures": summary["measures"], "seconds": summary["seconds"]}


def kept(out: Path, field: str, seed: int, arm: str) -> Row:
    """The results of one arm, which is measured only once."""
    path = out / f"{field}-{seed}-{arm}.json"
    if not path.exists():
        path.write_text(json.dumps(measured(out, field, seed, arm)))
    return {"field": field, "seed": seed, "arm": arm, **json.loads(path.read_text())}


def arms(field: str) -> list[str]:
    """All arms of a field."""
    own = FIELDS[field]
    rivals = ["pmi", *(["columns"] if field == "protein" else [])]
    return [*own.arms, *rivals, *(["null"] if own.null is not None else [])]


def interval(values: Sequence[float]) -> str:
    """Mean and bounds of a bootstrap over records."""
    known = [one for one in values if np.isfinite(one)]
    if not known:
        return f"{'':>18}"
    own = ratio(known)
    return f"{own.value:.3f} [{own.low:.3f}, {own.high:.3f}]"


def show(rows: Sequence[Row]) -> None:
    """Print a table of all arms, and the gain of cmi over pmi if the sample has indirect dependence."""
    by = {(one["field"], one["seed"], one["arm"]): one for one in rows}
    print(
        "field         seed arm      records  AUROC                 AUPRC  base   distance  against indirect"
    )
    for (field, seed, arm), row in by.items():
        if arm == "null":
            told = ", ".join(f"{name}: {interval([x[name] for x in row['null']])}" for name in row["null"][0])
            print(f"{field:13} {seed:4} null     {len(row['null']):7}  {told}")
            continue
        own_names = by[field, seed, "cmi"]["records"]  # pmi is counted in more
        own = [one for name, one in row["records"].items() if arm != "pmi" or name in own_names]
        means = [float(np.mean([one[name] for one in own])) for name in ("auprc", "base rate", "distance")]
        figures = f"{means[0]:.3f}  {means[1]:.3f}  {means[2]:8.3f}"
        direct = interval([one["direct against indirect"] for one in own])
        whole = interval([one["auroc"] for one in own])
        print(f"{field:13} {seed:4} {arm:8} {len(own):7}  {whole:20}  {figures}  {direct}")
        measures = {name: round(value, 3) for name, value in list(row.get("measures", {}).items())[:6]}
        print(f"{'':14}{json.dumps(measures)}" if measures else "", end="\n" if measures else "")
    for field, seed in {(one["field"], one["seed"]) for one in rows if one["field"] in INDIRECT}:
        ours, theirs = (by[field, seed, arm]["records"] for arm in ("cmi", "pmi"))
        both = [name for name in ours if name in theirs]
        gains = [ours[x]["direct against indirect"] - theirs[x]["direct against indirect"] for x in both]
        print(f"{field:13} {seed:4} direct against indirect, cmi less pmi: {interval(gains)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/structure_planted"), help="where all is kept"
    )
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="one seed, not three")
    parser.add_argument("--field", choices=list(FIELDS), action="append", help="default: all; repeatable")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["SEQMLM_HOME"] = str(out)
    rows = []
    for seed in range(1 if given.quick else 3):
        for field in given.field or FIELDS:
            for arm in arms(field):
                print(f"{field} {seed} {arm}", file=sys.stderr, flush=True)
                rows.append(kept(out, field, seed, arm))
    show(rows)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
